"""Standard streams through which nothing passes that a terminal obeys, whoever prints it."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from icefloe._internal.printable import printable_lines
from icefloe._internal.redaction import redact

_OUR_CODES = re.compile(r"(\x1b\[[0-9;]*m|\r\x1b\[2K)")
"""Colours, and what takes a progress bar away."""


class SafeStream:
    """A text stream that spells out everything a terminal could obey. Commands print through nothing else."""

    def __init__(self, stream: TextIO, *, is_error: bool) -> None:
        self._stream = stream
        self._is_error = is_error

    def write(self, text: str) -> int:
        """Write text without control characters; errors also without secrets in URLs."""
        # click and others test with bytes whether a stream is binary, and expect a TypeError.
        self._stream.write(printable_lines(redact(text) if self._is_error else text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    @property
    def painted(self) -> PaintedStream:
        """The same stream for text with our own colours."""
        return PaintedStream(self._stream)

    def __getattr__(self, name: str) -> Any:
        if name in ("buffer", "raw"):  # whoever writes bytes there would bypass this class
            raise AttributeError(name)
        return getattr(self._stream, name)


class PaintedStream(SafeStream):
    """A stream that lets colours and the erasing of a line pass, for text that we paint ourselves.

    Text from a repository must be made `printable` before it is painted.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream, is_error=False)

    def write(self, text: str) -> int:
        # docstring inherited
        parts = _OUR_CODES.split(text)  # texts, with a code after each but the last
        parts[::2] = map(printable_lines, parts[::2])
        self._stream.write("".join(parts))
        return len(text)


def painted(stream: Any) -> Any:
    """Return the stream to which painted text goes: colours and progress bars."""
    return stream.painted if isinstance(stream, SafeStream) else PaintedStream(stream)


@contextlib.contextmanager
def safe_streams() -> Iterator[None]:
    """Let nothing that a terminal obeys reach stdout and stderr, whoever prints it."""
    before = sys.stdout, sys.stderr
    make_streams_safe()
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def make_streams_safe() -> None:
    """Wrap stdout and stderr for the rest of the process."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, SafeStream):
            setattr(sys, name, SafeStream(stream, is_error=name == "stderr"))
