"""Reading over HTTP, directly and at the end of redirects."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import zarr

from icefloe import Repository, RepositoryConfig
from icefloe.config import StorageConcurrencySettings, StorageSettings
from icefloe.errors import ErrorKind, ReadOnlyError, RepositoryNotFoundError, StorageError
from icefloe.storage import (
    ObjectNotFoundError,
    Storage,
    http_storage,
    local_filesystem_storage,
    redirect_storage,
)
from tests.support.servers.files import file_server
from tests.support.servers.proxy import faulty_proxy

DATA = bytes(range(256)) * 100


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a few objects."""
    storage = local_filesystem_storage(str(tmp_path / "repo"))
    storage.put("repo", b"info")
    storage.put("chunks/big", DATA)
    storage.put("refs/branch.分支/ref.json", b"{}")
    return tmp_path


def check_reading(storage: Storage) -> None:
    assert storage.get("repo")[0] == b"info"
    assert storage.get("chunks/big")[0] == DATA
    assert storage.get_range("chunks/big", 10, 300) == DATA[10:300]
    assert storage.get_range("chunks/big", 25_000, None) == DATA[25_000:]
    assert storage.get("refs/branch.分支/ref.json")[0] == b"{}"
    assert storage.exists("repo")
    assert not storage.exists("missing")
    with pytest.raises(ObjectNotFoundError):
        storage.get("missing")
    with pytest.raises(StorageError):
        storage.get_range("repo", 0, 100)


def test_http_storage_reads(folder: Path) -> None:
    with file_server(folder) as url:
        storage = http_storage(f"{url}/repo")

        check_reading(storage)
        check_reading(pickle.loads(pickle.dumps(storage)))
        check_reading(storage.with_settings(StorageSettings(concurrency=StorageConcurrencySettings(4, 1000))))
        assert dict(storage.describe()) == {"type": "HTTP", "url": f"{url}/repo"}


def test_http_storage_revalidates_cached_objects(folder: Path) -> None:
    with file_server(folder) as url:
        storage = http_storage(f"{url}/repo")
        data, version = storage.get("repo")
        changed = storage.get_if_changed("repo", version)

    assert changed in (None, (data, version))  # this server does not know If-None-Match


def test_http_storage_sends_headers(folder: Path) -> None:
    with file_server(folder) as url, faulty_proxy(url) as proxy:
        storage = http_storage(
            f"{proxy.url}/repo", {"allow_http": "true"}, {"authorization": "Bearer hunter2"}
        )

        storage.get("repo")

        assert proxy.seen[-1].headers["authorization"] == "Bearer hunter2"
        assert "hunter2" not in repr(storage)


def test_writing_over_http_is_rejected(folder: Path) -> None:
    with file_server(folder) as url:
        for storage in (http_storage(f"{url}/repo"), redirect_storage(url)):
            assert storage.read_only
            for call in (
                lambda storage=storage: storage.put("a", b""),
                lambda storage=storage: storage.delete(["a"]),
                lambda storage=storage: storage.copy("repo", "b"),
                storage.prepare_for_creation,
            ):
                with pytest.raises(ReadOnlyError) as caught:
                    call()
                assert caught.value.kind == ErrorKind.READ_ONLY_STORAGE


@pytest.mark.parametrize("url", ["notaurl", "ftp://host/x", "http://"])
def test_invalid_url_is_rejected(url: str) -> None:
    with pytest.raises(StorageError) as caught:
        http_storage(url)

    assert caught.value.kind == ErrorKind.CANNOT_PARSE_URL


def test_redirects_are_followed_to_a_storage(folder: Path) -> None:
    redirects: dict[str, str] = {"/catalog/one": "/catalog/two"}
    with file_server(folder, redirects) as url:
        redirects["/catalog/two"] = f"http+icechunk{url.removeprefix('http')}/repo"
        storage = redirect_storage(f"{url}/catalog/one")

        check_reading(storage)
        check_reading(pickle.loads(pickle.dumps(storage)))


@pytest.mark.parametrize(
    ("location", "text"),
    [
        ("/catalog", "no storage after 10 redirects"),
        ("file:///etc", "expected an http URL"),
        ("memory://x", "expected an http URL"),
        ("/nowhere", "answered 404"),
    ],
)
def test_invalid_redirects_are_rejected(folder: Path, location: str, text: str) -> None:
    with (
        file_server(folder, {"/catalog": location}) as url,
        pytest.raises(StorageError, match=text) as caught,
    ):
        redirect_storage(f"{url}/catalog").get("repo")

    assert caught.value.kind == ErrorKind.BAD_REDIRECT


def test_unreachable_redirect_raises_an_error() -> None:
    with pytest.raises(StorageError) as caught:
        redirect_storage("http://127.0.0.1:1/x").get("repo")

    assert caught.value.kind == ErrorKind.BAD_REDIRECT


@pytest.fixture(params=[1, 2])
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a folder with a repository of one array in `data`, with a tag on it."""
    repo = Repository.create(
        local_filesystem_storage(str(tmp_path / "data")),
        RepositoryConfig(inline_chunk_threshold_bytes=8),
        spec_version=request.param,
    )
    session = repo.writable_session("main")
    array = zarr.create_array(session.store, name="a", shape=(10,), chunks=(5,), dtype="i8")
    array[:] = range(10)
    repo.create_tag("v1", session.commit("ten numbers"))
    return tmp_path


def test_repository_is_read_over_http(repository: Path) -> None:
    with file_server(repository) as url:
        repo = Repository.open(http_storage(f"{url}/data"))
        session = repo.readonly_session("main")

        found = zarr.open_array(session.store, path="a", mode="r")[3:8]
        assert np.asarray(found).tolist() == [3, 4, 5, 6, 7]
        assert list(zarr.open_group(session.store, mode="r").array_keys()) == ["a"]
        assert next(info.message for info in repo.ancestry(branch="main")) == "ten numbers"
        assert repo.lookup_tag("v1") == session.snapshot_id
        assert Repository.exists(http_storage(f"{url}/data"))
        assert not Repository.exists(http_storage(f"{url}/elsewhere"))


def test_refs_are_read_over_http(repository: Path) -> None:
    """In V2 they stand in one file; in V1 they are files, which a web server does not list."""
    with file_server(repository) as url:
        repo = Repository.open(http_storage(f"{url}/data"))

        if repo.spec_version == 2:
            assert (repo.list_branches(), repo.list_tags()) == ({"main"}, {"v1"})
        else:
            with pytest.raises(StorageError, match="give the branch, tag or snapshot"):
                repo.list_branches()


def test_repository_over_http_rejects_writes(repository: Path) -> None:
    with file_server(repository) as url:
        repo = Repository.open(http_storage(f"{url}/data"))
        tip = repo.lookup_branch("main")
        session = repo.writable_session("main")
        zarr.create_group(session.store, path="new")

        for write in (
            lambda: repo.create_branch("dev", tip),
            lambda: repo.create_tag("v2", tip),
            lambda: repo.save_config(),
            lambda: session.commit("no"),
            lambda: Repository.create(http_storage(f"{url}/new")),
        ):
            with pytest.raises(ReadOnlyError, match="HTTP storage is read-only") as caught:
                write()
            assert caught.value.kind == ErrorKind.READ_ONLY_STORAGE


def test_missing_repository_over_http_raises_not_found(tmp_path: Path) -> None:
    with file_server(tmp_path) as url, pytest.raises(RepositoryNotFoundError, match=f"{url}/data"):
        Repository.open(http_storage(f"{url}/data"))
