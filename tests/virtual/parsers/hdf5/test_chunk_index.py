from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from icefloe.virtual.parsers.hdf5 import chunk_index
from icefloe.virtual.parsers.hdf5.chunk_index import read_chunk_index
from icefloe.virtual.parsers.hdf5.chunked import _walk_index

GRID = (40, 60)


def write(path: Path, version: str, fill: Callable[[Any], None], **options: Any) -> Path:
    with h5py.File(path, "w", libver=version) as file:
        for number in range(30):  # so that the header has attributes and continuations
            file.attrs[f"attribute {number}"] = "x" * 40
        options = {"chunks": (1, 2), "dtype": "i2", "shape": (40, 120), **options}
        data = file.create_dataset("v", **options)
        for number in range(12):
            data.attrs[f"attribute {number}"] = np.arange(40)
        fill(data)
    return path


def fill_all(data: Any) -> None:
    data[...] = np.arange(data.size).reshape(data.shape)


def fill_few(data: Any) -> None:
    data[3, 5] = 1
    data[17:20, 7:50] = 2
    data[39, 119] = 3


def skip_filters(data: Any) -> None:
    data.id.write_direct_chunk((1, 2), b"abcd", 1)
    data.id.write_direct_chunk((30, 8), b"0123456789", 0)


@pytest.fixture(autouse=True)
def without_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the index of small datasets as well."""
    monkeypatch.setattr(chunk_index, "_MANY_CHUNKS", 1)


@pytest.mark.parametrize("version", ["earliest", "latest"])
@pytest.mark.parametrize("fill", [fill_all, fill_few])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": "gzip", "shuffle": True},
        {"maxshape": (90, 200)},
        {"shape": (40,), "chunks": (1,)},
        {"shape": (3, 40, 50), "chunks": (2, 3, 4)},
    ],
)
def test_index_matches_the_library(
    tmp_path: Path, version: str, fill: Callable[[Any], None], options: dict[str, Any]
) -> None:
    if fill is fill_few and len(options.get("shape", GRID)) != len(GRID):
        fill = fill_all
    path = write(tmp_path / "file.h5", version, fill, **options)

    with h5py.File(path, "r") as file:
        found = read_chunk_index(file["v"])
        expected = _walk_index(file["v"])

    assert found is not None
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("version", ["earliest", "latest"])
def test_masks_of_skipped_filters_are_read(tmp_path: Path, version: str) -> None:
    path = write(tmp_path / "file.h5", version, skip_filters, compression="gzip")

    with h5py.File(path, "r") as file:
        found = read_chunk_index(file["v"])

    assert found is not None
    assert found[:, [0, 1, 3, 4]].tolist() == [[1, 2, 4, 1], [30, 8, 10, 0]]


def test_chunks_outside_a_smaller_shape_are_listed(tmp_path: Path) -> None:
    path = write(tmp_path / "file.h5", "earliest", fill_all, maxshape=(40, None))
    with h5py.File(path, "r+") as file:
        file["v"].resize((40, 60))

    with h5py.File(path, "r") as file:
        found, expected = read_chunk_index(file["v"]), _walk_index(file["v"])

    assert found is not None
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("options", [{"maxshape": (None, 120)}, {"maxshape": (None, None)}])
def test_other_index_types_are_read_by_the_library(tmp_path: Path, options: dict[str, Any]) -> None:
    path = write(tmp_path / "file.h5", "latest", fill_all, **options)

    with h5py.File(path, "r") as file:
        assert read_chunk_index(file["v"]) is None


@pytest.mark.parametrize(
    ("version", "signature"), [("earliest", b"TREE"), ("latest", b"FAHD"), ("latest", b"FADB")]
)
def test_damaged_index_is_read_by_the_library(tmp_path: Path, version: str, signature: bytes) -> None:
    path = write(tmp_path / "file.h5", version, fill_all)
    data = path.read_bytes()
    with h5py.File(path, "r") as file:
        assert read_chunk_index(file["v"]) is not None
        path.write_bytes(data.replace(signature, b"\0\0\0\0"))

        found = read_chunk_index(file["v"])

    assert found is None


def test_dataset_of_a_file_being_written_is_read_by_the_library(tmp_path: Path) -> None:
    path = write(tmp_path / "file.h5", "earliest", fill_all)

    with h5py.File(path, "r+") as file:
        assert read_chunk_index(file["v"]) is None
