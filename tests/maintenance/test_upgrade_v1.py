"""Upgrades from version 1 of the format to version 2."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import ManifestPreloadConfig, Repository, SpecVersion, upgrade_icechunk_repository
from icefloe.errors import ConflictError, SessionStateError
from icefloe.storage import in_memory_storage
from icefloe.storage.base import Storage
from tests.support.format import golden
from tests.support.histories import commit, history, names, repository


def version_1() -> Repository:
    """Create a version 1 repository with two branches, a tag and a deleted tag."""
    repo = repository(1)
    first = commit(repo, 1)
    repo.create_branch("dev", first)
    commit(repo, 2, "dev")
    commit(repo, 3)
    repo.create_tag("v1", first)
    repo.create_tag("gone", first)
    repo.delete_tag("gone")
    return repo


def seen(repo: Repository) -> Any:
    """Return everything that users see of a repository."""
    values = {}
    for branch in sorted(repo.list_branches()):
        array = zarr.open_array(repo.readonly_session(branch).store, path="a", mode="r")
        values[branch] = np.asarray(array[:]).tolist()
    return {
        "values": values,
        "ancestry": {b: [i.id for i in repo.ancestry(branch=b)] for b in sorted(repo.list_branches())},
        "tags": {tag: repo.lookup_tag(tag) for tag in repo.list_tags()},
    }


@pytest.mark.parametrize(
    "name", [name for name in golden.NAMES if name.startswith("v1-") and "expire" in name]
)
def test_collected_repositories_of_releases_are_upgraded(name: str) -> None:
    """A deleted tag may refer to a snapshot that was collected."""
    storage = in_memory_storage()
    for path, data in golden.load(name).files.items():
        storage.put(path, data)

    icefloe.upgrade_icechunk_repository(Repository.open(storage), dry_run=False)

    repo = Repository.open(storage)
    assert repo.spec_version == SpecVersion.v2
    assert repo.verify("objects").ok


def test_upgrade_keeps_everything_and_changes_the_version() -> None:
    repo = version_1()
    before = seen(repo)

    upgraded = upgrade_icechunk_repository(repo, dry_run=False)

    assert upgraded.spec_version is SpecVersion.v2
    assert seen(upgraded) == seen(Repository.open(upgraded.storage)) == before
    assert upgraded.verify("objects").findings == ()
    assert names(upgraded, "refs") == set()


def test_ops_log_is_inferred_from_the_history() -> None:
    upgraded = upgrade_icechunk_repository(version_1(), dry_run=False)

    log = [type(update.kind).__name__ for update in upgraded.ops_log()]

    assert log[0] == "RepoMigrated"
    assert log[-1] == "RepoInitialized"
    assert sorted(log[1:-1]) == sorted(
        ["NewCommit"] * 4 + ["BranchCreated", "TagDeleted"] + ["TagCreated"] * 2
    )


def test_deleted_tag_stays_deleted() -> None:
    upgraded = upgrade_icechunk_repository(version_1(), dry_run=False)

    with pytest.raises(icefloe.AlreadyExistsError, match="gone"):
        upgraded.create_tag("gone", upgraded.lookup_branch("main"))


def test_upgraded_repository_is_writable() -> None:
    upgraded = upgrade_icechunk_repository(version_1(), dry_run=False)

    commit(upgraded, 5)

    assert history(upgraded)[:2] == ["write 5", "write 3"]
    assert upgraded.verify("objects").ok


def test_stored_configuration_is_kept() -> None:
    config = icefloe.RepositoryConfig.default()
    config.manifest = icefloe.ManifestConfig(preload=ManifestPreloadConfig(max_total_refs=42))
    repo = Repository.create(icefloe.in_memory_storage(), config=config, spec_version=1)
    repo.save_config()

    upgraded = upgrade_icechunk_repository(repo, dry_run=False)

    stored = Repository.fetch_config(upgraded.storage)
    assert stored is not None
    assert stored.manifest is not None
    assert stored.manifest.preload is not None
    assert stored.manifest.preload.max_total_refs == 42
    assert not upgraded.storage.exists("config.yaml")


def test_dry_run_writes_nothing() -> None:
    repo = version_1()
    before = names(repo, "")

    same = upgrade_icechunk_repository(repo, dry_run=True)

    assert same.spec_version is SpecVersion.v1
    assert names(repo, "") == before


def test_old_repository_object_is_invalidated() -> None:
    repo = version_1()

    upgrade_icechunk_repository(repo, dry_run=False)

    with pytest.raises(RuntimeError, match="invalidated"):
        repo.list_branches()
    assert "invalidated" in repr(repo)


def test_upgrade_can_keep_files_of_version_1() -> None:
    upgraded = upgrade_icechunk_repository(version_1(), dry_run=False, delete_unused_v1_files=False)

    assert "branch.main/ref.json" in names(upgraded, "refs")
    assert Repository.open(upgraded.storage).spec_version is SpecVersion.v2


def test_upgrade_interrupted_while_deleting_resumes() -> None:
    half = upgrade_icechunk_repository(version_1(), dry_run=False, delete_unused_v1_files=False)

    whole = upgrade_icechunk_repository(half, dry_run=False)

    assert names(whole, "refs") == set()
    assert whole.list_branches() == {"main", "dev"}
    with pytest.raises(SessionStateError, match="version"):
        upgrade_icechunk_repository(whole, dry_run=False)


def test_files_of_users_in_the_refs_folder_are_kept() -> None:
    repo = version_1()
    repo.storage.put("refs/branch.main/notes.txt", b"of a user")

    upgraded = upgrade_icechunk_repository(repo, dry_run=False)

    assert names(upgraded, "refs") == {"branch.main/notes.txt"}
    with pytest.raises(SessionStateError, match="version"):
        upgrade_icechunk_repository(upgraded, dry_run=False)


def test_concurrent_commit_undoes_the_upgrade(monkeypatch: pytest.MonkeyPatch) -> None:
    repo = version_1()
    other = Repository.open(repo.storage)
    put = type(repo.storage).put

    def put_and_commit(self: Storage, path: str, *args: Any, **kwargs: Any) -> Any:
        found = put(self, path, *args, **kwargs)
        if path == "repo":
            monkeypatch.undo()
            commit(other, 6)
        return found

    monkeypatch.setattr(type(repo.storage), "put", put_and_commit)

    with pytest.raises(ConflictError, match="stop all writers"):
        upgrade_icechunk_repository(repo, dry_run=False)

    assert Repository.open(repo.storage).spec_version is SpecVersion.v1
    assert history(repo)[0] == "write 6"
    upgraded = upgrade_icechunk_repository(repo, dry_run=False)
    assert history(upgraded)[0] == "write 6"


def test_upgrade_of_version_2_fails() -> None:
    with pytest.raises(SessionStateError) as caught:
        upgrade_icechunk_repository(repository(), dry_run=False)

    assert caught.value.kind == "invalid-repository-migration"
