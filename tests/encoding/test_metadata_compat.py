"""Metadata encodings against the official package: equal values give equal bytes in both formats."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path
from typing import Any

import pytest
import zarr
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icefloe.encoding import flexbuffers, msgpack
from icefloe.encoding.json_values import canonicalize
from tests.support.format.json_strategies import json_values

pytestmark = pytest.mark.compat

official: Any = pytest.importorskip("icechunk")

CODECS: dict[int, Any] = {1: msgpack, 2: flexbuffers}
KNOWS_SPEC_2 = int(official.__version__.split(".")[0]) >= 2


@pytest.mark.parametrize(
    "spec",
    [
        1,
        pytest.param(
            2, marks=pytest.mark.skipif(not KNOWS_SPEC_2, reason="this icechunk writes spec 1 only")
        ),
    ],
)
@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(values=st.lists(json_values, min_size=1, max_size=20))
def test_bytes_match_the_official_writer(spec: int, values: list[Any]) -> None:
    codec = CODECS[spec]

    written = official_bytes(values, spec)

    assert [codec.dumps(value).hex() for value in values] == [data.hex() for data in written]
    assert [repr(codec.loads(data)) for data in written] == [repr(canonicalize(value)) for value in values]


def official_bytes(values: list[Any], spec: int) -> list[bytes]:
    """Return the values as the official package stores them in the metadata of a snapshot."""
    with tempfile.TemporaryDirectory() as folder:
        storage = official.local_filesystem_storage(folder)
        options = {"spec_version": spec} if KNOWS_SPEC_2 else {}
        session = official.Repository.create(storage, **options).writable_session("main")
        metadata = {str(i): value for i, value in enumerate(values)}
        zarr.create_group(session.store)
        snapshot_id = session.commit("values", metadata=metadata)
        stored = read_metadata((Path(folder) / "snapshots" / snapshot_id).read_bytes(), spec)
    return [stored[str(i)] for i in range(len(values))]


def read_metadata(file: bytes, spec: int) -> dict[str, bytes]:
    """Return the sixth field of a snapshot: a vector of tables (name, value)."""
    assert file[36] == spec
    data = zstandard.ZstdDecompressor().decompressobj().decompress(file[39:])
    items = {}
    for item in _vector(data, _fields(data, _follow(data, 0))[5], 4):
        name, value = _fields(data, _follow(data, item))[:2]
        items[_bytes(data, name).decode()] = _bytes(data, value)
    return items


def _follow(data: bytes, at: int) -> int:
    return at + int(struct.unpack_from("<I", data, at)[0])


def _fields(data: bytes, table: int) -> list[int]:
    vtable = table - struct.unpack_from("<i", data, table)[0]
    size = struct.unpack_from("<H", data, vtable)[0]
    return [table + offset for offset in struct.unpack_from(f"<{size // 2 - 2}H", data, vtable + 4)]


def _vector(data: bytes, at: int, stride: int) -> range:
    start = _follow(data, at)
    count = struct.unpack_from("<I", data, start)[0]
    return range(start + 4, start + 4 + stride * count, stride)


def _bytes(data: bytes, at: int) -> bytes:
    extent = _vector(data, at, 1)
    return data[extent.start : extent.stop]
