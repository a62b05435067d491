"""Decode references of kerchunk."""

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

from icefloe import StorageError
from icefloe.errors import ErrorKind
from icefloe.virtual import CannotVirtualizeError, combine, virtualize
from icefloe.virtual.values import open_values
from tests.support.servers.ranges import range_server
from tests.support.virtual.files import LONG_AGO, aged, assert_all_read_back


def kerchunk_refs(data: Path) -> dict[str, Any]:
    """Create an array of four chunks: two in a file, one inline and one missing."""
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


def test_kerchunk_json_is_parsed(tmp_path: Path) -> None:
    refs = kerchunk_refs(tmp_path / "data.bin")
    file = tmp_path / "refs.json"
    file.write_text(json.dumps({"version": 1, "templates": {"u": str(tmp_path / "data.bin")}, "refs": refs}))

    dataset = virtualize(file)

    assert dataset.attributes == {"title": "t"}
    assert dataset.variables["v"].dimensions == ("time",)
    expected = np.array([0, 1, 2, 3, 8, 9, 7, 7], "i4")
    assert_all_read_back(dataset, {"v": expected})
    assert_all_read_back(combine([dataset, dataset], "time"), {"v": np.tile(expected, 2)})


def test_kerchunk_parquet_is_parsed(tmp_path: Path) -> None:
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
        ('{"a": 1}', "it has no Zarr metadata"),
        ('{"refs": {".zgroup": "{}", "v/0": ["u", -1, 2]}}', "v/0 is"),
        ('{"refs": {".zgroup": "{}"}, "gen": [1]}', "generated references"),
    ],
)
def test_json_without_references_is_rejected(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "refs.json").write_text(content)

    with pytest.raises(CannotVirtualizeError, match=words):
        virtualize(tmp_path / "refs.json")


def written(tmp_path: Path, count: int, **changed: Any) -> Path:
    """Create references to an array of bytes, ten per file, and change some of them."""
    document = {
        "zarr_format": 2,
        "shape": [count],
        "chunks": [1],
        "dtype": "u1",
        "compressor": None,
        "filters": None,
        "fill_value": 0,
        "order": "C",
    }
    refs: dict[str, Any] = {".zgroup": '{"zarr_format": 2}', "v/.zarray": json.dumps(document)}
    for file in range(count // 10):
        aged_file = tmp_path / f"{file}.bin"
        aged_file.write_bytes(bytes(range(10)))
        aged(aged_file)
    for row in range(count):
        refs[f"v/{row}"] = [str(tmp_path / f"{row // 10}.bin"), row % 10, 1]
    place = tmp_path / "refs.json"
    place.write_text(json.dumps({"version": 1, "refs": {**refs, **changed}}))
    return place


def test_checksums_are_taken_when_references_are_parsed(tmp_path: Path) -> None:
    dataset = virtualize(written(tmp_path, 30))

    assert {source.last_modified.timestamp() for source in dataset.sources if source.last_modified} == {
        LONG_AGO
    }
    assert [source.size_bytes for source in dataset.sources] == [10] * 3
    os.utime(tmp_path / "1.bin", (LONG_AGO + 5, LONG_AGO + 5))
    with pytest.raises(StorageError, match=r"1\.bin") as raised:
        open_values(dataset, ["v"])
    assert raised.value.kind == ErrorKind.VIRTUAL_CHUNK_MODIFIED


def test_missing_files_have_no_checksum(tmp_path: Path) -> None:
    place = written(tmp_path, 20)
    (tmp_path / "1.bin").unlink()

    dataset = virtualize(place)

    assert [source.size_bytes for source in dataset.sources] == [10, None]


def test_unresponsive_server_is_contacted_only_once(tmp_path: Path) -> None:
    with range_server() as server:
        server.files["a.bin"] = bytes(range(10))
        server.modified["a.bin"] = "Tue, 14 Nov 2023 22:13:20 GMT"
        refs = {f"v/{row}": [f"{server.url}/a.bin", row, 1] for row in range(10)}
        nowhere = {f"v/{row}": [f"http://127.0.0.1:9/{row}.bin", 0, 1] for row in range(10, 20)}

        dataset = virtualize(written(tmp_path, 20, **refs, **nowhere), loadable_variables=())

        assert dataset.sources[0].size_bytes == 10
        assert dataset.sources[0].checksum is not None
        assert {source.size_bytes for source in dataset.sources[1:]} == {None}
        assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (["0.bin", 8, 3], r"the reference v/777 covers 3 bytes at 8 of file:.*0\.bin, which has 10"),
        (["0.bin", 11, 1], r"the reference v/777 covers 1 bytes at 11"),
        (["0.bin", 2**63, 1], "the reference v/777 is .* expected a URL, an offset and a length"),
        (["0.bin", 0, -1], "the reference v/777 is .* expected a URL, an offset and a length"),
        (["0.bin", "0", 1], "the reference v/777 is .* expected a URL, an offset and a length"),
        ([7, 0, 1], "the reference v/777 is .* expected a URL, an offset and a length"),
        ([], "the reference v/777 is .* expected a URL, an offset and a length"),
        ("base64:?", "the reference v/777 is not valid base64"),
        (7, "the reference v/777 is int"),
    ],
)
def test_error_names_invalid_reference(tmp_path: Path, value: Any, words: str) -> None:
    if isinstance(value, list) and value and isinstance(value[0], str):
        value = [str(tmp_path / value[0]), *value[1:]]
    place = written(tmp_path, 1000, **{"v/777": value})

    with pytest.raises(CannotVirtualizeError, match=words):
        virtualize(place)


def test_error_names_parquet_reference_beyond_end_of_file(tmp_path: Path) -> None:
    refs = kerchunk_refs(tmp_path / "data.bin")
    folder = tmp_path / "refs.parq"
    (folder / "v").mkdir(parents=True)
    metadata = {key: json.loads(refs[key]) for key in (".zgroup", "v/.zarray")}
    (folder / ".zmetadata").write_text(json.dumps({"metadata": metadata, "record_size": 4}))
    url = str(tmp_path / "data.bin")
    columns = {"path": [url] * 4, "offset": [0, 4, 8, 13], "size": [8] * 4}
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "v" / "refs.0.parq")

    with pytest.raises(CannotVirtualizeError, match="v: the reference 3 covers 8 bytes at 13"):
        virtualize(folder)
