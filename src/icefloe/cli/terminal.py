"""Handle terminal encodings, closed pipes and signals."""

from __future__ import annotations

import atexit
import codecs
import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from icefloe._internal.streams import escape_streams
from icefloe.cli.errors import FAILED, Signalled

CLOSED = 141
"""The exit code after writing to a closed pipe, as for other programs."""

_WITH_PROCESSES = {"multiprocessing", "pyspark"}
_ENDING = [signal.Signals[name] for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
_HANDLER = "icefloe-ascii"
_ASCII = str.maketrans(
    {"●": "*", "│": "|", "─": "-", "┴": "+", "┬": "+", "┼": "+", "╯": "/", "╮": "\\",
     "░": ".", "▒": ":", "▓": "%", "█": "#", "▀": "#", "▄": "#", "·": " ", "⠀": " "}
)  # fmt: skip


def to_ascii(text: str) -> str:
    """Replace drawing characters with similar ASCII characters, and all other non-ASCII characters with
    `?`.
    """
    plain = text.translate(_ASCII)
    return "".join(each if each.isascii() else "o" if "⠀" <= each <= "⣿" else "?" for each in plain)


def _make_ascii_error(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return to_ascii(error.object[error.start : error.end]), error.end


def exit_now(code: int) -> NoReturn:
    """End the process without Python's clean-up, which takes as long as opening a repository.

    Processes that have child processes, for example for Spark, exit normally.
    """
    if _WITH_PROCESSES & sys.modules.keys():
        sys.exit(code)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the reader has closed the pipe
            stream.flush()
    os._exit(code)


def exit_on_signals() -> None:
    """Stop a command on SIGTERM, and on SIGHUP when the terminal closes, in the same way as on Ctrl-C.

    Schedulers send SIGTERM to let a process clean up before they kill it. Signals that are already ignored,
    for example by nohup, remain ignored.
    """
    for number in _ENDING:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _handle_signal)


def _handle_signal(number: int, _: Any) -> None:
    for each in _ENDING:  # do not interrupt the clean-up
        signal.signal(each, signal.SIG_IGN)
    raise Signalled(number)


def run_with_streams(work: Callable[[], int]) -> int:
    """Run a command with safe streams. Unsupported characters become ASCII, and a closed pipe is not an
    error.
    """
    codecs.register_error(_HANDLER, _make_ascii_error)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the parent process
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for as long as we run
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=_HANDLER)
    try:
        with escape_streams():
            code = _run(work)
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):
        # click raises SystemExit only for a closed pipe. The interpreter would fail again when it flushes the
        # rest of the buffer.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED
    return code


def _run(work: Callable[[], int]) -> int:
    """Run a command, and print the traceback of any error while control characters are still escaped."""
    try:
        return work()
    except BrokenPipeError:
        raise
    except Exception:  # noqa: BLE001 - printed here
        traceback.print_exc()
        return FAILED
