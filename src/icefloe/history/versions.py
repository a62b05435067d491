"""Resolve versions: find the snapshot that a branch, tag, snapshot id or time selects."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Final

from icefloe._internal.printable import escape_control
from icefloe.errors import ErrorKind, Hint, InvalidInputError, RefNotFoundError

if TYPE_CHECKING:
    from icefloe.repository import Repository

DEFAULT_VERSION: Final = "branch:main"
"""The default version, unambiguous even if there is a tag called main."""
_BEFORE: Final = re.compile(r"(.+)~([0-9]{0,9})")
_SHORTEST_ID: Final = 4
_AGE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d|w)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


@dataclass(frozen=True, slots=True)
class ResolvedVersion:
    """The snapshot that a version (a branch, tag, snapshot id or time) currently selects."""

    snapshot_id: str
    is_fixed: bool
    """True for tags and complete snapshot ids. All other versions may select a different snapshot later."""


def resolve_version(repo: Repository, version: str) -> str:
    """Return the id of the snapshot that a version selects: a branch, a tag, a snapshot id or a time.

    Parameters
    ----------
    repo
        The repository.
    version
        A branch, a tag, a snapshot id or its first four or more characters, or `BRANCH@TIME`. A suffix `~N`
        selects the Nth commit before it. `branch:NAME`, `tag:NAME` and `snapshot:ID` are never ambiguous. A
        branch or tag with exactly this name takes precedence over every other interpretation.

    Returns
    -------
    str
        The id of the snapshot.

    Raises
    ------
    RefNotFoundError
        If no branch, tag or snapshot has this name, or several snapshot ids start with it.
    SnapshotNotFoundError
        If there is no snapshot with this id, or none at or before the time.
    InvalidInputError
        If the name is both a branch and a tag, or the time is invalid.
    """
    return find_version(repo, version).snapshot_id


def find_version(repo: Repository, version: str) -> ResolvedVersion:
    """Find the snapshot that a version selects, and determine if the version is fixed; see
    `resolve_version`.
    """
    branches, tags = repo.list_branches(), repo.list_tags()
    if version in branches and version in tags:
        raise InvalidInputError(
            f"{version} is both a branch and a tag; use branch:{version} or tag:{version}",
            kind=ErrorKind.INVALID_REF_NAME,
        )
    if version in branches:
        return ResolvedVersion(repo.lookup_branch(version), is_fixed=False)
    if version in tags:
        return ResolvedVersion(repo.lookup_tag(version), is_fixed=True)
    kind, colon, rest = version.partition(":")
    if colon and kind == "branch" and rest in branches:
        return ResolvedVersion(repo.lookup_branch(rest), is_fixed=False)
    if colon and kind == "tag" and rest in tags:
        return ResolvedVersion(repo.lookup_tag(rest), is_fixed=True)
    if colon and kind == "snapshot" and not _BEFORE.fullmatch(rest):
        return ResolvedVersion(repo.lookup_snapshot(rest).id, is_fixed=True)
    before = _BEFORE.fullmatch(version)
    if before is not None:
        return ResolvedVersion(_find_ancestor(repo, before[1], int(before[2] or 1)), is_fixed=False)
    name, at, time = version.rpartition("@")
    branch = name if name in branches else name.removeprefix("branch:")
    if at and branch in branches:
        found = repo.readonly_session(branch, as_of=parse_time(time)).snapshot_id
        return ResolvedVersion(found, is_fixed=False)
    if colon and kind == "branch":
        repo.lookup_branch(rest)  # raises an error
    if colon and kind == "tag":
        repo.lookup_tag(rest)  # raises an error
    return _find_snapshot(repo, version, [*branches, *tags])


def parse_time(text: str) -> datetime:
    """Parse a time such as 2024-05-01T12:00Z (UTC by default), or an age such as 7d, that selects a version.

    Parameters
    ----------
    text
        The time or age.

    Returns
    -------
    datetime

    Raises
    ------
    InvalidInputError
        If the text is neither a time nor an age.
    """
    age = parse_duration(text)
    try:
        if age is not None:
            return datetime.now(UTC) - age
        time = datetime.fromisoformat(text.strip())
        return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
    except (ValueError, OverflowError):  # OverflowError: before the year 1
        raise InvalidInputError(
            f"{text!r} is not a time: expected 2024-05-01, 2024-05-01T12:00Z, or an age such as 12h or 7d",
            kind=ErrorKind.INVALID_REF_NAME,
        ) from None


def parse_duration(text: str) -> timedelta | None:
    """Parse an age such as 12h or 7d. Return None for other text and for ages that are too long."""
    found = _AGE.fullmatch(text.strip())
    try:
        return None if found is None else timedelta(seconds=float(found[1]) * _SECONDS[found[2]])
    except OverflowError:
        return None


def _find_ancestor(repo: Repository, version: str, back: int) -> str:
    history = repo.ancestry(snapshot_id=resolve_version(repo, version))
    found = next(islice(history, back, None), None)
    if found is None:
        raise RefNotFoundError(
            f"{version} has fewer than {back} commits before it", kind=ErrorKind.REF_NOT_FOUND
        ).with_hint(Hint("{function} lists them", function="ancestry"))
    return found.id


def _find_snapshot(repo: Repository, text: str, names: Iterable[str]) -> ResolvedVersion:
    """Find a snapshot by its id, or by the abbreviated id that the graph shows."""
    try:
        return ResolvedVersion(repo.lookup_snapshot(text).id, is_fixed=True)
    except InvalidInputError:
        pass  # not a complete id
    start = text.upper()
    ids = [each.id for each in repo.ancestry_graph().commits] if len(start) >= _SHORTEST_ID else []
    found = [id for id in ids if id.startswith(start)]
    if len(found) == 1:
        return ResolvedVersion(found[0], is_fixed=False)
    if found:
        hint: Hint | None = Hint(f"{len(found)} snapshot ids start with it: {', '.join(found[:3])}")
    else:
        import difflib

        near = difflib.get_close_matches(text, names, n=1)
        hint = Hint(f"did you mean {escape_control(near[0])}?") if near else None
    error = RefNotFoundError(f"there is no branch, tag or snapshot {text}", kind=ErrorKind.REF_NOT_FOUND)
    raise error.with_hint(hint)
