"""Rewriting of manifests."""

from __future__ import annotations

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import ManifestSplitCondition, ManifestSplitDimCondition, ManifestSplittingConfig, Repository
from icefloe.errors import ReadOnlyError, SessionStateError


def split_by(size: int) -> icefloe.RepositoryConfig:
    """Return a configuration with a limit of chunks per manifest."""
    splitting = ManifestSplittingConfig.from_dict(
        {ManifestSplitCondition.AnyArray(): {ManifestSplitDimCondition.Any(): size}}
    )
    config = icefloe.RepositoryConfig.default()
    config.manifest = icefloe.ManifestConfig(splitting=splitting)
    config.inline_chunk_threshold_bytes = 0
    return config


def two_arrays() -> Repository:
    """Create two arrays with eight chunks in one manifest each."""
    repo = Repository.create(icefloe.in_memory_storage())
    session = repo.writable_session("main")
    for name in ("a", "b"):
        zarr.create_array(session.store, name=name, data=np.arange(1, 9, dtype="i4"), chunks=(1,))
    session.commit("two arrays")
    return repo


def counts(repo: Repository) -> list[int]:
    """Return the number of references in each manifest of main."""
    return sorted(file.num_chunk_refs for file in repo.list_manifest_files(repo.lookup_branch("main")))


def values(repo: Repository, path: str) -> list[int]:
    """Return the values of an array on main."""
    array = zarr.open_array(repo.readonly_session("main").store, path=path, mode="r")
    return list(np.asarray(array[:]).tolist())


def test_manifests_are_split_by_the_current_configuration() -> None:
    repo = Repository.open(two_arrays().storage, config=split_by(3))
    assert counts(repo) == [8, 8]

    id = repo.rewrite_manifests("split", branch="main", metadata={"why": "size"})

    assert repo.lookup_branch("main") == id
    assert counts(repo) == [2, 2, 3, 3, 3, 3]
    assert values(repo, "a") == values(repo, "b") == list(range(1, 9))
    assert repo.verify("objects").ok
    info = next(iter(repo.ancestry(branch="main")))
    assert info.message == "split"
    assert info.metadata == {
        "why": "size",
        "__icechunk": {
            "splitting_config": {"split_sizes": [["any_array", [{"condition": "Any", "num_chunks": 3}]]]}
        },
    }


def test_small_manifests_are_merged() -> None:
    repo = Repository.open(two_arrays().storage, config=split_by(1))
    repo.rewrite_manifests("split", branch="main")
    assert len(counts(repo)) == 16

    Repository.open(repo.storage, config=split_by(100)).rewrite_manifests("join", branch="main")

    assert counts(repo) == [8, 8]
    assert values(repo, "b") == list(range(1, 9))


def test_rewrite_does_not_change_values() -> None:
    repo = two_arrays()
    before = repo.lookup_branch("main")

    after = repo.rewrite_manifests("again", branch="main")

    assert repo.diff(from_snapshot_id=before, to_snapshot_id=after).is_empty()
    files = [{file.id for file in repo.list_manifest_files(id)} for id in (before, after)]
    assert not files[0] & files[1]


def test_rewrite_can_amend_the_tip() -> None:
    repo = two_arrays()

    repo.rewrite_manifests("instead", branch="main", commit_method="amend")

    assert [info.message for info in repo.ancestry(branch="main")] == ["instead", "Repository initialized"]
    assert values(repo, "a") == list(range(1, 9))
    root, tip = ([info.id for info in repo.ancestry(branch="main")][at] for at in (-1, 0))
    assert repo.diff(from_snapshot_id=root, to_snapshot_id=tip).new_arrays == {"/a", "/b"}


def test_first_commit_cannot_be_amended() -> None:
    repo = Repository.create(icefloe.in_memory_storage())

    with pytest.raises(SessionStateError) as caught:
        repo.rewrite_manifests("no", branch="main", commit_method="amend")

    assert caught.value.kind == "no-amend-for-initial-commit"


def test_unknown_commit_method_is_rejected() -> None:
    with pytest.raises(ValueError, match="'merge'"):
        two_arrays().rewrite_manifests("no", branch="main", commit_method="merge")


def test_read_only_repository_is_rejected() -> None:
    repo = two_arrays()
    repo.set_status(icefloe.RepoStatus(icefloe.RepoAvailability.read_only))

    with pytest.raises(ReadOnlyError, match="read-only"):
        repo.rewrite_manifests("no", branch="main")
