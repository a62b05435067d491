"""Locations of virtual chunks: valid URLs, their stored form, and their containers.

A location is an absolute URL, or `vcc://NAME/PATH` for a path in the container of that name. Its key is the
percent-decoded path. Keys with a `.` or `..` segment, in any encoding, are rejected, because they could point
outside the authorized container.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import quote, unquote_to_bytes

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.printable import escape_control
from icefloe._internal.redaction import redact
from icefloe.config import VirtualChunkContainer
from icefloe.encoding.columns import BLOCK, I64, Blobs, view_windows
from icefloe.errors import ErrorKind, InvalidInputError

NAMED: Final = "vcc://"
"""The prefix of locations that are relative to a named container."""

_logger = logging.getLogger(__name__)
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):")
_FILE: Final = "file://"
_ORIGINS: Final = 8
"""The maximum number of servers whose locations are checked in bulk. Locations on any further server are
checked one by one.
"""
_SCAN_BYTES: Final = 1 << 22
_SLASH: Final = ord("/")
_PLAIN: Final = np.zeros(256, np.bool_)
_PLAIN[list(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~!$&'()*+,;=:@/")] = True
_KEPT_IN_FILE_PATHS: Final = "!$%&'()*+,-./:;=@[]^_|~"


@dataclass(frozen=True)
class Containers:
    """The virtual chunk containers of a repository, which resolve virtual chunk locations. Longer URL
    prefixes are matched first.
    """

    ordered: tuple[VirtualChunkContainer, ...] = ()
    named: Mapping[str, VirtualChunkContainer] = field(default_factory=dict)

    @staticmethod
    def of(containers: Iterable[VirtualChunkContainer]) -> Containers:
        """Create the virtual chunk containers from a configuration.

        Invalid containers are logged and ignored.
        """
        usable = [found for each in containers if (found := _validate_container(each)) is not None]
        usable.sort(key=lambda container: len(container.url_prefix), reverse=True)
        return Containers(tuple(usable), {each.name: each for each in usable if each.name})

    def find(self, location: str) -> VirtualChunkContainer | None:
        """Return the container of a virtual chunk location in stored form; None if there is none."""
        if location.startswith(NAMED):
            name, slash, _ = location.removeprefix(NAMED).partition("/")
            return self.named.get(name) if slash else None
        return next((each for each in self.ordered if location.startswith(each.url_prefix)), None)

    def absolute(self, location: str) -> str:
        """Return a virtual chunk location as an absolute URL; raise InvalidInputError if its named container
        does not exist.
        """
        if not location.startswith(NAMED):
            return location
        name, _, rest = location.removeprefix(NAMED).partition("/")
        container = self.find(location)
        if container is None:
            raise InvalidInputError(
                f"no virtual chunk container named {name!r} found for {location}, check the configuration",
                kind=ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK,
            )
        return container.url_prefix + rest

    def prefixes(self) -> list[str]:
        """Return the URL prefixes of the containers to which some virtual chunk locations belong."""
        return [each.url_prefix for each in self.ordered] + [f"{NAMED}{name}/" for name in self.named]


def _validate_container(container: VirtualChunkContainer) -> VirtualChunkContainer | None:
    prefix = container.url_prefix
    try:
        prefix = to_stored_form(prefix if prefix.endswith("/") else f"{prefix}/")
        container = replace(container, url_prefix=prefix)
        container.check()
    except (InvalidInputError, ValueError) as error:
        named, reason = (escape_control(redact(text)) for text in (prefix, str(error)))
        _logger.warning("virtual chunk container %s is ignored: %s", named, reason)
        return None
    return container


class BadLocationError(InvalidInputError):
    """Error raised for one invalid virtual chunk location among many. The caller adds the coordinates of the
    chunk.
    """

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason, kind=ErrorKind.INVALID_VIRTUAL_REF)
        self.row = row


def check_locations(
    locations: Blobs, containers: Containers, *, validate: bool
) -> tuple[Blobs, NDArray[np.bool_]]:
    """Convert virtual chunk locations to their stored form. Also return a mask of the locations outside all
    containers.

    Raises BadLocationError for the first location that is not a URL or, with `validate`, has a `.` or `..`
    segment. Locations in containers or on a few servers are checked in bulk, and only unusual locations are
    decoded.
    """
    locations = locations.compact()
    outside = np.ones(len(locations), np.bool_)
    unknown = np.ones(len(locations), np.bool_)
    last_odd = _find_last_unusual(locations)
    prefixes = containers.prefixes()
    for number in range(len(prefixes) + _ORIGINS):
        rest = np.flatnonzero(unknown)
        if not len(rest):
            break
        in_container = number < len(prefixes)
        prefix = prefixes[number] if in_container else _get_origin(locations[int(rest[0])])
        if prefix is None:
            break
        rows = rest[_mark_prefix(locations, rest, prefix.encode())]
        rows = rows[last_odd[rows] < len(prefix.encode()) - 1]
        unknown[rows] = False
        if in_container:
            outside[rows] = False
        elif not len(rows):
            break
    odd = np.flatnonzero(unknown).tolist()
    return (_check_one_by_one(locations, odd, containers, outside, validate) if odd else locations), outside


def _check_one_by_one(
    locations: Blobs, odd: Sequence[int], containers: Containers, outside: NDArray[np.bool_], validate: bool
) -> Blobs:
    """Check unusual locations one by one. Mark locations outside all containers in `outside`."""
    stored = locations.tolist()
    for row in odd:
        try:
            text = to_stored_form(stored[row].decode())
            container = containers.find(text)
            if validate and container is not None:
                decode_key(containers.absolute(text))
        except InvalidInputError as error:
            raise BadLocationError(row, error.message) from None
        outside[row] = container is None
        stored[row] = text.encode()
    return Blobs.from_list(stored)


def _find_last_unusual(locations: Blobs) -> I64:
    """Return the position of the last unusual byte, `//` or `/.` in each location; -1 if there is none."""
    last = np.full(len(locations), -1, np.int64)
    data = locations.buffer
    for start in range(0, len(data), _SCAN_BYTES):
        part = data[start : start + _SCAN_BYTES + 1]
        odd = ~_PLAIN[part]
        odd[:-1] |= (part[:-1] == _SLASH) & ((part[1:] == _SLASH) | (part[1:] == ord(".")))
        places = start + np.flatnonzero(odd)
        rows = locations.starts.searchsorted(places, "right") - 1
        last[rows] = places - locations.starts[rows]  # in ascending order, so that the last assignment wins
    return last


def _mark_prefix(locations: Blobs, rows: I64, prefix: bytes) -> NDArray[np.bool_]:
    """Return a mask of the locations that start with a prefix."""
    found = np.zeros(len(rows), np.bool_)
    wanted = np.frombuffer(prefix, np.uint8)
    for start in range(0, len(rows), BLOCK):
        part = rows[start : start + BLOCK]
        long = locations.lengths[part] >= len(prefix)
        heads = view_windows(locations.buffer, len(prefix))[locations.starts[part[long]]]
        same = (heads.view(np.uint8).reshape(-1, len(prefix)) == wanted).all(axis=1)
        found[start : start + BLOCK][long] = same
    return found


def _get_origin(location: bytes) -> str | None:
    """Return the scheme and server of a location, as a prefix to recognize other locations on that server;
    None if it is unusual.
    """
    found = re.match(rb"([a-z][a-z0-9+.\-]*)://([^/?#\\\s]*)/", location)
    if found is None or not location.isascii() or (not found[2] and found[1] != b"file"):
        return None
    return None if found[1] in (b"vcc", b"file") and found[2] else found[0].decode()


def to_stored_form(location: str) -> str:
    """Convert a virtual chunk location to its stored form, with a lower-case scheme and, for files, a
    normalized path.

    Raises InvalidInputError if the location is not an absolute URL.
    """
    if location.startswith(_FILE) or location[:5].lower() == "file:":
        return _normalize_file_url(location)
    scheme = _SCHEME.match(location)
    if scheme is None:
        raise _make_location_error(
            f"error parsing virtual ref URL: {location!r}: relative URL without a base"
        )
    rest = location[scheme.end() :]
    if not rest.startswith("//") or rest[2:3] in ("", "/", "?", "#", "\\"):
        raise _make_location_error(f"error parsing bucket name from virtual ref URL {location!r}")
    return f"{scheme[1].lower()}:{rest}"


def _normalize_file_url(location: str) -> str:
    """Normalize a file URL according to the URL standard, so that `..` is resolved before prefixes are
    compared.
    """
    rest = re.sub(r"[\t\n\r]", "", location.strip(" \0\t\n\r"))[5:]
    tail = re.search(r"[?#].*", rest, re.DOTALL)
    path = (rest if tail is None else rest[: tail.start()]).replace("\\", "/")
    host = ""
    if path.startswith("//"):
        host, slash, path = path[2:].partition("/")
        path = slash + path
    host = "" if host.lower() == "localhost" else host
    kept: list[str] = []
    segments = path.lstrip("/").split("/") if path[:2] != "//" else path[1:].split("/")
    for segment in segments:
        dots = segment.lower().replace("%2e", ".")
        if dots == "..":
            del kept[-1:]
        elif dots != ".":
            kept.append(segment)
    if segments[-1].lower().replace("%2e", ".") in (".", ".."):
        kept.append("")
    encoded = quote("/".join(kept), safe=_KEPT_IN_FILE_PATHS)
    return f"{_FILE}{host}/{encoded}{'' if tail is None else quote(tail[0], safe=_KEPT_IN_FILE_PATHS + '?#')}"


def decode_key(location: str) -> str:
    """Return the percent-decoded path of a virtual chunk location, without the leading slash; raise an error
    if it is ambiguous.

    Backslashes count as slashes, because some servers and all browsers treat them as such.
    """
    path = re.sub(r"^[^:]*://[^/?#]*/?", "", location, count=1)
    try:
        key = unquote_to_bytes(re.split(r"[?#]", path, maxsplit=1)[0]).decode()
    except UnicodeDecodeError:
        raise _make_location_error(f"{location!r}: the percent-decoded path is not UTF-8") from None
    segments = key.replace("\\", "/").split("/")
    if "." in segments or ".." in segments or "\0" in key:
        raise _make_location_error(
            f"{location!r} could lead out of its virtual chunk container: its path must not contain '.' or"
            " '..' segments, encoded or not, or null bytes"
        )
    return key


def _make_location_error(text: str) -> InvalidInputError:
    return InvalidInputError(text, kind=ErrorKind.INVALID_VIRTUAL_REF)
