"""Locations that cannot be opened: errors have the official type and name the location and the remedy."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from icefloe import (
    Repository,
    RepositoryConfig,
    RepoStatus,
    Storage,
    StorageRetriesSettings,
    StorageSettings,
    azure_storage,
    local_filesystem_storage,
    s3_storage,
    types,
)
from icefloe.errors import FormatError, ReadOnlyError, RepositoryNotFoundError, StorageError
from icefloe.format.files import read_repo_info, write_repo_info
from icefloe.format.spec import V2
from icefloe.format.updates import RepoAvailability
from icefloe.format.updates import RepoStatus as StoredStatus
from tests.storage.conftest import BUCKET, SECRET
from tests.support.servers import azurite

QUICK = StorageSettings(retries=StorageRetriesSettings(max_tries=2, initial_backoff_ms=1, max_backoff_ms=2))
CONFIG = RepositoryConfig(storage=QUICK)


def s3(url: str, **changed: Any) -> Storage:
    arguments: dict[str, Any] = {
        "bucket": BUCKET,
        "prefix": "nothing-here",
        "region": "us-east-1",
        "endpoint_url": url,
        "allow_http": True,
        "force_path_style": True,
        "access_key_id": "access",
        "secret_access_key": SECRET,
    }
    return s3_storage(**{**arguments, **changed}).with_settings(QUICK)


def azure(url: str, container: str = BUCKET, key: str = azurite.KEY) -> Storage:
    return azure_storage(
        account=azurite.ACCOUNT,
        container=container,
        prefix="nothing-here",
        access_key=key,
        config={"azure_storage_endpoint": url, "allow_http": "true"},
    ).with_settings(QUICK)


def test_location_without_a_repository_raises_not_found(storage: Storage) -> None:
    storage.put("readme", b"something else lives here")

    with pytest.raises(RepositoryNotFoundError, match=r"Repository\.create") as caught:
        Repository.open(storage)

    assert caught.value.kind == "repository-not-found"
    assert all(value in caught.value.message for value in storage.describe().values())
    assert not Repository.exists(storage)


def missing_bucket(storage: Storage, name: str) -> None:
    assert not Repository.exists(storage)
    with pytest.raises(RepositoryNotFoundError, match=f"does not exist; create it.*{name}"):
        Repository.open(storage, CONFIG)
    with pytest.raises(StorageError, match=f"does not exist; create it.*{name}") as caught:
        Repository.create(storage, CONFIG)
    assert caught.value.kind == "object-store"


def test_missing_bucket_is_reported(s3_url: str) -> None:
    missing_bucket(s3(s3_url, bucket="no-such-bucket"), "no-such-bucket")


@pytest.mark.servers
def test_missing_bucket_in_seaweedfs_is_reported(seaweedfs_url: str) -> None:
    missing_bucket(s3(seaweedfs_url, bucket="no-such-bucket"), "no-such-bucket")


@pytest.mark.servers
def test_missing_container_is_reported(azurite_url: str) -> None:
    missing_bucket(azure(azurite_url, container="no-such-container"), "no-such-container")


def wrong_credentials(storage: Storage) -> None:
    for call in (
        lambda: Repository.open(storage, CONFIG),
        lambda: Repository.create(storage, CONFIG),
        lambda: Repository.open_or_create(storage, CONFIG),
        lambda: Repository.exists(storage),
    ):
        with pytest.raises(StorageError, match=r"(rejected the credentials|credentials are wrong)") as caught:
            call()
        assert caught.value.kind == "object-store"
        assert BUCKET in caught.value.message
        assert "wrong-secret" not in str(caught.value)


@pytest.mark.servers
@pytest.mark.parametrize("wrong", [{"secret_access_key": "wrong-secret"}, {"access_key_id": "nobody"}])
def test_wrong_s3_credentials_are_reported(seaweedfs_url: str, wrong: dict[str, str]) -> None:
    wrong_credentials(s3(seaweedfs_url, **wrong))


@pytest.mark.servers
def test_wrong_azure_credentials_are_reported(azurite_url: str) -> None:
    wrong_credentials(azure(azurite_url, key=base64.b64encode(b"wrong-secret" * 5).decode()))


def test_unreachable_server_is_reported() -> None:
    with pytest.raises(StorageError, match="cannot be reached; check the endpoint") as caught:
        Repository.open(s3("http://127.0.0.1:1"), CONFIG)

    assert "http://127.0.0.1:1" in caught.value.message


def test_plain_http_is_rejected_unless_allowed(s3_url: str) -> None:
    with pytest.raises(StorageError, match="allow_http=True"):
        Repository.open(s3(s3_url, allow_http=False), CONFIG)


def test_repository_of_a_newer_format_is_rejected(tmp_path: Path) -> None:
    storage = local_filesystem_storage(str(tmp_path / "repo"))
    Repository.create(storage)
    data, _ = storage.get("repo")
    spec_byte = 12 + 24  # after the magic bytes and the name of the implementation
    assert data[spec_byte] == 2
    storage.put("repo", data[:spec_byte] + bytes([9]) + data[spec_byte + 1 :])

    with pytest.raises(FormatError, match=r"repo: .*version 9 .*upgrade icefloe") as caught:
        Repository.open(storage)

    assert caught.value.kind == "unsupported-spec-version"


@pytest.mark.parametrize("availability", [RepoAvailability.OFFLINE, RepoAvailability.READ_ONLY])
def test_offline_repository_rejects_writes(tmp_path: Path, availability: RepoAvailability) -> None:
    storage = local_filesystem_storage(str(tmp_path / "repo"))
    Repository.create(storage)
    info = read_repo_info(storage.get("repo")[0])
    marked = replace(info, status=StoredStatus(availability, info.status.set_at_us, "we move house"))
    storage.put("repo", write_repo_info(marked, V2, 3))
    repo = Repository.open(storage)
    word = availability.name.lower().replace("_", "-")

    for write in (
        lambda: repo.writable_session("main"),
        lambda: repo.create_tag("v1", repo.lookup_branch("main")),
    ):
        with pytest.raises(ReadOnlyError, match=f"{word}: we move house; set_status") as caught:
            write()
        assert caught.value.kind == "read-only-repository"
    repo.set_status(RepoStatus(types.RepoAvailability.online))
    repo.writable_session("main")


@pytest.mark.parametrize("bucket", ["a b", "a\\b", "a\tb", "a\x1bb", "a<b", "a?b", "a#b", "ä"])
def test_bucket_names_that_clients_cannot_handle_are_refused(bucket: str) -> None:
    """A configuration of others may contain such a name, and the client would panic."""
    with pytest.raises(StorageError, match="invalid bucket name"):
        s3("http://127.0.0.1:9", bucket=bucket)
