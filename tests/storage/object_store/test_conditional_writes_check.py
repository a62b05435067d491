"""Servers that ignore the conditions of writes are never trusted silently."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import zarr

from icefloe import Repository, RepositoryConfig, Storage, StorageSettings
from icefloe.errors import ErrorKind, StorageError
from icefloe.storage import s3_storage
from icefloe.storage.object_store import conditional_writes_check
from icefloe.storage.probe import probe
from tests.storage.conftest import BUCKET, S3Maker
from tests.support.servers.proxy import Proxy, Request, faulty_proxy

UNSAFE = RepositoryConfig(
    storage=StorageSettings(unsafe_use_conditional_create=False, unsafe_use_conditional_update=False)
)


def ignore_conditions(request: Request) -> str | None:
    for name in ("if-match", "if-none-match"):
        if request.method == "PUT":
            request.headers.pop(name, None)
    return None


@pytest.fixture(autouse=True)
def nothing_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditional_writes_check, "_trusted", set())


@pytest.fixture
def proxy(s3_url: str) -> Iterator[Proxy]:
    with faulty_proxy(s3_url) as running:
        running.fault = ignore_conditions
        yield running


@pytest.fixture(params=["proxy", pytest.param("rclone", marks=pytest.mark.servers)])
def careless(request: pytest.FixtureRequest, new_s3: S3Maker) -> Storage:
    """Return a place on a server that ignores conditions: moto behind a proxy that drops them, or rclone."""
    if request.param == "rclone":
        return new_s3(request.getfixturevalue("rclone_url"))
    return new_s3(request.getfixturevalue("proxy").url)


def test_probe_detects_ignored_conditions_and_cleans_up(careless: Storage) -> None:
    report = probe(careless)

    assert not report.safe
    failed = {check.name for check in report.checks if not check.passed}
    assert {"create only if absent", "replace only if unchanged"} <= failed
    assert "NOT safe for concurrent commits" in str(report)
    assert list(careless.list_prefix()) == []


@pytest.mark.parametrize("version", [1, 2])
def test_repository_is_not_created_without_conditional_writes(careless: Storage, version: int) -> None:
    with pytest.raises(StorageError, match="overwrites existing objects") as caught:
        Repository.create(careless, spec_version=version)

    assert caught.value.kind == ErrorKind.STORAGE_CONFIG
    assert "unsafe_use_conditional_create=False" in caught.value.message
    assert BUCKET in caught.value.message
    assert list(careless.list_prefix()) == []


def test_unsafe_settings_are_allowed_with_a_warning(
    careless: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "icefloe"):
        repo = Repository.create(careless, UNSAFE)
        repo.create_tag("v1", repo.lookup_branch("main"))

    assert repo.list_tags() == {"v1"}
    assert [r.message for r in caplog.records if "can be lost" in r.message] != []
    assert len(caplog.records) == 1


@pytest.mark.parametrize("version", [1, 2])
def test_refs_do_not_move_without_conditional_writes(new_s3: S3Maker, proxy: Proxy, version: int) -> None:
    Repository.create(new_s3(prefix=f"moved-{version}"), spec_version=version)
    repo = Repository.open(new_s3(proxy.url, prefix=f"moved-{version}"))
    tip = repo.lookup_branch("main")
    session = repo.writable_session("main")
    zarr.create_group(session.store)

    for move in (
        lambda: repo.create_tag("v1", tip),
        lambda: repo.create_branch("dev", tip),
        lambda: repo.reset_branch("main", tip),
        lambda: repo.save_config(),
        lambda: session.commit("lost"),
    ):
        with pytest.raises(StorageError, match="commits of concurrent writers would be lost"):
            move()

    assert (repo.list_branches(), repo.list_tags(), repo.lookup_branch("main")) == ({"main"}, set(), tip)


def test_ignored_conditional_updates_are_detected(new_s3: S3Maker, proxy: Proxy) -> None:
    def ignore_updates(request: Request) -> str | None:
        request.headers.pop("if-match", None)
        return None

    proxy.fault = ignore_updates

    with pytest.raises(StorageError, match="unsafe_use_conditional_update=False"):
        Repository.create(new_s3(proxy.url))


def test_correct_server_is_checked_only_once(new_s3: S3Maker, proxy: Proxy) -> None:
    proxy.fault = None
    repo = Repository.create(new_s3(proxy.url))
    before = len(proxy.seen)

    repo.create_tag("v1", repo.lookup_branch("main"))

    tried = [request.path for request in proxy.seen if "icefloe-probe" in request.path]
    assert len(tried) > 0
    assert not any("icefloe-probe" in request.path for request in proxy.seen[before:])
    assert not any("icefloe-probe" in info.key for info in repo.storage.list_prefix())


def test_conditional_write_check_takes_seven_requests(new_s3: S3Maker, proxy: Proxy) -> None:
    proxy.fault = None

    new_s3(proxy.url).require_conditional_writes()

    assert len(proxy.seen) == 7


@pytest.mark.parametrize("version", [1, 2])
def test_readers_skip_the_conditional_write_check(new_s3: S3Maker, proxy: Proxy, version: int) -> None:
    """Not even of a server that would not be trusted."""
    session = Repository.create(new_s3(prefix=f"read-{version}"), spec_version=version).writable_session(
        "main"
    )
    zarr.create_array(session.store, name="a", shape=(2,), dtype="i4")[:] = 7
    session.commit("write")

    repo = Repository.open(new_s3(proxy.url, prefix=f"read-{version}"))
    array = zarr.open_array(repo.readonly_session("main").store, path="a")

    assert array[0] == 7
    assert next(repo.ancestry(branch="main")).message == "write"
    assert {request.method for request in proxy.seen} <= {"GET", "HEAD"}


@pytest.mark.parametrize(
    ("endpoint", "variable", "is_amazon"),
    [
        (None, None, True),
        ("https://s3.eu-west-1.amazonaws.com", None, True),
        ("http://127.0.0.1:9000", None, False),
        (None, "http://127.0.0.1:9000", False),
        ("https://amazonaws.com.example.org", None, False),
    ],
)
def test_conditional_write_check_is_skipped_for_aws(
    endpoint: str | None, variable: str | None, is_amazon: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    if variable:
        monkeypatch.setenv("AWS_ENDPOINT_URL", variable)
    asked: list[Storage] = []
    monkeypatch.setattr(
        "icefloe.storage.object_store.storage.require_conditions",
        lambda storage, place: asked.append(storage),
    )

    s3_storage(bucket="b", prefix="p", endpoint_url=endpoint, anonymous=True).require_conditional_writes()

    assert (asked == []) is is_amazon
