"""Standard streams that escape control characters, whichever library prints to them."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from icefloe._internal.printable import escape_control_in_lines
from icefloe._internal.redaction import redact

_OUR_CODES = re.compile(r"(\x1b\[[0-9;]*m|\r\x1b\[2K)")
"""Matches our own escape sequences, for colours and for removing a progress bar."""


class SafeStream:
    """A text stream that escapes control characters. Commands print only to such streams."""

    def __init__(self, stream: TextIO, *, is_error: bool) -> None:
        self._stream = stream
        self._is_error = is_error

    def write(self, text: str) -> int:
        """Write text to a stream with escaped control characters; on stderr, also redact secrets in URLs."""
        # click and others write bytes to test whether a stream is binary, and expect a TypeError.
        self._stream.write(escape_control_in_lines(redact(text) if self._is_error else text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several strings to a stream with escaped control characters."""
        for line in lines:
            self.write(line)

    @property
    def painted(self) -> ColouredStream:
        """A stream to the same output that does not escape icefloe's own colours."""
        return ColouredStream(self._stream)

    def __getattr__(self, name: str) -> Any:
        if name in ("buffer", "raw"):  # bytes written to it would not be escaped
            raise AttributeError(name)
        return getattr(self._stream, name)


class ColouredStream(SafeStream):
    """A stream that escapes control characters except our own colours and progress bars.

    Pass text from a repository through `printable` before adding colours to it.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream, is_error=False)

    def write(self, text: str) -> int:
        # docstring inherited
        parts = _OUR_CODES.split(text)  # text and escape sequences alternate
        parts[::2] = map(escape_control_in_lines, parts[::2])
        self._stream.write("".join(parts))
        return len(text)


def get_colour_stream(stream: Any) -> Any:
    """Return the standard stream that does not escape icefloe's own colours and progress bars."""
    return stream.painted if isinstance(stream, SafeStream) else ColouredStream(stream)


@contextlib.contextmanager
def escape_streams() -> Iterator[None]:
    """Escape control characters on stdout and stderr within the `with` block."""
    before = sys.stdout, sys.stderr
    make_streams_safe()
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def make_streams_safe() -> None:
    """Escape control characters on stdout and stderr for the rest of the process."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, SafeStream):
            setattr(sys, name, SafeStream(stream, is_error=name == "stderr"))
