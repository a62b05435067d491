"""Zarr stores and kerchunk's references: what zarr reads from them is what references decode to."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import xarray
import zarr

from icefloe.virtual import CannotVirtualizeError, RefusalReason, combine, virtualize
from tests.virtual.files import LONG_AGO, assert_all_read_back

pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in")  # zarr 3.1 says so
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
def test_arrays_of_both_versions(tmp_path: Path, options: dict[str, Any]) -> None:
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


def test_xarray_sees_what_it_saw_in_version_2(tmp_path: Path) -> None:
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


def test_what_version_3_has_no_codec_for_is_refused(tmp_path: Path) -> None:
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
    with pytest.raises(CannotVirtualizeError, match="has no metadata of Zarr"):
        virtualize(tmp_path / "nothing")


def kerchunk_refs(data: Path) -> dict[str, Any]:
    """An array of four chunks: two in a file, one inline, one missing."""
    document = {
        "zarr_format": 2,
        "shape": [8],
        "chunks": [2],
        "dtype": "<i4",
        "compressor": None,
        "filters": None,
        "fill_value": 7,
        "order": "C",
    }
    data.write_bytes(b"head" + np.arange(4, dtype="<i4").tobytes())
    inline = np.array([8, 9], "<i4").tobytes()
    return {
        ".zgroup": '{"zarr_format": 2}',
        ".zattrs": {"title": "t"},
        "v/.zarray": json.dumps(document),
        "v/.zattrs": '{"_ARRAY_DIMENSIONS": ["time"]}',
        "v/0": ["{{u}}", 4, 8],
        "v/1": ["{{u}}", 12, 8],
        "v/2": "base64:" + base64.b64encode(inline).decode(),
    }


def test_references_of_kerchunk_in_json(tmp_path: Path) -> None:
    refs = kerchunk_refs(tmp_path / "data.bin")
    file = tmp_path / "refs.json"
    file.write_text(json.dumps({"version": 1, "templates": {"u": str(tmp_path / "data.bin")}, "refs": refs}))

    dataset = virtualize(file)

    assert dataset.attributes == {"title": "t"}
    assert dataset.variables["v"].dimensions == ("time",)
    expected = np.array([0, 1, 2, 3, 8, 9, 7, 7], "i4")
    assert_all_read_back(dataset, {"v": expected})
    assert_all_read_back(combine([dataset, dataset], "time"), {"v": np.tile(expected, 2)})


def test_references_of_kerchunk_in_parquet(tmp_path: Path) -> None:
    refs = kerchunk_refs(tmp_path / "data.bin")
    folder = tmp_path / "refs.parq"
    (folder / "v").mkdir(parents=True)
    metadata = {
        key: value if isinstance(value, dict) else json.loads(value)
        for key, value in refs.items()
        if ".z" in key
    }
    (folder / ".zmetadata").write_text(json.dumps({"metadata": metadata, "record_size": 3}))
    url = str(tmp_path / "data.bin")
    inline = np.array([8, 9], "<i4").tobytes()
    parts = [
        {"path": [url, url, None], "offset": [4, 12, 0], "size": [8, 8, 0], "raw": [None, None, inline]},
        {"path": [None] * 3, "offset": [0] * 3, "size": [0] * 3, "raw": [None] * 3},
    ]
    for number, part in enumerate(parts):
        table = pyarrow.table({**part, "path": pyarrow.array(part["path"], pyarrow.string())})
        pyarrow.parquet.write_table(table, folder / "v" / f"refs.{number}.parq")

    assert_all_read_back(virtualize(folder), {"v": np.array([0, 1, 2, 3, 8, 9, 7, 7], "i4")})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is not JSON"),
        ('{"a": 1}', "no Zarr metadata in it"),
        ('{"refs": {".zgroup": "{}", "v/0": ["u", -1, 2]}}', "v/0 is"),
        ('{"refs": {".zgroup": "{}"}, "gen": [1]}', "generated references"),
    ],
)
def test_other_json_is_an_error(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "refs.json").write_text(content)

    with pytest.raises(CannotVirtualizeError, match=words):
        virtualize(tmp_path / "refs.json")
