"""What tells the versions of a file apart, as a look at it finds it."""

from __future__ import annotations

from typing import NamedTuple


class Seen(NamedTuple):
    """A file as it was when somebody looked."""

    size_bytes: int
    """-1 where a web server does not tell."""
    modified_us: int = 0
    """0 where nobody tells. Of a file elsewhere to the second, since some tell no more."""
    etag: str = ""
    """What an object store or a web server calls this version of the file; nothing on this machine."""

    def is_same(self, other: Seen) -> bool:
        """Whether both are one version: by their etags, where both have one, else by their times."""
        if self.size_bytes != other.size_bytes:
            return False
        if self.etag and other.etag:
            return self.etag == other.etag
        return self.modified_us == other.modified_us


def plain_etag(given: str | None) -> str:
    """An etag without its quotes: listings of some stores have none."""
    return (given or "").strip().removeprefix("W/").strip('"')
