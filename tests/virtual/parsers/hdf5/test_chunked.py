"""Decode each HDF5 filter, and compare with the HDF5 library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest

from icefloe.virtual import RefusalReason, VirtualDataset, virtualize
from icefloe.virtual.decoders.hdf5 import Chunk, decode_filter
from tests.support.virtual.files import aged, assert_all_read_back, assert_reads_back

RANDOM = np.random.default_rng(0)
SMOOTH = np.add.outer(np.arange(23.0), np.sin(np.arange(37.0)))
TYPES = ["<f8", ">f4", "<i2", ">u8", "u1"]
# Without Blosc: if netCDF4 was imported first, HDF5 uses the filter of that package, which fails here.
EVERY_TYPE: dict[str, Any] = {
    "lzf": {"compression": "lzf"},
    "szip-nn": {"compression": "szip", "compression_opts": ("nn", 8)},
    "szip-ec": {"compression": "szip", "compression_opts": ("ec", 32)},
    "bitshuffle": hdf5plugin.Bitshuffle(nelems=0, cname="none"),
    "bitshuffle-lz4": hdf5plugin.Bitshuffle(nelems=16, cname="lz4"),
    "bitshuffle-zstd": hdf5plugin.Bitshuffle(cname="zstd"),
    "blosc2-blocks": hdf5plugin.Blosc2(cname="zstd", filters=hdf5plugin.Blosc2.BITSHUFFLE, clevel=9),
    "blosc2": hdf5plugin.Blosc2(cname="lz4", filters=hdf5plugin.Blosc2.SHUFFLE),
    "lz4": hdf5plugin.LZ4(),
    "lz4-blocks": hdf5plugin.LZ4(nbytes=512),
    "zstd": hdf5plugin.Zstd(),
    "bzip2": hdf5plugin.BZip2(),
}


def virtual(path: Path, **options: Any) -> VirtualDataset:
    return virtualize(aged(path), **options)


@pytest.mark.parametrize("name", EVERY_TYPE)
def test_all_supported_filters_are_decoded(tmp_path: Path, name: str) -> None:
    values = {dtype: SMOOTH.astype(dtype) for dtype in TYPES}
    with h5py.File(tmp_path / "f.h5", "w") as file:
        for dtype in TYPES:
            file.create_dataset(dtype, data=values[dtype], chunks=(10, 13), **EVERY_TYPE[name])

    dataset = virtual(tmp_path / "f.h5")

    assert not dataset.refused
    assert_all_read_back(dataset, values)


def test_blosc2_blocks_and_constant_chunks_are_decoded(tmp_path: Path) -> None:
    values = RANDOM.integers(0, 50, (50, 130, 70)).astype("<f8")
    values[:30, :100] = 0
    expected = {
        "cube": values,
        "plane": values[0],
        "line": values.reshape(-1),
        "none": np.full((20, 9), np.nan),
    }
    with h5py.File(tmp_path / "f.h5", "w") as file:
        for name, each in expected.items():
            chunks = tuple(-(-size * 3 // 5) for size in each.shape)
            file.create_dataset(name, data=each, chunks=chunks, **hdf5plugin.Blosc2(cname="lz4"))

    dataset = virtual(tmp_path / "f.h5")

    assert not dataset.refused
    assert_all_read_back(dataset, expected)


@pytest.mark.parametrize("after", [{}, {"compression": "gzip", "shuffle": True}])
def test_scale_offset_filter_is_decoded(tmp_path: Path, after: dict[str, Any]) -> None:
    shapes: dict[str, Any] = {"chunks": (10, 13), **after}
    with h5py.File(tmp_path / "f.h5", "w") as file:
        for dtype in ("<i2", ">i4", "<u1", "<u8", "i1"):
            values = RANDOM.integers(-100 if "i" in dtype else 3, 100, (23, 37)).astype(dtype)
            file.create_dataset(f"all {dtype}", data=values, scaleoffset=True, **shapes)
            file.create_dataset(
                f"filled {dtype}", data=values, scaleoffset=True, fillvalue=values[3, 3], **shapes
            )
        file.create_dataset("constant", data=np.full((23, 37), 7), scaleoffset=True, **shapes)
        file.create_dataset(
            "wide", data=RANDOM.integers(-(2**63), 2**63 - 1, (23, 37)), scaleoffset=True, **shapes
        )
        for dtype in ("<f4", ">f8"):
            file.create_dataset(dtype, data=SMOOTH.astype(dtype), scaleoffset=3, **shapes)
            file.create_dataset(
                f"filled {dtype}", data=SMOOTH.astype(dtype), scaleoffset=2, fillvalue=SMOOTH[1, 1], **shapes
            )
        expected = {name: each[()] for name, each in file.items()}

    dataset = virtual(tmp_path / "f.h5")

    assert not dataset.refused
    assert_all_read_back(dataset, expected)


def narrow(base: Any, bits: int) -> Any:
    kind = base.copy()
    kind.set_precision(bits)
    return kind


def test_n_bit_filter_unpacks_integers(tmp_path: Path) -> None:
    kinds = {
        "signed": narrow(h5py.h5t.STD_I16LE, 11),
        "big": narrow(h5py.h5t.STD_I32BE, 19),
        "unsigned": narrow(h5py.h5t.STD_U16LE, 12),
        "full": h5py.h5t.STD_I32LE,
    }
    values = RANDOM.integers(-900, 900, 50)
    with h5py.File(tmp_path / "f.h5", "w") as file:
        for name, kind in kinds.items():
            for filtered in (True, False):
                properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
                properties.set_chunk((20,))
                if filtered:
                    properties.set_filter(h5py.h5z.FILTER_NBIT, 0)
                space = h5py.h5s.create_simple((50,))
                key = f"{name}{'' if filtered else ' unfiltered'}".encode()
                made = h5py.h5d.create(file.id, key, kind, space, properties)
                made.write(h5py.h5s.ALL, h5py.h5s.ALL, abs(values) if name == "unsigned" else values)
        expected = {name: file[name][()] for name in kinds}

    dataset = virtual(tmp_path / "f.h5")

    assert {each.variable: each.reason for each in dataset.refused} == {
        f"{name} unfiltered": RefusalReason.UNSUPPORTED_TYPE for name in kinds if name != "full"
    }
    assert_all_read_back(dataset, expected)
    np.testing.assert_array_equal(expected["signed"], values)


def test_lossy_filters_decode_like_hdf5(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.h5", "w") as file:
        for dtype in ("<f4", "<f8"):
            for name, options in {
                "accuracy": hdf5plugin.Zfp(accuracy=1e-3),
                "rate": hdf5plugin.Zfp(rate=16),
                "reversible": hdf5plugin.Zfp(reversible=True),
            }.items():
                file.create_dataset(f"{name} {dtype}", data=SMOOTH.astype(dtype), chunks=(10, 13), **options)
        image = RANDOM.integers(0, 1000, (20, 30)).astype("<u2")
        file.create_dataset("image", data=image, chunks=(10, 30), **hdf5plugin.FciDecomp())
        expected = {name: each[()] for name, each in file.items()}

    dataset = virtual(tmp_path / "f.h5")

    assert not dataset.refused
    assert_all_read_back(dataset, expected)


@pytest.mark.parametrize("compression", ["lzf", "gzip", "szip"])
def test_skipped_compression_is_detected_by_chunk_size(
    tmp_path: Path, compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icefloe.virtual.parsers.hdf5.chunked.INLINE_BYTES", 1000)
    values = np.zeros((6, 200), "<u4")
    values[1::2] = RANDOM.integers(0, 2**32, (3, 200))
    with h5py.File(tmp_path / "f.h5", "w") as file:
        made = file.create_dataset("v", values.shape, "<u4", chunks=(1, 200), compression=compression)
        for row in range(6):
            if row % 2:
                made.id.write_direct_chunk((row, 0), values[row].tobytes(), filter_mask=1)
            else:
                made[row] = values[row]

    dataset = virtual(tmp_path / "f.h5")

    assert not dataset.refused
    assert not dataset.variables["v"].references.inline
    assert_reads_back(dataset, "v", values)


def test_chunks_without_checksum_are_inlined_or_rejected(tmp_path: Path) -> None:
    values = np.arange(40, dtype="<i4").reshape(4, 10)
    with h5py.File(tmp_path / "f.h5", "w") as file:
        for name, options in {
            "gzip": {"compression": "gzip", "fletcher32": True},
            "lzf": {"compression": "lzf", "fletcher32": True},
            "decodes only": {"compression": "gzip", "scaleoffset": 0},
        }.items():
            made = file.create_dataset(name, data=values, chunks=(1, 10), **options)
            made.id.write_direct_chunk((1, 0), values[1].tobytes(), filter_mask=3)

    dataset = virtual(tmp_path / "f.h5")

    assert [each.reason for each in dataset.refused] == [RefusalReason.MIXED_FILTERS]
    assert [each.variable for each in dataset.refused] == ["decodes only"]
    assert [len(dataset.variables[name].references.inline) for name in ("gzip", "lzf")] == [1, 1]
    assert_all_read_back(dataset, {"gzip": values, "lzf": values})


READER = """
import sys
from icefloe.virtual import virtualize
dataset = virtualize(sys.argv[1])
print(dataset.variables["x"].loaded, dataset.variables["x"].values.tolist())
"""


def test_coordinates_load_without_hdf5_filter_plugin(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file.create_dataset("x", data=np.arange(4.0), chunks=(2,), **hdf5plugin.Blosc2())
        file["x"].make_scale("x")
    aged(tmp_path / "f.h5")

    command = [sys.executable, "-c", READER, str(tmp_path / "f.h5")]
    found = subprocess.run(command, check=True, timeout=600, capture_output=True, text=True).stdout

    assert found.strip() == "True [0.0, 1.0, 2.0, 3.0]"


def test_error_names_the_unsupported_filter(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file.create_dataset("v", data=SMOOTH, chunks=(10, 13), **hdf5plugin.SZ3(absolute=0.1))

    (refused,) = virtual(tmp_path / "f.h5").refused

    assert refused.reason == RefusalReason.UNSUPPORTED_FILTER
    assert refused.sentence == "v: no Zarr codec can decode HDF5 filter 32024 (SZ3)"


def test_codec_rejects_unknown_filter_number() -> None:
    with pytest.raises(ValueError, match="HDF5 filter 7 cannot be decoded; known filters are 1, 2, 4"):
        decode_filter(7, (), b"", Chunk((1,), np.dtype("u1")))
