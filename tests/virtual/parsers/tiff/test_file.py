"""Decode TIFF files of tifffile through references."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

from icefloe.virtual import CannotVirtualizeError, RefusalReason, virtualize
from tests.support.virtual.files import aged, assert_all_read_back, assert_reads_back

RANDOM = np.random.default_rng(0)
GREY = RANDOM.integers(0, 1000, (50, 70)).astype("u2")
COLOUR = RANDOM.integers(0, 255, (50, 70, 3)).astype("u1")


@pytest.mark.parametrize(("byteorder", "bigtiff"), [("<", False), (">", True)])
def test_byte_orders_strips_and_tiles_are_decoded(tmp_path: Path, byteorder: Any, bigtiff: bool) -> None:
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
def test_compressions_and_predictors_are_decoded(tmp_path: Path, compression: str, predictor: int) -> None:
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


def test_planes_pages_and_overviews_are_parsed(tmp_path: Path) -> None:
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


def geo_tags(*keys: tuple[int, int], **given: tuple[float, ...]) -> list[Any]:
    numbers = {"scale": 33550, "tie": 33922, "matrix": 34264}
    directory = [1, 1, 0, len(keys), *(part for key, value in keys for part in (key, 0, 1, value))]
    tags: list[Any] = [(34735, "H", len(directory), directory, False)]
    return tags + [(numbers[name], "d", len(values), values, False) for name, values in given.items()]


AREA, POINT, PROJECTED, GEOGRAPHIC = (1025, 1), (1025, 2), (1024, 1), (1024, 2)


@pytest.mark.parametrize(
    ("tags", "x", "y", "name"),
    [
        (
            geo_tags(PROJECTED, AREA, scale=(10, 20, 0), tie=(0, 0, 0, 100, 900, 0)),
            105,
            890,
            "projection_x_coordinate",
        ),
        (geo_tags(GEOGRAPHIC, POINT, scale=(10, 20, 0), tie=(1, 1, 0, 110, 880, 0)), 100, 900, "longitude"),
        (geo_tags(matrix=(10, 0, 0, 100, 0, -20, 0, 900, 0, 0, 0, 0, 0, 0, 0, 1)), 105, 890, None),
    ],
)
def test_georeferenced_image_has_coordinates(
    tmp_path: Path, tags: Any, x: float, y: float, name: str | None
) -> None:
    with tifffile.TiffWriter(tmp_path / "f.tif") as file:
        file.write(GREY, tile=(16, 16), subifds=1, extratags=tags)
        file.write(GREY[::2, ::2], tile=(16, 16), subfiletype=1)

    dataset = virtualize(aged(tmp_path / "f.tif"))

    np.testing.assert_array_equal(dataset.variables["x"].values, x + 10 * np.arange(70))
    np.testing.assert_array_equal(dataset.variables["y"].values, y - 20 * np.arange(50))
    assert dataset.variables["x"].attributes.get("standard_name") == name
    overview = dataset.groups["overview_1"].variables
    np.testing.assert_array_equal(overview["x"].values, x + 5 + 20 * np.arange(35))
    assert dataset.to_xarray()["image"].sel(x=x + 20, y=y).item() == GREY[0, 2]


def test_rotated_image_has_no_coordinates(tmp_path: Path) -> None:
    tags = geo_tags(matrix=(10, 1, 0, 100, 1, -20, 0, 900, 0, 0, 0, 0, 0, 0, 0, 1))
    tifffile.imwrite(tmp_path / "f.tif", GREY, extratags=tags)

    assert list(virtualize(aged(tmp_path / "f.tif")).variables) == ["image"]


def test_images_with_different_shapes_have_own_dimensions(tmp_path: Path) -> None:
    with tifffile.TiffWriter(tmp_path / "f.tif") as file:
        file.write(GREY, photometric="minisblack")
        file.write(COLOUR[:20], photometric="rgb")

    dataset = virtualize(aged(tmp_path / "f.tif"))

    assert dataset.variables["image_1"].dimensions == ("y_1", "x_1", "band_1")
    assert_all_read_back(dataset, {"image": GREY, "image_1": COLOUR[:20]})
    assert dataset.to_xarray()["image_1"].shape == (20, 70, 3)


@pytest.mark.parametrize("compression", ["jpeg2000", "webp", "lerc", "jpeg"])
def test_colour_images_are_decoded(tmp_path: Path, compression: str) -> None:
    smooth = np.repeat(np.add.outer(np.arange(48), np.arange(64)).astype("u1")[..., None], 3, axis=2)
    options: dict[str, Any] = {} if compression == "lerc" else {"compressionargs": {"level": 90}}
    tifffile.imwrite(
        tmp_path / "f.tif", smooth, compression=compression, photometric="rgb", tile=(16, 32), **options
    )

    expected = tifffile.imread(tmp_path / "f.tif")

    assert_reads_back(virtualize(aged(tmp_path / "f.tif")), "image", expected)


def test_images_decode_like_tifffile(tmp_path: Path) -> None:
    smooth = np.add.outer(np.arange(48), np.arange(64)).astype("u1")
    tifffile.imwrite(tmp_path / "f.tif", smooth, compression="jpeg", tile=(16, 16))

    expected = tifffile.imread(tmp_path / "f.tif")

    assert_reads_back(virtualize(aged(tmp_path / "f.tif")), "image", expected)


def test_bilevel_images_are_rejected(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "f.tif", GREY > 500)

    (refused,) = virtualize(aged(tmp_path / "f.tif")).refused

    assert (refused.variable, refused.reason) == ("image", RefusalReason.UNSUPPORTED_TYPE)


@pytest.mark.parametrize("kept", [6, 100, 3000])
def test_truncated_file_is_rejected(tmp_path: Path, kept: int) -> None:
    tifffile.imwrite(tmp_path / "f.tif", GREY, rowsperstrip=7)
    (tmp_path / "f.tif").write_bytes((tmp_path / "f.tif").read_bytes()[:kept])

    with pytest.raises(CannotVirtualizeError, match=r"f\.tif"):
        virtualize(aged(tmp_path / "f.tif"))
