"""Upgrade a repository from a format before version 1 to version 2, in place or to another location."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Any, Final, TypeAlias, TypeVar

from icefloe._internal.amounts import counted
from icefloe._internal.executor import Executor, Progress, Task, ThreadExecutor
from icefloe._internal.ids import ChunkId, ManifestId, SnapshotId
from icefloe._internal.report import Report
from icefloe.config import CachingConfig, RepositoryConfig
from icefloe.core.assets import make_object_metadata
from icefloe.core.open import LAYOUT_V2, find_layout, make_parts
from icefloe.core.refs.base import UPGRADE
from icefloe.core.refs.v2 import RefStoreV2
from icefloe.errors import (
    ErrorKind,
    FormatError,
    InvalidInputError,
    RepositoryNotFoundError,
    SessionStateError,
    SnapshotNotFoundError,
)
from icefloe.format.config_flexbuffers import encode_config
from icefloe.format.files import (
    CHUNKS,
    CONFIG_PATH,
    MANIFESTS,
    REPO_PATH,
    SNAPSHOTS,
    TRANSACTIONS,
    is_own_path,
    write_snapshot,
    write_transaction_log,
)
from icefloe.format.snapshot import ManifestFileInfo
from icefloe.format.spec import V2
from icefloe.legacy.assets import BACKUP, MIGRATION, LegacyAssets
from icefloe.legacy.codec.files import is_newer
from icefloe.legacy.codec.ids import parse_file_name
from icefloe.legacy.codec.refs import is_ref_file
from icefloe.legacy.convert import (
    NewManifest,
    collect_references,
    convert_snapshot,
    encode_manifest_file,
    find_chunk_ends,
    make_lost_manifest_id,
)
from icefloe.legacy.inventory import Inventory, ManifestUse, take_inventory
from icefloe.legacy.layout import ALL_LAYOUTS, LEGACY
from icefloe.legacy.refs import RefStoreLegacy
from icefloe.maintenance.integrity.findings import Level
from icefloe.maintenance.integrity.verify_graph import verify_graph
from icefloe.maintenance.upgrade_v1 import make_first_repo_info
from icefloe.storage.base import ABSENT, ConditionNotMetError, ObjectKind, ObjectNotFoundError, Storage

Item = TypeVar("Item")
Result = TypeVar("Result")

_Group: TypeAlias = list[ManifestUse]

_PLAN: Final = f"{MIGRATION}/plan.json"
_MAX_SHOWN: Final = 5
_MAX_CACHED_LOGS: Final = 10_000_000
"""The maximum number of chunk changes to cache. The changes of each snapshot are needed twice and are slow to
compute.
"""


@dataclass(frozen=True, slots=True)
class MigrationReport(Report):
    """The result of upgrading a legacy repository, or of simulating the upgrade."""

    source_format: str
    """The name of the original format."""
    dry_run: bool
    """True if nothing was written."""
    snapshots: int = 0
    """The number of snapshots."""
    branches: int = 0
    """The number of branches."""
    tags: int = 0
    """The number of tags."""
    deleted_tags: int = 0
    """The number of deleted tags, whose names stay reserved."""
    manifests: int = 0
    """The number of version 2 manifests: one for each distinct state of an array's references."""
    references: int = 0
    """The number of chunk references."""
    chunk_objects: int = 0
    """The number of chunk objects in use."""
    copied_chunk_objects: int = 0
    """The number of chunk objects that were copied."""
    tolerated: list[str] = field(default_factory=list)
    """Harmless problems in the old files, and information that version 2 cannot store."""
    gaps: list[str] = field(default_factory=list)
    """Missing or damaged objects. They stay missing, and reading their data fails."""


