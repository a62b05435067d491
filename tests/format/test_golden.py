"""Every metadata file of every golden repository: its decoded value, and a round trip."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import zstandard

from icefloe import __version__
from icefloe._internal.ids import ManifestId, NodeId, SnapshotId
from icefloe.encoding.envelope import HEADER, open_header
from icefloe.format.config_flexbuffers import decode_config, encode_config
from icefloe.format.config_yaml import decode_config_yaml, encode_config_yaml
from icefloe.format.files import (
    read_manifest,
    read_repo_info,
    read_snapshot,
    read_transaction_log,
    write_manifest,
    write_repo_info,
    write_snapshot,
    write_transaction_log,
)
from icefloe.format.locations import LocationCompression
from icefloe.format.manifest import ChunkRef, InlineRef, NativeRef, VirtualRef
from icefloe.format.manifest_codec import PackedManifest
from icefloe.format.refs_v1 import RefFile, RefKind, decode_ref, encode_ref
from icefloe.format.repo_info import RepoInfo
from icefloe.format.snapshot import ArrayNodeData, GroupNodeData, NodeSnapshot, Snapshot
from icefloe.format.spec import Spec, get_spec
from icefloe.format.transaction_log import LISTS, TransactionLog
from icefloe.format.updates import RepoStatus, RepoStatusChanged, Update
from icefloe.ops import UpdateType
from tests.support.format import golden
from tests.support.format.golden import Golden

V2_NAMES = [name for name in golden.NAMES if not name.startswith("v1-")]
V1_NAMES = [name for name in golden.NAMES if name.startswith("v1-")]

FILES = {
    "chunks": 622,
    "config.yaml": 19,
    "manifests": 901,
    "overwritten": 342,
    "refs": 108,
    "repo": 36,
    "snapshots": 384,
    "transactions": 360,
}
"""The total number of files of each kind, so that a file without a test is noticed."""

LOOKED_AT = {"snapshots": 351, "nodes": 4759, "chunks": 8901, "unfindable": 88, "logs": 316, "merged": 6}
"""The total number of expectations in expected.json."""


@pytest.fixture(scope="module", params=golden.NAMES)
def repo(request: pytest.FixtureRequest) -> Golden:
    return golden.load(request.param)


@pytest.fixture(scope="module", params=V2_NAMES)
def repo_v2(request: pytest.FixtureRequest) -> Golden:
    return golden.load(request.param)


@pytest.fixture(scope="module", params=V1_NAMES)
def repo_v1(request: pytest.FixtureRequest) -> Golden:
    return golden.load(request.param)


def snapshot_of(repo: Golden, id: str) -> Snapshot:
    return read_snapshot(repo.files[f"snapshots/{id}"], SnapshotId.parse(id))


def manifest_of(repo: Golden, id: str) -> PackedManifest:
    return read_manifest(repo.files[f"manifests/{id}"], ManifestId.parse(id))


def log_of(repo: Golden, id: str) -> TransactionLog:
    return read_transaction_log(repo.files[f"transactions/{id}"], SnapshotId.parse(id))


def spec_of_file(data: bytes) -> Spec:
    return get_spec(open_header(data, "golden").spec, "golden")


def instant(us: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=us)


def test_all_golden_repositories_and_files_exist() -> None:
    found: Counter[str] = Counter()
    for name in golden.NAMES:
        found.update(path.split("/")[0] for path in golden.load(name).files)

    assert len(golden.NAMES) == 65
    assert found == FILES


def test_every_golden_repository_has_expectations() -> None:
    found: Counter[str] = Counter()
    for name in golden.NAMES:
        for snapshot in golden.load(name).expected["snapshots"].values():
            nodes = snapshot["nodes"].values()
            log = snapshot["transaction_log"]
            found["snapshots"] += 1
            found["nodes"] += len(nodes)
            found["unfindable"] += sum("official_lookup_failed" in node for node in nodes)
            found["chunks"] += sum(len(node.get("chunks", ())) for node in nodes)
            found["logs"] += log is not None
            found["merged"] += log is not None and "synthetic_composite" in log

    assert found == LOOKED_AT


def test_files_were_written_by_the_official_library(repo: Golden) -> None:
    found = {
        path: {"size": len(d), "sha256": hashlib.sha256(d).hexdigest()} for path, d in repo.files.items()
    }

    assert found == repo.expected["files"]


def test_unpacked_repository_has_the_same_files(tmp_path: Path) -> None:
    folder = golden.unpack("v1-1.1.21-virtual", tmp_path) / "repo"

    found = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}

    assert {name: path.read_bytes() for name, path in found.items()} == golden.load("v1-1.1.21-virtual").files
    assert {path.stat().st_mtime for path in found.values()} == {1_700_000_000}


def test_golden_snapshots_decode_to_the_expected_values(repo: Golden) -> None:
    for id, expected in repo.expected["snapshots"].items():
        snapshot = snapshot_of(repo, id)

        assert snapshot.message == expected["message"]
        assert snapshot.metadata == expected["metadata"]
        assert instant(snapshot.flushed_at_us) == datetime.fromisoformat(expected["flushed_at"])
        assert [
            {"id": str(file.id), "size_bytes": file.size_bytes, "num_chunk_refs": file.num_chunk_refs}
            for file in snapshot.manifest_files
        ] == expected["manifests"]
        if not repo.has_repo_info:
            parent = None if snapshot.parent_id is None else str(snapshot.parent_id)
            assert parent == expected["parent_id"]


def test_golden_nodes_decode_to_the_expected_values(repo: Golden) -> None:
    for id, expected in repo.expected["snapshots"].items():
        nodes = snapshot_of(repo, id).nodes

        assert nodes.paths() == sorted(expected["nodes"], key=str.encode)
        assert {node.path: described(node) for node in nodes} == {
            path: expected_node(node) for path, node in expected["nodes"].items()
        }
        assert all(nodes.find(path) == node for path, node in zip(nodes.paths(), nodes, strict=True))


def described(node: NodeSnapshot) -> dict[str, Any]:
    """Return a node in the form of expected.json."""
    found: dict[str, Any] = {"node_id": str(node.id), "zarr_json": json.loads(node.user_data)}
    if isinstance(node.node_data, GroupNodeData):
        return found | {"type": "group"}
    array: ArrayNodeData = node.node_data
    names = array.dimension_names or (None,) * len(array.shape)
    return found | {
        "type": "array",
        "shape": [(d.array_length, d.num_chunks, n) for d, n in zip(array.shape, names, strict=True)],
        "manifests": [(str(ref.id), [[r.start, r.stop] for r in ref.extents]) for ref in array.manifests],
    }


def expected_node(node: Mapping[str, Any]) -> dict[str, Any]:
    # Numbers that JSON lacks are written in user_data as Python's json writes them: NaN, Infinity.
    found = {"node_id": node["node_id"], "zarr_json": node["zarr_json"], "type": node["type"]}
    if node["type"] == "group":
        return found
    return found | {
        "shape": [(d["array_length"], d["num_chunks"], d.get("name")) for d in node["icechunk_shape"]],
        "manifests": [(ref["id"], ref["extents"]) for ref in node["manifest_refs"]],
    }


def test_golden_chunks_are_as_expected_by_columns_and_by_lookup(repo: Golden) -> None:
    manifests = {name: manifest_of(repo, name) for name in repo.below("manifests")}
    columns = {(name, node): m.array(node) for name, m in manifests.items() for node in m.nodes}
    for snapshot in repo.expected["snapshots"].values():
        for node in snapshot["nodes"].values():
            id = NodeId.parse(node["node_id"])
            used = [ref["id"] for ref in node.get("manifest_refs", ())]
            parts = [(name, columns[name, id]) for name in used if (name, id) in columns]
            refs = {
                tuple(part.coords[row].tolist()): (part.ref(row), name)
                for name, part in parts
                for row in range(len(part))
            }
            chunks = {tuple(chunk["index"]): chunk for chunk in node.get("chunks", ())}

            assert refs.keys() == chunks.keys()
            for coords, (ref, name) in refs.items():
                assert described_chunk(ref, repo) == expected_chunk(chunks[coords])
                assert manifests[name].find(id, coords) == ref


def described_chunk(ref: ChunkRef, repo: Golden) -> tuple[Any, ...]:
    match ref:
        case InlineRef(data):
            return "inline", len(data), hashlib.sha256(data).hexdigest()
        case NativeRef(chunk_id, offset, length):
            return "native", offset, length, str(chunk_id)
        case VirtualRef(location, offset, length):
            return "virtual", offset, length, absolute(location, repo)


def absolute(location: str, repo: Golden) -> str:
    """Resolve a location relative to a container, as the official reader does."""
    if not location.startswith("vcc://"):
        return location
    container, _, path = location.removeprefix("vcc://").partition("/")
    prefixes = {c["name"]: c["url_prefix"] for c in repo.expected["containers"].values()}
    return f"{prefixes[container]}{path}"


def expected_chunk(chunk: Mapping[str, Any]) -> tuple[Any, ...]:
    if chunk["kind"] == "inline":
        return "inline", chunk["length"], chunk["sha256"]
    target = chunk["chunk_id"] if chunk["kind"] == "native" else chunk["location"]
    return chunk["kind"], chunk["offset"], chunk["length"], target


def test_golden_transaction_logs_decode_to_the_expected_values(repo: Golden) -> None:
    merges = pruned_logs(repo)
    for id, snapshot in repo.expected["snapshots"].items():
        expected = snapshot["transaction_log"]
        if expected is None:
            assert f"transactions/{id}" not in repo.files
            continue
        ids = [*merges.get(id, ()), id]
        if "synthetic_composite" in expected:
            assert expected["synthetic_composite"]["merged_pruned_ancestor_tx_logs"] == ids[:-1]
            assert not expected["synthetic_composite"]["missing_tx_logs"]
        logs = [log_of(repo, each) for each in ids]

        for name in LISTS:
            found = {str(NodeId(row.tobytes())) for log in logs for row in getattr(log, name)}
            assert found == set(expected[name])
        assert changed_chunks(logs) == {
            entry["node_id"]: sorted(entry["chunks"]) for entry in expected["updated_chunks"]
        }
        moves = [(move.from_path, move.to_path) for log in logs for move in log.moved_nodes]
        assert moves == [(move["from"], move["to"]) for move in expected["moved_nodes"]]


def pruned_logs(repo: Golden) -> dict[str, list[str]]:
    if not repo.has_repo_info:
        return {}
    infos = read_repo_info(repo.files["repo"]).snapshots
    return {str(info.id): list(map(str, info.pruned_ancestor_tx_logs)) for info in infos}


def changed_chunks(logs: list[TransactionLog]) -> dict[str, list[list[int]]]:
    """Return the chunks that several logs name together, per array, sorted, each once."""
    found: dict[str, set[tuple[int, ...]]] = {}
    for log in logs:
        for node, coords in log.updated_chunks:
            assert coords.tolist() == sorted(coords.tolist())
            found.setdefault(str(node), set()).update(map(tuple, coords.tolist()))
    return {node: sorted(map(list, chunks)) for node, chunks in found.items()}


def test_transaction_log_lists_are_sorted(repo: Golden) -> None:
    for id in repo.below("transactions"):
        log = log_of(repo, id)

        for name in LISTS:
            ids = [row.tobytes() for row in getattr(log, name)]
            assert ids == sorted(set(ids))
        nodes = [node for node, _ in log.updated_chunks]
        assert nodes == sorted(set(nodes))


def test_golden_repo_info_decodes_to_the_expected_values(repo_v2: Golden) -> None:
    info, expected = read_repo_info(repo_v2.files["repo"]), repo_v2.expected["repo_info"]

    assert {name: str(id) for name, id in info.branches.items()} == expected["branches"]
    assert {name: str(id) for name, id in info.tags.items()} == expected["tags"]
    assert sorted(info.deleted_tags) == expected["deleted_tags"] == repo_v2.expected["deleted_tags"]
    assert info.metadata == expected["metadata"] == repo_v2.expected["repo_metadata"]
    assert info.repo_before_updates == expected.get("repo_before_updates")
    assert described_status(info.status) == repo_v2.expected["status"]
    assert [
        {
            "id": str(snapshot.id),
            "parent_id": None if snapshot.parent_id is None else str(snapshot.parent_id),
            "flushed_at": instant(snapshot.flushed_at_us),
            "message": snapshot.message,
            "metadata": snapshot.metadata,
        }
        for snapshot in info.snapshots
    ] == [
        snapshot
        | {
            "parent_id": snapshot.get("parent_id"),
            "flushed_at": datetime.fromisoformat(snapshot["flushed_at"]),
        }
        for snapshot in expected["snapshots"]
    ]


def described_status(status: RepoStatus) -> dict[str, Any]:
    return {
        "availability": f"RepoAvailability.{status.availability.name.lower()}",
        "reason": status.limited_availability_reason,
        "set_at_us": status.set_at_us,
    }


def test_golden_updates_decode_to_the_expected_values(repo_v2: Golden) -> None:
    info, expected = read_repo_info(repo_v2.files["repo"]), repo_v2.expected["repo_info"]

    found = [
        (f"{type(update.update_type).__name__}Update", instant(update.updated_at_us), update.backup_path)
        for update in info.latest_updates
    ]

    assert found == [
        (entry["update_type"]["type"], datetime.fromisoformat(entry["updated_at"]), entry.get("backup_path"))
        for entry in expected["latest_updates"]
    ]


def test_ops_log_is_complete_across_all_its_files(repo_v2: Golden) -> None:
    found = [described_update(update) for update in ops_log(repo_v2)]

    assert found == repo_v2.expected["ops_log"]


def ops_log(repo: Golden) -> Iterator[Update]:
    """Yield all updates, newest first, out of the repo info file and the older ones it leads to."""
    name: str | None = None
    while True:
        info = read_repo_info(repo.files["repo" if name is None else f"overwritten/{name}"])
        for update in info.latest_updates:
            # The newest entry of an older file was written before that file got its name.
            yield update if update.backup_path else Update(update.update_type, update.updated_at_us, name)
        name = info.repo_before_updates
        if name is None:
            return


def described_update(update: Update) -> dict[str, Any]:
    kind = update.update_type
    found: dict[str, Any] = {
        "kind": type(kind).__name__,
        "updated_at_us": update.updated_at_us,
        "backup_path": update.backup_path,
    }
    for name in type(kind).__dataclass_fields__:
        value = getattr(kind, name)
        if isinstance(kind, RepoStatusChanged):
            value = described_status(value)
        found[name] = str(value) if isinstance(value, SnapshotId) else value
    return found


def test_golden_feature_flags_decode_to_the_expected_values(repo_v2: Golden) -> None:
    info = read_repo_info(repo_v2.files["repo"])
    settings = dict.fromkeys(info.enabled_feature_flags or (), True)
    settings |= dict.fromkeys(info.disabled_feature_flags or (), False)

    expected = {flag["id"]: flag["setting"] for flag in repo_v2.expected["feature_flags"]}

    assert {flag: settings.pop(flag, None) for flag in expected} == expected
    assert settings == {}


def test_flag_changes_agree_with_the_flags_that_are_set(repo_v2: Golden) -> None:
    settings: dict[int, bool | None] = {}
    for update in reversed(list(ops_log(repo_v2))):
        if isinstance(update.update_type, UpdateType.FeatureFlagChanged):
            settings[update.update_type.id] = update.update_type.new_value

    expected = {flag["id"]: flag["setting"] for flag in repo_v2.expected["feature_flags"]}

    assert {flag: settings.get(flag) for flag in expected} == expected


def test_each_update_refers_to_the_file_in_which_it_is_newest(repo_v2: Golden) -> None:
    for update in ops_log(repo_v2):
        if update.backup_path is not None:
            older = read_repo_info(repo_v2.files[f"overwritten/{update.backup_path}"])
            assert older.latest_updates[0] == Update(update.update_type, update.updated_at_us)


def test_golden_refs_of_version_1_decode_to_the_expected_values(repo_v1: Golden) -> None:
    refs = {path: RefFile.parse(path) for path in repo_v1.files if path.startswith("refs/")}
    targets: dict[RefKind, dict[str, str]] = {RefKind.BRANCH: {}, RefKind.TAG: {}}
    gone = {ref.name for ref in refs.values() if ref is not None and ref.deleted}

    for path, ref in refs.items():
        assert ref is not None
        assert ref.path == path
        data = repo_v1.files[path]
        if ref.deleted:
            assert data == b""
            continue
        snapshot = decode_ref(data, path)
        assert encode_ref(snapshot) == data
        if ref.kind is RefKind.BRANCH or ref.name not in gone:
            targets[ref.kind][ref.name] = str(snapshot)

    assert targets[RefKind.BRANCH] == repo_v1.expected["branches"]
    assert targets[RefKind.TAG] == repo_v1.expected["tags"]
    assert sorted(gone) == repo_v1.expected["deleted_tags"]


def test_golden_config_decodes_to_the_expected_values(repo: Golden) -> None:
    in_repo_info = read_repo_info(repo.files["repo"]).config if repo.has_repo_info else None
    if in_repo_info is not None:
        plain = decode_config(in_repo_info, "repo")
    elif not repo.has_repo_info and "config.yaml" in repo.files:
        plain = decode_config_yaml(repo.files["config.yaml"], "config.yaml")
    else:
        assert repo.expected["persisted_config_repr"] is None
        return

    assert settings_in(plain) == settings_shown(repo.expected["persisted_config_repr"])
    containers = (plain["virtual_chunk_containers"] or {}).values()
    assert {(c.get("name"), c["url_prefix"]) for c in containers} == {
        (c["name"], c["url_prefix"]) for c in repo.expected["containers"].values()
    }


def settings_in(plain: Any, name: str = "") -> Counter[tuple[str, str]]:
    """Return the names and values of all single settings but those of containers and splits."""
    found: Counter[tuple[str, str]] = Counter()
    if isinstance(plain, dict):
        for key, value in plain.items():
            if key not in ("virtual_chunk_containers", "split_sizes", "preload_if"):
                found += settings_in(value, key)
    elif plain is not None:
        found[name, json.dumps(plain) if isinstance(plain, str) else str(plain)] += 1
    return found


def settings_shown(text: str) -> Counter[tuple[str, str]]:
    """Return the same out of the official package's repr."""
    outside = text.partition("virtual_chunk_containers=")[0]
    pairs = re.findall(r"^ +(\w+)=(True|False|\d+|\"[^\"]*\"),$", outside, re.MULTILINE)
    return Counter(pairs)


