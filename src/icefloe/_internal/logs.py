"""What icefloe says while it works, through Python's `logging` under the name `icefloe`.

Nothing is set up by default: warnings reach the handlers of the application, or stderr if it has none. A
filter, given here or in the environment variable ICECHUNK_LOG, makes icefloe print for itself.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from icefloe._internal import telemetry
from icefloe._internal.printable import printable, printable_lines
from icefloe._internal.redaction import redact

if TYPE_CHECKING:
    import logging

__all__ = ["initialize_logs", "set_logs_filter", "shutdown_telemetry"]

PACKAGE = "icefloe"
OFFICIAL = "icechunk"
TRACE = 5
_LEVELS = {"off": 60, "error": 40, "warn": 30, "warning": 30, "info": 20, "debug": 10, "trace": TRACE}
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_SHORTEST_MISSPELLING = 6

_handler: logging.Handler | None = None


def initialize_logs() -> None:
    """Print logs as the environment variable ICECHUNK_LOG says; nothing happens without it.

    Called by `import icefloe`. ICECHUNK_NO_LOGS, with any value, keeps it from doing anything, and
    ICECHUNK_LOG_TO_STDOUT makes logs go to stdout instead of stderr. ICECHUNK_OTLP_ENDPOINT makes spans go to
    a collector of OpenTelemetry.
    """
    if "ICECHUNK_NO_LOGS" in os.environ:
        return
    if "ICECHUNK_LOG" in os.environ:
        _apply(os.environ["ICECHUNK_LOG"], to_stdout="ICECHUNK_LOG_TO_STDOUT" in os.environ)
    telemetry.start_from_env(levels_of)


def set_logs_filter(log_filter_directive: str | None) -> None:
    """Print logs that pass a filter: `debug`, `icefloe.storage=trace,warn`, `off`; None: ICECHUNK_LOG's.

    A filter is a list of levels, each for a module and all below it, or for everything where it names none.
    `icechunk` stands for `icefloe` in it. A name that is nearly ours gets a hint on stderr.
    """
    directive = (
        os.environ.get("ICECHUNK_LOG", "warn") if log_filter_directive is None else log_filter_directive
    )
    _apply(directive, to_stdout="ICECHUNK_LOG_TO_STDOUT" in os.environ)


def shutdown_telemetry() -> None:
    """Write out what was logged so far, send the spans that wait and export no more; may be called often."""
    telemetry.stop()
    if _handler is not None:
        _handler.flush()


def levels_of(directive: str) -> dict[str, int]:
    """The level of each logger that a filter names; errors alone where it says nothing of icefloe."""
    levels = {PACKAGE: _LEVELS["error"]}
    for part in filter(None, (part.strip() for part in directive.split(","))):
        target, _, level = part.rpartition("=")
        if not target and level.lower() in _LEVELS:
            levels[PACKAGE] = _LEVELS[level.lower()]
            continue
        name, wanted = (target, level.lower()) if target else (level, "trace")
        logger = _logger_name(name)
        if logger is not None and wanted in _LEVELS:
            levels[logger] = _LEVELS[wanted]
    return levels


def misspelled(directive: str) -> str | None:
    """The first name in a filter that is nearly ours but not quite."""
    for part in directive.split(","):
        name = part.strip().partition("=")[0].partition(":")[0].partition(".")[0]
        nearest = min(_distance(name, known) for known in (PACKAGE, OFFICIAL))
        if len(name) >= _SHORTEST_MISSPELLING and 0 < nearest <= 2:
            return name
    return None


def _apply(directive: str, *, to_stdout: bool) -> None:
    import logging  # takes longer to import than all the rest of `import icefloe`

    global _handler
    wrong = misspelled(directive)
    if wrong is not None:
        sys.stderr.write(f"WARNING {PACKAGE}: the log filter names {wrong!r}; did you mean {PACKAGE!r}?\n")
    logging.addLevelName(TRACE, "TRACE")
    root = logging.getLogger(PACKAGE)
    if _handler is not None:
        root.removeHandler(_handler)
    _handler = _stream_handler(to_stdout)
    root.addHandler(_handler)
    root.propagate = False  # it would be printed twice where the application prints logs too
    known = [name for name in logging.root.manager.loggerDict if name.startswith(f"{PACKAGE}.")]
    for name in known:
        logging.getLogger(name).setLevel(logging.NOTSET)
    for name, level in levels_of(directive).items():
        logging.getLogger(name).setLevel(level)


def _stream_handler(to_stdout: bool) -> logging.Handler:
    import logging

    class Console(logging.StreamHandler):  # type: ignore[type-arg]  # its stream is looked up each time
        """Writes to what is stdout or stderr at the moment, not to what it was at the start."""

        @property
        def stream(self):  # type: ignore[no-untyped-def]
            return sys.stdout if to_stdout else sys.stderr

        @stream.setter
        def stream(self, value):  # type: ignore[no-untyped-def]
            pass

    class SafeFormatter(logging.Formatter):
        """Formats without what a terminal obeys and without secrets; a message cannot forge another line."""

        def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is logging's
            return printable(super().formatMessage(record))

        def format(self, record: logging.LogRecord) -> str:
            return printable_lines(redact(super().format(record)))

    handler = Console()
    handler.setFormatter(SafeFormatter(_FORMAT))
    return handler


def _logger_name(target: str) -> str | None:
    """The logger behind a name in a filter; None where it is not one of ours."""
    first, *rest = target.replace("::", ".").split(".")
    return ".".join([PACKAGE, *rest]) if first in (PACKAGE, OFFICIAL) else None


def _distance(left: str, right: str) -> int:
    """How many letters must be changed, added or taken away to make one word of the other."""
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, start=1):
        previous, row[0] = row[0], i
        for j, b in enumerate(right, start=1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (a != b))
    return row[-1]
