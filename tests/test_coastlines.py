"""Coastlines are decoded from the vendored file and lie at the right cells of any grid."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import numpy as np
import pytest

import icefloe
from icefloe.coastlines import (
    check_latitudes,
    find_cell_edges,
    load_coastlines,
    project_coastlines,
    rasterize,
    select_coastlines,
    unwrapped_longitudes,
)

DATA = Path(icefloe.__file__).parent / "data"
BORDERS = {
    "Gibraltar": (36.0, -5.6),
    "Cape Agulhas": (-34.8, 20.0),
    "Cape Horn": (-55.6, -67.5),
    "Kamchatka": (51.0, 156.7),
}
"""Capes that the coarse coastlines pass within two degrees."""


def has_coast(latitude: float, longitude: float, latitudes: np.ndarray, longitudes: np.ndarray) -> bool:
    """Test whether a coast lies within two degrees of a point, on a grid of one-degree cells."""
    lines = project_coastlines(latitudes, longitudes)
    pixels = rasterize(lines, (1, 1), (len(latitudes), len(longitudes)))
    rows, columns = np.nonzero(pixels)
    turn = (longitudes[columns] - longitude + 180) % 360 - 180
    return bool(((np.abs(latitudes[rows] - latitude) <= 2) & (np.abs(turn) <= 2)).any())


def test_vendored_file_has_the_hash_in_its_readme() -> None:
    rows = re.findall(r"^\| `([^`]+)` \|.*\| `([0-9a-f]{64})` \|$", (DATA / "README.md").read_text(), re.M)

    assert [name for name, _ in rows] == ["land-110m.json"]
    assert {name: hashlib.sha256((DATA / name).read_bytes()).hexdigest() for name, _ in rows} == dict(rows)


def test_coastlines_are_continuous_and_on_the_globe() -> None:
    lines = load_coastlines()

    assert len(lines) > 100
    assert max(np.abs(np.diff(line[:, 0])).max() for line in lines) < 10
    assert all(np.abs(line[:, 1]).max() <= 90 for line in lines)


def test_no_coastline_runs_along_the_date_line() -> None:
    for line in load_coastlines():
        on_line = np.abs(line[:, 0] % 360 - 180) < 1e-6
        assert not (on_line[1:] & on_line[:-1]).any()


@pytest.mark.parametrize(
    "longitudes",
    [np.arange(0.0, 360), np.arange(-180.0, 180), np.arange(179.5, -180, -1), np.arange(20.5, 380)],
    ids=["0 to 360", "-180 to 180", "descending", "from 20 East"],
)
@pytest.mark.parametrize("latitudes", [np.arange(-89.5, 90), np.arange(89.5, -90, -1)], ids=["up", "down"])
@pytest.mark.parametrize("cape", BORDERS)
def test_known_capes_appear_on_every_global_grid(
    cape: str, latitudes: np.ndarray, longitudes: np.ndarray
) -> None:
    assert has_coast(*BORDERS[cape], latitudes, longitudes)
    assert not has_coast(0, -30, latitudes, longitudes)  # the middle of the Atlantic
    assert not has_coast(50, 80, latitudes, longitudes)  # the middle of Asia


def test_grids_show_the_same_coasts_wherever_they_begin() -> None:
    latitudes = np.arange(-89.5, 90)
    east, centred = np.arange(0.5, 360), np.arange(-179.5, 180)

    one, other = (
        rasterize(project_coastlines(latitudes, longitudes), (1, 1), (180, 360))
        for longitudes in (east, centred)
    )

    assert one.sum() > 2000
    assert np.mean(one != np.roll(other, 180, axis=1)) < 0.001  # segments start at other pixels at the seam


def test_regional_grid_shows_only_coastlines_of_its_region() -> None:
    latitudes, longitudes = np.linspace(70, 30, 81), np.linspace(-20, 40, 121)
    world = rasterize(
        project_coastlines(np.linspace(90, -90, 361), np.linspace(-180, 180, 721)), (1, 1), (361, 721)
    )

    region = rasterize(project_coastlines(latitudes, longitudes), (1, 1), (81, 121))

    assert np.mean(region != world[40:121, 320:441]) < 0.02
    assert region.sum() > 500


def test_region_across_the_date_line_shows_both_sides() -> None:
    longitudes = unwrapped_longitudes(np.array([160, 170, 180, -170, -160.0]))
    assert longitudes is not None

    lines = np.concatenate(select_coastlines(*find_cell_edges(longitudes)[[0, -1]]))

    assert longitudes.tolist() == [160, 170, 180, 190, 200]
    assert ((lines[:, 0] > 165) & (lines[:, 0] < 179)).any()
    assert ((lines[:, 0] > 181) & (lines[:, 0] < 195)).any()


def test_coastline_positions_account_for_unequal_cell_sizes() -> None:
    latitudes, longitudes = np.array([0.0, 10, 30, 70]), np.array([0.0, 90, 180, 270])

    lines = np.concatenate(project_coastlines(latitudes, longitudes))
    degrees = np.concatenate(select_coastlines(-45, 315))

    inside = (degrees[:, 1] > 5) & (degrees[:, 1] < 20)  # the second cell
    assert ((lines[inside, 0] >= 1) & (lines[inside, 0] <= 2)).all()


@pytest.mark.parametrize(
    "values", [[0, 1, 1], [0, 2, 1], [0, np.nan, 2], [0], [], [0, 200, 400], ["a", "b"], [[0, 1], [1, 2]]]
)
def test_irregular_longitudes_are_rejected(values: list[object]) -> None:
    assert unwrapped_longitudes(np.array(values)) is None


@pytest.mark.parametrize("values", [[0, 91], [-100, 0], [0, 2, 1], [np.nan, 1], [5]])
def test_irregular_latitudes_are_rejected(values: list[float]) -> None:
    assert check_latitudes(np.array(values)) is None


def test_coastline_is_drawn_without_gaps() -> None:
    pixels = rasterize([np.array([[0.5, 0.5], [0.5, 9.5], [4.5, 9.5]])], (1, 1), (5, 10))

    assert pixels[0].all()
    assert pixels[:, 9].all()
    assert pixels.sum() == 14
