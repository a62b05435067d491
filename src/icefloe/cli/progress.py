"""Progress output on stderr: a bar in a terminal, otherwise lines, with rate and remaining time."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from icefloe._internal.printable import escape_control, escape_control_in_lines
from icefloe._internal.streams import get_colour_stream

_PATIENCE_S = 2.0
"""The time in seconds after which progress is first reported for a stage."""
_FRAME_S = 0.2
_LINE_S = 10.0
_BAR = 24


class Meter:
    """A progress callback that prints to stderr. Close it at the end."""

    def __init__(self) -> None:
        self._bar = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._stage = ""
        self._done = 0
        self._began = self._reported_at = time.monotonic()
        self._drawn = False

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Report that `done` of `total` items in a stage have finished."""
        now = time.monotonic()
        if stage != self._stage or done < self._done:
            self.close()
            self._stage, self._began = stage, now
        self._done = done
        waited = now - self._reported_at
        if now - self._began < _PATIENCE_S or waited < (_FRAME_S if self._bar else _LINE_S):
            return
        self._reported_at = now
        text = format_progress(stage, done, total, now - self._began)
        if self._bar:
            self._draw(text, done / total if total else 1.0)
        else:
            click.echo(escape_control(text), err=True)

    def say(self, text: str) -> None:
        """Print a message above the progress bar."""
        self.close()
        click.echo(escape_control_in_lines(text).replace("\n", "\n  "), err=True)

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Show a message in the terminal during an operation that does not report progress."""
        if self._bar:
            self._show(f"{text} ...")
        try:
            yield
        finally:
            self.close()

    def close(self) -> None:
        """Remove the progress bar from the terminal."""
        if self._drawn:
            click.echo("\r\x1b[2K", nl=False, file=get_colour_stream(sys.stderr))
            self._drawn = False

    def _draw(self, text: str, share: float) -> None:
        filled = round(share * _BAR)
        self._show(f"[{'#' * filled}{'.' * (_BAR - filled)}] {text}")

    def _show(self, line: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        click.echo(f"\r\x1b[2K{escape_control(line)[:width]}", nl=False, file=get_colour_stream(sys.stderr))
        self._drawn = True


def format_progress(stage: str, done: int, total: int, seconds: float) -> str:
    """Format the progress of a stage with its rate and remaining time."""
    text = f"{stage}: {done} of {total}"
    if not done or not seconds:
        return text
    rate = done / seconds
    left = f", {format_duration((total - done) / rate)} left" if done < total else ""
    return f"{text}, {rate:.3g}/s{left}"


def format_duration(seconds: float) -> str:
    """Format a duration, rounded to one unit."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


class _Relay(logging.Handler):
    """A log handler that passes each message to a function."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        # docstring inherited
        self._say(record.getMessage())


@contextmanager
def show_logs(name: str, say: Callable[[str], None]) -> Iterator[None]:
    """Show log messages of level INFO and above over the progress bar, within the block."""
    logger, relay = logging.getLogger(name), _Relay(say)
    before = logger.level
    logger.addHandler(relay)
    if not logger.isEnabledFor(logging.INFO):
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(relay)
        logger.setLevel(before)
