"""Node paths: absolute, canonical, `/` for the root group (spec, "Node Paths").

Paths are plain strings. Only `validate` and `normalize` check them; all other functions expect valid paths.
The format uses two orders, which differ for `/a-b` and `/a/b`: snapshots sort nodes by the bytes of their
paths, transaction logs sort moves component by component.
"""

from __future__ import annotations

from typing import Final

from icefloe.errors import ErrorKind, InvalidInputError

ROOT: Final = "/"
LEDGERS: Final = "/_icefloe"
"""The group that contains the ingest ledger. Listings and exports of the root leave it out."""
DERIVED: Final = f"{LEDGERS}/derived"
"""The group that contains the records of derived arrays."""


def validate(path: str) -> str:
    """Return a node path unchanged if it is absolute and canonical; raise InvalidInputError otherwise."""
    if path == ROOT:
        return path
    if not path.startswith("/"):
        raise _make_invalid_path_error(path, "it must start with '/'")
    if path.endswith("/"):
        raise _make_invalid_path_error(path, "it must not end with '/'")
    for segment in path[1:].split("/"):
        _check_segment(segment, path)
    return path


def normalize(path: str) -> str:
    """Return the canonical form of an absolute node path.

    Empty segments, `.` segments and trailing slashes are dropped, as the official package does when it
    compares paths. That package stores some paths without normalizing them, so they occur in real snapshots.
    `..` is an error in both packages.
    """
    if not path.startswith("/"):
        raise _make_invalid_path_error(path, "it must start with '/'")
    return validate(ROOT + "/".join(segment for segment in path.split("/") if segment not in ("", ".")))


def join(parent: str, name: str) -> str:
    """Return the node path of a child of a group."""
    path = ROOT + name if parent == ROOT else f"{parent}/{name}"
    if "/" in name:
        raise _make_invalid_path_error(path, f"the name {name!r} contains '/'")
    _check_segment(name, path)
    return path


def get_parent(path: str) -> str | None:
    """Return the path of the group that contains a node; None for the root."""
    if path == ROOT:
        return None
    return path.rpartition("/")[0] or ROOT


def get_name(path: str) -> str:
    """Return the name of a node: the last segment of its path, empty for the root."""
    return path.rpartition("/")[2]


def list_ancestors(path: str) -> tuple[str, ...]:
    """Return the paths of all groups that contain a node, from the nearest to the root."""
    found: list[str] = []
    above = get_parent(path)
    while above is not None:
        found.append(above)
        above = get_parent(above)
    return tuple(found)


def is_within(path: str, group: str) -> bool:
    """Return True if a node path equals the path of a group or is below it."""
    return group == ROOT or path == group or path.startswith(group + "/")


def make_component_key(path: str) -> tuple[str, ...]:
    """Return a sort key that compares node paths component by component: `/a < /a/b < /a-b < /ab`."""
    # Strings sort like their UTF-8 bytes, so that the key needs no encoding.
    return () if path == ROOT else tuple(path[1:].split("/"))


def _check_segment(segment: str, path: str) -> None:
    if segment in ("", ".", ".."):
        raise _make_invalid_path_error(path, f"it is not canonical, segment {segment!r}")
    if not segment.isascii():
        try:
            segment.encode("utf-8")
        except UnicodeEncodeError:
            raise _make_invalid_path_error(path, "it cannot be encoded as UTF-8") from None


def _make_invalid_path_error(path: str, reason: str) -> InvalidInputError:
    return InvalidInputError(f"invalid node path {path!r}: {reason}", kind=ErrorKind.INVALID_PATH)
