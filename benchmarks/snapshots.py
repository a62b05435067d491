"""Benchmark snapshots of a repository with many nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import local_repository, official
from benchmarks.harness import Job, Row, Side

NODES = 50_000
PER_GROUP = 100
WANTED = "/group-00123/array-00045"


def setup_many_nodes(folder: Path) -> None:
    """Create a repository with `NODES` nodes."""
    nodes = [local_repository.group_node("/")]
    for group in range(NODES // PER_GROUP):
        path = f"/group-{group:05d}"
        nodes.append(local_repository.group_node(path))
        nodes += [
            local_repository.array_node(f"{path}/array-{i:05d}", (10, 10)) for i in range(PER_GROUP - 1)
        ]
    local_repository.create(folder, nodes)
    if not official.why_unavailable():
        # Another commit by the official package, so that both sides read a snapshot file that it wrote.
        import zarr

        session = official.open_repository(folder).writable_session("main")
        zarr.create_group(session.store, path="last")
        session.commit("one more group")


def _find_ours(folder: Path, _: Path) -> Job:
    def job() -> bytes:
        _, snapshot = local_repository.open_main(folder)
        node = snapshot.nodes.find(WANTED)
        assert node is not None
        return node.user_data

    return job


def _find_theirs(folder: Path, _: Path) -> Job:
    from zarr.core.buffer import default_buffer_prototype
    from zarr.core.sync import sync

    prototype = default_buffer_prototype()

    def job() -> bytes:
        store = official.open_repository(folder).readonly_session("main").store
        data: Any = sync(store.get(f"{WANTED[1:]}/zarr.json", prototype))
        return bytes(data.to_bytes())

    return job


def _check(ours: bytes, theirs: bytes) -> None:
    assert ours == theirs


ROWS = [
    Row(
        name="find-node",
        title="a snapshot of 50,000 nodes: open and find one",
        ours=Side("open; read, inflate and check the snapshot; one node by path", _find_ours),
        theirs=Side("open; session; get one zarr.json from the store", _find_theirs),
        cpu_ratio=2,
        setup=setup_many_nodes,
        check=_check,
        repeat=15,
    )
]
