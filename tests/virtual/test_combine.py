"""Combine files into one dataset, or report their differences by variable."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray

import icefloe
from icefloe import InvalidInputError, RepositoryConfig
from icefloe.errors import AlreadyExistsError, ErrorKind
from icefloe.virtual import (
    CannotVirtualizeError,
    MismatchError,
    VirtualChunkContainer,
    VirtualDataset,
    combine,
    virtualize,
)
from tests.support.virtual.files import aged, assert_all_read_back


def month(
    path: Path,
    time: Any,
    *,
    x: Any = (10.0, 20.0, 30.0),
    dtype: str = "<f4",
    units: str = "days",
    chunk: int = 1,
    mask: Any = (0, 1, 2),
    **options: Any,
) -> VirtualDataset:
    """Create a file with a variable along time and x."""
    time = np.asarray(time, "f8")
    with h5py.File(path, "w") as file:
        for name, values in (("time", time), ("x", np.asarray(x))):
            file[name] = values
            file[name].make_scale(name)
        file["time"].attrs["units"] = units
        data = (time[:, None] * 100 + np.asarray(x)).astype(dtype)
        file.create_dataset("v", data=data, chunks=(chunk, 3), **options)
        file["v"].dims[0].attach_scale(file["time"])
        file["v"].dims[1].attach_scale(file["x"])
        file.create_dataset("mask", data=np.asarray(mask))
        file["mask"].dims[0].attach_scale(file["x"])
    return virtualize(aged(path))


def expected(time: Any, x: Any = (10.0, 20.0, 30.0)) -> dict[str, Any]:
    times = np.asarray(time, "f8")
    return {
        "time": times,
        "x": np.asarray(x),
        "v": (times[:, None] * 100 + np.asarray(x)).astype("f4"),
    }


def test_combine_concatenates_files_in_the_given_order(tmp_path: Path) -> None:
    parts = [month(tmp_path / f"{n}.nc", [2 * n, 2 * n + 1]) for n in range(3)]

    dataset = combine(parts, "time")

    assert [source.location.rpartition("/")[2] for source in dataset.sources] == ["0.nc", "1.nc", "2.nc"]
    assert_all_read_back(pickle.loads(pickle.dumps(dataset)), expected(range(6)))


def test_combine_by_coords_sorts_files(tmp_path: Path) -> None:
    tiles = [
        month(tmp_path / f"{t}{x}.nc", [t, t + 1], x=np.arange(3.0) + x) for t in (4, 0, 2) for x in (3, 0)
    ]

    dataset = combine(tiles, by_coords=True)

    assert_all_read_back(dataset, expected(range(6), np.arange(6.0)))


def test_combine_by_coords_rejects_overlaps_and_duplicates(tmp_path: Path) -> None:
    one, two = month(tmp_path / "a.nc", [0, 1]), month(tmp_path / "b.nc", [1, 2])

    with pytest.raises(InvalidInputError, match=r"a\.nc and .*b\.nc overlap along time"):
        combine([two, one], by_coords=True)
    with pytest.raises(InvalidInputError, match="the same coordinates"):
        combine([one, one], by_coords=True)


@pytest.mark.parametrize(
    ("options", "variable", "what"),
    [
        ({"dtype": "<f8"}, "v", "dtype"),
        ({"dtype": ">f4"}, "v", "codecs"),
        ({"compression": "gzip"}, "v", "codecs"),
        ({"chunk": 2}, "v", "chunk shape"),
        ({"fillvalue": 5.0}, "v", "fill value"),
        ({"units": "hours"}, "time", "units"),
        ({"x": (1.0, 2.0, 3.0)}, "x", "values"),
    ],
)
def test_mismatch_errors_name_the_variable_and_the_file(
    tmp_path: Path, options: dict[str, Any], variable: str, what: str
) -> None:
    parts = [month(tmp_path / "a.nc", [0, 1]), month(tmp_path / "b.nc", [2, 3], **options)]

    with pytest.raises(MismatchError) as raised:
        combine(parts, "time")

    (mismatch,) = raised.value.mismatches
    assert (mismatch.variable, mismatch.what) == (variable, what)
    assert mismatch.location.endswith("b.nc")
    assert f"{variable} of file:" in str(raised.value)
    assert pickle.loads(pickle.dumps(raised.value)).mismatches == raised.value.mismatches


def test_compare_static_option_compares_variables_without_the_concat_dim(tmp_path: Path) -> None:
    parts = [month(tmp_path / f"{n}.nc", [n], mask=[0, 1, 2 + (n == 2)]) for n in range(3)]

    combine(parts, "time")
    combine(parts[:2], "time", compare_static=True)
    for how in ({"concat_dim": "time"}, {"by_coords": True}):
        with pytest.raises(MismatchError) as raised:
            combine(parts, **how, compare_static=True)

        (mismatch,) = raised.value.mismatches
        assert (mismatch.variable, mismatch.what) == ("mask", "values")
        assert mismatch.location.endswith("2.nc")


def test_only_the_last_file_may_end_inside_a_chunk(tmp_path: Path) -> None:
    full, part = (
        month(tmp_path / "a.nc", [0, 1], chunk=2),
        month(tmp_path / "b.nc", [2], chunk=2, maxshape=(9, 3)),
    )

    assert_all_read_back(combine([full, part], "time"), expected(range(3)))
    with pytest.raises(MismatchError, match="length of time is 1, expected a multiple of the chunk length 2"):
        combine([part, full], "time")


def test_missing_variable_is_reported_as_a_mismatch(tmp_path: Path) -> None:
    one, two = month(tmp_path / "a.nc", [0]), month(tmp_path / "b.nc", [1])

    with pytest.raises(MismatchError, match=r"mask of .*b\.nc: variable is missing, expected present"):
        combine([one, two.drop_variables("mask")], "time")


def test_expand_dims_allows_concatenating_single_steps(tmp_path: Path) -> None:
    steps = [month(tmp_path / f"{n}.nc", [n]).drop_variables("time") for n in range(2)]

    dataset = combine([step.expand_dims("run", n, ["v"]) for n, step in enumerate(steps)], "run")

    assert dataset.variables["v"].dimensions == ("run", "time", "x")
    both = np.stack([expected([n])["v"] for n in range(2)])
    assert_all_read_back(dataset, {"v": both, "run": np.arange(2)})


def repository(folder: Path) -> icefloe.Repository:
    config = RepositoryConfig()
    prefix = f"file://{folder}/"
    config.set_virtual_chunk_container(
        VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(folder)))
    )
    access = {prefix: icefloe.Credentials.LocalFileSystemAccess()}
    return icefloe.Repository.create(icefloe.in_memory_storage(), config, access)


def test_dataset_is_written_appended_and_replaced_in_region(tmp_path: Path) -> None:
    parts = [month(tmp_path / f"{n}.nc", [2 * n, 2 * n + 1]) for n in range(3)]
    repo = repository(tmp_path)

    session = repo.writable_session("main")
    parts[0].to_icechunk(session.store, group="g/h")
    session.commit("first")
    session = repo.writable_session("main")
    parts[1].to_icechunk(session.store, group="g/h", append_dim="time")
    session.commit("second")
    session = repo.writable_session("main")
    parts[2].to_icechunk(session.store, group="g/h", region={"time": slice(0, 2)})
    session.commit("third")

    opened = xarray.open_zarr(repo.readonly_session("main").store, group="g/h", consolidated=False)
    assert opened["time"].values.tolist() == [4, 5, 2, 3]
    np.testing.assert_array_equal(opened["v"].values, expected([4, 5, 2, 3])["v"])
    with pytest.raises(AlreadyExistsError, match="the array g/h/mask already exists"):
        parts[0].to_icechunk(repo.writable_session("main").store, group="g/h")


def test_incompatible_dataset_is_not_written(tmp_path: Path) -> None:
    repo = repository(tmp_path)
    session = repo.writable_session("main")
    month(tmp_path / "a.nc", [0], chunk=1).to_icechunk(session.store)
    other = month(tmp_path / "b.nc", [1], dtype="<f8")
    halves = month(tmp_path / "c.nc", [1, 2])

    with pytest.raises(InvalidInputError, match="v does not match the existing array: dtype is float32"):
        other.to_icechunk(session.store, append_dim="time")
    with pytest.raises(ValueError, match="the region has length 1 along time, and the data 2"):
        halves.to_icechunk(session.store, region={"time": slice(0, 1)})


def test_locations_outside_containers_are_rejected(tmp_path: Path) -> None:
    dataset = month(tmp_path / "a.nc", [0])
    session = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main")

    with pytest.raises(InvalidInputError, match=r"no virtual chunk container .*a\.nc") as raised:
        dataset.to_icechunk(session.store)

    assert raised.value.kind == ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK


def test_writing_fails_if_the_dataset_has_unsupported_variables(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["compound"] = np.zeros(3, [("a", ">i4")])
        file["kept"] = np.arange(3)
    dataset = virtualize(aged(tmp_path / "a.h5"))
    session = repository(tmp_path).writable_session("main")

    with pytest.raises(CannotVirtualizeError, match=r"1 variable cannot be written.* compound: ") as raised:
        dataset.to_icechunk(session.store)

    assert pickle.loads(pickle.dumps(raised.value)).refused == dataset.refused
    dataset.drop_refused().to_icechunk(session.store)


def test_references_store_modification_time_at_parsing(tmp_path: Path) -> None:
    dataset = month(tmp_path / "a.nc", [0])
    opened = dataset.to_xarray()
    data = bytearray((tmp_path / "a.nc").read_bytes())
    (tmp_path / "a.nc").write_bytes(data)

    with pytest.raises(icefloe.StorageError, match="has changed") as raised:
        opened["v"].load()

    assert raised.value.kind == ErrorKind.VIRTUAL_CHUNK_MODIFIED
