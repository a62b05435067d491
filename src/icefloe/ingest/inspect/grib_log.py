"""What cfgrib logs of a file: variables that it leaves out. It would print them, with tracebacks."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LOGS = ("cfgrib.dataset", "cfgrib.messages")
_SKIPPED = re.compile(r"skipping variable: .*shortName='([^']*)'")
_heard = threading.local()


class _Ear(logging.Filter):
    """Keeps what is logged from being printed while its thread listens."""

    def filter(self, record: logging.LogRecord) -> bool:
        # docstring inherited
        heard: list[str] | None = getattr(_heard, "names", None)
        if heard is None:
            return True
        heard += _SKIPPED.findall(record.getMessage())
        return False


_ear = _Ear()


@contextmanager
def left_out() -> Iterator[list[str]]:
    """The names of variables that cfgrib leaves out meanwhile, in this thread; one list for all within."""
    for name in _LOGS:
        logging.getLogger(name).addFilter(_ear)  # the same filter is added but once
    before: list[str] | None = getattr(_heard, "names", None)
    _heard.names = names = list[str]() if before is None else before
    try:
        yield names
    finally:
        _heard.names = before
