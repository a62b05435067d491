"""Chunks of files in arrays with more dimensions, or smaller chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr

from icefloe import InvalidInputError
from icefloe.ingest.plan import references
from icefloe.ingest.plan.references import fit_document
from tests.support.ingest.files import days, expected, new_repo, read_all, run, write

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs"),  # zarr 3.1 about the shuffle of HDF5
]

ZLIB: dict[str, Any] = {"zlib": True, "shuffle": True}


def virtual_locations(folder: Path, files: list[str], **options: Any) -> list[str]:
    """Ingest by reference, compare with what xarray makes of the files, and say where chunks are."""
    repo = new_repo(folder)
    xarray_options = {"combine": "nested", **options} if "concat_dim" in options else options

    run(repo, files, mode="virtual", **options)

    xr.testing.assert_identical(read_all(repo), expected(files, **xarray_options))
    return repo.readonly_session("main").all_virtual_chunk_locations()


def test_files_without_the_time_dimension_are_referenced(tmp_path: Path) -> None:
    encoding = {"t2m": {**ZLIB, "chunksizes": (5, 2)}}
    files = [write(tmp_path / f"{day}.nc", days(day, 1).isel(time=0), encoding) for day in range(3)]

    assert len(virtual_locations(tmp_path, files, concat_dim="time")) == 6


def test_static_variable_is_referenced_once_or_for_each_time(tmp_path: Path) -> None:
    height = (("lat", "lon"), np.arange(20.0).reshape(5, 4))
    encoding = {"t2m": {"chunksizes": (1, 5, 4)}, "height": {**ZLIB, "chunksizes": (3, 4)}}
    files = [
        write(tmp_path / f"{first}.nc", days(first, count, height=height), encoding)
        for first, count in ((0, 2), (2, 3))
    ]

    assert len(virtual_locations(tmp_path, files)) == 5 + 2
    assert len(virtual_locations(tmp_path, files, data_vars="all")) == 5 + 5 * 2


def test_broadcast_bounds_of_a_coordinate_are_copied(tmp_path: Path) -> None:
    files = []
    for first in (0, 2):
        part = days(first, 2, lat_bnds=(("lat", "side"), np.arange(10.0).reshape(5, 2)))
        part["lat"].attrs["bounds"] = "lat_bnds"
        files.append(write(tmp_path / f"{first}.nc", part))

    assert len(virtual_locations(tmp_path, files, data_vars="all")) == 2


def test_uncompressed_files_get_common_chunks(tmp_path: Path) -> None:
    """Months of 31, 28 and 31 days, each in one chunk."""
    files = [
        write(tmp_path / f"{first:02}.nc", days(first, count))
        for first, count in ((0, 31), (31, 28), (59, 31))
    ]

    assert len(virtual_locations(tmp_path, files)) == 90


def test_uncompressed_chunks_beyond_the_end_of_a_file_are_clipped(tmp_path: Path) -> None:
    encoding = {"t2m": {"chunksizes": (4, 5, 4)}}
    files = [write(tmp_path / f"{first}.nc", days(first, 6), encoding) for first in (0, 6)]

    assert len(virtual_locations(tmp_path, files)) == 6


def test_large_uncompressed_files_are_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers read whole chunks, and later files fit small ones."""
    monkeypatch.setattr(references, "_PLAIN_CHUNK_BYTES", 200)  # two days
    repo = new_repo(tmp_path)
    files = [write(tmp_path / f"{first}.nc", days(first, 4)) for first in (0, 4)]

    run(repo, files[:1], mode="virtual")
    run(repo, files, mode="virtual")

    xr.testing.assert_identical(read_all(repo), expected(files))
    assert len(repo.readonly_session("main").all_virtual_chunk_locations()) == 4


def test_compressed_files_of_different_lengths_are_not_divided(tmp_path: Path) -> None:
    files = [
        write(tmp_path / f"{first}.nc", days(first, count), {"t2m": {**ZLIB, "chunksizes": (count, 5, 4)}})
        for first, count in ((0, 4), (4, 3), (7, 4))
    ]

    with pytest.raises(InvalidInputError, match=r'its chunk shape is.*mode="hybrid" copies'):
        run(new_repo(tmp_path), files, mode="virtual")


def document(codecs: list[dict[str, Any]]) -> dict[str, Any]:
    grid = {"name": "regular", "configuration": {"chunk_shape": [4, 6]}}
    return {"dimension_names": ["y", "x"], "shape": [4, 12], "codecs": codecs, "chunk_grid": grid}


def test_transpose_codec_ignores_new_dimensions() -> None:
    turned = document([{"name": "transpose", "configuration": {"order": [1, 0]}}, {"name": "bytes"}])

    found = fit_document(turned, ("t", "y", "x"), (1, 4, 6))

    assert found is not None
    assert found["codecs"][0]["configuration"] == {"order": [0, 2, 1]}
    assert found["shape"] == [1, 4, 12]


@pytest.mark.parametrize(
    ("codec", "dims", "is_there"),
    [
        ("bytes", ("y", "t", "x"), True),
        ("bytes", ("t", "x", "y"), False),
        ("sharding_indexed", ("t", "y", "x"), False),
        ("icefloe.grib", ("t", "y", "x"), True),
        ("icefloe.grib", ("y", "x", "t"), False),
    ],
)
def test_codecs_with_fixed_dimensions_are_not_applied_to_new_dimensions(
    codec: str, dims: tuple[str, ...], is_there: bool
) -> None:
    assert (fit_document(document([{"name": codec}]), dims, (1, 1, 1)) is not None) == is_there


@pytest.mark.parametrize(
    ("chunks", "wanted"), [((2, 6), (2, 6)), ((1, 3), (1, 3)), ((4, 3), (4, 6)), ((3, 6), (4, 6))]
)
def test_only_contiguous_bytes_are_divided(chunks: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    found = fit_document(document([{"name": "bytes"}]), ("y", "x"), chunks)

    assert found is not None
    assert tuple(found["chunk_grid"]["configuration"]["chunk_shape"]) == wanted


def test_unnamed_dimensions_are_referenced(tmp_path: Path) -> None:
    """netCDF4 numbers the dimensions of all groups, the parser those of one group."""
    files = []
    for number in range(2):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["before/other"] = np.arange(7.0)
            file["values"] = np.arange(6.0).reshape(2, 3) + number
        files.append(str(tmp_path / f"{number}.h5"))
    repo = new_repo(tmp_path)

    run(repo, files, mode="virtual", concat_dim="run", engine="netcdf4", source_group="/")

    found = read_all(repo)["values"]
    assert found.values[:, 1, 2].tolist() == [5, 6]
    assert len(repo.readonly_session("main").all_virtual_chunk_locations()) == 2


@pytest.mark.parametrize("mode", ["native", "hybrid"])
def test_variable_length_lists_are_not_copied(tmp_path: Path, mode: str) -> None:
    with h5py.File(tmp_path / "odd.h5", "w") as file:
        values = file.create_dataset("values", (2,), h5py.vlen_dtype(np.int32))
        values[0], values[1] = [1, 2], [3]

    with pytest.raises(InvalidInputError, match="values of values are neither numbers nor text"):
        run(new_repo(tmp_path), str(tmp_path / "odd.h5"), mode=mode, engine="netcdf4")
