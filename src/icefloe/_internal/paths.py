"""Node paths: absolute, canonical, `/` for the root group (spec, "Node Paths").

Paths are plain `str`. Every function but `validate` and `normalize` expects a valid path and does not look
again. Two orders are in use, and they differ (`/a-b` and `/a/b`): snapshots hold their nodes in the order of
the raw bytes, transaction logs their moves component by component.
"""

from __future__ import annotations

from typing import Final

from icefloe.errors import ErrorKind, InvalidInputError

ROOT: Final = "/"
LEDGERS: Final = "/_icefloe"
"""Where ingests keep what came from where; listings and exports of the root leave it out."""


def validate(path: str) -> str:
    """The same path, if it is absolute and canonical."""
    if path == ROOT:
        return path
    if not path.startswith("/"):
        raise _invalid(path, "it must start with '/'")
    if path.endswith("/"):
        raise _invalid(path, "it must not end with '/'")
    for segment in path[1:].split("/"):
        _check_segment(segment, path)
    return path


def normalize(path: str) -> str:
    """The canonical form of an absolute path as a user may spell it, or as older files hold it.

    Drops empty and `.` segments and trailing slashes, like the official package when it compares paths.
    It stores some of them unchanged, so such paths occur in real snapshots. `..` is an error in both.
    """
    if not path.startswith("/"):
        raise _invalid(path, "it must start with '/'")
    return validate(ROOT + "/".join(segment for segment in path.split("/") if segment not in ("", ".")))


def join(parent: str, name: str) -> str:
    """The path of the child `name` of the group at `parent`."""
    path = ROOT + name if parent == ROOT else f"{parent}/{name}"
    if "/" in name:
        raise _invalid(path, f"the name {name!r} contains '/'")
    _check_segment(name, path)
    return path


def parent(path: str) -> str | None:
    """The path of the enclosing group; None for the root."""
    if path == ROOT:
        return None
    return path.rpartition("/")[0] or ROOT


def name(path: str) -> str:
    """The last segment; empty for the root."""
    return path.rpartition("/")[2]


def ancestors(path: str) -> tuple[str, ...]:
    """All enclosing groups, the nearest first and the root last; empty for the root."""
    found: list[str] = []
    above = parent(path)
    while above is not None:
        found.append(above)
        above = parent(above)
    return tuple(found)


def is_within(path: str, group: str) -> bool:
    """Whether `path` is `group` itself or lies anywhere below it."""
    return group == ROOT or path == group or path.startswith(group + "/")


def component_key(path: str) -> tuple[str, ...]:
    """Sort key of the component-wise order: `/a < /a/b < /a-b < /ab`. Used by moves in transaction logs."""
    # Code points order like their UTF-8 bytes, so the key need not encode.
    return () if path == ROOT else tuple(path[1:].split("/"))


def _check_segment(segment: str, path: str) -> None:
    if segment in ("", ".", ".."):
        raise _invalid(path, f"it is not canonical, segment {segment!r}")
    if not segment.isascii():
        try:
            segment.encode("utf-8")
        except UnicodeEncodeError:
            raise _invalid(path, "it has no UTF-8 form") from None


def _invalid(path: str, reason: str) -> InvalidInputError:
    return InvalidInputError(f"invalid node path {path!r}: {reason}", kind=ErrorKind.INVALID_PATH)
