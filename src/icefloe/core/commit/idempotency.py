"""Commit keys, which ensure that a commit happens exactly once even if a job runs several times.

A key is the name of an application and a version. Each application has a group below `/_icefloe/keys` whose
attributes list the versions that the snapshot contains. Keys are written by the commit that adds the data, so
a branch always contains the keys of its own content: expiration, squashing and overwriting keep them, a reset
removes them, and a merge combines them. Nothing else changes these groups, and rebases and merges ignore them
when they look for conflicts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote

from icefloe._internal.paths import LEDGERS, ROOT, is_within
from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format.snapshot import NodeSnapshot, Snapshot

if TYPE_CHECKING:
    from icefloe.core.workspace import Workspace

KEYS: Final = f"{LEDGERS}/keys"
_GROUPS: Final = (LEDGERS, KEYS)
_LONGEST_NAME: Final = 200
_MAX_NAMES: Final = 4096
"""The maximum number of non-integer versions to record. Only the latest ones are kept."""
_MAX_DIGESTS: Final = 256
"""The number of most recent versions whose digests are recorded."""
_LARGEST_NUMBER: Final = (1 << 63) - 1
_DESCRIPTION: Final = "versions of this application that were committed (see docs/writing.md)"

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Ascending, disjoint ranges of numbers, with both ends included."""


@dataclass(frozen=True, slots=True)
class CommitKey:
    """The key of an idempotent commit, which happens at most once per branch."""

    app: str
    """The name of the application."""
    version: str
    """The version, such as the number of a batch or the name of a run."""
    digest: str | None = None
    """A digest of the data, if known. Committing other data with the same key is an error."""

    def __post_init__(self) -> None:
        for name, text in (("application", self.app), ("version", self.version)):
            if not text or not _is_unicode(text):
                raise InvalidInputError(
                    f"the {name} of a commit key must be a non-empty string, not {text!r}",
                    kind=ErrorKind.INVALID_COMMIT_CONFIGURATION,
                )

    @property
    def path(self) -> str:
        """The path of the group that records the application's commit keys."""
        return _get_path(self.app)


@dataclass(frozen=True, slots=True)
class CommittedVersions:
    """The commit keys of one application: the versions it has committed, as of a snapshot."""

    app: str
    """The name of the application."""
    last: str = ""
    """The version of the latest commit; an empty string if there is none."""
    digest: str | None = None
    """The digest of the data of the latest version."""
    numbers: Ranges = ()
    """All integer versions, stored as ranges because there may be many."""
    names: tuple[str, ...] = ()
    """All non-integer versions, in commit order."""
    digests: tuple[tuple[str, str], ...] = ()
    """The versions and digests of the latest commits with a known digest, in commit order."""

    def __contains__(self, version: str) -> bool:
        number = _parse_number(version)
        if number is None:
            return version in self.names
        return any(first <= number <= end for first, end in self.numbers)

    def get_digest(self, version: str) -> str | None:
        """Return the digest of the data that was committed under a version; None if it is not known.

        Parameters
        ----------
        version
            The version.

        Returns
        -------
        str or None
            The digest.
        """
        return self.digest if version == self.last else dict(self.digests).get(version)


def get_versions(state: Snapshot | Workspace, app: str) -> CommittedVersions:
    """Return the versions that an application has committed, according to a snapshot or workspace."""
    path = _get_path(app)
    if isinstance(state, Snapshot):
        return _read_versions(state, path, app)
    node = state.node(path)
    return CommittedVersions(app) if node is None else _parse(node)


def with_version(versions: CommittedVersions, version: str, digest: str | None = None) -> CommittedVersions:
    """Return a copy with one more version, which becomes the latest one."""
    number = _parse_number(version)
    added = replace(versions, last=version, digest=digest)
    if digest is not None:
        added = replace(added, digests=_merge_digests(versions.digests, ((version, digest),)))
    if number is None:
        return replace(added, names=_keep_latest([*versions.names, version]))
    return replace(added, numbers=_unite_ranges([*versions.numbers, (number, number)]))


