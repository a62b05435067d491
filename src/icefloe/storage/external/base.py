"""The interface of external sources, which read files that contain virtual chunks.

A source serves one virtual chunk container. It returns bytes together with the etag and the last-modified
time from the same response, and the caller compares them. A file that changes between two requests is
therefore detected, even if the server does not support conditional requests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Fetched:
    """A byte range read from an external file (shorter if the file ends), and the version of the file."""

    data: bytes
    size_bytes: int | None
    """The size of the whole file; None if the server does not report it."""
    e_tag: str | None
    last_modified: datetime | None


class ExternalSource(ABC):
    """A reader for the external files of one virtual chunk container."""

    answers_at_once = False
    """True if reads do not use a network."""
    endpoint = ""
    """The server that receives requests; None if it is the one in the URLs of the files."""

    @abstractmethod
    def fetch(self, key: str, start: int, stop: int) -> Fetched:
        """Read bytes `start` to `stop` of an external file, given its key, which is the decoded path of its
        URL.

        Returns no bytes if the file ends before `start`. Raises ObjectNotFoundError if the file does not
        exist.
        """
