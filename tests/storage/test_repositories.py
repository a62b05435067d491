"""Repositories on all storages: the same operations everywhere, and races that lose nothing."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import zarr

from icefloe import Repository, Storage
from icefloe.errors import AlreadyExistsError, ConflictError, InvalidInputError, RefNotFoundError

WRITERS = 4

pytestmark = pytest.mark.parametrize("version", [1, 2])


def write(repo: Repository, name: str, value: int) -> str:
    session = repo.writable_session("main")
    array = zarr.create_array(session.store, name=name, shape=(4, 4), chunks=(2, 2), dtype="f8")
    array[:] = np.full((4, 4), value) + np.arange(4)
    return session.commit(f"write {name}")


def read(repo: Repository, name: str, **ref: Any) -> np.ndarray[Any, Any]:
    found = zarr.open_array(repo.readonly_session(**ref).store, path=name, mode="r")
    return np.asarray(found[:])


def test_repository_supports_all_operations(storage: Storage, version: int) -> None:
    repo = Repository.create(storage, spec_version=version)
    first = write(repo, "a", 1)
    repo.create_tag("v1", first)
    repo.create_branch("dev", first)
    write(repo, "b", 2)

    again = Repository.open(storage)

    assert again.spec_version == version
    assert again.list_branches() == {"main", "dev"}
    assert again.lookup_tag("v1") == first
    assert [info.message for info in again.ancestry(branch="main")][:2] == ["write b", "write a"]
    np.testing.assert_array_equal(read(again, "b", branch="main"), np.full((4, 4), 2) + np.arange(4))
    with pytest.raises(FileNotFoundError):
        read(again, "b", tag="v1")


def test_pickled_repository_reads(storage: Storage, version: int) -> None:
    repo = Repository.create(storage, spec_version=version)
    write(repo, "a", 1)

    copy = pickle.loads(pickle.dumps(repo.readonly_session("main")))

    np.testing.assert_array_equal(zarr.open_array(copy.store, path="a")[:], read(repo, "a", branch="main"))


def test_no_commit_of_many_writers_is_lost(storage: Storage, version: int) -> None:
    Repository.create(storage, spec_version=version)

    def commit_until_it_works(number: int) -> str:
        repo = Repository.open(storage)
        while True:
            try:
                return write(repo, f"a{number}", number)
            except ConflictError:
                continue

    with ThreadPoolExecutor(WRITERS) as threads:
        committed = list(threads.map(commit_until_it_works, range(WRITERS)))

    history = [info.id for info in Repository.open(storage).ancestry(branch="main")]
    assert set(committed) < set(history)
    assert len(history) == WRITERS + 1


def test_only_one_writer_creates_a_tag(storage: Storage, version: int) -> None:
    tip = Repository.create(storage, spec_version=version).lookup_branch("main")

    def make(_: int) -> bool:
        try:
            Repository.open(storage).create_tag("v1", tip)
        except AlreadyExistsError:
            return False
        return True

    with ThreadPoolExecutor(WRITERS) as threads:
        assert sum(threads.map(make, range(WRITERS))) == 1


def test_location_can_contain_only_one_repository(storage: Storage, version: int) -> None:
    Repository.create(storage, spec_version=version)

    with pytest.raises(InvalidInputError, match="empty location") as caught:
        Repository.create(storage, spec_version=version)
    assert storage.describe()["type"] in caught.value.message
    with pytest.raises(ConflictError, match="already"):
        Repository.create(storage, spec_version=version, check_clean_root=False)


# Without a backslash, which SeaweedFS takes for a slash.
ODD = ["..", ".", "...", " ", "é", "a%2Fb", "tag.x", "x" * 200]


def test_unusual_ref_names_round_trip_and_stay_inside_the_repository(storage: Storage, version: int) -> None:
    repo = Repository.create(storage, spec_version=version)
    tip = repo.lookup_branch("main")

    for name in ODD:
        repo.create_branch(name, tip)
        repo.create_tag(name, tip)

    assert repo.list_branches() == {"main", *ODD}
    assert repo.list_tags() == set(ODD)
    assert all(repo.lookup_branch(name) == repo.lookup_tag(name) == tip for name in ODD)
    assert {info.key.split("/")[0] for info in storage.list_prefix()} <= {
        "repo",
        "refs",
        "snapshots",
        "transactions",
        "overwritten",
    }
    for name in ODD:
        repo.delete_branch(name)
        repo.delete_tag(name)
    assert (repo.list_branches(), repo.list_tags()) == ({"main"}, set())


def test_unstorable_names_are_rejected(storage: Storage, version: int) -> None:
    """In V2 a name is a text in a file and nothing else."""
    repo = Repository.create(storage, spec_version=version)
    tip = repo.lookup_branch("main")
    nowhere = ["\ud800"]
    only_in_v2 = ["", "/", "a/b", "../../x", "a\0b", "a\nb", "\x7f", "\ufffe", "a\uffff"]

    for name in nowhere if version == 2 else nowhere + only_in_v2:
        for make in (repo.create_branch, repo.create_tag):
            with pytest.raises(InvalidInputError) as caught:
                make(name, tip)
            assert caught.value.kind == "invalid-ref-name"
    taken = set(only_in_v2 if version == 2 else [])
    for name in taken:
        repo.create_branch(name, tip)
        repo.create_tag(name, tip)
    assert (repo.list_branches(), repo.list_tags()) == ({"main"} | taken, taken)


def test_overlong_names_are_rejected(storage: Storage, version: int) -> None:
    repo = Repository.create(storage, spec_version=version)
    tip = repo.lookup_branch("main")
    name = "é" * 600

    if version == 2 or storage.describe()["type"] == "in-memory":
        repo.create_branch(name, tip)
        assert repo.lookup_branch(name) == tip
        return
    for use in (
        lambda: repo.create_branch(name, tip),
        lambda: repo.create_tag(name, tip),
        lambda: repo.lookup_branch(name),
        lambda: repo.delete_tag(name),
    ):
        with pytest.raises(InvalidInputError, match="too long for") as caught:
            use()
        assert caught.value.kind == "invalid-ref-name"


def test_missing_refs_raise_not_found(storage: Storage, version: int) -> None:
    repo = Repository.create(storage, spec_version=version)

    for look in (repo.lookup_branch, repo.lookup_tag, repo.delete_branch, repo.delete_tag):
        with pytest.raises(RefNotFoundError, match="nowhere"):
            look("nowhere")