def with_versions_between(
    versions: CommittedVersions, before: CommittedVersions, after: CommittedVersions
) -> CommittedVersions:
    """Return a copy that also contains the versions that another branch added between two of its
    snapshots.
    """
    numbers = _subtract_ranges(after.numbers, before.numbers)
    names = [name for name in after.names if name not in before.names and name not in versions.names]
    added = [each for each in after.digests if each[0] not in before and each[0] not in versions]
    fresh = replace(
        versions,
        numbers=_unite_ranges([*versions.numbers, *numbers]),
        names=_keep_latest([*versions.names, *names]),
        digests=_merge_digests(versions.digests, added),
    )
    is_newer = bool(after.last) and after.last not in before and after.last not in versions
    return replace(fresh, last=after.last, digest=after.digest) if is_newer else fresh


def is_key_node(path: str) -> bool:
    """Return True if a path belongs to the commit keys: the group of an application, or one of its parent
    groups.
    """
    return path in _GROUPS or is_within(path, KEYS)


def has_key(state: Snapshot | Workspace, key: CommitKey) -> bool:
    """Return True if a commit with this key was already made; raise InvalidInputError if its data differs."""
    versions = get_versions(state, key.app)
    if key.version not in versions:
        return False
    if len({key.digest, versions.get_digest(key.version)} - {None}) > 1:
        raise InvalidInputError(
            f"key {key.version} of {key.app} was already committed with other data; use another key",
            kind=ErrorKind.INVALID_COMMIT_CONFIGURATION,
        )
    return True


def add_key(workspace: Workspace, key: CommitKey) -> None:
    """Record a commit key in the uncommitted changes."""
    versions = with_version(get_versions(workspace, key.app), key.version, key.digest)
    workspace.set_metadata(key.path, _to_document(versions))
    _complete_groups(workspace)


@contextmanager
def add_key_for_attempt(workspace: Workspace, key: CommitKey) -> Iterator[None]:
    """Record a commit key in the uncommitted changes for one commit attempt, and remove it if the attempt
    fails.
    """
    before = workspace.changes
    # Chunks are shared with the original change set, so references are resolved only once.
    workspace.changes = replace(
        before, created=dict(before.created), updated=dict(before.updated), deleted=dict(before.deleted)
    )
    try:
        add_key(workspace, key)
        yield
    except BaseException:
        workspace.changes = before
        raise


def keep_keys(workspace: Workspace) -> None:
    """Restore the commit keys if they were deleted together with the whole hierarchy.

    Overwriting all data must not make the repository forget which jobs have already run. Keys that are
    deleted individually stay deleted.
    """
    deleted = workspace.changes.deleted
    if ROOT not in deleted or not any(map(is_key_node, deleted)):
        return
    for path in filter(is_key_node, list(deleted)):
        if path not in workspace.changes.created:
            del deleted[path]
    _complete_groups(workspace)


def remove_keys(snapshots: Sequence[Snapshot]) -> list[Snapshot]:
    """Remove the nodes that record commit keys, if any of the snapshots has such nodes."""
    if not any(map(_has_keys, snapshots)):
        return list(snapshots)
    return [
        replace(each, nodes=each.nodes.with_changes((), paths)) if (paths := _list_key_paths(each)) else each
        for each in snapshots
    ]


def with_keys_of(snapshot: Snapshot, other: Snapshot) -> Snapshot:
    """Copy the commit keys of one snapshot to another snapshot that lacks them."""
    missing = [path for path in _list_key_paths(other) if snapshot.nodes.find(path) is None]
    nodes = [node for path in missing if (node := other.nodes.find(path)) is not None]
    return replace(snapshot, nodes=snapshot.nodes.with_changes(nodes)) if nodes else snapshot


def unite_keys(workspace: Workspace, before: Snapshot, after: Snapshot) -> None:
    """Add the commit keys that were recorded between two snapshots to the changes of a workspace."""
    if not _has_keys(after) and not _has_keys(workspace.base):
        return
    for path in _list_key_paths(after):
        node = after.nodes.find(path)
        if node is None or path in _GROUPS:
            continue
        theirs = _parse(node)
        ours = _read_versions(workspace.base, path, theirs.app)
        united = with_versions_between(ours, _read_versions(before, path, theirs.app), theirs)
        if united != ours:
            workspace.set_metadata(path, _to_document(united))
    _complete_groups(workspace)


