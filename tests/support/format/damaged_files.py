"""Check that damaged files raise a FormatError with their name, or decode to valid values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from icefloe._internal.ids import ManifestId, ObjectId, SnapshotId
from icefloe.encoding.envelope import FileType, Header, open_header, open_payload, seal
from icefloe.errors import FormatError
from icefloe.format import files
from icefloe.format.manifest import Manifest
from icefloe.format.manifest_codec import PackedManifest
from icefloe.format.repo_info import RepoInfo
from icefloe.format.snapshot import Snapshot
from icefloe.format.spec import V2, Spec, get_spec
from icefloe.format.transaction_log import TransactionLog
from icefloe.format.updates import Update, Updates
from icefloe.ops import UpdateType
from tests.support.format import golden

Value = Manifest | Snapshot | TransactionLog | RepoInfo


@dataclass(frozen=True, slots=True)
class Sample:
    """A metadata file and the id in its name."""

    name: str
    file_type: FileType
    id: ObjectId
    data: bytes

    @property
    def place(self) -> str:
        """The path that errors must name."""
        folder = {
            FileType.SNAPSHOT: files.SNAPSHOTS,
            FileType.MANIFEST: files.MANIFESTS,
            FileType.TRANSACTION_LOG: files.TRANSACTIONS,
        }.get(self.file_type)
        return files.REPO_PATH if folder is None else f"{folder}/{self.id}"

    @property
    def spec(self) -> Spec:
        """What its header says."""
        return get_spec(open_header(self.data, self.name).spec, self.name)

    @property
    def payload(self) -> bytes:
        """The FlatBuffers inside."""
        return bytes(open_payload(self.data, self.name))

    def with_payload(self, payload: bytes) -> Sample:
        """Return the same file around another payload."""
        header = Header("damaged", self.spec.number, self.file_type)
        return replace(self, data=seal(np.frombuffer(payload, np.uint8), header, 1))

    def with_data(self, data: bytes) -> Sample:
        """Return the same name before other bytes."""
        return replace(self, data=data)


def read(sample: Sample) -> Value:
    """Return the value of a file, every part of it looked at."""
    match sample.file_type:
        case FileType.MANIFEST:
            packed = files.read_manifest(sample.data, ManifestId(sample.id))
            return _walk_manifest(packed)
        case FileType.SNAPSHOT:
            snapshot = files.read_snapshot(sample.data, SnapshotId(sample.id))
            _walk_snapshot(snapshot)
            return snapshot
        case FileType.TRANSACTION_LOG:
            log = files.read_transaction_log(sample.data, SnapshotId(sample.id))
            _walk_log(log)
            return log
        case FileType.REPO_INFO:
            info = files.read_repo_info(sample.data)
            _walk_repo_info(info)
            assert files.read_ops_log(sample.data) == (info.latest_updates, info.repo_before_updates)
            return info


def _walk_manifest(packed: PackedManifest) -> Manifest:
    for node in packed.nodes:
        packed.count(node)
        packed.find(node, (0,))
        packed.find(node, (0, 0))
    manifest = packed.unpack()
    for node, array in manifest.arrays.items():
        coords = array.coords.tolist()
        refs = [array.ref(row) for row in range(len(array))]
        assert coords == sorted(coords)
        assert [packed.find(node, each) for each in coords] == refs
        array.extras.tolist()
    return manifest


def _walk_snapshot(snapshot: Snapshot) -> None:
    listed = {file.id for file in snapshot.manifest_files}
    paths = []
    for node in snapshot.nodes:
        paths.append(node.path)
        assert snapshot.nodes.find(node.path) == node
        used = getattr(node.node_data, "manifests", ())
        assert {ref.id for ref in used} <= listed
    assert paths == snapshot.nodes.paths() == sorted(set(paths), key=str.encode)
    assert all(snapshot.manifest_files.find(id) is not None for id in listed)


def _walk_log(log: TransactionLog) -> None:
    for node, coords in log.updated_chunks:
        rows = list(map(tuple, coords.tolist()))
        assert rows == sorted(set(rows))
        assert any(each == node for each, _ in log.updated_chunks)


def _walk_repo_info(info: RepoInfo) -> None:
    ids = [snapshot.id for snapshot in info.snapshots]
    assert ids == sorted(set(ids))
    for snapshot in info.snapshots:
        assert info.snapshots.find(snapshot.id) == snapshot
        assert snapshot.parent_id is None or snapshot.parent_id in ids
    assert {*info.branches.values(), *info.tags.values()} <= set(ids)
    assert "main" in info.branches
    assert not info.deleted_tags & info.tags.keys()
    for row, update in enumerate(info.latest_updates):
        assert info.latest_updates[row] == update


def written(value: Value, spec: Spec) -> bytes:
    """Return the file of a value, of the version it was read from."""
    match value:
        case Manifest():
            return files.write_manifest(value, spec)
        case Snapshot():
            return files.write_snapshot(value, spec)
        case TransactionLog():
            # A log of version 1 holds moves only by accident; they are kept.
            return files.write_transaction_log(value, V2 if value.moved_nodes else spec)
        case RepoInfo():
            return files.write_repo_info(value, spec)


def with_a_legal_ops_log(value: Value) -> Value:
    """Return the value with an ops log that official writers can extend, which our writer requires."""
    if not isinstance(value, RepoInfo):
        return value
    try:
        files.write_repo_info(value, V2)
    except FormatError as error:
        if "ops log" not in error.message:
            raise
        return replace(value, latest_updates=Updates.of([Update(UpdateType.RepoInitialized(), 1)]))
    return value


def outcome(sample: Sample) -> Value | FormatError:
    """Decode a damaged file. Anything but a FormatError or a valid value fails the test."""
    try:
        value = read(sample)
    except FormatError as error:
        if not error.message.startswith(sample.place):
            raise
        return error
    value = with_a_legal_ops_log(value)
    again = read(sample.with_data(written(value, sample.spec)))
    assert again == value
    return value


def refused(sample: Sample) -> FormatError:
    """Return the refusal of a file that must not be read."""
    found = outcome(sample)
    assert isinstance(found, FormatError), f"{sample.name} was read"
    return found


def golden_sample(repo: str, path: str) -> Sample:
    """Return a file of a golden repository."""
    folder, _, name = path.partition("/")
    kind: dict[str, tuple[FileType, type[Any]]] = {
        "snapshots": (FileType.SNAPSHOT, SnapshotId),
        "manifests": (FileType.MANIFEST, ManifestId),
        "transactions": (FileType.TRANSACTION_LOG, SnapshotId),
    }
    file_type, make = kind.get(folder, (FileType.REPO_INFO, SnapshotId))
    id = make(bytes(12)) if file_type is FileType.REPO_INFO else make.parse(name)
    return Sample(f"{repo}:{path}", file_type, id, golden.load(repo).files[path])


@cache
def samples(repo: str, smallest: int, count: int = 1) -> tuple[Sample, ...]:
    """Of each folder of a golden repository, the `count` smallest files of at least `smallest` bytes."""
    found: list[Sample] = []
    for folder in ("snapshots", "manifests", "transactions", "overwritten"):
        below = golden.load(repo).below(folder)
        sizes = sorted((len(data), name) for name, data in below.items() if not name.startswith("config"))
        chosen = [name for size, name in sizes if size >= smallest][:count]
        found += [golden_sample(repo, f"{folder}/{name}") for name in chosen]
    return tuple(found)
