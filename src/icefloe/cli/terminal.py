"""The process: letters that a terminal does not have, readers that went away, signals that end it."""

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

from icefloe._internal.streams import safe_streams
from icefloe.cli.errors import FAILED, Signalled

CLOSED = 141
"""The exit code of whoever wrote into a pipe that nobody reads: that of other programs."""

_WITH_PROCESSES = {"multiprocessing", "pyspark"}
_ENDING = [signal.Signals[name] for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
_HANDLER = "icefloe-simpler"
_SIMPLER = str.maketrans(
    {"●": "*", "│": "|", "─": "-", "┴": "+", "┬": "+", "┼": "+", "╯": "/", "╮": "\\",
     "░": ".", "▒": ":", "▓": "%", "█": "#", "▀": "#", "▄": "#", "·": " ", "⠀": " "}
)  # fmt: skip


def simpler(text: str) -> str:
    """Drawings and letters in ASCII, as well as that goes."""
    plain = text.translate(_SIMPLER)
    return "".join(each if each.isascii() else "o" if "⠀" <= each <= "⣿" else "?" for each in plain)


def _simpler_error(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return simpler(error.object[error.start : error.end]), error.end


def end(code: int) -> NoReturn:
    """End the process, without taking the interpreter apart: that costs as much as opening a repository.

    What has processes of its own, such as Spark, ends as usual.
    """
    if _WITH_PROCESSES & sys.modules.keys():
        sys.exit(code)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(code)


def end_at_signals() -> None:
    """Have SIGTERM, and SIGHUP of a terminal that is gone, end the work as Ctrl-C does.

    Schedulers send them before they kill: what was begun is put in order. Who ignores them (nohup) goes on.
    """
    for number in _ENDING:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _signalled)


def _signalled(number: int, _: Any) -> None:
    for each in _ENDING:  # once is enough: what comes now is the clean-up
        signal.signal(each, signal.SIG_IGN)
    raise Signalled(number)


def run_with_streams(work: Callable[[], int]) -> int:
    """Run a command; letters that an encoding lacks are simplified, and a closed pipe is no error."""
    codecs.register_error(_HANDLER, _simpler_error)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started this
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for as long as we run
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=_HANDLER)
    try:
        with safe_streams():
            code = _run(work)
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):
        # click exits by itself for this reason alone. What is still in the buffer would be an error again at
        # the end of the interpreter.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED
    return code


def _run(work: Callable[[], int]) -> int:
    """Run a command; print the traceback of an error here, while the streams are safe."""
    try:
        return work()
    except BrokenPipeError:
        raise
    except Exception:  # noqa: BLE001 - nobody above prints it
        traceback.print_exc()
        return FAILED
