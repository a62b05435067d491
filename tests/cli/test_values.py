"""Reading values of arrays for `head`, `cat` and `plot`."""

from __future__ import annotations

import json
import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import BytesCodec, GzipCodec

import icefloe
from icefloe.cli import main as app
from icefloe.cli.values import read

REGIONS: list[tuple[Any, ...]] = [
    (slice(None), slice(None)),
    (0, -1),
    (slice(1, 6), slice(2, 9, 3)),
    (slice(None, None, 2), 4),
    (slice(3, 3), slice(None)),
    (slice(-3, None), slice(-4, -1)),
]


@pytest.fixture
def repo() -> icefloe.Repository:
    """Return a repository in memory."""
    return icefloe.Repository.create(icefloe.in_memory_storage())


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "f4", "fill_value": math.nan},
        {"dtype": "i2", "fill_value": 7, "compressors": None},
        {"dtype": "bool"},
        {"dtype": "u8", "serializer": BytesCodec(endian="big")},
        {"dtype": "f8", "compressors": GzipCodec()},
        {"dtype": "i4", "shards": (6, 8)},
        {"dtype": "c8"},
    ],
)
def test_read_returns_the_values_of_a_region(repo: icefloe.Repository, options: dict[str, Any]) -> None:
    """Including missing chunks and chunks that extend beyond the array."""
    session = repo.writable_session("main")
    array = zarr.create_array(session.store, name="a", shape=(7, 9), chunks=(3, 4), **options)
    array[1:5, 2:] = np.arange(28).reshape(4, 7) % 2

    for region in REGIONS:
        found, wanted = read(session, "/a", region), np.asarray(array[region])
        np.testing.assert_array_equal(found, wanted)
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)


def test_read_returns_scalars_and_arrays_of_many_chunks(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="scalar", data=np.array(5.5))
    zarr.create_array(session.store, name="many", data=np.arange(100), chunks=(1,))

    assert read(session, "/scalar", ()) == 5.5
    assert read(session, "/many", (slice(None),)).tolist() == list(range(100))


@pytest.mark.parametrize(("dtype", "wanted"), [("f4", 4), ("i4", 7)])
def test_damaged_chunk_raises_the_error_of_the_codec(
    repo: icefloe.Repository, dtype: str, wanted: int
) -> None:
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", data=np.full(4, wanted, dtype))
    session._workspace.write("/a", (0,), b"no zstd")

    with pytest.raises(Exception, match=r"(?i)zstd"):
        read(session, "/a", (slice(None),))


ODD = {
    "nan": (np.array([1, math.nan, math.inf, -math.inf]), [1.0, "NaN", "Infinity", "-Infinity"]),
    "complex": (np.array([1 + 2j]), [[1.0, 2.0]]),
    "time": (np.array(["2024-01-01", "NaT"], "M8[s]"), ["2024-01-01T00:00:00", "NaT"]),
    "span": (np.array([5, "NaT"], "m8[s]"), [5, "NaT"]),
    "bytes": (np.array([b"a", b"\xff"]), ["a", "\\xff"]),
    "text": (np.array(["a", "ü"]), ["a", "ü"]),
    "large": (np.array([2**64 - 1], "u8"), [2**64 - 1]),
    "empty": (np.zeros((0, 3)), []),
}


@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
def test_head_and_cat_print_valid_json_for_every_dtype(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repo = icefloe.Repository.create(icefloe.storage_from_url(str(tmp_path), sync=False))
    with repo.transaction("main", message="odd") as store:
        group = zarr.group(store, attributes={"missing": math.nan})
        for name, (data, _) in ODD.items():
            group.create_array(name, data=data)

    for command, (name, (_, wanted)) in product(("cat", "head"), ODD.items()):
        assert app.main([command, str(tmp_path), name, "--json"]) == 0
        found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
        assert (found["values"] if command == "head" else found) == wanted
        assert app.main([command, str(tmp_path), name]) == 0
        assert capsys.readouterr().out
    assert app.main(["tree", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail)[0]["attributes"] == {
        "missing": "NaN"
    }