def migrate(
    source: Storage,
    target: Storage | None = None,
    *,
    dry_run: bool = False,
    keep_gaps: bool = False,
    delete_old_files: bool = False,
    progress: Progress | None = None,
    executor: Executor | None = None,
) -> MigrationReport:
    """Upgrade a legacy repository, in a format before version 1, to version 2.

    Snapshot ids, branches, tags, deleted tags, messages, times and metadata are preserved. Files that the
    upgrade reads are replaced only after everything else has been written, and at the end every snapshot is
    compared with its source. To resume an interrupted upgrade, call this function again with the same
    arguments.

    Parameters
    ----------
    source
        Storage of the repository.
    target
        Empty storage to copy the repository to. The source is not changed. By default, the repository is
        upgraded in place. Its chunk objects stay as they are, except in the draft format, where they are
        copied to the chunk folder of version 2.
    dry_run
        Read everything and write nothing.
    keep_gaps
        Accept that objects are missing from the source. They stay missing.
    delete_old_files
        At the end, delete the files that version 2 does not use.
    progress
        Called with the name of a stage, the number of finished steps and the total number of steps.
    executor
        The executor that verifies the new files, for example a `SparkExecutor`. Default: threads.

    Returns
    -------
    MigrationReport

    Raises
    ------
    RepositoryNotFoundError
        If there is no repository.
    SessionStateError
        If the repository has version 1 or 2, if objects are missing, or if another upgrade was started here.
    InvalidInputError
        If the target is not empty.
    """
    if not dry_run:
        (target or source).check_writable()
    layout = find_layout(source, ALL_LAYOUTS)
    if layout is None:
        raise RepositoryNotFoundError(
            "there is no repository at this location", kind=ErrorKind.REPOSITORY_NOT_FOUND
        )
    spec, migration = layout.spec, _Migration(source, target, progress, executor)
    if spec.refs_in_repo_info and target is None and is_interrupted(source):
        return migration.finish(dry_run=dry_run, delete_old_files=delete_old_files)
    if spec.writable:
        newest = spec.refs_in_repo_info
        raise SessionStateError(
            f"the repository has version {spec.number} of the format"
            + ("; there is nothing to upgrade" if newest else ""),
            kind=ErrorKind.INVALID_REPOSITORY_MIGRATION,
        ).with_hint(None if newest else UPGRADE)
    return migration.run(dry_run=dry_run, keep_gaps=keep_gaps, delete_old_files=delete_old_files)


def is_interrupted(storage: Storage) -> bool:
    """Return True if the location contains an upgrade that was interrupted."""
    return storage.exists(_PLAN)


@dataclass(frozen=True, slots=True)
class _ConvertedManifest:
    """The new manifest of an array, with the chunk objects that it refers to."""

    manifest: NewManifest
    chunks: Mapping[bytes, int]


@dataclass(slots=True)
class _Plan:
    """The objects that an upgrade has to write."""

    made: dict[ManifestUse, NewManifest] = field(default_factory=dict)
    chunks: dict[bytes, int] = field(default_factory=dict)
    """The ids of the referenced chunk objects, each with the end of the last referenced byte range."""
    chunk_paths: dict[bytes, str] = field(default_factory=dict)
    """The paths of existing chunk objects in the source."""
    chunk_sizes: dict[bytes, int] = field(default_factory=dict)


