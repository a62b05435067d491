"""Keys of commits that are made once, however often a job is run.

A key is the name of an application and a version. Each application has a group below `/_icefloe/keys` whose
attributes list the versions that are part of the snapshot. The commit that brings the data writes them, so a
branch has the keys of its own content: expiration and squashing keep them, a reset forgets them, a merge
unites them. Sessions do not change these groups otherwise, and rebases and merges find no conflicts in them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from icefloe._internal.paths import LEDGERS, is_within
from icefloe.core.workspace import Workspace
from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format.snapshot import NodeSnapshot, Snapshot

KEYS: Final = f"{LEDGERS}/keys"
_GROUPS: Final = (LEDGERS, KEYS)
_LONGEST_NAME: Final = 200
_MOST_NAMES: Final = 4096
"""Versions that are not numbers are kept one by one, the latest of them."""
_LARGEST_NUMBER: Final = (1 << 63) - 1
_ABOUT: Final = "versions of this application that were committed (see docs/writing.md)"

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Ascending ranges of numbers, both ends included, with gaps between them."""


@dataclass(frozen=True, slots=True)
class CommitKey:
    """The name of a commit that is made once per branch."""

    app: str
    version: str
    digest: str | None = None
    """Identifies the data, if known: the same key with other data is an error."""

    def __post_init__(self) -> None:
        for name, text in (("application", self.app), ("version", self.version)):
            if not text or not _is_unicode(text):
                raise InvalidInputError(
                    f"the {name} of a commit key must be a text of at least one character, not {text!r}",
                    kind=ErrorKind.INVALID_COMMIT_CONFIGURATION,
                )

    @property
    def path(self) -> str:
        """The group of the application."""
        # A node path has no empty, "." or ".." segments, and Zarr reserves names that begin with "__".
        name = quote(self.app, safe="").replace(".", "%2E").replace("_", "%5F")
        if len(name) > _LONGEST_NAME:
            digest = hashlib.blake2b(self.app.encode(), digest_size=16).hexdigest()
            name = f"{name[: _LONGEST_NAME // 2]}~{digest}"
        return f"{KEYS}/{name}"


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions of one application that a snapshot contains."""

    app: str
    last: str = ""
    digest: str | None = None
    """Of the data of the last version."""
    numbers: Ranges = ()
    """Versions that are whole numbers, which need little room however many there are."""
    names: tuple[str, ...] = ()
    """The others, in the order of their commits."""

    def __contains__(self, version: str) -> bool:
        number = _number(version)
        if number is None:
            return version in self.names
        return any(first <= number <= end for first, end in self.numbers)

    def adding(self, version: str, digest: str | None = None) -> Versions:
        """With one version more, as the last."""
        number = _number(version)
        if number is None:
            return replace(self, last=version, digest=digest, names=_latest([*self.names, version]))
        return replace(self, last=version, digest=digest, numbers=_union([*self.numbers, (number, number)]))

    def uniting(self, before: Versions, after: Versions) -> Versions:
        """With the versions that another snapshot got between two states."""
        numbers = _minus(after.numbers, before.numbers)
        names = [name for name in after.names if name not in before.names and name not in self.names]
        fresh = replace(self, numbers=_union([*self.numbers, *numbers]), names=_latest([*self.names, *names]))
        is_newer = bool(after.last) and after.last not in before and after.last not in self
        return replace(fresh, last=after.last, digest=after.digest) if is_newer else fresh

    def document(self) -> bytes:
        """The zarr.json of the group."""
        attributes = {
            "about": _ABOUT,
            "app": self.app,
            "last": self.last,
            "digest": self.digest,
            "numbers": self.numbers,
            "names": self.names,
        }
        return _group(attributes)

    @staticmethod
    def of(node: NodeSnapshot) -> Versions:
        """Read the attributes of the group of an application."""
        try:
            record: Any = json.loads(node.user_data)["attributes"]
            numbers = tuple((int(first), int(end)) for first, end in record["numbers"])
            names = tuple(map(str, record["names"]))
            digest = None if record["digest"] is None else str(record["digest"])
            return Versions(str(record["app"]), str(record["last"]), digest, numbers, names)
        except (ValueError, TypeError, KeyError) as error:
            raise FormatError(
                f"{node.path} is not a list of commit keys ({error!r}); reset the branch to a snapshot before"
                " somebody else changed it",
                kind=ErrorKind.DESERIALIZATION,
            ) from None


def is_key_node(path: str) -> bool:
    """Whether a node exists for commit keys: the groups of applications, and the groups around them."""
    return path in _GROUPS or is_within(path, KEYS)


def has_key(snapshot: Snapshot, key: CommitKey) -> bool:
    """Whether a snapshot contains the data of a key. InvalidInputError if it was used for other data."""
    versions = _versions_at(snapshot, key.path, key.app)
    if key.version not in versions:
        return False
    digests = {key.digest, versions.digest} - {None}
    if key.version == versions.last and len(digests) > 1:
        raise InvalidInputError(
            f"version {key.version} of {key.app} was committed with other data; use another version",
            kind=ErrorKind.INVALID_COMMIT_CONFIGURATION,
        )
    return True


@contextmanager
def key_added(workspace: Workspace, key: CommitKey) -> Iterator[None]:
    """Add a key to uncommitted changes, for an attempt to commit. It is taken away if that fails."""
    before = workspace.changes
    # Chunks are shared: whoever resolves references does so once.
    workspace.changes = replace(
        before, created=dict(before.created), updated=dict(before.updated), deleted=dict(before.deleted)
    )
    try:
        versions = _versions_at(workspace.base, key.path, key.app).adding(key.version, key.digest)
        workspace.set_metadata(key.path, versions.document())
        _complete_groups(workspace)
        yield
    except BaseException:
        workspace.changes = before
        raise


def without_keys(snapshots: Sequence[Snapshot]) -> list[Snapshot]:
    """Leave out all nodes that exist for commit keys, if any of the snapshots has keys."""
    if not any(map(_has_keys, snapshots)):
        return list(snapshots)
    return [
        replace(each, nodes=each.nodes.updated((), paths)) if (paths := _key_paths(each)) else each
        for each in snapshots
    ]


def with_keys_of(snapshot: Snapshot, other: Snapshot) -> Snapshot:
    """Put nodes that exist for commit keys in one snapshot into another that lacks them."""
    missing = [path for path in _key_paths(other) if snapshot.nodes.find(path) is None]
    nodes = [node for path in missing if (node := other.nodes.find(path)) is not None]
    return replace(snapshot, nodes=snapshot.nodes.updated(nodes)) if nodes else snapshot


def unite_keys(workspace: Workspace, before: Snapshot, after: Snapshot) -> None:
    """Add the keys that came between two snapshots to the changes of a workspace."""
    if not _has_keys(after) and not _has_keys(workspace.base):
        return
    for path in _key_paths(after):
        node = after.nodes.find(path)
        if node is None or path in _GROUPS:
            continue
        theirs = Versions.of(node)
        ours = _versions_at(workspace.base, path, theirs.app)
        united = ours.uniting(_versions_at(before, path, theirs.app), theirs)
        if united != ours:
            workspace.set_metadata(path, united.document())
    _complete_groups(workspace)


def _complete_groups(workspace: Workspace) -> None:
    """Create the groups around the groups of applications where they are missing."""
    for path in ("/", *_GROUPS):
        if workspace.node(path) is None and workspace.has_nodes_below(path):
            workspace.set_metadata(path, _group({}))


def _has_keys(snapshot: Snapshot) -> bool:
    return snapshot.nodes.find(KEYS) is not None


def _key_paths(snapshot: Snapshot) -> list[str]:
    if snapshot.nodes.find(LEDGERS) is None:
        return []
    return [path for path in snapshot.nodes.paths() if is_key_node(path)]


def _versions_at(snapshot: Snapshot, path: str, app: str) -> Versions:
    node = snapshot.nodes.find(path)
    return Versions(app) if node is None else Versions.of(node)


def _group(attributes: Any) -> bytes:
    return json.dumps({"zarr_format": 3, "node_type": "group", "attributes": attributes}).encode()


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # lone surrogates
        return False
    return True


def _number(version: str) -> int | None:
    """The whole number that a version is, as it is usually written."""
    if not version.isascii() or not version.isdigit() or len(version) > len(str(_LARGEST_NUMBER)):
        return None
    number = int(version)
    return number if str(number) == version and number <= _LARGEST_NUMBER else None


def _latest(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))[-_MOST_NAMES:]


def _union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    found: list[tuple[int, int]] = []
    for first, end in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((first, end))
    return tuple(found)


def _minus(ranges: Ranges, others: Ranges) -> Ranges:
    found = list(ranges)
    for low, high in others:
        found = [
            part
            for first, end in found
            for part in ((first, min(end, low - 1)), (max(first, high + 1), end))
            if part[0] <= part[1]
        ]
    return tuple(found)
