"""Decode HDF5 and NetCDF-4 files of h5py through references."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr

from icefloe.virtual import CannotVirtualizeError, RefusalReason, VirtualDataset, virtualize
from tests.support.source_tree import ROOT
from tests.support.virtual.files import aged, assert_all_read_back, assert_reads_back

RANDOM = np.random.default_rng(0)
TYPES = ["<f8", ">f4", "<i2", ">u8", "u1", "bool", "<c16", "<f2", "S5"]
SMOOTH = np.arange(7 * 11, dtype="f8").reshape(7, 11)


def virtual(path: Path, **options: Any) -> VirtualDataset:
    return virtualize(aged(path), **options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chunks": (3, 4)},
        {"chunks": (3, 4), "compression": "gzip"},
        {"chunks": (3, 4), "compression": "gzip", "shuffle": True},
        {"chunks": (3, 4), "compression": "gzip", "shuffle": True, "fletcher32": True},
        {"chunks": (3, 4), "fletcher32": True},
        {"chunks": (7, 11), "compression": "lzf", "shuffle": True, "fletcher32": True},
        {"chunks": (20, 20), "maxshape": (None, None), "shuffle": True},
    ],
)
def test_layouts_filters_and_types_are_parsed(tmp_path: Path, options: dict[str, Any]) -> None:
    values = {dtype: SMOOTH.astype(dtype) for dtype in TYPES}
    with h5py.File(tmp_path / "f.h5", "w") as file:
        for dtype in TYPES:
            file.create_dataset(dtype, data=values[dtype], **options)

    dataset = virtual(tmp_path / "f.h5")

    assert not dataset.refused
    assert not any(variable.loaded for variable in dataset.variables.values())
    assert_all_read_back(dataset, values)


NETCDF_COMPRESSIONS = ["zlib", "szip", "zstd", "bzip2", "blosc_lz4", "blosc_zstd"]
WRITER = """
import sys, netCDF4, numpy
with netCDF4.Dataset(sys.argv[1], "w") as file:
    file.createDimension("x", 70)
    file.createDimension("y", 90)
    for name in sys.argv[2:]:
        variable = file.createVariable(name, "f8", ("x", "y"), compression=name, chunksizes=(30, 40))
        variable[:] = numpy.add.outer(numpy.arange(70.0), numpy.arange(90.0))
