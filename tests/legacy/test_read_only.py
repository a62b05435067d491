"""Operations that would change a repository of an old format say that it is read-only, and name the
remedy.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
import zarr

from icefloe.config import RepositoryConfig
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    InvalidInputError,
    ReadOnlyError,
)
from icefloe.repository import Repository
from icefloe.types import RepoAvailability, RepoStatus
from tests.support.format import golden
from tests.support.legacy.locations import contents, place

NOW = datetime(2026, 1, 1, tzinfo=UTC)
STATUS = RepoStatus(RepoAvailability.online, NOW, None)

ATTEMPTS: dict[str, Callable[[Repository], Any]] = {
    "writable_session": lambda repo: repo.writable_session("main"),
    "rearrange_session": lambda repo: repo.rearrange_session("main"),
    "create_branch": lambda repo: repo.create_branch("new", repo.lookup_branch("main")),
    "delete_branch": lambda repo: repo.delete_branch("main"),
    "reset_branch": lambda repo: repo.reset_branch("main", repo.lookup_tag("v1")),
    "create_tag": lambda repo: repo.create_tag("new", repo.lookup_branch("main")),
    "delete_tag": lambda repo: repo.delete_tag("v1"),
    "save_config": lambda repo: repo.save_config(),
    "set_metadata": lambda repo: repo.set_metadata({}),
    "update_metadata": lambda repo: repo.update_metadata({}),
    "set_status": lambda repo: repo.set_status(STATUS),
    "set_feature_flag": lambda repo: repo.set_feature_flag("move_node", False),
    "expire_snapshots": lambda repo: repo.expire_snapshots(NOW),
    "garbage_collect": lambda repo: repo.garbage_collect(NOW),
    "rewrite_manifests": lambda repo: repo.rewrite_manifests("x", branch="main"),
    "verify": lambda repo: repo.verify(),
    "chunk_storage_stats": lambda repo: repo.chunk_storage_stats(),
    "ops_log": lambda repo: list(repo.ops_log()),
    "get_metadata": lambda repo: repo.get_metadata(),
    "inspect_snapshot": lambda repo: repo.inspect_snapshot(repo.lookup_branch("main")),
    "inspect_manifest": lambda repo: repo.inspect_manifest("0" * 20),
    "inspect_transaction_log": lambda repo: repo.inspect_transaction_log(repo.lookup_branch("main")),
    "inspect_repo_info": lambda repo: repo.inspect_repo_info(),
    "get_status": lambda repo: repo.get_status(),
}


@pytest.mark.parametrize("name", ["handmade-001-json", "handmade-004-0.1.3"])
@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_write_operations_name_the_remedy(name: str, attempt: str) -> None:
    storage = place(golden.load(name).files)
    repo = Repository.open(storage)

    with pytest.raises(ReadOnlyError, match=r"read-only.*icefloe\.migrate") as caught:
        ATTEMPTS[attempt](repo)

    assert caught.value.kind == ErrorKind.READ_ONLY_REPOSITORY
    assert contents(storage) == dict(golden.load(name).files)


def test_transaction_error_contains_the_remedy() -> None:
    repo = Repository.open(place(golden.load("handmade-002-alpha2").files))

    with pytest.raises(ReadOnlyError, match=r"icefloe\.migrate"), repo.transaction("main", message="x"):
        pass


def test_session_is_read_only() -> None:
    session = Repository.open(place(golden.load("handmade-002-alpha2").files)).readonly_session("main")

    with pytest.raises((ReadOnlyError, ValueError), match=r"read-only|read only"):
        zarr.create_group(session.store, path="new")


def test_repository_is_not_created_over_an_old_one() -> None:
    storage = place(golden.load("handmade-002-alpha2").files)

    with pytest.raises(InvalidInputError):
        Repository.create(storage)
    with pytest.raises(ConflictError, match=r"icefloe\.migrate"):
        Repository.create(storage, check_clean_root=False)
    assert Repository.open_or_create(storage).list_branches() == {"main", "dev"}


def test_old_repository_can_be_reopened_with_another_configuration() -> None:
    repo = Repository.open(place(golden.load("handmade-002-alpha2").files))

    again = repo.reopen(RepositoryConfig(inline_chunk_threshold_bytes=7))

    assert again.config.inline_chunk_threshold_bytes == 7
    assert again.list_branches() == repo.list_branches()


def test_manifests_are_listed_and_history_is_drawn() -> None:
    repo = Repository.open(place(golden.load("handmade-004-alpha15").files))

    (manifest,) = repo.list_manifest_files(repo.lookup_branch("main"))
    assert (manifest.id, manifest.num_chunk_refs) == ("11FKWP1P2ZDYTTXH4160", 73)
    assert "main" in str(repo.ancestry_graph(plain=True))
