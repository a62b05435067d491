"""Compare references to Zarr stores with the values that zarr reads."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import zarr

from icefloe.virtual import CannotVirtualizeError, RefusalReason, virtualize
from tests.support.virtual.files import LONG_AGO, assert_all_read_back

pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in")  # a warning of zarr 3.1
VALUES = np.arange(7 * 9, dtype="f4").reshape(7, 9)


def aged_tree(folder: Path) -> Path:
    for path in folder.rglob("*"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    return folder


@pytest.mark.parametrize(
    "options",
    [
        {"zarr_format": 2, "compressors": None},
        {"zarr_format": 2, "order": "F"},
        {"zarr_format": 2, "chunk_key_encoding": {"name": "v2", "separator": "/"}},
        {"zarr_format": 3},
        {"zarr_format": 3, "shards": (4, 6)},
        {"zarr_format": 3, "chunk_key_encoding": {"name": "v2", "separator": "."}},
    ],
)
def test_arrays_of_zarr_2_and_3_are_parsed(tmp_path: Path, options: dict[str, Any]) -> None:
    arrays = {"f": VALUES, "deep/i": VALUES.astype(">i4"), "deep/b": VALUES > 9, "s": VALUES.astype("S3")}
    if options["zarr_format"] == 3:
        del arrays["s"]
    for path, values in arrays.items():
        array = zarr.create_array(
            tmp_path / "z.zarr", name=path, shape=(7, 9), chunks=(2, 3), dtype=values.dtype, **options
        )
        array[...] = values
    scalar = zarr.create_array(
        tmp_path / "z.zarr", name="scalar", shape=(), dtype="f8", zarr_format=options["zarr_format"]
    )
    scalar[...] = 1.5

    dataset = virtualize(aged_tree(tmp_path / "z.zarr"))

    assert not dataset.all_refused()
    assert_all_read_back(dataset, {**arrays, "scalar": np.float64(1.5)})
    assert list(virtualize(tmp_path / "z.zarr", group="deep").variables) == ["b", "i"]


def test_xarray_opens_zarr_2_arrays_unchanged(tmp_path: Path) -> None:
    time = np.array(["2020-01-01", "2020-01-02"], "M8[ns]")
    data = xarray.Dataset(
        {
            "v": (("time", "x"), np.array([[1, 2], [3, np.nan]]), {"units": "m"}),
            "n": ("x", np.array([1, 2])),
        },
        {"time": time, "x": [0.5, 1.5]},
    )
    encoding = {"v": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -9}}
    data.to_zarr(tmp_path / "z.zarr", zarr_format=2, consolidated=False, encoding=encoding)

    dataset = virtualize(aged_tree(tmp_path / "z.zarr"))

    assert dataset.variables["time"].loaded
    xarray.testing.assert_equal(dataset.to_xarray(), data)


def test_store_of_single_array_ignores_other_files(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "rain.zarr", shape=(7, 9), chunks=(2, 3), dtype="f4", zarr_format=2)
    array[...] = VALUES
    for name in ("1.9", "01.0", "0.0.0", "5", "0.0.tmp", "c", "99999999999.0", ".DS_Store"):
        (tmp_path / "rain.zarr" / name).write_bytes(b"not a chunk")
    deep = zarr.create_array(tmp_path / "d.zarr", name="a/b", shape=(7, 9), chunks=(2, 3), dtype="f4")
    deep[...] = VALUES

    dataset = virtualize(aged_tree(tmp_path / "rain.zarr"))

    assert len(dataset.variables["rain"].references) == 12
    assert_all_read_back(dataset, {"rain": VALUES})
    assert list(virtualize(aged_tree(tmp_path / "d.zarr"), group="a/b").variables) == ["d"]


def test_links_to_files_are_followed_and_links_to_folders_are_not(tmp_path: Path) -> None:
    array = zarr.create_array(
        tmp_path / "z.zarr", name="a b", shape=(2,), chunks=(1,), dtype="u1", compressors=None, fill_value=0
    )
    array[...] = [1, 2]
    chunks = tmp_path / "z.zarr" / "a b" / "c"
    (chunks / "1").rename(tmp_path / "elsewhere")
    (chunks / "1").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "z.zarr" / "loop").symlink_to(tmp_path / "z.zarr")

    dataset = virtualize(aged_tree(tmp_path / "z.zarr"))

    assert [source.location.rpartition("/")[2] for source in dataset.sources] == ["0", "elsewhere"]
    assert "/a%20b/c/0" in dataset.sources[0].location
    assert not dataset.groups
    assert_all_read_back(dataset, {"a b": np.array([1, 2], "u1")})


def test_codecs_without_zarr_3_equivalent_are_rejected(tmp_path: Path) -> None:
    folder = tmp_path / "z.zarr" / "v"
    folder.mkdir(parents=True)
    document = {
        "zarr_format": 2,
        "shape": [4],
        "chunks": [2],
        "dtype": "<f4",
        "compressor": {"id": "secret"},
        "filters": None,
        "fill_value": 0,
        "order": "C",
    }
    (folder / ".zarray").write_text(json.dumps(document))
    (tmp_path / "nothing").mkdir()

    (refused,) = virtualize(tmp_path / "z.zarr").refused

    assert (refused.variable, refused.reason) == ("v", RefusalReason.UNSUPPORTED_FILTER)
    with pytest.raises(CannotVirtualizeError, match="has no Zarr metadata"):
        virtualize(tmp_path / "nothing")
