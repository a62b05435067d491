"""TIFF: what tifffile wrote is what references decode to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

from icefloe.virtual import CannotVirtualizeError, RefusalReason, virtualize
from tests.virtual.files import aged, assert_all_read_back, assert_reads_back

RANDOM = np.random.default_rng(0)
GREY = RANDOM.integers(0, 1000, (50, 70)).astype("u2")
COLOUR = RANDOM.integers(0, 255, (50, 70, 3)).astype("u1")


@pytest.mark.parametrize(("byteorder", "bigtiff"), [("<", False), (">", True)])
def test_byte_orders_strips_and_tiles(tmp_path: Path, byteorder: Any, bigtiff: bool) -> None:
    shapes: list[dict[str, Any]] = [{"rowsperstrip": 7}, {"rowsperstrip": 10}, {}, {"tile": (16, 32)}]
    for options in shapes:
        for values in (GREY, COLOUR, GREY.astype("f4"), GREY.astype("i8"), GREY.astype("c8")):
            tifffile.imwrite(
                tmp_path / "f.tif",
                values,
                byteorder=byteorder,
                bigtiff=bigtiff,
                photometric="rgb" if values.ndim == 3 else "minisblack",
                **options,
            )

            dataset = virtualize(aged(tmp_path / "f.tif"))

            assert dataset.variables["image"].dimensions == ("y", "x", "band")[: values.ndim]
            assert_reads_back(dataset, "image", values)


@pytest.mark.parametrize("compression", ["deflate", "zstd", "lzw", "packbits", "lzma"])
@pytest.mark.parametrize("predictor", [1, 2, 3])
def test_compressions_and_predictors(tmp_path: Path, compression: str, predictor: int) -> None:
    shapes: list[dict[str, Any]] = [{"rowsperstrip": 7}, {"tile": (16, 32)}]
    arrays = [GREY.astype("f4"), GREY.astype("f8")] if predictor == 3 else [GREY, COLOUR]
    for options in shapes:
        for values in arrays:
            photometric = "rgb" if values.ndim == 3 else "minisblack"
            tifffile.imwrite(
                tmp_path / "f.tif",
                values,
                compression=compression,
                predictor=predictor if predictor > 1 else None,
                photometric=photometric,
                **options,
            )

            assert_reads_back(virtualize(aged(tmp_path / "f.tif")), "image", values)


def test_planes_pages_and_overviews(tmp_path: Path) -> None:
    planes = np.moveaxis(COLOUR, 2, 0)
    pages = np.stack([GREY, GREY + 1])
    tifffile.imwrite(
        tmp_path / "planes.tif", planes, planarconfig="separate", photometric="rgb", rowsperstrip=7
    )
    tifffile.imwrite(tmp_path / "pages.tif", pages, photometric="minisblack", compression="deflate")
    with tifffile.TiffWriter(tmp_path / "levels.tif") as file:
        file.write(GREY, tile=(16, 16), subifds=2, compression="lzw")
        file.write(GREY[::2, ::2], tile=(16, 16), subfiletype=1, compression="lzw")
        file.write(GREY[::4, ::4], tile=(16, 16), subfiletype=1, compression="lzw")

    in_planes = virtualize(aged(tmp_path / "planes.tif"))
    in_pages = virtualize(aged(tmp_path / "pages.tif"))
    levels = virtualize(aged(tmp_path / "levels.tif"))

    assert in_planes.variables["image"].dimensions == ("band", "y", "x")
    assert_reads_back(in_planes, "image", planes)
    assert in_pages.variables["image"].dimensions == ("page", "y", "x")
    assert_reads_back(in_pages, "image", pages)
    names = ["image", "overview_1/image", "overview_2/image"]
    assert_all_read_back(levels, {name: GREY[:: 2**n, :: 2**n] for n, name in enumerate(names)})
    alone = virtualize(tmp_path / "levels.tif", group="overview_1")
    assert_reads_back(alone, "image", GREY[::2, ::2])


def test_pictures_decode_as_they_do_for_tifffile(tmp_path: Path) -> None:
    smooth = np.add.outer(np.arange(48), np.arange(64)).astype("u1")
    tifffile.imwrite(tmp_path / "f.tif", smooth, compression="jpeg", tile=(16, 16))

    expected = tifffile.imread(tmp_path / "f.tif")

    assert_reads_back(virtualize(aged(tmp_path / "f.tif")), "image", expected)


def test_bits_are_refused(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "f.tif", GREY > 500)

    (refused,) = virtualize(aged(tmp_path / "f.tif")).refused

    assert (refused.variable, refused.reason) == ("image", RefusalReason.UNSUPPORTED_TYPE)


@pytest.mark.parametrize("kept", [6, 100, 3000])
def test_a_file_that_was_cut_off_is_an_error(tmp_path: Path, kept: int) -> None:
    tifffile.imwrite(tmp_path / "f.tif", GREY, rowsperstrip=7)
    (tmp_path / "f.tif").write_bytes((tmp_path / "f.tif").read_bytes()[:kept])

    with pytest.raises(CannotVirtualizeError, match=r"f\.tif"):
        virtualize(aged(tmp_path / "f.tif"))
