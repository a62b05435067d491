"""Files outside the repository that virtual chunks are parts of: their bytes, and what tells versions apart.

A source serves one virtual chunk container. It hands out what it was asked for with the etag and the time of
last modification of the same answer; whoever asked compares them. So a file that changes between two requests
is noticed, whatever the server makes of conditional headers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Fetched:
    """A range of a file, shorter than asked for where the file ends, and what the file was at that moment."""

    data: bytes
    size_bytes: int | None
    """Of the whole file; None where the server does not tell."""
    e_tag: str | None
    last_modified: datetime | None


class ExternalSource(ABC):
    """Reads files of one virtual chunk container."""

    answers_at_once = False
    """Whether reads wait for no network."""

    @abstractmethod
    def fetch(self, key: str, start: int, stop: int) -> Fetched:
        """Bytes `start` to `stop` of the file with a key, which is the decoded path of its URL.

        Nothing where the file ends before `start`. ObjectNotFoundError where there is no such file.
        """
