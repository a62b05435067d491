"""Repositories with our own content in every structure: opened, compared and upgraded."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from icefloe.legacy.upgrade import migrate
from icefloe.repository import Repository
from icefloe.storage import in_memory_storage
from icefloe.storage.base import Storage
from tests.support.legacy.contents import authorized, config_for, described, make, values
from tests.support.legacy.locations import contents, place
from tests.support.legacy.repositories import FORMATS, write_older

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("external")


@pytest.fixture(scope="module")
def source(folder: Path) -> tuple[Repository, dict[str, str]]:
    return make(folder)


@pytest.fixture(scope="module")
def small(folder: Path) -> tuple[Repository, dict[str, str]]:
    return make(folder, small=True)


@pytest.fixture(scope="module")
def expected(source: tuple[Repository, dict[str, str]]) -> dict[str, Any]:
    return described(source[0])


@pytest.fixture(scope="module")
def expected_of_small(small: tuple[Repository, dict[str, str]]) -> dict[str, Any]:
    return described(small[0])


@pytest.fixture(scope="module")
def written(small: tuple[Repository, dict[str, str]]) -> Callable[[str], dict[str, bytes]]:
    """Write the small repository in a format, once for all tests."""

    @cache
    def write(name: str) -> dict[str, bytes]:
        storage: Storage = in_memory_storage()
        write_older(small[0], storage, FORMATS[name], small[1] if name.startswith("004-") else {})
        return contents(storage)

    return write


@pytest.fixture(params=FORMATS)
def older(request: pytest.FixtureRequest, written: Callable[[str], dict[str, bytes]]) -> Storage:
    return place(written(request.param))


@pytest.mark.parametrize("name", FORMATS)
def test_written_repository_is_read(
    name: str, source: tuple[Repository, dict[str, str]], expected: dict[str, Any], folder: Path
) -> None:
    older: Storage = in_memory_storage()
    write_older(source[0], older, FORMATS[name])

    repo = Repository.open(older, config_for(folder), authorized(folder))

    assert described(repo) == expected


@pytest.mark.parametrize("name", ["001-json", "004-0.1.3"])
def test_zarr_reads_the_same_values(
    name: str, source: tuple[Repository, dict[str, str]], folder: Path
) -> None:
    older: Storage = in_memory_storage()
    write_older(source[0], older, FORMATS[name])

    repo = Repository.open(older, config_for(folder), authorized(folder))

    assert values(repo.readonly_session("main")) == values(source[0].readonly_session("main"))


def test_written_repository_is_upgraded(
    older: Storage, expected_of_small: dict[str, Any], folder: Path
) -> None:
    before = contents(older)
    target: Storage = in_memory_storage()

    report = migrate(older, target)

    assert (report.gaps, report.tolerated) == ([], [])
    assert contents(older) == before
    repo = Repository.open(target, config_for(folder), authorized(folder))
    assert described(repo) == expected_of_small
    assert repo.verify("objects").ok
    assert repo.inspect_repo_info()["deleted_tags"] == (["gone"] if report.deleted_tags else [])


def test_written_repository_is_upgraded_in_place(
    older: Storage, expected_of_small: dict[str, Any], folder: Path
) -> None:
    chunks = {path: data for path, data in contents(older).items() if path.startswith("chunks/")}

    report = migrate(older, delete_old_files=True)

    assert (report.gaps, report.tolerated) == ([], [])
    repo = Repository.open(older, config_for(folder), authorized(folder))
    assert described(repo) == expected_of_small
    after = contents(older)
    assert {path.partition("/")[0] for path in after} == {
        "repo",
        "snapshots",
        "manifests",
        "transactions",
        "chunks",
    }
    assert {path: after[path] for path in chunks} == chunks
