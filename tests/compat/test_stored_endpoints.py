"""The official package sends credentials to the endpoint that a repository names; icefloe does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import zarr

import icefloe
from tests.support.compat.official import icechunk, needs_v2
from tests.support.servers.recording import BYTES, recording_server

pytestmark = [pytest.mark.compat, needs_v2]

PREFIX = "s3://archive/"


def reader(package: Any, folder: Path, config: Any = None) -> Any:
    keys = package.s3_credentials(access_key_id="MYKEY", secret_access_key="MYSECRET")
    repo = package.Repository.open(
        package.local_filesystem_storage(str(folder)),
        config,
        authorize_virtual_chunk_access=package.containers_credentials({PREFIX: keys}),
    )
    return zarr.open_array(repo.readonly_session("main").store, mode="r")


def test_only_the_official_package_sends_credentials_to_a_stored_endpoint(tmp_path: Path) -> None:
    with recording_server() as server:
        config = icechunk.RepositoryConfig.default()
        options: dict[str, Any] = {"region": "us-east-1", "endpoint_url": server.url, "allow_http": True}
        store = icechunk.s3_store(**options, s3_compatible=True, force_path_style=True)
        config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(PREFIX, store))
        repo = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path)), config)
        session = repo.writable_session("main")
        zarr.create_array(session.store, shape=(4,), chunks=(4,), dtype="u1", compressors=None, filters=None)
        session.store.set_virtual_ref("c/0", f"{PREFIX}f", offset=0, length=4)
        session.commit("a reference")

        assert reader(icechunk, tmp_path)[:].tobytes() == BYTES
        assert "MYKEY" in server.requests[0]["authorization"]
        before = len(server.requests)

        with pytest.raises(icefloe.InvalidInputError, match="would receive your credentials"):
            reader(icefloe, tmp_path)[:]
        assert len(server.requests) == before

        mine = icefloe.RepositoryConfig.default()
        same = icefloe.s3_store(**options, s3_compatible=True, force_path_style=True)
        mine.set_virtual_chunk_container(icefloe.VirtualChunkContainer(PREFIX, same))
        assert reader(icefloe, tmp_path, mine)[:].tobytes() == BYTES
