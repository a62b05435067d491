"""The storages for the conformance suite, and a real S3 server."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from icefloe.storage import (
    Storage,
    azure_storage,
    gcs_storage,
    in_memory_storage,
    local_filesystem_storage,
    s3_storage,
    storage_from_url,
)
from tests.support.servers import azurite, gcs
from tests.support.servers.azurite import azurite_server
from tests.support.servers.gcs import gcs_server
from tests.support.servers.ministack import ministack_server
from tests.support.servers.moto import make_bucket
from tests.support.servers.rclone import rclone_server
from tests.support.servers.seaweedfs import seaweedfs_server

BUCKET = "testbucket"
SECRET = "hunter2-secret-access-key"

S3Maker = Callable[..., Storage]


@pytest.fixture(scope="session")
def s3_url(s3_server: str) -> str:
    """Make a bucket on the S3 server."""
    make_bucket(s3_server, BUCKET)
    return s3_server


@pytest.fixture
def new_s3(s3_url: str) -> S3Maker:
    """Return a function that creates storages with separate prefixes on the S3 server or a proxy."""

    def make(url: str | None = None, prefix: str | None = None) -> Storage:
        return s3_storage(
            bucket=BUCKET,
            prefix=prefix or f"test-{uuid.uuid4().hex}",
            region="us-east-1",
            endpoint_url=url or s3_url,
            allow_http=True,
            force_path_style=True,
            access_key_id="access",
            secret_access_key=SECRET,
        )

    return make


@pytest.fixture(scope="session")
def seaweedfs_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield a second S3 server, by another vendor."""
    with seaweedfs_server(tmp_path_factory.mktemp("seaweedfs"), BUCKET, SECRET) as url:
        yield url


@pytest.fixture(scope="session")
def ministack_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield a third S3 server."""
    with ministack_server(tmp_path_factory.mktemp("ministack"), BUCKET) as url:
        yield url


@pytest.fixture(scope="session")
def rclone_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield an S3 server that ignores the conditions of writes."""
    with rclone_server(tmp_path_factory.mktemp("rclone"), BUCKET, SECRET) as url:
        yield url


@pytest.fixture(scope="session")
def azurite_url() -> Iterator[str]:
    """Yield an Azure server with one container."""
    with azurite_server(BUCKET) as url:
        yield url


@pytest.fixture(scope="session")
def gcs_url() -> Iterator[str]:
    """Yield a Google Cloud Storage server with one bucket."""
    with gcs_server(BUCKET) as url:
        yield url


@pytest.fixture(
    params=[
        "memory",
        "folder",
        "folder-unsynced",
        "s3",
        "gcs",
        pytest.param("seaweedfs", marks=pytest.mark.servers),
        pytest.param("ministack", marks=pytest.mark.servers),
        pytest.param("azurite", marks=pytest.mark.servers),
    ]
)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """Return an empty storage of each kind."""
    if request.param == "memory":
        return in_memory_storage()
    if request.param == "folder":
        return local_filesystem_storage(str(tmp_path / "repo"))
    if request.param == "folder-unsynced":
        return storage_from_url(tmp_path / "repo", sync=False)
    if request.param == "gcs":
        return gcs_storage(
            bucket=BUCKET,
            prefix=f"test-{uuid.uuid4().hex}",
            bearer_token=gcs.TOKEN,
            config={"google_base_url": request.getfixturevalue("gcs_url"), "allow_http": "true"},
        )
    if request.param == "azurite":
        return azure_storage(
            account=azurite.ACCOUNT,
            container=BUCKET,
            prefix=f"test-{uuid.uuid4().hex}",
            access_key=azurite.KEY,
            config={"azure_storage_endpoint": request.getfixturevalue("azurite_url"), "allow_http": "true"},
        )
    make: S3Maker = request.getfixturevalue("new_s3")
    return make(None if request.param == "s3" else request.getfixturevalue(f"{request.param}_url"))
