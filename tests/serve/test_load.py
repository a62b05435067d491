"""Many clients, many commits and large chunks: nothing is torn, refused without need, or held in memory."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import aiohttp
import httpx
import pytest
import zarr

from icefloe import (
    Repository,
    RepositoryConfig,
    VirtualChunkContainer,
    in_memory_storage,
    local_filesystem_storage,
    local_filesystem_store,
)
from tests.support.serve import (
    VALUES,
    open_http,
    repack,
    sample_repository,
    serve_command,
    serving,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
]
COMMITS = int(os.environ.get("ICEFLOE_SERVED_COMMITS", "30"))
SECONDS = float(os.environ.get("ICEFLOE_SERVED_SECONDS", "0"))
SHARD_BYTES = int(os.environ.get("ICEFLOE_SERVED_BYTES", 160 << 20))
"""Read of a shard of 1 GiB: more than the server may use, and all of it in `make torture`."""


def test_two_readers_never_mix_snapshots_while_a_writer_commits() -> None:
    repo = Repository.create(in_memory_storage())
    with repo.transaction("main", message="root") as store:
        zarr.create_group(store)
    repack(repo, 1.0)
    done = threading.Event()

    def write() -> None:
        for number in range(COMMITS):
            repack(repo, 0.1 if number % 2 else 1.0)
        done.set()

    def read(client: httpx.Client) -> int:
        reads = 0
        while not done.is_set() or reads < 5:
            id = client.get("/zarr/main/zarr.json").headers["x-icefloe-snapshot"]
            array = open_http(client, id, "a")
            assert (array[...] * array.attrs["scale_factor"]).tolist() == [100, 200]
            reads += 1
        return reads

    with serving(repo) as client, ThreadPoolExecutor(3) as threads:
        writer = threads.submit(write)
        readers = [threads.submit(read, client) for _ in range(2)]
        writer.result()

        assert all(each.result() >= 5 for each in readers)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_large_shard_is_streamed_in_bounded_memory(tmp_path: Path) -> None:
    outside = tmp_path / "files"
    outside.mkdir()
    with open(outside / "large.bin", "wb") as file:
        file.truncate(1 << 30)  # takes no room on disk
    config = RepositoryConfig.default()
    prefix = f"file://{outside}/"
    config.set_virtual_chunk_container(VirtualChunkContainer(prefix, local_filesystem_store(str(outside))))
    repo = Repository.create(local_filesystem_storage(str(tmp_path / "repo")), config)
    session = repo.writable_session("main")
    plain: Any = {"compressors": None, "filters": None, "shards": (1 << 30,)}
    zarr.create_array(session.store, name="a", shape=(1 << 30,), chunks=(1 << 20,), dtype="u1", **plain)
    session.store.set_virtual_ref("a/c/0", f"{prefix}large.bin", offset=0, length=1 << 30)
    id = session.commit("a large shard")

    with serve_command(str(tmp_path / "repo"), "--no-token", "--authorize", "all") as (url, process):
        httpx.get(f"{url}zarr/{id}/a/zarr.json")
        before = _peak_mb(process.pid)
        into, received = bytearray(4 << 20), 0
        with urlopen(f"{url}zarr/{id}/a/c/0", timeout=120) as response:
            length = response.headers["content-length"]
            while received < SHARD_BYTES and (count := response.readinto(into)):
                received += count
        tail = httpx.get(f"{url}zarr/{id}/a/c/0", headers={"Range": "bytes=-20"})
        peak = _peak_mb(process.pid)

    assert length == str(1 << 30)
    assert received >= SHARD_BYTES
    assert tail.headers["content-range"] == f"bytes {(1 << 30) - 20}-{(1 << 30) - 1}/{1 << 30}"
    assert peak - before < 100


def _peak_mb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) // 1024


def test_500_concurrent_connections_receive_their_chunks(tmp_path: Path) -> None:
    async def load(base: str) -> list[bytes]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:

            async def get(number: int) -> bytes:
                url = f"{base}zarr/v1/native/c/{number % 2}/{number // 2 % 2}"
                async with session.get(url) as response:
                    response.raise_for_status()
                    return bytes(await response.read())

            return await asyncio.gather(*map(get, range(500)))

    with serving(sample_repository(tmp_path)) as client:
        found = asyncio.run(load(str(client.base_url)))

    expected = [VALUES[:10, :50], VALUES[10:, :50], VALUES[:10, 50:], VALUES[10:, 50:]]
    assert all(data == expected[number % 4].tobytes() for number, data in enumerate(found))


def test_200_clients_of_pages_windows_and_chunks_are_served_in_bounded_memory(tmp_path: Path) -> None:
    """Three requests of each here, and ten minutes in `make torture`. A refusal must be 503."""
    sample_repository(tmp_path)
    urls = [
        "",
        "array/v1/deep/partly",
        "api/window/v1/deep/partly?index=0:7,0:30",
        "api/chunks/v1/native?by=commit",
        "zarr/v1/zarr.json",
        "zarr/v1/native/c/0/0",
        "zarr/v1/decoded/shuffled/c/0/0",
        "compare/v1...main",
    ]

    async def load(base: str) -> dict[int, int]:
        counts: dict[int, int] = {}
        until = time.monotonic() + SECONDS
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

            async def visit(number: int) -> None:
                at = number
                while at < number + 3 or time.monotonic() < until:
                    async with session.get(base + urls[at % len(urls)]) as response:
                        await response.read()
                        counts[response.status] = counts.get(response.status, 0) + 1
                    at += 1

            await asyncio.gather(*map(visit, range(200)))
        return counts

    authorized = ["--no-token", "--authorize", "all"]
    with serve_command(str(tmp_path / "repo"), *authorized) as (url, process):
        counts = asyncio.run(load(url))
        peak = _peak_mb(process.pid) if Path("/proc/self/status").exists() else 0

    assert set(counts) <= {200, 503}
    assert counts[200] > 200
    assert peak < 500
