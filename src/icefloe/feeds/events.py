"""Deliver the changes in a repository since a bookmark as events."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from icefloe._internal.report import Report
from icefloe.errors import ErrorKind, FormatError, InvalidInputError, NotFoundError
from icefloe.ops import Update, UpdateType
from icefloe.repository import Repository
from icefloe.snapshots import SnapshotInfo

__all__ = ["Event", "watch"]

_FORM: Final = 1
_TYPES: Final[Mapping[type, str]] = {
    UpdateType.RepoInitialized: "repository-created",
    UpdateType.RepoMigrated: "repository-migrated",
    UpdateType.RepoStatusChanged: "status-changed",
    UpdateType.ConfigChanged: "config-changed",
    UpdateType.MetadataChanged: "metadata-changed",
    UpdateType.TagCreated: "tag-created",
    UpdateType.TagDeleted: "tag-deleted",
    UpdateType.BranchCreated: "branch-created",
    UpdateType.BranchDeleted: "branch-deleted",
    UpdateType.BranchReset: "branch-reset",
    UpdateType.NewCommit: "commit",
    UpdateType.CommitAmended: "commit-amended",
    UpdateType.NewDetachedSnapshot: "detached-snapshot",
    UpdateType.GCRan: "gc",
    UpdateType.ExpirationRan: "expiration",
    UpdateType.FeatureFlagChanged: "feature-flag-changed",
}


@dataclass(frozen=True, slots=True)
class Event(Report):
    """An event in a repository, such as a commit or the creation of a tag."""

    id: str
    """The id of the event. It stays the same if the event is delivered again."""
    type: str
    """The kind of event: "commit", "tag-created", "branch-reset", "gc", ..."""
    time: str
    """The time of the event, in ISO 8601."""
    branch: str | None = None
    """The branch that was changed, if any."""
    tag: str | None = None
    """The tag that was created or deleted, if any."""
    snapshot_id: str | None = None
    """The snapshot that the branch or tag points to, or pointed to before it was deleted."""
    message: str | None = None
    """The message of the commit that the event refers to."""


def watch(
    repo: Repository,
    bookmark: str | os.PathLike[str],
    deliver: Callable[[Event], object],
    *,
    interval: float = 5.0,
    once: bool = False,
) -> None:
    """Watch a repository: deliver its events since a bookmark, at least once and in order.

    The bookmark advances after each delivered event. If there is no bookmark yet, only events from now on are
    delivered. Repositories in format version 1 have no operations log, so their events are derived by
    comparing commits, branches and tags.

    Parameters
    ----------
    repo
        The repository.
    bookmark
        Path of a file that stores the position of the last delivered event.
    deliver
        A function that receives each event. If it raises an exception, the event is delivered again next
        time.
    interval
        The number of seconds between two polls.
    once
        Deliver the events since the bookmark and return, instead of continuing to poll.

    Raises
    ------
    InvalidInputError
        If the bookmark cannot be read or written, or is older than the retained history, so that events would
        be missed.

    Examples
    --------
    >>> import icefloe, tempfile
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> file = tempfile.mktemp()
    >>> icefloe.feeds.watch(repo, file, print, once=True)
    >>> repo.create_tag("v1", snapshot_id=repo.lookup_branch("main"))
    >>> icefloe.feeds.watch(repo, file, lambda event: print(event.type, event.tag), once=True)
    tag-created v1
    """
    place = Path(bookmark)
    if not place.parent.is_dir():
        raise InvalidInputError(
            f"the folder of the bookmark {os.fspath(bookmark)} does not exist", kind=ErrorKind.BAD_METADATA
        )
    look = _Operations(repo) if _has_operations_log(repo) else _Refs(repo)
    state = _read(place)
    if state is None:
        state = look.now()
        _write(place, state)
    while True:
        for event, after in look.since(state):
            deliver(event)
            state = after
            _write(place, state)
        if once:
            return
        time.sleep(interval)


def _has_operations_log(repo: Repository) -> bool:
    try:
        repo.ops_log()
    except FormatError:
        return False
    return True


class _Operations:
    """An event source that reads the operations log."""

    def __init__(self, repo: Repository) -> None:
        self._repo = repo

    def now(self) -> dict[str, Any]:
        return {"after": _id(next(iter(self._repo.ops_log())))}

    def since(self, state: Mapping[str, Any]) -> Iterator[tuple[Event, dict[str, Any]]]:
        """Yield the events after a bookmark, oldest first, each with the updated bookmark."""
        after = state.get("after")
        if after is None:
            raise _make_lost_error("it was created for a repository with version 1 of the format")
        fresh: list[Update] = []
        for update in self._repo.ops_log():
            if _id(update) == after:
                break
            fresh.append(update)
        else:
            raise _make_lost_error("its operation is no longer in the operations log")
        while fresh:
            update = fresh.pop()
            yield self._event(update, fresh[::-1]), {"after": _id(update)}

    def _event(self, update: Update, later: Sequence[Update]) -> Event:
        kind = update.kind
        event = Event(
            _id(update), _TYPES.get(type(kind), type(kind).__name__), _format_time(update.updated_at)
        )
        name = getattr(kind, "name", None)
        if event.type.startswith("tag-"):
            event = replace(event, tag=name)
        else:
            event = replace(event, branch=getattr(kind, "branch", name))
        snapshot = getattr(kind, "new_snap_id", None) or self._find_target(event, later)
        if snapshot is None:
            snapshot = getattr(kind, "previous_snap_id", None)
        return replace(event, snapshot_id=snapshot, message=_get_message(self._repo, snapshot))

    def _find_target(self, event: Event, later: Sequence[Update]) -> str | None:
        """Return the snapshot that a ref pointed to after it was created or reset, or None if it is no longer
        known.

        The operations log does not record the target, but the next operation on the same ref does.
        """
        if event.type not in ("tag-created", "branch-created", "branch-reset"):
            return None
        for update in later:
            kind: Any = update.kind
            is_tag = isinstance(kind, UpdateType.TagDeleted)
            name = getattr(kind, "branch", getattr(kind, "name", None))
            if name != (event.tag if is_tag else event.branch):
                continue
            if isinstance(kind, UpdateType.NewCommit):
                info = _get_info(self._repo, kind.new_snap_id)
                return None if info is None else info.parent_id
            if (before := getattr(kind, "previous_snap_id", None)) is not None:
                return str(before)
        try:
            if event.tag is not None:
                return self._repo.lookup_tag(event.tag)
            return None if event.branch is None else self._repo.lookup_branch(event.branch)
        except NotFoundError:
            return None


class _Refs:
    """An event source that compares branches and tags, for repositories without an operations log."""

    def __init__(self, repo: Repository) -> None:
        self._repo = repo

    def now(self) -> dict[str, Any]:
        repo = self._repo
        branches = {name: repo.lookup_branch(name) for name in sorted(repo.list_branches())}
        return {
            "branches": branches,
            "tags": {name: repo.lookup_tag(name) for name in sorted(repo.list_tags())},
        }

    def since(self, state: Mapping[str, Any]) -> Iterator[tuple[Event, dict[str, Any]]]:
        """Yield the events for refs that changed since a bookmark, each with the updated bookmark."""
        try:
            reached = {"branches": dict(state["branches"]), "tags": dict(state["tags"])}
        except KeyError:
            raise _make_lost_error(
                "it was created for a repository with another version of the format"
            ) from None
        now = self.now()
        for name, tip in now["branches"].items():
            old = reached["branches"].get(name)
            if old != tip:
                yield from self._moves(name, old, tip, reached)
        for kind in ("branches", "tags"):
            what = "branch" if kind == "branches" else "tag"
            for name in sorted(reached[kind].keys() - now[kind].keys()):
                old = reached[kind].pop(name)
                yield self._make_ref_event(f"{what}-deleted", old, **{what: name}), _copy(reached)
        for name in sorted(now["tags"].keys() - reached["tags"].keys()):
            reached["tags"][name] = now["tags"][name]
            yield self._make_ref_event("tag-created", now["tags"][name], tag=name), _copy(reached)

    def _moves(
        self, branch: str, old: str | None, tip: str, reached: dict[str, dict[str, str]]
    ) -> Iterator[tuple[Event, dict[str, Any]]]:
        """Yield an event if a branch was created or reset, then one event per new commit."""
        history: Iterable[SnapshotInfo] = self._repo.ancestry(snapshot_id=tip)
        if old is not None:
            history = list(takewhile(lambda info: info.id != old, history))
        if isinstance(history, list) and (not history or history[-1].parent_id == old):
            fresh = history
        else:
            if isinstance(history, list) and old is not None:
                self._check_reset(branch, old, history)
            start, fresh = self._split_history(history, reached["branches"].values())
            reached["branches"][branch] = start or tip
            kind = "branch-created" if old is None else "branch-reset"
            yield self._make_ref_event(kind, start or tip, branch=branch), _copy(reached)
        for info in reversed(fresh):
            reached["branches"][branch] = info.id
            yield self._make_ref_event("commit", info.id, branch=branch), _copy(reached)

    def _split_history(
        self, history: Iterable[SnapshotInfo], tips: Iterable[str]
    ) -> tuple[str | None, list[SnapshotInfo]]:
        """Split a history at the newest snapshot that known branches already contain. Return that snapshot
        and the later ones.
        """
        # Go back only as far as necessary, because in format version 1 each step reads a file.
        others = [iter(self._repo.ancestry(snapshot_id=tip)) for tip in set(tips)]
        known: set[str] = set()
        fresh: list[SnapshotInfo] = []
        for info in history:
            for each in others:
                known.update(_read_back(each, info.written_at))
            if info.id in known:
                return info.id, fresh
            fresh.append(info)
        return None, []

    def _check_reset(self, branch: str, old: str, history: list[SnapshotInfo]) -> None:
        """Raise an error if a snapshot is missing from a branch's history because it expired, not because of
        a reset."""
        try:
            seen = next(iter(self._repo.ancestry(snapshot_id=old)))
        except NotFoundError:
            raise _make_lost_error(f"the snapshot {old} of branch {branch} no longer exists") from None
        first = history[-2] if len(history) > 1 else None  # the first snapshot's parent does not exist
        if first is not None and seen.written_at < first.written_at:
            raise _make_lost_error(f"the snapshot {old} of branch {branch} has expired")

    def _make_ref_event(
        self, kind: str, snapshot: str, *, branch: str | None = None, tag: str | None = None
    ) -> Event:
        info = _get_info(self._repo, snapshot)
        # Format version 1 does not store ref times, so use the time of the snapshot.
        when = datetime.now(UTC) if info is None else info.written_at
        id = _digest(kind, branch, tag, snapshot)
        message = None if info is None else info.message
        return Event(id, kind, _format_time(when), branch, tag, snapshot, message)


def _read_back(infos: Iterator[SnapshotInfo], until: datetime) -> Iterator[str]:
    """Yield snapshot ids, newest first, up to and including the first that is not later than a given time."""
    try:
        for info in infos:
            yield info.id
            if info.written_at <= until:
                return
    except NotFoundError:  # the rest of the history has expired
        return


def _get_info(repo: Repository, snapshot: str | None) -> SnapshotInfo | None:
    if snapshot is None:
        return None
    try:
        return next(iter(repo.ancestry(snapshot_id=snapshot)))
    except NotFoundError:
        return None


def _get_message(repo: Repository, snapshot: str | None) -> str | None:
    info = _get_info(repo, snapshot)
    return None if info is None else info.message


def _id(update: Update) -> str:
    return _digest(_format_time(update.updated_at), repr(update.kind))


def _digest(*parts: object) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest()


def _format_time(when: datetime) -> str:
    return when.astimezone(UTC).isoformat()


def _copy(reached: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    return {kind: dict(names) for kind, names in reached.items()}


def _read(place: Path) -> dict[str, Any] | None:
    try:
        text = place.read_text()
    except FileNotFoundError:
        return None
    try:
        found = json.loads(text)
        if found["form"] == _FORM and isinstance(found["state"], dict):
            state: dict[str, Any] = found["state"]
            return state
    except (ValueError, KeyError, TypeError):
        pass
    raise InvalidInputError(
        f"{place} is not a bookmark file of icefloe; delete it to start from the current state",
        kind=ErrorKind.BAD_METADATA,
    )


def _write(place: Path, state: Mapping[str, Any]) -> None:
    """Replace the bookmark atomically. After a crash, the file contains either the old or the new
    bookmark.
    """
    handle, name = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.")
    with os.fdopen(handle, "w") as file:
        json.dump({"form": _FORM, "state": state}, file)
    os.replace(name, place)


def _make_lost_error(reason: str) -> InvalidInputError:
    return InvalidInputError(
        f"the bookmark lies before the retained history, so events would be missing: {reason}. Delete it to "
        "start at the present state",
        kind=ErrorKind.BAD_METADATA,
    )
