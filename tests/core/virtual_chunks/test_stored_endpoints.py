"""Endpoints in the stored configuration of a repository receive no credentials of its readers."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import Repository, RepositoryConfig, VirtualChunkContainer
from icefloe.cli import main as app
from icefloe.config.stores import azure_store
from icefloe.storage.external.trusted_endpoints import find_foreign_endpoint, is_same_endpoint, is_same_server
from tests.support.servers.recording import BYTES, Recorder, recording_server

KEYS: dict[str, Any] = {
    "s3": icefloe.s3_credentials(
        access_key_id="MYKEY", secret_access_key="MYSECRET", session_token="MYTOKEN"
    ),
    "gs": icefloe.gcs_credentials(bearer_token="MYTOKEN"),
    "az": icefloe.azure_credentials(bearer_token="MYTOKEN"),
}
ANONYMOUS: dict[str, Any] = {
    "s3": icefloe.s3_anonymous_credentials(),
    "gs": icefloe.gcs_credentials(anonymous=True),
    "az": icefloe.azure_credentials(anonymous=True),
}


@pytest.fixture
def server() -> Iterator[Recorder]:
    """Start the server that the repository names as its endpoint."""
    with recording_server() as found:
        yield found


def s3_store(url: str) -> Any:
    return icefloe.s3_store(
        region="us-east-1", endpoint_url=url, allow_http=True, s3_compatible=True, force_path_style=True
    )


def store_at(scheme: str, url: str) -> Any:
    """Describe a store with a given endpoint."""
    if scheme == "gs":
        return icefloe.gcs_store({"google_base_url": url, "allow_http": "true"})
    if scheme == "az":
        return azure_store(account="account", config={"azure_endpoint": url, "allow_http": "true"})
    return s3_store(url)


def config_for(scheme: str, store: Any) -> RepositoryConfig:
    config = RepositoryConfig.default()
    config.set_virtual_chunk_container(VirtualChunkContainer(f"{scheme}://archive/", store))
    return config


def written(folder: Path, scheme: str, store: Any) -> icefloe.Storage:
    """Create a repository with one virtual chunk and a stored configuration."""
    storage = icefloe.local_filesystem_storage(str(folder / "repo"))
    repo = Repository.create(storage, config_for(scheme, store))
    repo.save_config()
    session = repo.writable_session("main")
    zarr.create_array(
        session.store, name="a", shape=(4,), chunks=(4,), dtype="u1", compressors=None, filters=None
    )
    session.store.set_virtual_ref("a/c/0", f"{scheme}://archive/f", offset=0, length=4)
    session.commit("a reference")
    return storage


def read(repo: Repository) -> Any:
    return zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")[:]


def access(scheme: str, credential: Any) -> Any:
    return icefloe.containers_credentials({f"{scheme}://archive/": credential})


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_stored_endpoint_receives_no_credentials(tmp_path: Path, server: Recorder, scheme: str) -> None:
    storage = written(tmp_path, scheme, store_at(scheme, server.url))
    repo = Repository.open(storage, authorize_virtual_chunk_access=access(scheme, KEYS[scheme]))

    for reader in (repo, pickle.loads(pickle.dumps(repo)), repo.reopen(RepositoryConfig())):
        with pytest.raises(icefloe.InvalidInputError, match="pass the container in `config`") as caught:
            read(reader)
        assert server.url in str(caught.value)
        assert caught.value.kind == "unauthorized-virtual-chunk-container"
    assert server.requests == []


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_endpoint_in_the_callers_configuration_receives_credentials(
    tmp_path: Path, server: Recorder, scheme: str
) -> None:
    store = store_at(scheme, server.url)
    storage = written(tmp_path, scheme, store)
    allowed = access(scheme, KEYS[scheme])
    repo = Repository.open(storage, config_for(scheme, store), authorize_virtual_chunk_access=allowed)
    reopened = Repository.open(storage).reopen(config_for(scheme, store), allowed)

    for reader in (repo, reopened, pickle.loads(pickle.dumps(repo))):
        assert read(reader).tobytes() == BYTES
    assert all("MY" in request["authorization"] for request in server.requests)


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_anonymous_reads_are_allowed_everywhere(tmp_path: Path, server: Recorder, scheme: str) -> None:
    storage = written(tmp_path, scheme, store_at(scheme, server.url))

    repo = Repository.open(storage, authorize_virtual_chunk_access=access(scheme, ANONYMOUS[scheme]))

    assert read(repo).tobytes() == BYTES
    assert "authorization" not in server.requests[0]


def test_credentials_of_the_environment_are_protected(
    tmp_path: Path, server: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "MYKEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "MYSECRET")
    storage = written(tmp_path, "s3", s3_store(server.url))
    given = {"s3://archive/": icefloe.Credentials.S3(icefloe.s3_from_env_credentials())}

    with pytest.raises(icefloe.InvalidInputError, match="would receive your credentials"):
        read(Repository.open(storage, authorize_virtual_chunk_access=given))
    assert server.requests == []


def test_upgraded_repository_does_not_trust_stored_endpoints(tmp_path: Path, server: Recorder) -> None:
    storage = icefloe.local_filesystem_storage(str(tmp_path / "old"))
    Repository.create(storage, config_for("s3", s3_store(server.url)), spec_version=1).save_config()
    repo = Repository.open(storage, authorize_virtual_chunk_access=access("s3", KEYS["s3"]))

    upgraded = icefloe.upgrade_icechunk_repository(repo, dry_run=False)

    assert upgraded._assets.virtual.withheld == {"s3://archive/": server.url}


MEMORY = icefloe.in_memory_storage()
MINIO = icefloe.s3_storage(
    bucket="b", prefix="p", region="r", endpoint_url="http://minio:9000/", anonymous=True
)  # fmt: skip


@pytest.mark.parametrize(
    ("store", "storage", "foreign"),
    [
        (icefloe.s3_store(region="eu-west-1"), MEMORY, None),
        (icefloe.s3_store(endpoint_url="https://s3.amazonaws.com"), MEMORY, None),
        (icefloe.s3_store(endpoint_url="https://s3.eu-west-1.amazonaws.com/"), MEMORY, None),
        (icefloe.s3_store(endpoint_url="https://s3.dualstack.us-gov-west-1.amazonaws.com"), MEMORY, None),
        (icefloe.s3_store(endpoint_url="http://s3.eu-west-1.amazonaws.com"), MEMORY, "http://s3.eu-west-1"),
        (icefloe.s3_store(endpoint_url="https://s3.eu-west-1.amazonaws.com:444"), MEMORY, ":444"),
        (icefloe.s3_store(endpoint_url="https://ec2-1-2-3-4.compute-1.amazonaws.com"), MEMORY, "ec2-1-2"),
        (icefloe.s3_store(endpoint_url="https://s3-1.us-east-1.elb.amazonaws.com"), MEMORY, "elb"),
        (icefloe.s3_store(endpoint_url="https://s3.amazonaws.com@evil.example"), MEMORY, "evil"),
        (icefloe.s3_store(endpoint_url="https://evil.example\\@s3.amazonaws.com"), MEMORY, "evil"),
        (icefloe.s3_store(endpoint_url="https://s3.amazonaws.com.evil.example"), MEMORY, "evil"),
        (icefloe.s3_store(region="evil.example/#"), MEMORY, "evil.example"),
        (icefloe.s3_store(endpoint_url="http://minio:9000"), MEMORY, "minio"),
        (icefloe.s3_store(endpoint_url="http://MINIO:9000"), MINIO, None),
        (icefloe.s3_store(endpoint_url="https://minio:9000"), MINIO, "https://minio"),
        (icefloe.s3_store(endpoint_url="http://minio:9001"), MINIO, "9001"),
        (icefloe.s3_store(endpoint_url="http://minio:9000", anonymous=True), MEMORY, None),
        (icefloe.gcs_store(), MEMORY, None),
        (icefloe.gcs_store({"user_agent": "me", "timeout": "30s"}), MEMORY, None),
        (icefloe.gcs_store({"base_url": "https://storage.googleapis.com"}), MEMORY, None),
        (icefloe.gcs_store({"google_base_url": "https://evil.example"}), MEMORY, "evil"),
        (icefloe.gcs_store({"proxy_url": "http://evil.example"}), MEMORY, "proxy_url=http://evil"),
        (icefloe.gcs_store({"service_account_key": '{"gcs_base_url": "e"}'}), MEMORY, "service_account_key"),
        (azure_store(account="mine"), MEMORY, None),
        (azure_store(account="evil.example/"), MEMORY, "evil"),
        (azure_store(account="a", config={"endpoint": "https://a.dfs.core.windows.net"}), MEMORY, None),
        (azure_store(account="a", config={"azure_endpoint": "https://evil.example"}), MEMORY, "evil"),
        (azure_store(account="a", config={"authority_host": "https://evil.example"}), MEMORY, "evil"),
        (icefloe.http_store(), MEMORY, None),
        (icefloe.local_filesystem_store("/data"), MEMORY, None),
    ],
)  # fmt: skip
def test_foreign_endpoints_are_recognized(
    store: Any, storage: icefloe.Storage, foreign: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    prefix = {"Gcs": "gs://a/", "Azure": "az://a/", "Http": "https://a/", "LocalFileSystem": "file:///data/"}
    container = VirtualChunkContainer(prefix.get(type(store).__name__, "s3://a/"), store)

    found = find_foreign_endpoint(container, None, storage)

    assert (found is None) if foreign is None else foreign in str(found)


def test_endpoints_are_compared_after_normalization() -> None:
    assert is_same_endpoint("http://h:80/", "http://H")
    assert not is_same_endpoint("http://h", "https://h")
    assert is_same_server(
        s3_store("http://h:9000"), icefloe.s3_store(region="other", endpoint_url="http://h:9000/")
    )
    assert not is_same_server(s3_store("http://h:9000"), icefloe.s3_store(region="us-east-1"))
    assert not is_same_server(icefloe.s3_store(region="a"), icefloe.s3_store(region="b"))
    assert not is_same_server(icefloe.gcs_store(), icefloe.gcs_store({"base_url": "x"}))


def test_command_asks_to_confirm_a_foreign_endpoint(
    tmp_path: Path, server: Recorder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "MYKEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "MYSECRET")
    written(tmp_path, "s3", s3_store(server.url))
    words = ["cat", str(tmp_path / "repo"), "a", "--authorize"]

    for wrong in ("s3://archive/", "s3://archive", "all", "s3://archive/@http://127.0.0.1:1", "all@http://x"):
        assert app.main([*words, wrong]) == 2
        assert f"--authorize s3://archive/@{server.url}" in capsys.readouterr().err
    assert server.requests == []

    for right in (f"s3://archive/@{server.url}", f"s3://archive@{server.url}/", f"all@{server.url}"):
        assert app.main([*words, right]) == 0
        assert capsys.readouterr().out == "[1 2 3 4]\n"
    assert "MYKEY" in server.requests[0]["authorization"]

    assert app.main([*words, "s3://archive/=anonymous"]) == 0
    assert "authorization" not in server.requests[-1]


def test_superfluous_endpoint_confirmation_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "f"
    file.write_bytes(np.arange(4, dtype="u1").tobytes())
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repo"))
    config = RepositoryConfig.default()
    store = icefloe.local_filesystem_store(str(tmp_path))
    config.set_virtual_chunk_container(VirtualChunkContainer(f"file://{tmp_path}/", store))
    Repository.create(storage, config).save_config()

    assert app.main(["verify", str(tmp_path / "repo"), "--authorize", f"file://{tmp_path}/"]) == 0
    assert "ok" in capsys.readouterr().out
