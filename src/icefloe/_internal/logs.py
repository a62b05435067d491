"""Logging through the Python logger `icefloe`.

By default, icefloe adds no handler: warnings go to the application's handlers, or to stderr if there are
none. With a filter, set by `set_logs_filter` or the environment variable ICECHUNK_LOG, icefloe prints its own
logs.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from icefloe._internal import telemetry

if TYPE_CHECKING:
    import logging

__all__ = ["initialize_logs", "set_logs_filter", "shutdown_telemetry"]

PACKAGE = "icefloe"
OFFICIAL = "icechunk"
TRACE = 5
_LEVELS = {"off": 60, "error": 40, "warn": 30, "warning": 30, "info": 20, "debug": 10, "trace": TRACE}
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_SIMILARITY = 0.8

_handler: logging.Handler | None = None


def initialize_logs() -> None:
    """Initialize logging and telemetry from environment variables. Called by `import icefloe`.

    ICECHUNK_LOG is the filter for printed logs; without it nothing is printed. ICECHUNK_LOG_TO_STDOUT prints
    to stdout instead of stderr. ICECHUNK_OTLP_ENDPOINT exports spans to an OpenTelemetry collector.
    ICECHUNK_NO_LOGS disables all of this.
    """
    if "ICECHUNK_NO_LOGS" in os.environ:
        return
    if "ICECHUNK_LOG" in os.environ:
        _apply(os.environ["ICECHUNK_LOG"], to_stdout="ICECHUNK_LOG_TO_STDOUT" in os.environ)
    telemetry.start_from_env(parse_filter)


def set_logs_filter(log_filter_directive: str | None) -> None:
    """Print the log records that pass a filter.

    Parameters
    ----------
    log_filter_directive
        Comma-separated levels, each for a module and its submodules or for everything: `debug`,
        `icefloe.storage=trace,warn`, `off`. `icechunk` means `icefloe`. None uses the filter in ICECHUNK_LOG.
    """
    directive = (
        os.environ.get("ICECHUNK_LOG", "warn") if log_filter_directive is None else log_filter_directive
    )
    _apply(directive, to_stdout="ICECHUNK_LOG_TO_STDOUT" in os.environ)


def shutdown_telemetry() -> None:
    """Flush logs, send pending spans, and stop exporting spans."""
    telemetry.stop()
    if _handler is not None:
        _handler.flush()


def parse_filter(directive: str) -> dict[str, int]:
    """Parse a log filter to the level of each logger. The default level of icefloe is error."""
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


def find_misspelling(directive: str) -> str | None:
    """Return the first logger name in a log filter that looks like a misspelling of icefloe or icechunk."""
    import difflib  # slow to import

    for part in directive.split(","):
        name = part.strip().partition("=")[0].partition(":")[0].partition(".")[0]
        known = (PACKAGE, OFFICIAL)
        if name not in known and difflib.get_close_matches(name, known, cutoff=_SIMILARITY):
            return name
    return None


def _apply(directive: str, *, to_stdout: bool) -> None:
    import logging  # slower to import than the rest of the package

    global _handler
    wrong = find_misspelling(directive)
    if wrong is not None:
        sys.stderr.write(f"WARNING {PACKAGE}: the log filter names {wrong!r}; did you mean {PACKAGE!r}?\n")
    logging.addLevelName(TRACE, "TRACE")
    root = logging.getLogger(PACKAGE)
    if _handler is not None:
        root.removeHandler(_handler)
    _handler = _stream_handler(to_stdout)
    root.addHandler(_handler)
    root.propagate = False  # otherwise the application could print it again
    known = [name for name in logging.root.manager.loggerDict if name.startswith(f"{PACKAGE}.")]
    for name in known:
        logging.getLogger(name).setLevel(logging.NOTSET)
    for name, level in parse_filter(directive).items():
        logging.getLogger(name).setLevel(level)


def _stream_handler(to_stdout: bool) -> logging.Handler:
    import logging

    from icefloe._internal.printable import escape_control, escape_control_in_lines
    from icefloe._internal.redaction import redact  # re and urllib double the time of `import icefloe`

    class Console(logging.StreamHandler):  # type: ignore[type-arg]  # the stream is a property
        """A log handler that writes to the current sys.stdout or sys.stderr, even after they were
        replaced.
        """

        @property
        def stream(self):  # type: ignore[no-untyped-def]
            return sys.stdout if to_stdout else sys.stderr

        @stream.setter
        def stream(self, value):  # type: ignore[no-untyped-def]
            pass

    class SafeFormatter(logging.Formatter):
        """A log formatter that escapes control characters and line breaks, and redacts secrets."""

        def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is logging's
            return escape_control(super().formatMessage(record))

        def format(self, record: logging.LogRecord) -> str:
            return escape_control_in_lines(redact(super().format(record)))

    handler = Console()
    handler.setFormatter(SafeFormatter(_FORMAT))
    return handler


def _logger_name(target: str) -> str | None:
    """Return the logger name for a name in a filter; None if it is not one of our loggers."""
    first, *rest = target.replace("::", ".").split(".")
    return ".".join([PACKAGE, *rest]) if first in (PACKAGE, OFFICIAL) else None
