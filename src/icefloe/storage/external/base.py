"""Files outside the repository that contain virtual chunks: their bytes and versions.

A source serves one virtual chunk container. It returns the bytes with the etag and the time of the last
modification of the same response, and the caller compares them. So a file that changes between two requests
is detected, whether or not the server supports conditional requests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Fetched:
    """A byte range of an external file, shorter if the file ends, and the version of the file."""

    data: bytes
    size_bytes: int | None
    """The size of the whole file; None if the server does not report it."""
    e_tag: str | None
    last_modified: datetime | None


class ExternalSource(ABC):
    """A reader for the external files of one virtual chunk container."""

    answers_at_once = False
    """True if reads do not wait for a network."""
    endpoint = ""
    """The server, if it is not the one that the URLs of files name."""

    @abstractmethod
    def fetch(self, key: str, start: int, stop: int) -> Fetched:
        """Read bytes `start` to `stop` of an external file, given its key: the decoded path of its URL.

        Returns no bytes if the file ends before `start`. Raises ObjectNotFoundError if the file does not
        exist.
        """
