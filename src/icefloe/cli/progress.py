"""How far something is: a bar on a terminal, lines elsewhere, with the rate and the time that is left."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from icefloe._internal.printable import printable, printable_lines
from icefloe._internal.streams import painted

_PATIENCE_S = 2.0
"""What takes less long is not told about."""
_FRAME_S = 0.2
_LINE_S = 10.0
_BAR = 24


class Meter:
    """Told about stages of a job, it tells people, on the error stream. To be closed at the end."""

    def __init__(self) -> None:
        self._bar = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._stage = ""
        self._done = 0
        self._began = self._told_at = time.monotonic()
        self._drawn = False

    def __call__(self, stage: str, done: int, total: int) -> None:
        """So much is done of a stage, of so much."""
        now = time.monotonic()
        if stage != self._stage or done < self._done:
            self.close()
            self._stage, self._began = stage, now
        self._done = done
        waited = now - self._told_at
        if now - self._began < _PATIENCE_S or waited < (_FRAME_S if self._bar else _LINE_S):
            return
        self._told_at = now
        text = sentence(stage, done, total, now - self._began)
        if self._bar:
            self._draw(text, done / total if total else 1.0)
        else:
            click.echo(printable(text), err=True)

    def say(self, text: str) -> None:
        """A sentence between two looks at the bar."""
        self.close()
        click.echo(printable_lines(text).replace("\n", "\n  "), err=True)

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Show on a terminal what is waited for, where nothing can be counted."""
        if self._bar:
            self._show(f"{text} ...")
        try:
            yield
        finally:
            self.close()

    def close(self) -> None:
        """Take the bar away."""
        if self._drawn:
            click.echo("\r\x1b[2K", nl=False, file=painted(sys.stderr))
            self._drawn = False

    def _draw(self, text: str, share: float) -> None:
        filled = round(share * _BAR)
        self._show(f"[{'#' * filled}{'.' * (_BAR - filled)}] {text}")

    def _show(self, line: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        click.echo(f"\r\x1b[2K{printable(line)[:width]}", nl=False, file=painted(sys.stderr))
        self._drawn = True


def sentence(stage: str, done: int, total: int, seconds: float) -> str:
    """How far a stage is after so many seconds."""
    text = f"{stage}: {done} of {total}"
    if not done or not seconds:
        return text
    rate = done / seconds
    left = f", {span((total - done) / rate)} left" if done < total else ""
    return f"{text}, {rate:.3g}/s{left}"


def span(seconds: float) -> str:
    """A time to wait, rounded."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


class _Relay(logging.Handler):
    """Passes each logged sentence on."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        # docstring inherited
        self._say(record.getMessage())


@contextmanager
def show_logs(name: str, say: Callable[[str], None]) -> Iterator[None]:
    """Pass what a logger reports at INFO to `say`, meanwhile."""
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
