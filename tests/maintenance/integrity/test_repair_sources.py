"""Repair of virtual references: references follow moved files, or are dropped on request."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

from icefloe import (
    Repository,
    RepositoryConfig,
    VirtualChunkContainer,
    in_memory_storage,
    local_filesystem_store,
)
from icefloe.credentials import LocalFileSystemAccess


@pytest.fixture
def archive(tmp_path: Path) -> tuple[Repository, Path]:
    """Create an array with four virtual chunks in two files, whose URLs are stored percent-encoded."""
    folder = tmp_path / "été 2024"
    folder.mkdir()
    prefix = f"file://{folder}/"
    config = RepositoryConfig.default()
    config.set_virtual_chunk_container(VirtualChunkContainer(prefix, local_filesystem_store(str(folder))))
    repo = Repository.create(
        in_memory_storage(), config=config, authorize_virtual_chunk_access={prefix: LocalFileSystemAccess}
    )
    session = repo.writable_session("main")
    array = zarr.create_array(
        session.store, name="v", shape=(16,), chunks=(4,), dtype="i4", compressors=None, filters=None
    )
    assert array.shape == (16,)
    for at in range(4):
        file = folder / "old" / f"{at // 2}.bin"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(np.arange(8 * (at // 2), 8 * (at // 2) + 8, dtype="<i4").tobytes())
        session.store.set_virtual_ref(
            f"v/c/{at}", f"{prefix}old/{at // 2}.bin", offset=16 * (at % 2), length=16
        )
    session.commit("virtual")
    return repo, folder


def values(repo: Repository) -> list[int]:
    array = zarr.open_array(repo.readonly_session("main").store, path="v", mode="r")
    return list(np.asarray(array[:]).tolist())


def test_references_follow_moved_files(archive: tuple[Repository, Path]) -> None:
    repo, folder = archive
    (folder / "old").rename(folder / "new")
    assert {found.kind for found in repo.verify("sources").findings} == {"missing"}

    report = repo.repair(relocate={f"file://{folder}/old/": f"file://{folder}/new/", "file://": "s3://"})

    assert report.complete
    assert [row["action"] for row in report.table().rows()] == ["relocated", "relocated"]
    assert values(repo) == list(range(16))
    assert repo.verify("sources", branch="main", history=False).ok


def test_references_to_missing_files_are_dropped_only_on_request(
    archive: tuple[Repository, Path],
) -> None:
    repo, folder = archive
    (folder / "old" / "1.bin").unlink()
    wrong = {f"file://{folder}/old/": f"file://{folder}/nowhere/"}

    left = repo.repair(relocate=wrong)
    preview = repo.repair(virtual=True, drop=True, dry_run=True)
    dropped = repo.repair(virtual=True, drop=True)

    assert (left.complete, left.snapshot_id, preview.snapshot_id) == (False, None, None)
    assert preview.actions == dropped.actions
    assert [row["action"] for row in dropped.table().rows()] == ["dropped"]
    assert values(repo) == [*range(8), *[0] * 8]
    assert repo.verify("sources", branch="main", history=False).ok


def test_repair_ignores_virtual_references_by_default(
    archive: tuple[Repository, Path],
) -> None:
    repo, folder = archive
    (folder / "old" / "1.bin").unlink()

    assert repo.repair(drop=True).actions == ()
