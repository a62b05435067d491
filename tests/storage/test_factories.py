"""Creation of storages from arguments and URLs."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from icefloe import storage as s
from icefloe.config import S3Options
from icefloe.credentials import s3_anonymous_credentials
from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.storage.object_store.clients import ClientRole

R2 = {"account_id": "acc", "anonymous": True}


def shown(storage: s.Storage) -> dict[str, str]:
    return dict(storage.describe())


def test_s3_compatible_stores_have_their_endpoints() -> None:
    tigris = s.tigris_storage(bucket="b", prefix="p", region="iad", anonymous=True)
    r2 = s.r2_storage(prefix="b/p/q", account_id="acc", anonymous=True)
    hf = s.hf_storage(bucket="b", prefix="p", namespace="me", access_key_id="a", secret_access_key="b")

    assert shown(tigris) == {
        "type": "S3",
        "bucket": "b",
        "prefix": "p",
        "region": "iad",
        "endpoint_url": "https://t3.storage.dev",
    }
    assert shown(r2) == {
        "type": "S3",
        "bucket": "b",
        "prefix": "p/q",
        "region": "auto",
        "endpoint_url": "https://acc.r2.cloudflarestorage.com",
        "force_path_style": "True",
    }
    assert shown(hf)["endpoint_url"] == "https://s3.hf.co/me"


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda: s.r2_storage(anonymous=True), ErrorKind.STORAGE_CONFIG),
        (lambda: s.r2_storage(bucket="b", anonymous=True), ErrorKind.STORAGE_CONFIG),
        (lambda: s.tigris_storage(bucket="b", prefix="p"), ErrorKind.STORAGE_OTHER),
        (lambda: s.s3_storage(bucket="b", prefix="p", legacy_rooted_keys=True), ErrorKind.STORAGE_OTHER),
        (lambda: s.s3_storage(bucket="b", prefix="", legacy_rooted_keys=True), ErrorKind.STORAGE_OTHER),
    ],
)
def test_invalid_arguments_are_rejected(call: Any, kind: ErrorKind) -> None:
    with pytest.raises(StorageError) as caught:
        call()

    assert caught.value.kind == kind


def test_contradicting_credentials_are_rejected() -> None:
    with pytest.raises(ValueError, match="Conflicting"):
        s.s3_storage(bucket="b", prefix="p", anonymous=True, from_env=True)


def test_class_methods_equal_the_functions(tmp_path: Path) -> None:
    options = S3Options(region="us-east-1")
    anonymous = s3_anonymous_credentials()

    assert shown(s.Storage.new_in_memory()) == {"type": "in-memory"}
    assert shown(s.Storage.new_local_filesystem(str(tmp_path)))["path"] == str(tmp_path)
    assert shown(s.Storage.new_s3(options, "b", "p", anonymous))["bucket"] == "b"
    assert shown(s.Storage.new_s3_object_store(options, "b", "p", anonymous, headers={}))["prefix"] == "p"
    assert shown(s.Storage.new_tigris(options, "b", "p", False, anonymous))["region"] == "us-east-1"
    assert shown(s.Storage.new_r2(options, "b", "p", "acc", anonymous))["bucket"] == "b"
    assert shown(s.Storage.new_hf(options, "b", "p", "me", anonymous))["bucket"] == "b"
    assert shown(s.Storage.new_gcs("b", "p"))["type"] == "GCS"
    assert shown(s.Storage.new_azure_blob("acc", "c", "p"))["account"] == "acc"
    assert shown(s.Storage.new_http("http://host/x"))["type"] == "HTTP"
    assert shown(s.Storage.new_redirect("http://host/x"))["type"] == "redirect"


def test_object_stores_have_the_official_default_settings() -> None:
    storage = s.gcs_storage(bucket="b", prefix="p", bearer_token="t")

    assert storage.default_settings() == s.StorageSettings()
    assert s.in_memory_storage().default_settings() == s.StorageSettings(
        concurrency=s.StorageConcurrencySettings(5, 1), retries=s.StorageRetriesSettings(1, 0, 0)
    )


@pytest.mark.parametrize(
    "storage",
    [
        s.gcs_storage(bucket="b", prefix="p", bearer_token="hunter2"),
        s.gcs_storage(bucket="b", prefix="p", anonymous=True, config={"base_url": "http://127.0.0.1:1"}),
        s.azure_storage(account="a", container="c", prefix="p", access_key="aHVudGVyMg=="),
        s.azure_storage(account="a", container="c", prefix="p", sas_token="?sv=1&sig=hunter2"),
        s.azure_storage(account="a", container="c", prefix="p", bearer_token="hunter2"),
        s.azure_storage(account="a", container="c", prefix="p", anonymous=True),
        s.s3_storage(bucket="b", prefix="p", anonymous=True, endpoint_url="http://user:hunter2@127.0.0.1:1"),
    ],
    ids=repr,
)
def test_clients_are_created_and_reprs_contain_no_secrets(storage: s.Storage) -> None:
    copy = pickle.loads(pickle.dumps(storage))

    for role in ClientRole:
        copy._client(role)
    assert "hunter2" not in repr(copy)
    assert "aHVudGVyMg" not in repr(copy)


@pytest.mark.parametrize(
    ("url", "options", "expected"),
    [
        ("s3://b/p/q", {"anonymous": True}, {"type": "S3", "bucket": "b", "prefix": "p/q"}),
        (
            "s3://b/p?region=eu-west-1&force_path_style=true",
            {"anonymous": "true"},
            {"type": "S3", "bucket": "b", "prefix": "p", "region": "eu-west-1", "force_path_style": "True"},
        ),
        ("gs://b/p", {"anonymous": True}, {"type": "GCS", "bucket": "b", "prefix": "p"}),
        ("gcs://b", {"anonymous": True}, {"type": "GCS", "bucket": "b"}),
        (
            "az://c/p",
            {"account": "a", "anonymous": True},
            {"type": "Azure", "account": "a", "container": "c", "prefix": "p"},
        ),
        (
            "abfs://c@a.dfs.core.windows.net/p",
            {"anonymous": True},
            {"type": "Azure", "account": "a", "container": "c", "prefix": "p"},
        ),
        ("http://host/x", {}, {"type": "HTTP", "url": "http://host/x"}),
        ("https+ic://host/x", {}, {"type": "HTTP", "url": "https://host/x"}),
        ("memory://", {}, {"type": "in-memory"}),
        ("file:///some/folder%20name", {}, {"type": "local filesystem", "path": "/some/folder name"}),
        ("/some/folder", {"sync": False}, {"type": "local filesystem", "path": "/some/folder"}),
        ("relative/folder", {"sync": "false"}, {"type": "local filesystem", "path": "relative/folder"}),
    ],
)
def test_storage_from_url_selects_the_back_end(
    url: str, options: dict[str, Any], expected: dict[str, str]
) -> None:
    assert shown(s.storage_from_url(url, **options)) == expected


def test_r2_and_tigris_urls_are_supported() -> None:
    assert shown(s.storage_from_url("r2://b/p", **R2))["endpoint_url"].startswith("https://acc.")
    assert shown(s.storage_from_url("tigris://b/p?region=iad", anonymous=True))["region"] == "iad"


def test_named_memory_is_shared() -> None:
    s.storage_from_url("memory://shared").put("a", b"x")

    assert s.storage_from_url("memory://shared").exists("a")
    assert not s.storage_from_url("memory://other").exists("a")
    assert not s.storage_from_url("memory://").exists("a")


def test_path_object_selects_a_folder(tmp_path: Path) -> None:
    s.storage_from_url(tmp_path).put("a", b"x")

    assert (tmp_path / "a").read_bytes() == b"x"


@pytest.mark.parametrize(
    ("url", "options", "error"),
    [
        ("ftp://host/x", {}, StorageError),
        ("s3:///prefix", {}, StorageError),
        ("file://host/x", {}, StorageError),
        ("az://c/p", {}, InvalidInputError),
        ("s3://b/p", {"regoin": "x"}, InvalidInputError),
        ("s3://b/p?bucket=c", {}, InvalidInputError),
        ("s3://b/p?secret_access_key=hunter2&access_key_id=a", {}, InvalidInputError),
        ("s3://b/p", {"anonymous": "perhaps"}, InvalidInputError),
        ("/folder", {"_unsynced": None}, InvalidInputError),
    ],
)
def test_invalid_urls_and_options_are_rejected(
    url: str, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error) as caught:
        s.storage_from_url(url, **options)

    assert "hunter2" not in str(caught.value)
