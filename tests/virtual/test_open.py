"""Recognise formats, open remote files, and reject invalid ones."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import obstore
import pytest
import zarr
from click.testing import CliRunner
from obstore.store import S3Store

from icefloe import StorageError, s3_store
from icefloe.cli.main import icefloe as command
from icefloe.credentials import Credentials, s3_credentials
from icefloe.errors import ErrorKind
from icefloe.virtual import CannotVirtualizeError, virtualize
from icefloe.virtual.sources import BLOCK_BYTES, SourceFile, make_access, open_file, to_location
from icefloe.virtual.values import open_values
from tests.support.servers.moto import make_bucket
from tests.support.servers.ranges import RangeServer, range_server
from tests.support.virtual.files import aged

VALUES = np.random.default_rng(0).random((6, 400_000))


def big_file() -> bytes:
    """Create a file of 19 MB with little metadata."""
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        file.create_dataset("v", data=VALUES, chunks=(1, 400_000))
    return buffer.getvalue()


@pytest.fixture
def server() -> Iterator[RangeServer]:
    with range_server() as server:
        yield server


def test_remote_file_is_fetched_partially(server: RangeServer) -> None:
    server.files["a b.h5"] = big_file()

    dataset = virtualize(f"{server.url}/a%20b.h5")

    fetched = sum(stop - start for _, start, stop in server.asked)
    assert fetched <= 4 * BLOCK_BYTES
    assert dataset.sources[0].size_bytes == len(server.files["a b.h5"])
    np.testing.assert_array_equal(open_values(dataset, ["v"])["v"], VALUES)


def test_change_of_remote_file_during_parsing_is_detected(server: RangeServer) -> None:
    server.files["a.h5"] = big_file()
    file = open_file(to_location(f"{server.url}/a.h5"))
    server.files["a.h5"] = b"x" + server.files["a.h5"]

    with pytest.raises(
        StorageError, match=r"a\.h5 changed while it was parsed: its .* was .* and is"
    ) as raised:
        file.finish()

    assert raised.value.kind == ErrorKind.VIRTUAL_CHUNK_MODIFIED


def test_files_and_zarr_stores_in_bucket_are_parsed(s3_server: str) -> None:
    make_bucket(s3_server, "archive")
    config: Any = {
        "endpoint": s3_server,
        "region": "us-east-1",
        "access_key_id": "key",
        "secret_access_key": "secret",
    }
    client: Any = {"allow_http": True}
    bucket = S3Store("archive", config=config, client_options=client)
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        file["v"] = np.arange(5)
    obstore.put(bucket, "data/f.h5", buffer.getvalue())
    memory: dict[str, Any] = {}
    zarr.create_array(memory, name="v", shape=(4,), chunks=(2,), dtype="i4")[...] = np.arange(4)
    for key, value in memory.items():
        obstore.put(bucket, f"data/z.zarr/{key}", value.to_bytes())
    store = s3_store(
        region="us-east-1",
        endpoint_url=s3_server,
        allow_http=True,
        s3_compatible=True,
        force_path_style=True,
    )
    credential = Credentials.S3(s3_credentials(access_key_id="key", secret_access_key="secret"))

    in_file = virtualize("s3://archive/data/f.h5", store=store, credential=credential)
    in_zarr = virtualize("s3://archive/data/z.zarr", store=store, credential=credential)

    assert in_file.sources[0].checksum == obstore.head(bucket, "data/f.h5")["e_tag"]
    assert "secret" not in repr(in_file)
    assert open_values(in_file, ["v"], make_access(store, credential))["v"].tolist() == [0, 1, 2, 3, 4]
    assert open_values(in_zarr, ["v"], make_access(store, credential))["v"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "is empty"), (b"hello world", "begins with b'hello wo', which matches none of hdf5, netcdf3")],
)
def test_unknown_formats_are_rejected(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "f.nc").write_bytes(content)

    with pytest.raises(CannotVirtualizeError, match=words):
        virtualize(tmp_path / "f.nc")


@pytest.mark.parametrize("name", ["hdf5", "netcdf3", "tiff", "kerchunk"])
def test_wrong_format_argument_is_rejected(tmp_path: Path, name: Any) -> None:
    (tmp_path / "f").write_bytes(b"GRIB and nothing else")

    with pytest.raises(CannotVirtualizeError, match="f"):
        virtualize(tmp_path / "f", format=name)


def test_unreachable_locations_are_rejected() -> None:
    with pytest.raises(StorageError, match="does not exist") as missing:
        virtualize("/no/such/file.nc")
    with pytest.raises(StorageError, match="unknown scheme 'ftp'") as unknown:
        virtualize("ftp://host/file.nc")
    with pytest.raises(StorageError, match="the storage account is unknown"):
        virtualize("az://container/file.nc")
    with pytest.raises(ValueError, match="unknown format 'doc'; known formats are hdf5"):
        virtualize("/no/such/file.nc", format="doc")  # type: ignore[arg-type]

    assert missing.value.kind == ErrorKind.OBJECT_NOT_FOUND
    assert unknown.value.kind == ErrorKind.CANNOT_PARSE_URL


def test_parsing_waits_for_end_of_current_second(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["v"] = np.arange(3)
    now = time.time()
    os.utime(tmp_path / "f.h5", (now, now))

    dataset = virtualize(tmp_path / "f.h5")

    checksum: Any = dataset.sources[0].checksum
    assert time.time() >= checksum.timestamp() >= now


def test_symbolic_link_is_resolved(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["v"] = np.arange(3)
    aged(tmp_path / "f.h5")
    (tmp_path / "link.h5").symlink_to(tmp_path / "f.h5")

    assert virtualize(tmp_path / "link.h5").sources[0].location.endswith("/f.h5")


def test_command_shows_references_and_refusals(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file.create_dataset("v", data=np.zeros((4, 2)), chunks=(2, 2), compression="gzip")
        file["c"] = np.zeros(3, [("a", ">i4")])
    aged(tmp_path / "f.h5")

    text = CliRunner().invoke(command, ["inspect-file", str(tmp_path / "f.h5")]).output
    found = json.loads(CliRunner().invoke(command, ["inspect-file", "--json", str(tmp_path / "f.h5")]).output)

    assert "numcodecs.zlib" in text
    rows = {row["variable"]: row for row in found}
    assert rows["v"]["references"] == 2
    assert rows["c"]["refused"].startswith("c: its compound type has array")


def test_source_is_readable_as_binary_file(tmp_path: Path) -> None:
    data = os.urandom(3 * BLOCK_BYTES + 5)
    (tmp_path / "f").write_bytes(data)
    source: SourceFile = open_file(to_location(tmp_path / "f"))

    with source.as_binary() as file:
        assert file.read(10) == data[:10]
        file.seek(-7, io.SEEK_END)
        assert file.read() == data[-7:]
        file.seek(BLOCK_BYTES - 3)
        assert file.read(6) == data[BLOCK_BYTES - 3 : BLOCK_BYTES + 3]
        assert source.read(1, 3 * BLOCK_BYTES) == data[1 : 3 * BLOCK_BYTES]