def test_every_stored_config_round_trips(repo: Golden) -> None:
    for path, data in repo.files.items():
        if "config.yaml" in path:
            assert encode_config_yaml(decode_config_yaml(data, path)) == data
        elif path.startswith(("repo", "overwritten/")):
            config = read_repo_info(data, path).config
            if config is not None:
                plain = decode_config(config, path)
                assert decode_config(encode_config(plain), path) == plain


def test_every_file_round_trips(repo: Golden) -> None:
    seen: Counter[str] = Counter()
    for path, data in repo.files.items():
        folder, _, name = path.partition("/")
        seen[folder] += 1
        if folder == "snapshots":
            check_snapshot(data, SnapshotId.parse(name))
        elif folder == "manifests":
            check_manifest(data, ManifestId.parse(name))
        elif folder == "transactions":
            check_log(data, SnapshotId.parse(name))
        elif folder == "repo" or name.startswith("repo."):
            check_repo_info(data, path)
        else:
            # Chunks are not metadata; refs and configurations have separate tests.
            assert folder in ("chunks", "refs") or "config.yaml" in path

    assert seen.total() == len(repo.files)


def check_snapshot(data: bytes, id: SnapshotId) -> None:
    snapshot, spec = read_snapshot(data, id), spec_of_file(data)
    written = write_snapshot(snapshot, spec)
    check_ours(written, data)
    assert read_snapshot(written, id) == snapshot