"""


def test_netcdf_compressions_are_parsed(tmp_path: Path) -> None:
    # In a separate process, because its Blosc conflicts with that of hdf5plugin.
    command = [sys.executable, "-c", WRITER, str(tmp_path / "f.nc"), *NETCDF_COMPRESSIONS]
    subprocess.run(command, check=True, timeout=600)

    dataset = virtual(tmp_path / "f.nc")

    assert dataset.variables["zstd"].dimensions == ("x", "y")
    assert {dataset.variables[name].codecs[-1]["name"] for name in ("zstd", "blosc_lz4")} == {"zstd", "blosc"}
    assert_all_read_back(
        dataset, dict.fromkeys(NETCDF_COMPRESSIONS, np.add.outer(np.arange(70.0), np.arange(90.0)))
    )


def test_variables_are_padded_to_unlimited_dimension(tmp_path: Path) -> None:
    with netCDF4.Dataset(tmp_path / "f.nc", "w") as file:
        file.createDimension("time", None)
        file.createDimension("x", 3)
        file.createVariable("long", "i2", ("time", "x"), chunksizes=(2, 3))[:] = np.arange(15).reshape(5, 3)
        short = file.createVariable("short", "f4", ("time", "x"), chunksizes=(2, 3), fill_value=-1)
        short[:3] = 7
        file.createVariable("never", "i4", ("time",))
        file.createVariable("text", str, ("time",))[:2] = np.array(["a", "b"], object)
        loaded = file.createVariable("loaded", "i1", ("time",), fill_value=9)
        loaded[:1] = 1
        file.set_auto_mask(False)
        expected = {name: np.array(file[name][:]) for name in ("long", "short", "never", "loaded")}

    dataset = virtual(tmp_path / "f.nc", loadable_variables=["loaded"])

    assert dataset.sizes == {"time": 5, "x": 3}
    assert dataset.variables["text"].values.tolist() == ["a", "b", "", "", ""]
    assert_all_read_back(dataset, expected)
    assert dataset.to_xarray().sizes == {"time": 5, "x": 3}


def test_unwritten_chunks_read_as_fill_value(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.h5", "w") as file:
        chunked = file.create_dataset("chunked", (10,), "<i4", chunks=(2,), fillvalue=-9)
        chunked[4:6] = 5, 6
        file.create_dataset("contiguous", (10,), "<f4", fillvalue=np.nan)
        file.create_dataset("empty", (0, 3), "<f4", chunks=(1, 3), maxshape=(None, 3))

    dataset = virtual(tmp_path / "f.h5")

    assert len(dataset.variables["chunked"].references) == 1
    assert_reads_back(dataset, "chunked", np.array([-9] * 4 + [5, 6] + [-9] * 4, "i4"))
    assert_reads_back(dataset, "contiguous", np.full(10, np.nan, "f4"))
    assert_reads_back(dataset, "empty", np.empty((0, 3), "f4"))


def test_chunks_with_skipped_filter_are_inlined(tmp_path: Path) -> None:
    values = np.zeros((4, 1000), "u1")
    values[1] = RANDOM.integers(0, 255, 1000)
    with h5py.File(tmp_path / "f.h5", "w") as file:
        mixed = file.create_dataset("mixed", values.shape, "u1", chunks=(1, 1000), compression="gzip")
        for row in range(4):
            if row == 1:
                mixed.id.write_direct_chunk((1, 0), values[1].tobytes(), filter_mask=1)
            else:
                mixed[row] = values[row]
        skipped = file.create_dataset("skipped", values.shape, "u1", chunks=(4, 1000), compression="gzip")
        skipped.id.write_direct_chunk((0, 0), values.tobytes(), filter_mask=1)

    dataset = virtual(tmp_path / "f.h5")

    assert len(dataset.variables["mixed"].references.inline) == 1
    assert_reads_back(dataset, "mixed", values)
    assert len(dataset.variables["skipped"].references.inline) == 0
    assert_reads_back(dataset, "skipped", values)


def test_compact_datasets_are_inlined(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.h5", "w") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple((3,))
        compact = h5py.h5d.create(file.id, b"v", h5py.h5t.STD_I32BE, space, properties)
        compact.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array([1, 2, 3], "i4"))
        file["scalar"] = np.float32(1.5)

    dataset = virtual(tmp_path / "f.h5")

    assert_reads_back(dataset, "v", np.array([1, 2, 3], "i4"))
    assert_reads_back(dataset, "scalar", np.float32(1.5))


def test_user_block_shifts_offsets(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.h5", "w", userblock_size=2048) as file:
        file.create_dataset("chunked", data=SMOOTH, chunks=(3, 4), compression="gzip")
        file["contiguous"] = SMOOTH

    dataset = virtual(tmp_path / "f.h5")

    assert_reads_back(dataset, "chunked", SMOOTH)
    assert_reads_back(dataset, "contiguous", SMOOTH)


def test_contiguous_dataset_is_split_into_chunks(tmp_path: Path) -> None:
    values = np.arange(6 * 10 * 4, dtype=">i4").reshape(6, 10, 4)
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["v"] = values

    shapes = [
        virtual(tmp_path / "f.h5", contiguous_chunk_bytes=limit).variables["v"].chunk_shape
        for limit in (10**6, 500, 200, 100, 1)
    ]

    assert shapes == [(6, 10, 4), (3, 10, 4), (1, 10, 4), (1, 5, 4), (1, 1, 1)]
    for limit in (500, 100, 1):
        assert_reads_back(virtual(tmp_path / "f.h5", contiguous_chunk_bytes=limit), "v", values)


def test_dimensions_attributes_and_groups_are_parsed(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.nc", "w") as file:
        file.attrs["title"] = "t"
        file.attrs["latin"] = np.bytes_(b"\xe9t\xe9")
        file["x"] = np.arange(4.0)
        file["x"].make_scale("x")
        file["v"] = np.arange(12, dtype="i2").reshape(3, 4)
        file["v"].dims[1].attach_scale(file["x"])
        file["v"].attrs["scale_factor"] = np.array([0.5], "f4")
        file["v"].attrs["valid_range"] = np.array([np.nan, 1.0])
        file["v"].attrs["_FillValue"] = np.array([7], "i2")
        file["w"] = np.zeros((3, 3))
        file["deep/er/u"] = np.arange(3)
        file["deep/loop"] = h5py.SoftLink("/deep")

    dataset = virtual(tmp_path / "f.nc")

    assert dataset.attributes == {"title": "t", "latin": "été"}
    assert dataset.variables["x"].loaded
    assert dataset.variables["v"].dimensions == ("phony_dim_0", "x")
    assert dataset.variables["w"].dimensions == ("phony_dim_0", "phony_dim_1")
    expected = {"scale_factor": 0.5, "valid_range": ["NaN", 1.0], "_FillValue": 7}
    assert dataset.variables["v"].attributes == expected
    assert [path for path, _ in dataset.walk()] == ["", "deep", "deep/er"]
    assert_reads_back(dataset, "deep/er/u", np.arange(3))
    assert list(virtual(tmp_path / "f.nc", group="deep/er").variables) == ["u"]
    with pytest.raises(CannotVirtualizeError, match="no group 'nothing'; its groups are deep"):
        virtual(tmp_path / "f.nc", group="nothing")


def test_compound_types_are_parsed(tmp_path: Path) -> None:
    pairs = np.zeros(5, [("a", "<i4"), ("b", "<f8"), ("c", "S3"), ("d", [("e", "u1"), ("f", "<c8")])])
    pairs["a"], pairs["b"], pairs["d"]["f"] = np.arange(5), np.arange(5) / 2, 1 + 2j
    vectors = np.arange(2 * 4 * 3 * 2, dtype=">i2").reshape(2, 4, 3, 2)
    raw = np.array([b"abc", b"\0\1\2"], "V3")
    colours = h5py.enum_dtype({"red": 0, "dark green": 2}, basetype="<i2")
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file.create_dataset("pairs", data=pairs, chunks=(2,), compression="gzip", shuffle=True)
        file.create_dataset("whole pairs", data=pairs)
        inner = np.dtype((">i2", (3, 2)))
        for name, options in {
            "vectors": {"chunks": (1, 3), "compression": "lzf"},
            "whole vectors": {},
        }.items():
            file.create_dataset(name, (2, 4), inner, **options)[...] = vectors
        file.create_dataset("raw", data=raw)
        file.create_dataset("colours", data=np.array([0, 2, 0]), dtype=colours)

    dataset = virtual(tmp_path / "f.h5")

    assert not dataset.refused
    assert dataset.variables["vectors"].chunk_shape == (1, 3, 3, 2)
    assert dataset.variables["colours"].attributes == {
        "flag_values": [0, 2],
        "flag_meanings": "red dark_green",
    }
    expected = {"pairs": pairs, "whole pairs": pairs, "vectors": vectors, "whole vectors": vectors}
    assert_all_read_back(dataset, {**expected, "raw": raw, "colours": np.array([0, 2, 0], "i2")})


def test_hdf5_virtual_datasets_are_rejected(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.h5", "w") as file:
        layout = h5py.VirtualLayout((4,), "i4")
        layout[:] = h5py.VirtualSource("other.h5", "v", (4,))
        file.create_virtual_dataset("v", layout)

    (refused,) = virtual(tmp_path / "f.h5").refused

    assert refused.reason == RefusalReason.EXTERNAL_STORAGE


def test_strings_are_loaded_and_unsupported_types_refused(tmp_path: Path) -> None:
    texts = np.array(["a", "ü", ""], dtype=object)
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file.create_dataset("texts", data=texts, dtype=h5py.string_dtype())
        file.create_dataset("gaps", data=np.zeros(3, np.dtype([("a", "i1"), ("b", "f8")], align=True)))
        file.create_dataset("mixed", data=np.zeros(3, [("a", "<i4"), ("b", ">f8")]))
        file.create_dataset("lists", (3,), np.dtype([("a", h5py.string_dtype())]))
        file.create_dataset("pointers", (3,), h5py.ref_dtype)
        file.create_dataset("ragged", (3,), h5py.vlen_dtype(np.int32))
        file.create_dataset("kept", data=np.arange(3))
        file.create_dataset("outside", (3,), "i4", external=[("elsewhere.bin", 0, 12)])
        file["linked"] = h5py.ExternalLink("other.h5", "/v")

    dataset = virtual(tmp_path / "f.h5")

    reasons = {each.variable: each.reason for each in dataset.refused}
    assert reasons == {
        "gaps": RefusalReason.UNSUPPORTED_TYPE,
        "linked": RefusalReason.EXTERNAL_STORAGE,
        "lists": RefusalReason.UNSUPPORTED_TYPE,
        "mixed": RefusalReason.UNSUPPORTED_TYPE,
        "outside": RefusalReason.EXTERNAL_STORAGE,
        "pointers": RefusalReason.UNSUPPORTED_TYPE,
        "ragged": RefusalReason.VARIABLE_LENGTH,
    }
    assert all(each.sentence.startswith(f"{each.variable}: ") for each in dataset.refused)
    assert dataset.variables["texts"].values.tolist() == texts.tolist()
    assert sorted(dataset.variables) == ["kept", "texts"]


def test_variables_are_loaded_and_dropped_by_name(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.h5", "w") as file:
        for name in "abc":
            file[name] = np.arange(3)

    dataset = virtual(tmp_path / "f.h5", drop_variables=["a"], loadable_variables=["b"])

    assert {name: each.loaded for name, each in dataset.variables.items()} == {"b": True, "c": False}


def test_pickled_dataset_is_small(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file.create_dataset("v", data=np.zeros(10_000, "u1"), chunks=(5,))

    dataset = virtual(tmp_path / "f.h5")
    data = pickle.dumps(dataset)

    assert len(dataset.variables["v"].references) == 2_000
    assert len(data) < 30 * 2_000
    assert_reads_back(pickle.loads(data), "v", np.zeros(10_000, "u1"))


@pytest.mark.parametrize("kept", [4, 700, 3000])
def test_truncated_file_is_rejected(tmp_path: Path, kept: int) -> None:
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file.create_dataset("v", data=SMOOTH, chunks=(3, 4))
    data = (tmp_path / "f.h5").read_bytes()
    (tmp_path / "f.h5").write_bytes(data[:kept])

    with pytest.raises(CannotVirtualizeError, match=r"f\.h5"):
        virtual(tmp_path / "f.h5")


def test_reference_lists_every_reason_for_refusing_a_variable() -> None:
    text = (ROOT / "docs" / "how-to" / "virtual.md").read_text(encoding="utf-8")
    reasons = re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE)

    assert reasons == [reason.value for reason in RefusalReason]


@pytest.mark.parametrize("engine", ["netcdf4", "h5netcdf"])
def test_file_that_xarray_has_open_is_parsed(tmp_path: Path, engine: Any) -> None:
    path = tmp_path / "f.nc"
    xr.Dataset({"a": (("x", "y"), SMOOTH)}).to_netcdf(path, engine=engine)
    aged(path)

    with xr.open_dataset(path, engine=engine) as opened:
        opened["a"].load()
        dataset = virtualize(path)

    assert_reads_back(dataset, "a", SMOOTH)


@pytest.mark.parametrize("locking", [None, True, False, "best-effort"])
def test_file_that_h5py_has_open_is_parsed(tmp_path: Path, locking: Any) -> None:
    path = tmp_path / "f.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("a", data=SMOOTH, chunks=(3, 4), compression="gzip")
    aged(path)

    with h5py.File(path, "r", locking=locking):
        dataset = virtualize(path)

    assert_reads_back(dataset, "a", SMOOTH)
