"""Virtual chunks on a web server: few requests, no foreign redirects, no bytes of another version."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
import zarr

from icefloe import Repository, in_memory_storage
from icefloe.config import RepositoryConfig, VirtualChunkContainer, http_store
from icefloe.credentials import Credentials
from icefloe.errors import ErrorKind, IcechunkError
from icefloe.session import Session
from icefloe.virtual import ReadLimits
from tests.support.servers.ranges import RangeServer, range_server
from tests.support.virtual.locations import read_ref, session_with

ACCESS = Credentials.HttpAccess()
DATE, SECONDS = "Tue, 14 Nov 2023 22:13:20 GMT", 1_700_000_000


@pytest.fixture
def server() -> Iterator[RangeServer]:
    with range_server() as server:
        server.files["data/a.nc"] = bytes(range(100))
        yield server


@pytest.fixture
def session(server: RangeServer) -> Session:
    return session_with(f"{server.url}/data/", http_store(headers={"X-Test": "yes"}), ACCESS)


def failure(kind: ErrorKind) -> Any:
    return pytest.raises(IcechunkError, check=lambda error: error.kind == kind)


def zarr_array(session: Session) -> Any:
    return zarr.open_array(session.store, path="a")


def test_single_read_requests_only_its_bytes(server: RangeServer, session: Session) -> None:
    assert read_ref(session, f"{server.url}/data/a.nc", 10, 4) == bytes(range(10, 14))
    assert server.asked == [("data/a.nc", 10, 14)]


def test_names_are_sent_percent_encoded_once(server: RangeServer, session: Session) -> None:
    server.files["data/ä b%2e?#.nc"] = b"1234"

    assert read_ref(session, f"{server.url}/data/ä b%252e%3F%23.nc") == b"1234"


@pytest.mark.parametrize("order", ["zarr", "backwards"])
def test_neighbouring_chunks_take_few_requests(server: RangeServer, order: str) -> None:
    chunks, size = 2000, 512
    data = np.random.default_rng(1).integers(0, 256, chunks * size, np.uint8)
    server.files["data/big.nc"] = data.tobytes()
    server.latency_s = 0.02
    url = f"{server.url}/data/"
    session = session_with(url, http_store(), ACCESS, shape=chunks * size, chunk=size)
    lengths = np.full(chunks, size, np.uint64)
    offsets = np.arange(chunks, dtype=np.uint64) * np.uint64(size)
    if order == "backwards":  # nothing to read ahead, and nothing may go wrong
        chunks = 40
        offsets, lengths = offsets[:chunks][::-1].copy(), lengths[:chunks]
        data = np.concatenate([data[at : at + size] for at in offsets.tolist()])
    session.store.set_virtual_refs_arr("a", (chunks,), [f"{url}big.nc"] * chunks, offsets, lengths)

    found = zarr_array(session)[: chunks * size]

    assert np.array_equal(found, data)
    assert len(server.asked) <= (chunks // 10 if order == "zarr" else chunks)
    asked_bytes = sum(stop - start for _, start, stop in server.asked)
    assert asked_bytes <= 2 * chunks * size + 512
    assert server.connections <= 64


def test_distant_chunks_are_read_separately(server: RangeServer, session: Session) -> None:
    server.files["data/far.nc"] = bytes(4_000_000)
    for number in range(4):
        offset = number * 1_000_000
        session.store.set_virtual_ref(f"a/c/{number}", f"{server.url}/data/far.nc", offset=offset, length=4)

    zarr_array(session)[:]

    assert sorted(stop - start for _, start, stop in server.asked) == [4] * 4


def test_concurrent_readers_get_the_right_bytes(server: RangeServer) -> None:
    size = 64
    data = np.random.default_rng(2).integers(0, 256, 600 * size, np.uint8).tobytes()
    server.files["data/x"] = data
    url = f"{server.url}/data/"
    session = session_with(url, http_store(), ACCESS, shape=600 * size, chunk=size)
    locations, lengths = [f"{url}x"] * 600, np.full(600, size, np.uint64)
    session.store.set_virtual_refs_arr("a", (600,), locations, np.arange(600, dtype=np.uint64) * 64, lengths)
    wrong: list[int] = []

    def reader(seed: int) -> None:
        for number in np.random.default_rng(seed).permutation(600)[:150].tolist() + list(range(100)):
            found = session.store.get_sync(f"a/c/{number}")
            if found is None or found.to_bytes() != data[number * size : (number + 1) * size]:
                wrong.append(number)

    threads = [threading.Thread(target=reader, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []


@pytest.mark.parametrize("trouble", ["503", "hang up", "cut short"])
def test_transient_failures_are_retried(server: RangeServer, session: Session, trouble: str) -> None:
    server.answers = [trouble, trouble]

    assert read_ref(session, f"{server.url}/data/a.nc") == bytes(range(4))


@pytest.mark.parametrize("trouble", ["503", "hang up", "cut short", "whole file", "wrong range"])
def test_permanent_failure_names_the_chunk(server: RangeServer, session: Session, trouble: str) -> None:
    server.answers = [trouble] * 10

    with failure(ErrorKind.VIRTUAL_CHUNK_FETCH) as caught:
        read_ref(session, f"{server.url}/data/a.nc", 2, 4)

    assert f"{server.url}/data/a.nc of chunk (0,) of /a" in caught.value.message


def test_read_after_a_failure_succeeds(server: RangeServer, session: Session) -> None:
    server.answers = ["503"] * 3
    with failure(ErrorKind.VIRTUAL_CHUNK_FETCH):
        read_ref(session, f"{server.url}/data/a.nc")

    assert read_ref(session, f"{server.url}/data/a.nc") == bytes(range(4))


def test_missing_file_and_range_beyond_the_end_raise_errors(server: RangeServer, session: Session) -> None:
    with failure(ErrorKind.VIRTUAL_CHUNK_FETCH):
        read_ref(session, f"{server.url}/data/missing.nc")
    for offset in (98, 100, 5000):
        with failure(ErrorKind.VIRTUAL_CHUNK_FETCH) as caught:
            read_ref(session, f"{server.url}/data/a.nc", offset, 4)
        assert "100 bytes" in caught.value.message


def test_nothing_is_read_beyond_the_end_of_a_file(server: RangeServer, session: Session) -> None:
    url = f"{server.url}/data/a.nc"
    for number in range(4):
        session.store.set_virtual_ref(f"a/c/{number}", url, offset=84 + 4 * number, length=4)

    assert zarr_array(session)[:].tolist() == list(range(84, 100))


def test_redirects_inside_the_container_are_followed(server: RangeServer, session: Session) -> None:
    server.redirects["data/old.nc"] = "/data/a.nc"

    assert read_ref(session, f"{server.url}/data/old.nc") == bytes(range(4))


@pytest.mark.parametrize("where", ["another host", "above", "dots", "itself", "a file"])
def test_redirects_to_other_locations_are_rejected(server: RangeServer, session: Session, where: str) -> None:
    with range_server() as other:
        other.files["data/a.nc"] = other.files["secret"] = b"evil"
        server.files["secret"] = b"evil"
        targets = {
            "another host": f"{other.url}/data/a.nc",
            "above": "/secret",
            "dots": "/data/%2e%2e/secret",
            "itself": "/data/moved.nc",
            "a file": "file:///etc/passwd",
        }
        server.redirects["data/moved.nc"] = targets[where]

        with failure(ErrorKind.VIRTUAL_CHUNK_FETCH) as caught:
            read_ref(session, f"{server.url}/data/moved.nc")

        assert "redirect" in caught.value.message
        assert other.asked == []
        assert "secret" not in {path for path, _, _ in server.asked}


def test_changed_etag_is_rejected(server: RangeServer, session: Session) -> None:
    url = f"{server.url}/data/a.nc"
    server.etags["data/a.nc"] = '"one"'

    assert read_ref(session, url, 0, 4, '"one"') == bytes(range(4))
    assert read_ref(session, url, 0, 4, "one") == bytes(range(4))

    server.etags["data/a.nc"] = '"two"'
    with failure(ErrorKind.VIRTUAL_CHUNK_MODIFIED) as caught:
        session.store.get_sync("a/c/0")
    for word in (url, "chunk (0,) of /a", "'one'", "two"):
        assert word in caught.value.message

    del server.etags["data/a.nc"]
    with failure(ErrorKind.VIRTUAL_CHUNK_MODIFIED):
        session.store.get_sync("a/c/0")


def test_later_modification_time_is_rejected(server: RangeServer, session: Session) -> None:
    url = f"{server.url}/data/a.nc"
    server.modified["data/a.nc"] = DATE

    assert read_ref(session, url, 0, 4, datetime.fromtimestamp(SECONDS, UTC)) == bytes(range(4))
    with failure(ErrorKind.VIRTUAL_CHUNK_MODIFIED):
        read_ref(session, url, 0, 4, datetime.fromtimestamp(SECONDS - 1, UTC))


def test_bytes_read_ahead_have_the_recorded_version(server: RangeServer, session: Session) -> None:
    """Bytes that were fetched with one etag are not used for references with another etag."""
    url = f"{server.url}/data/a.nc"
    server.etags["data/a.nc"] = '"one"'
    for number in range(4):
        session.store.set_virtual_ref(f"a/c/{number}", url, offset=4 * number, length=4, checksum="one")
    first = [session.store.get_sync(f"a/c/{number}") for number in range(2)]
    server.files["data/a.nc"], server.etags["data/a.nc"] = bytes(100), '"two"'
    session.store.set_virtual_ref("a/c/3", url, offset=12, length=4, checksum="two")

    assert [each.to_bytes() for each in first if each] == [bytes(range(4)), bytes(range(4, 8))]
    last = session.store.get_sync("a/c/3")
    assert last is not None
    assert last.to_bytes() == bytes(4)


def test_chunk_beyond_the_end_does_not_affect_others(server: RangeServer, session: Session) -> None:
    url = f"{server.url}/data/a.nc"
    for number, offset in enumerate((88, 92, 96, 100)):
        session.store.set_virtual_ref(f"a/c/{number}", url, offset=offset, length=4)

    assert zarr_array(session)[:12].tolist() == list(range(88, 100))
    with failure(ErrorKind.VIRTUAL_CHUNK_FETCH) as caught:
        zarr_array(session)[:]
    assert "chunk (3,) of /a" in caught.value.message


def test_reads_are_combined_within_the_limits(server: RangeServer) -> None:
    server.files["data/b.nc"] = bytes(1000)
    url = f"{server.url}/data/"

    def requests(limits: ReadLimits) -> int:
        server.asked.clear()
        config = RepositoryConfig()
        config.set_virtual_chunk_container(VirtualChunkContainer(url, http_store()))
        repo = Repository.create(in_memory_storage(), config, {url: ACCESS})
        repo.virtual_read_limits = limits
        session = repo.writable_session("main")
        zarr.create_array(session.store, name="a", shape=(400,), chunks=(4,), dtype="u1", compressors=None)
        places = np.arange(100, dtype=np.uint64) * 8
        lengths = np.full(100, 4, np.uint64)
        session.store.set_virtual_refs_arr("a", (100,), [f"{url}b.nc"] * 100, places, lengths)
        for number in range(100):
            session.store.get_sync(f"a/c/{number}")
        assert repo.virtual_read_limits == limits
        return len(server.asked)

    assert requests(ReadLimits()) < 12
    assert requests(ReadLimits(max_waste=0)) == 100
    assert requests(ReadLimits(max_gap_bytes=3)) == 100
    assert requests(ReadLimits(max_kept_bytes=0)) == 100
    assert 20 < requests(ReadLimits(max_request_bytes=20)) < 60
