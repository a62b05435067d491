"""Repositories to serve, and servers that run in a thread of the test."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import zarr

from icefloe import (
    Credentials,
    Repository,
    RepositoryConfig,
    VirtualChunkContainer,
    in_memory_storage,
    local_filesystem_storage,
    local_filesystem_store,
    serve,
)
from icefloe.serve.app import bind
from icefloe.serve.settings import Settings
from tests.support.virtual.files import aged
from tests.support.zarr_documents import array_document, buffer

VALUES = np.arange(2000, dtype="f4").reshape(20, 100)
HAS_RECTILINEAR = "array.rectilinear_chunks" in zarr.config


@contextmanager
def serving(repo: Repository, **settings: Any) -> Iterator[httpx.Client]:
    """Serve a repository, without a token unless one is given; yield a client of the server."""
    listener = bind("127.0.0.1", 0)
    chosen = Settings(port=listener.getsockname()[1], **settings)
    with (
        serve._run(repo, chosen, listener) as page,
        httpx.Client(base_url=page.url.partition("?")[0], timeout=60) as client,
    ):
        yield client


@contextmanager
def serve_command(*arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Start `icefloe serve` on a free port; yield the URL that it prints first, and its process."""
    command = [sys.executable, "-m", "icefloe", "serve", *arguments, "--port", "0", "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process
    finally:
        process.terminate()
        process.communicate(timeout=30)


def open_http(client: httpx.Client, version: str, path: str = "", **options: Any) -> Any:
    """Open a group or array through zarr-python's HTTP store."""
    url = f"{str(client.base_url).rstrip('/')}/zarr/{version}"
    store = zarr.storage.FsspecStore.from_url(url, read_only=True, storage_options=options)
    return zarr.open(store, path=path, mode="r")


def sample_repository(folder: Path, *, spec_version: int = 2) -> Repository:
    """Create a repository with chunks of every kind, on `main`, the tag `v1` and the branch `feature/x`."""
    outside = folder / "files"
    outside.mkdir()
    (outside / "f.bin").write_bytes(b"head" + VALUES[:10].tobytes())
    aged(outside / "f.bin")
    prefix = f"file://{outside}/"
    config = RepositoryConfig.default()
    config.set_virtual_chunk_container(VirtualChunkContainer(prefix, local_filesystem_store(str(outside))))
    repo = Repository.create(
        local_filesystem_storage(str(folder / "repo")),
        config,
        {prefix: Credentials.LocalFileSystemAccess()},
        spec_version=spec_version,
    )
    session = repo.writable_session("main")
    write_arrays(session.store, rectilinear=HAS_RECTILINEAR and spec_version > 1)
    session.store.set_virtual_ref("virtual/c/0/0", f"{prefix}f.bin", offset=4, length=4000)
    repo.create_tag("v1", session.commit("every kind of chunk"))
    repo.create_branch("feature/x" if spec_version > 1 else "feature", repo.lookup_branch("main"))
    return repo


def write_arrays(store: Any, *, rectilinear: bool = HAS_RECTILINEAR) -> None:
    """Write arrays whose chunks are native, inline, virtual, in shards, missing, texts and scalars."""
    root = zarr.create_group(store, attributes={"title": "sample"})
    native = root.create_array("native", shape=(20, 100), chunks=(10, 50), dtype="f4", compressors=None)
    native[...] = VALUES
    root.create_array("inline", shape=(3,), chunks=(2,), dtype="i2")[...] = [1, 2, 3]
    named: Any = {"dimension_names": ["y", "x"], "fill_value": np.nan}
    partly = root.create_array("deep/partly", shape=(20, 100), chunks=(7, 30), dtype="f8", **named)
    partly[:7] = VALUES[:7]
    named = {"dimension_names": ["i", "j"], "shards": (8, 8)}
    sharded = root.create_array("deep/sharded", shape=(16, 16), chunks=(2, 2), dtype="i4", **named)
    sharded[:9] = np.arange(144).reshape(9, 16)
    root.create_array("text", shape=(3,), chunks=(2,), dtype=str)[...] = np.array(["a", "ü", "z" * 900])
    root.create_array("scalar", shape=(), dtype="i8")[...] = 42
    root.create_array("empty", shape=(0, 3), chunks=(1, 3), dtype="u1")
    root.create_array(
        "virtual", shape=(10, 100), chunks=(10, 100), dtype="f4", compressors=None, filters=None
    )
    for dtype in ("bool", "u1", "i8", "u8", "f2", "c16", "datetime64[s]", "timedelta64[ns]", ">f4"):
        name = f"types/{np.dtype(dtype).name}{'-big' if dtype[0] == '>' else ''}"
        root.create_array(name, shape=(5,), chunks=(2,), dtype=dtype)[...] = np.arange(5).astype(dtype)
    write_python_only(store, "decoded/shuffled")
    if rectilinear:
        with with_rectilinear():
            chunks: Any = [[1, 2, 3], [2, 2]]
            ragged = root.create_array("ragged", shape=(6, 4), chunks=chunks, dtype="i4")
            ragged[...] = np.arange(24).reshape(6, 4)


def write_python_only(store: Any, path: str) -> None:
    """Write an array of 5 x 4 whose chunks have a codec that only icefloe has."""
    values = np.arange(20, dtype="<i4").reshape(5, 4)
    document = json.loads(array_document((5, 4), (2, 4), data_type="int32", fill_value=7))
    document["codecs"] = [
        {"name": "bytes", "configuration": {"endian": "little"}},
        {"name": "icefloe.hdf5", "configuration": {"filter": 1, "values": [5]}},
    ]
    store.set_sync(f"{path}/zarr.json", buffer(json.dumps(document).encode()))
    padded = np.vstack([values, np.full((1, 4), 7, "<i4")])
    for row in (0, 2):  # the second chunk is not written
        store.set_sync(f"{path}/c/{row}/0", buffer(zlib.compress(padded[2 * row : 2 * row + 2].tobytes())))


def status_of_raw(client: httpx.Client, path: str) -> int:
    """Request a path as it is. httpx would resolve its dots and slashes."""
    connection = HTTPConnection(client.base_url.host, client.base_url.port or 80)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def with_rectilinear() -> Any:
    """Let zarr read and write rectilinear chunk grids, if it knows them."""
    return zarr.config.set({"array.rectilinear_chunks": True} if HAS_RECTILINEAR else {})


def memory_repository(values: Any, chunks: tuple[int, ...], **options: Any) -> Repository:
    """Create a repository in memory with the array `a`."""
    repo = Repository.create(in_memory_storage())
    with repo.transaction("main", message="a") as store:
        array = zarr.create_array(
            store, name="a", shape=values.shape, chunks=chunks, dtype=values.dtype, **options
        )
        array[...] = values
    return repo


def repack(repo: Repository, scale: float) -> None:
    """Write the values 100 and 200 with another scale factor."""
    with repo.transaction("main", message=f"scale {scale}") as store:
        array = zarr.create_array(
            store,
            name="a",
            shape=(2,),
            chunks=(2,),
            dtype="i2",
            overwrite=True,
            dimension_names=["x"],
            attributes={"scale_factor": scale},
        )
        array[...] = np.array([100, 200]) / scale


def page_text(html: str) -> str:
    """Return the text that a reader without scripts sees."""
    found: list[str] = []

    class Reader(HTMLParser):
        skipped = 0

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.skipped += tag in ("script", "style")

        def handle_endtag(self, tag: str) -> None:
            self.skipped -= tag in ("script", "style")

        def handle_data(self, data: str) -> None:
            if not self.skipped:
                found.append(data)

    Reader().feed(html)
    return " ".join(" ".join(found).split())