def check_manifest(data: bytes, id: ManifestId) -> None:
    manifest, spec = read_manifest(data, id).unpack(), spec_of_file(data)
    for compression in (None, LocationCompression(min_num_chunks=1)):
        written = write_manifest(manifest, spec, compression=compression)
        check_ours(written, data)
        assert read_manifest(written, id).unpack() == manifest


def check_log(data: bytes, id: SnapshotId) -> None:
    log, spec = read_transaction_log(data, id), spec_of_file(data)
    written = write_transaction_log(log, spec)
    check_ours(written, data)
    assert read_transaction_log(written, id) == log


def check_repo_info(data: bytes, path: str) -> None:
    info: RepoInfo = read_repo_info(data, path)
    written = write_repo_info(info, spec_of_file(data))
    check_ours(written, data)
    assert read_repo_info(written, path) == info


def check_ours(written: bytes, official: bytes) -> None:
    """Check that the header differs only in the implementation name, and that the frame has a checksum."""
    ours, theirs = open_header(written, "ours"), open_header(official, "theirs")
    assert written[12:36] == f"icefloe-{__version__}".encode().ljust(24)
    assert (ours.spec, ours.file_type) == (theirs.spec, theirs.file_type)
    assert zstandard.get_frame_parameters(written[HEADER.size :]).has_checksum