class _Migration:
    """An upgrade in progress, in idempotent steps."""

    def __init__(
        self,
        source: Storage,
        target: Storage | None,
        progress: Progress | None,
        executor: Executor | None,
    ) -> None:
        opened = make_parts(
            source, LEGACY, RepositoryConfig(caching=CachingConfig(num_transaction_changes=_MAX_CACHED_LOGS))
        )
        if not isinstance(opened.assets, LegacyAssets) or not isinstance(opened.refs, RefStoreLegacy):
            raise TypeError("not a repository of an older format")
        self.assets, self.refs = opened.assets, opened.refs
        self.source, self.target = source, source if target is None else target
        self.in_place = target is None
        self._progress = progress
        self._executor = ThreadExecutor(self.assets.config.max_concurrent_requests)
        self._verifying = executor or self._executor
        self._level = self.assets.config.compression_level

    def run(self, *, dry_run: bool, keep_gaps: bool, delete_old_files: bool) -> MigrationReport:
        """Run all steps of the upgrade."""
        found = take_inventory(self.refs, self.assets)
        plan = self._read_manifests(found)
        report = self._report(found, plan, dry_run=dry_run)
        if dry_run:
            return report
        if report.gaps and not keep_gaps:
            shown = "; ".join(report.gaps[:_MAX_SHOWN])
            raise SessionStateError(
                f"objects are missing from the repository ({len(report.gaps)} in all): {shown}"
                f"{'; ...' if len(report.gaps) > _MAX_SHOWN else ''}. Restore them, or pass keep_gaps=True: "
                "reading them then fails",
                kind=ErrorKind.INVALID_REPOSITORY_MIGRATION,
            )
        self._begin(found)
        self._write_manifests(plan)
        self._copy_chunks(plan)
        self._write_snapshots(found, plan)
        self._write_repo_info(found)
        self._verify(found, plan)
        self._clean_up(delete_old_files=delete_old_files)
        return report

    def finish(self, *, dry_run: bool, delete_old_files: bool) -> MigrationReport:
        """Complete an upgrade that was interrupted after the repository had already become version 2."""
        opened = make_parts(self.target, LAYOUT_V2, RepositoryConfig())
        checked = verify_graph(opened.refs, opened.assets, self._verifying, Level.OBJECTS).report()
        report = MigrationReport(
            self.assets.folders.name,
            dry_run,
            snapshots=checked.snapshots,
            branches=len(opened.refs.branches()),
            tags=len(opened.refs.tags()),
            manifests=checked.manifests,
            references=checked.references,
            chunk_objects=checked.chunk_objects,
            gaps=[finding.message for finding in checked.findings],
        )
        if not dry_run:
            self._clean_up(delete_old_files=delete_old_files)
        return report

    def _apply_in_parallel(
        self, stage: str, function: Callable[[Item], Result], items: Iterable[Item]
    ) -> Iterator[Result]:
        """Apply a function to items in parallel, and report progress."""
        todo = list(items)
        for done, result in enumerate(self._executor.map(Task(function, stage), todo), 1):
            yield result
            if self._progress is not None:
                self._progress(stage, done, len(todo))

    # Reading

    def _read_manifests(self, found: Inventory) -> _Plan:
        """Read all manifests, and check that every version 2 file can be created from them."""
        plan = _Plan()
        for group, seen in self._apply_in_parallel(
            "manifests read", self._read_arrays, _group_arrays(found.uses)
        ):
            if isinstance(seen, str):
                found.gaps.append(f"{counted(len(group), 'array')}: {seen}")
                lost = {use: ManifestFileInfo(make_lost_manifest_id(use), 0, 0) for use in group}
                plan.made |= {use: NewManifest(info, None) for use, info in lost.items()}
                continue
            for use, one in seen.items():
                plan.made[use] = one.manifest
                for id, end in one.chunks.items():
                    plan.chunks[id] = max(plan.chunks.get(id, 0), end)
        self._find_chunks(found, plan)
        for _ in self._apply_in_parallel("snapshots read", partial(self._make_files, plan), found.snapshots):
            pass
        return plan

    def _read_arrays(self, group: _Group) -> tuple[_Group, dict[ManifestUse, _ConvertedManifest] | str]:
        try:
            found = collect_references(self.assets, group)
        except (FormatError, ObjectNotFoundError) as error:
            return group, error.message
        seen = {}
        for use, refs in found.items():
            id, data = encode_manifest_file(use, refs, self._level)
            info = ManifestFileInfo(id, len(data), len(refs))
            seen[use] = _ConvertedManifest(NewManifest(info, refs.extents()), find_chunk_ends(refs))
        return group, seen

    def _find_chunks(self, found: Inventory, plan: _Plan) -> None:
        folder = self.assets.folders.chunks
        sizes = {info.key: info.size_bytes for info in self.source.list_prefix(f"{folder}/")}
        for id, end in sorted(plan.chunks.items()):
            path = self.assets.chunk_path(ChunkId(id))
            if path is None or path not in sizes:
                found.gaps.append(f"{folder}/{ChunkId(id)} is missing")
                continue
            if sizes[path] < end:
                found.gaps.append(f"{path} has {sizes[path]} bytes, but references need {end}")
            plan.chunk_paths[id] = path
            plan.chunk_sizes[id] = sizes[path]

    def _make_files(self, plan: _Plan, id: SnapshotId) -> tuple[bytes, bytes | None]:
        """Return the new snapshot file and transaction log file. There is no transaction log if the changes
        are unknown.
        """
        snapshot = convert_snapshot(self.assets, id, plan.made)
        try:
            log = write_transaction_log(self.assets.transaction_log(id), V2, self._level)
        except (FormatError, ObjectNotFoundError, SnapshotNotFoundError) as error:
            self.assets.findings.note(f"snapshot {id}: its changes are unknown: {error.message}")
            log = None
        return write_snapshot(snapshot, V2, self._level), log

    def _report(self, found: Inventory, plan: _Plan, *, dry_run: bool) -> MigrationReport:
        self.refs.config()
        made = {new.info.id: new.info for new in plan.made.values() if new.info.num_chunk_refs}
        return MigrationReport(
            source_format=self.assets.folders.name,
            dry_run=dry_run,
            snapshots=len(found.snapshots),
            branches=len(found.branches),
            tags=len(found.tags),
            deleted_tags=len(found.deleted_tags),
            manifests=len(made),
            references=sum(info.num_chunk_refs for info in made.values()),
            chunk_objects=len(plan.chunks),
            copied_chunk_objects=sum(1 for _ in self._to_copy(plan)),
            tolerated=list(self.assets.findings.notes),
            gaps=list(found.gaps),
        )

    # Writing

    def _begin(self, found: Inventory) -> None:
        """Write a record of the upgrade; raise an error if the location contains something else."""
        digest = sha256()
        for name, id in sorted({**found.branches, **found.tags}.items()):
            digest.update(f"{name} {id} ".encode())
        for id in sorted(found.snapshots):
            digest.update(id)
        plan = json.dumps({"source": digest.hexdigest(), "format": self.assets.folders.name}).encode()
        if not self.in_place and not self.target.exists(_PLAN):
            stray = next(self.target.list_prefix(""), None)
            if stray is not None:
                raise InvalidInputError(
                    f"the target of an upgrade must be empty, but it contains {stray.key}",
                    kind=ErrorKind.PARENT_DIRECTORY_NOT_CLEAN,
                )
        try:
            self.target.put(_PLAN, plan, ABSENT)
        except ConditionNotMetError:
            if self.target.get(_PLAN)[0] != plan:
                raise SessionStateError(
                    f"{_PLAN}: an upgrade of a different repository, or of an earlier state of this one, was "
                    f"started here; delete the files below {MIGRATION}/ to start again",
                    kind=ErrorKind.INVALID_REPOSITORY_MIGRATION,
                ) from None

    def _write_manifests(self, plan: _Plan) -> None:
        there = {info.key: info.size_bytes for info in self.target.list_prefix(f"{MANIFESTS}/")}
        todo = {
            new.info.id: use
            for use, new in plan.made.items()
            if new.info.num_chunk_refs and there.get(f"{MANIFESTS}/{new.info.id}") != new.info.size_bytes
        }
        for _ in self._apply_in_parallel(
            "manifests written", self._write_group, _group_arrays(todo.values())
        ):
            pass

    def _write_group(self, group: _Group) -> None:
        for use, refs in collect_references(self.assets, group).items():
            id, data = encode_manifest_file(use, refs, self._level)
            self._put(f"{MANIFESTS}/{id}", data, "manifest")

    def _put(self, path: str, data: bytes, file_type: str) -> None:
        self.target.put(path, data, metadata=make_object_metadata(V2, file_type))

    def _to_copy(self, plan: _Plan) -> Iterator[tuple[bytes, str]]:
        """Yield the chunk objects that must be copied to the chunk folder of version 2."""
        for id, path in plan.chunk_paths.items():
            if not self.in_place or path != f"{CHUNKS}/{ChunkId(id)}":
                yield id, path

    def _copy_chunks(self, plan: _Plan) -> None:
        there = {info.key: info.size_bytes for info in self.target.list_prefix(f"{CHUNKS}/")}

        def copy(item: tuple[bytes, str]) -> None:
            id, path = item
            new = f"{CHUNKS}/{ChunkId(id)}"
            if there.get(new) == plan.chunk_sizes[id]:
                return
            if self.in_place:
                self.source.copy(path, new)
            else:
                self.target.put(new, self.source.get(path)[0], kind=ObjectKind.CHUNK)

        for _ in self._apply_in_parallel("chunks copied", copy, self._to_copy(plan)):
            pass

    def _write_snapshots(self, found: Inventory, plan: _Plan) -> None:
        """Write snapshots and transaction logs. This may replace source files, so each is backed up first."""

        def write(id: SnapshotId) -> None:
            snapshot, log = self._make_files(plan, id)
            if log is not None:
                self._replace(f"{TRANSACTIONS}/{id}", log, "transaction-log")
            self._replace(f"{SNAPSHOTS}/{id}", snapshot, "snapshot")

        for _ in self._apply_in_parallel("snapshots written", write, found.snapshots):
            pass

    def _replace(self, path: str, data: bytes, file_type: str) -> None:
        if self.in_place:
            try:
                old, _ = self.source.get(path)
            except ObjectNotFoundError:
                old = b""
            if old and not is_newer(old, path):
                self.source.put(f"{BACKUP}/{path}", old)
        self._put(path, data, file_type)

    def _write_repo_info(self, found: Inventory) -> None:
        if self.target.exists(REPO_PATH):
            return  # already written before the upgrade was interrupted
        config = self.refs.config()
        metadata: dict[str, Any] = {"ref_properties": found.properties} if found.properties else {}
        info = make_first_repo_info(
            found.snapshots,
            found.branches,
            found.tags,
            found.deleted_tags,
            time.time_ns() // 1000,
            metadata,
            encode_config(config) if config else None,
        )
        RefStoreV2(self.target, self.assets.config).create(info)

    # Verification

    def _verify(self, found: Inventory, plan: _Plan) -> None:
        """Read back all written files, and compare them with the source."""
        opened = make_parts(self.target, LAYOUT_V2, RepositoryConfig())
        report = verify_graph(opened.refs, opened.assets, self._verifying, Level.OBJECTS)
        if report.findings and not found.gaps:
            raise _make_difference_error(report.findings[0].message)
        for id, info in found.snapshots.items():
            if opened.refs.snapshot(id) != info:
                raise _make_difference_error(f"the entry of snapshot {id}")

        def compare(group: _Group) -> None:
            for use, refs in collect_references(self.assets, group).items():
                info = plan.made[use].info
                if not info.num_chunk_refs:
                    continue
                if opened.assets.manifest(info.id, info.size_bytes).array(use.node, use.rank) != refs:
                    raise _make_difference_error(f"the references in {MANIFESTS}/{info.id}")

        def compare_nodes(id: SnapshotId) -> None:
            if opened.assets.snapshot(id) != convert_snapshot(self.assets, id, plan.made):
                raise _make_difference_error(f"snapshot {id}")

        readable = (use for use, new in plan.made.items() if new.extents is not None)
        for _ in self._apply_in_parallel("manifests compared", compare, _group_arrays(readable)):
            pass
        for _ in self._apply_in_parallel("snapshots compared", compare_nodes, found.snapshots):
            pass

    def _clean_up(self, *, delete_old_files: bool) -> None:
        """Delete the record of the upgrade and, if requested, the files that version 2 does not use."""
        gone = list(self._list_old_files()) if self.in_place and delete_old_files else []
        self.target.delete(gone)
        self.target.delete([_PLAN])
        folders = {path[:at] for path in [*gone, _PLAN] for at, c in enumerate(path) if c == "/"}
        for folder in sorted(folders, key=len, reverse=True):
            self.target.remove_empty_folder(folder)

    def _list_old_files(self) -> Iterator[str]:
        old = self.assets.folders
        shared = {SNAPSHOTS, MANIFESTS, TRANSACTIONS}
        folders = {old.refs, BACKUP, old.snapshots, old.manifests, old.transactions, old.chunks}
        for folder in sorted(folders - {CHUNKS}):
            for info in self.target.list_prefix(f"{folder}/"):
                if not _is_old_file(folder, info.key.removeprefix(f"{folder}/")):
                    continue
                if folder not in shared or not is_newer(self.target.get(info.key)[0], info.key):
                    yield info.key
        yield CONFIG_PATH


def _is_old_file(folder: str, name: str) -> bool:
    """Return True if a file in a repository folder belongs to the legacy repository rather than to a user."""
    if folder == BACKUP:
        return is_own_path(name)
    return is_ref_file(f"{folder}/{name}") or parse_file_name(name) is not None


def _group_arrays(uses: Iterable[ManifestUse]) -> list[_Group]:
    """Group arrays by their manifests, so that each manifest is read once."""
    groups: dict[tuple[ManifestId, ...], list[ManifestUse]] = {}
    for use in sorted(uses, key=lambda use: (use.manifests, use.node, use.rank)):
        groups.setdefault(use.manifests, []).append(use)
    return list(groups.values())


def _make_difference_error(what: str) -> FormatError:
    return FormatError(
        f"the upgraded repository differs from its source: {what}; the source is kept below {BACKUP}/",
        kind=ErrorKind.INVALID_FILE_FORMAT,
    )