def _to_document(versions: CommittedVersions) -> bytes:
    """Return the zarr.json of the group that records commit keys."""
    attributes = {
        "about": _DESCRIPTION,
        "app": versions.app,
        "last": versions.last,
        "digest": versions.digest,
        "numbers": versions.numbers,
        "names": versions.names,
        "digests": versions.digests,
    }
    return _make_group(attributes)


def _parse(node: NodeSnapshot) -> CommittedVersions:
    """Parse the attributes of the group that records commit keys."""
    try:
        record: Any = json.loads(node.user_data)["attributes"]
        numbers = tuple((int(first), int(end)) for first, end in record["numbers"])
        names = tuple(map(str, record["names"]))
        digest = None if record["digest"] is None else str(record["digest"])
        digests = tuple((str(version), str(its)) for version, its in record.get("digests", ()))
        return CommittedVersions(str(record["app"]), str(record["last"]), digest, numbers, names, digests)
    except (ValueError, TypeError, KeyError) as error:
        raise FormatError(
            f"{node.path} does not contain valid commit keys ({error!r}); reset the branch to a snapshot"
            " before that group was changed",
            kind=ErrorKind.DESERIALIZATION,
        ) from None


def _get_path(app: str) -> str:
    # Node paths have no empty, "." or ".." segments, and Zarr reserves names that start with "__".
    name = quote(app, safe="").replace(".", "%2E")
    if name.startswith("__"):
        name = name.replace("_", "%5F")
    if len(name) > _LONGEST_NAME:
        digest = hashlib.blake2b(app.encode(), digest_size=16).hexdigest()
        name = f"{name[: _LONGEST_NAME // 2]}~{digest}"
    return f"{KEYS}/{name}"


def _complete_groups(workspace: Workspace) -> None:
    """Create missing parents of the groups that record commit keys."""
    for path in ("/", *_GROUPS):
        if workspace.node(path) is None and workspace.has_nodes_below(path):
            workspace.set_metadata(path, _make_group({}))


def _has_keys(snapshot: Snapshot) -> bool:
    return snapshot.nodes.find(KEYS) is not None


def _list_key_paths(snapshot: Snapshot) -> list[str]:
    if snapshot.nodes.find(LEDGERS) is None:
        return []
    return [path for path in snapshot.nodes.paths() if is_key_node(path)]


def _read_versions(snapshot: Snapshot, path: str, app: str) -> CommittedVersions:
    node = snapshot.nodes.find(path)
    return CommittedVersions(app) if node is None else _parse(node)


def _make_group(attributes: Any) -> bytes:
    return json.dumps({"zarr_format": 3, "node_type": "group", "attributes": attributes}).encode()


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # lone surrogates
        return False
    return True


def _parse_number(version: str) -> int | None:
    """Parse a version as an integer; return None unless it is in canonical form."""
    if not version.isascii() or not version.isdigit() or len(version) > len(str(_LARGEST_NUMBER)):
        return None
    number = int(version)
    return number if str(number) == version and number <= _LARGEST_NUMBER else None


def _keep_latest(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))[-_MAX_NAMES:]


def _merge_digests(
    known: Iterable[tuple[str, str]], more: Iterable[tuple[str, str]]
) -> tuple[tuple[str, str], ...]:
    return tuple({**dict(known), **dict(more)}.items())[-_MAX_DIGESTS:]


def _unite_ranges(ranges: Iterable[tuple[int, int]]) -> Ranges:
    found: list[tuple[int, int]] = []
    for first, end in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((first, end))
    return tuple(found)


def _subtract_ranges(ranges: Ranges, others: Ranges) -> Ranges:
    found = list(ranges)
    for low, high in others:
        found = [
            part
            for first, end in found
            for part in ((first, min(end, low - 1)), (max(first, high + 1), end))
            if part[0] <= part[1]
        ]
    return tuple(found)
