"""Plots in the terminal and in files, and errors for invalid plots."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.cli import main as app
from icefloe.cli.plotting import as_file, as_text
from icefloe.cli.slices import PlotAxis, Slice, take

TIMES = np.arange(6)
LATITUDES = np.linspace(-60, 60, 7)

pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a repository with a packed array over time, latitude and longitude, in two versions."""
    folder = str(tmp_path_factory.mktemp("plot") / "repo")
    repo = icefloe.Repository.create(icefloe.storage_from_url(folder, sync=False))
    session = repo.writable_session("main")
    root: Any = zarr.group(session.store)
    values = np.arange(6 * 7 * 8, dtype="i2").reshape(6, 7, 8)
    values[0, 0, 0] = -99
    packing = {"scale_factor": 0.5, "add_offset": 100.0, "_FillValue": -99, "units": "K", "long_name": "air"}
    dims = ("time", "lat", "lon")
    root.create_array("t", data=values, chunks=(1, 7, 8), dimension_names=dims, attributes=packing)
    days = {"units": "days since 2024-01-01"}
    root.create_array("time", data=TIMES, dimension_names=("time",), attributes=days)
    north = {"units": "degrees_north"}
    root.create_array("lat", data=LATITUDES, dimension_names=("lat",), attributes=north)
    root.create_array("name", data=np.array(["a", "b"]), dimension_names=("n",))
    root.create_array("nothing", data=np.full((3, 4), np.nan))
    root.create_array("empty", shape=(0, 4), dtype="f4")
    repo.create_tag("v1", session.commit("one"))
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="t")[1] = 0
    session.commit("two")
    return folder


def plot(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """Run the command and return its output, or its errors if it fails."""
    capsys.readouterr()
    assert app.main(["plot", *words]) == code
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    return printed.err if code else printed.out


def session_of(place: str, tag: str) -> icefloe.Session:
    return icefloe.Repository.open(icefloe.local_filesystem_storage(place)).readonly_session(tag=tag)


def test_packed_values_are_decoded(place: str) -> None:
    drawn = take(session_of(place, "v1"), "t", {"time": 0}, {})

    assert [axis.title for axis in drawn.axes] == ["lat (degrees_north)", "lon"]
    assert np.isnan(drawn.values[0, 0])
    assert drawn.values[0, 1] == 100.5
    assert (drawn.units, drawn.title) == ("K", "air, time=2024-01-01")


@pytest.mark.needs("xarray")
def test_labels_and_revisions_select_values(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [place, "t", "--sel", "time=2024-01-02", "--json"]

    now, before = (json.loads(plot(capsys, *words, *more)) for more in ([], ["-r", "v1"]))

    assert (now["min"], now["max"], now["shape"]) == (100, 100, [7, 8])
    assert (before["min"], before["max"], before["missing"]) == (128, 155.5, 0)
    assert before["at"] == {"time": "2024-01-02"}


def test_map_has_north_at_the_top_and_counts_missing_values(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = plot(capsys, place, "t", "-r", "v1", "--width", "40")

    assert text.startswith("air, time=2024-01-01")
    assert "lat (degrees_north) down, from 60 to -60" in text
    assert text.index("█") < text.index("░")  # the greatest values lie in the north
    assert "100.5 to 127.5 K" in text
    assert "1 of 56 missing" in text


def test_curve_has_a_scale_and_end_labels(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = plot(capsys, place, "t", "-r", "v1", "--isel", "lat=3", "--isel", "lon=-1", "--width", "60")

    lines = text.splitlines()
    assert lines[0] == "air, lat=0, lon=7"
    assert lines[1].split()[0] == "255.5"
    assert "2024-01-01" in lines[-2]
    assert "2024-01-06" in lines[-2]
    assert sum(any("\u2801" <= char <= "\u28ff" for char in line) for line in lines) > 10


def test_missing_values_leave_gaps_in_a_curve() -> None:
    values = np.array([0, 1, np.nan, np.nan, np.nan, 1, 0], float)
    text = as_text(Slice("/a", values, (PlotAxis("x", None, range(7)),), "", "a", {}), 40)

    columns = list(zip(*(line[11:] for line in text.splitlines()[1:15]), strict=True))
    empty = [set(column) == {"\u2800"} for column in columns]
    assert any(empty)
    assert not empty[0]
    assert not empty[-1]


def test_plot_is_coloured_on_a_terminal() -> None:
    values = np.array([[0, 1], [np.nan, 0]], float)
    drawn = Slice("/a", values, (PlotAxis("y", None, range(2)), PlotAxis("x", None, range(2))), "", "a", {})

    painted = as_text(drawn, 40, lambda character, colour, ground: f"{character}({colour} on {ground})")

    assert "\u2580(#440154 on #440154)" in painted  # the lowest
    assert "\u2580(#fde725 on #fde725)" in painted  # the highest
    assert "\n  \u2580" in painted  # missing


@pytest.mark.needs("matplotlib")
@pytest.mark.parametrize(
    "words", [["t", "--isel", "time=0"], ["t", "--isel", "lat=0", "--isel", "lon=0"], ["nothing"]]
)
def test_plots_are_written_to_files(
    words: list[str], place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "picture.png"

    assert str(picture) in plot(capsys, place, *words, "--file", str(picture))

    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.needs("xarray", "matplotlib")
@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["t", "--isel", "x=0"], 2, "/t has no dimension 'x'; it has time, lat, lon"),
        (["t", "--isel", "time=9"], 2, "time=9 is out of bounds for a dimension of size 6"),
        (["t", "--isel", "time=one"], 2, "is not DIM=START:STOP"),
        (["t", "--isel", "time"], 2, "'time' is not DIM=START:STOP"),
        (["t", "--isel", "time=0", "--sel", "time=2024-01-01"], 2, "selected both by index and by label"),
        (["t", "--sel", "time=1999-01-01"], 2, "from 2024-01-01 00:00:00 to 2024-01-06"),
        (["t", "--sel", "lon=3"], 2, "has no coordinate"),
        (
            ["t", "--isel", "time=0", "--isel", "lat=0", "--isel", "lon=0"],
            2,
            "use `icefloe cat` to print single values",
        ),
        (["t", "--isel", "lat=3:3"], 2, "the selection along lat is empty"),
        (["name"], 2, "cannot be plotted; only numbers can"),
        (["empty"], 2, "the selection along 0 is empty"),
        (["none"], 3, "/none"),
        (["/"], 2, "array"),
        (["t", "-r", "v9"], 3, "no branch, tag or snapshot v9"),
        (["t", "--file", "picture.doc"], 2, "none of the supported extensions .png"),
        (["t", "--file", "/nowhere/at/all.png"], 1, "/nowhere/at/all.png: No such file or directory"),
    ],
)
def test_invalid_plots_are_reported(
    words: list[str], code: int, sentence: str, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sentence in plot(capsys, place, *words, code=code)


def test_plot_without_values_is_reported(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "all 12 values are missing" in plot(capsys, place, "nothing")
    found: dict[str, Any] = json.loads(plot(capsys, place, "nothing", "--json"))
    assert (found["min"], found["missing"]) == (None, 12)


def test_unexpected_plotting_error_is_one_sentence(
    place: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("by nought")

    monkeypatch.setattr("icefloe.cli.slices.take", broken)

    assert "ZeroDivisionError: by nought (--debug prints the traceback" in plot(capsys, place, "t", code=1)
    with pytest.raises(ZeroDivisionError):
        app.main(["--debug", "plot", place, "t"])


def flat_slice(latitudes: PlotAxis, longitudes: PlotAxis, *, transposed: bool = False) -> Slice:
    """Return a slice of ones over two axes."""
    axes = (longitudes, latitudes) if transposed else (latitudes, longitudes)
    shape = tuple(len(axis.labels) for axis in axes)
    return Slice("/a", np.ones(shape), axes, "", "a", {})


def axis(name: str, values: Any, units: str = "", standard_name: str = "") -> PlotAxis:
    return PlotAxis(name, values, range(len(values)), units, standard_name)


def coast_of(drawn: Slice, width: int = 80) -> list[tuple[int, int]]:
    """Return the lines and columns of coastline characters in a plot."""
    lines = as_text(drawn, width).splitlines()[2:-2]
    return [
        (y, x) for y, line in enumerate(lines) for x, char in enumerate(line) if "\u2801" <= char <= "\u28ff"
    ]


NORTHWARD = axis("latitude", np.linspace(-89, 89, 90), "degrees_north")
EASTWARD = axis("longitude", np.arange(0.0, 360, 2), "degrees_east")


def test_coastlines_are_drawn_at_the_right_cells() -> None:
    coast = coast_of(flat_slice(NORTHWARD, EASTWARD))

    # 79 columns are 360 degrees, 20 lines are 180: the Atlantic is empty, Africa ends at 35 S and 20 E.
    assert not [(y, x) for y, x in coast if 6 < y < 12 and x in (73, 74)]
    assert max(y for y, x in coast if 3 < x < 7 and y < 17) == 13
    assert len(coast) > 200


@pytest.mark.parametrize(
    "drawn",
    [
        flat_slice(axis("lat", np.linspace(89, -89, 90)), axis("lon", np.arange(0.0, 360, 2))),
        flat_slice(NORTHWARD, EASTWARD, transposed=True),
        flat_slice(axis("y", NORTHWARD.values, standard_name="latitude"), EASTWARD),
    ],
    ids=["descending", "transposed", "standard name"],
)
def test_coastlines_do_not_depend_on_the_order_or_the_names(drawn: Slice) -> None:
    assert coast_of(drawn) == coast_of(flat_slice(NORTHWARD, EASTWARD))


OTHER_GRIDS = {
    "names": (axis("y", NORTHWARD.values), axis("x", EASTWARD.values)),
    "metres": (axis("lat", NORTHWARD.values, "m"), axis("lon", EASTWARD.values, "m")),
    "rotated": (axis("rlat", NORTHWARD.values, "degrees"), axis("rlon", EASTWARD.values, "degrees")),
    "rotated, by standard name": (
        axis("lat", NORTHWARD.values, "degrees", "grid_latitude"),
        axis("lon", EASTWARD.values, "degrees", "grid_longitude"),
    ),
    "latitudes above 90": (axis("lat", np.arange(100.0)), EASTWARD),
    "two turns": (NORTHWARD, axis("lon", np.arange(0.0, 720, 2))),
    "no coordinate": (NORTHWARD, PlotAxis("longitude", None, range(180))),
    "time": (axis("time", np.arange("2024-01", "2024-03", dtype="M8[D]")), EASTWARD),
}


@pytest.mark.parametrize("grid", OTHER_GRIDS)
def test_irregular_grids_have_no_coastlines(grid: str) -> None:
    assert coast_of(flat_slice(*OTHER_GRIDS[grid])) == []


@pytest.mark.needs("matplotlib")
@pytest.mark.parametrize("grid", ["rotated", "latitudes above 90"])
def test_image_files_of_irregular_grids_have_no_coastlines(grid: str, tmp_path: Path) -> None:
    drawn = flat_slice(*OTHER_GRIDS[grid])

    as_file(drawn, tmp_path / "with.png")
    as_file(drawn, tmp_path / "without.png", coastlines=False)

    assert (tmp_path / "with.png").read_bytes() == (tmp_path / "without.png").read_bytes()


def test_coastlines_contrast_with_colours() -> None:
    painted = as_text(
        flat_slice(NORTHWARD, EASTWARD), 80, lambda char, colour, ground: f"{char}({colour} on {ground})"
    )

    assert re.search("[\u2801-\u28ff]\\(#000000 on #21908c\\)", painted)  # the middle of viridis is light


@pytest.mark.needs("xarray")
def test_coastlines_can_be_disabled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "map")
    repo = icefloe.Repository.create(icefloe.storage_from_url(folder, sync=False))
    session = repo.writable_session("main")
    root: Any = zarr.group(session.store)
    root.create_array("t", data=np.ones((36, 72)), dimension_names=("lat", "lon"))
    root.create_array("lat", data=np.linspace(87.5, -87.5, 36), dimension_names=("lat",))
    root.create_array("lon", data=np.arange(-180.0, 180, 5), dimension_names=("lon",))
    session.commit("one")

    with_coast, without = (plot(capsys, folder, "t", *more) for more in ([], ["--no-coastlines"]))
    region = plot(capsys, folder, "t", "--sel", "lat=70..35", "--sel", "lon=-15..40")

    braille = re.compile("[\u2801-\u28ff]")
    assert len(braille.findall(with_coast)) > 100
    assert braille.findall(without) == []
    assert braille.findall(region)


@pytest.mark.needs("matplotlib")
@pytest.mark.parametrize(
    ("north", "east"),
    [(NORTHWARD.values, np.arange(0.0, 360, 2)), (NORTHWARD.values[::-1], np.arange(-180.0, 180, 2))],
    ids=["ascending from 0", "descending from -180"],
)
def test_coastlines_in_files_are_at_the_right_place(north: Any, east: Any, tmp_path: Path) -> None:
    from matplotlib.image import imread

    drawn = flat_slice(axis("lat", north), axis("lon", east))
    file = tmp_path / "map.png"

    as_file(drawn, file)
    dark = imread(file)[..., :3].max(axis=2) < 0.2
    as_file(drawn, file, coastlines=False)
    frame = imread(file)[..., :3].max(axis=2) < 0.2

    added = dark & ~frame
    top, bottom = np.nonzero(added.any(axis=1))[0][[0, -1]]
    left, right = np.nonzero(added.any(axis=0))[0][[0, -1]]
    # From the north of Greenland, 83.6 N, to the south of the Ross Sea, 85.6 S; all round the globe.
    per_degree = (bottom - top) / (83.6 + 85.6)
    assert abs((right - left) / per_degree - 360) < 3

    def has_coast(latitude: float, longitude: float) -> bool:
        x = left + (longitude - (east[0] - 1)) % 360 * per_degree
        y = top + (83.6 - latitude) * per_degree
        reach = 2 * per_degree
        window = added[int(y - reach) : int(y + reach), int(x - reach) : int(x + reach)]
        return bool(window.any())

    assert has_coast(-34.8, 20)  # Cape Agulhas
    assert has_coast(36, -5.6)  # Gibraltar
    assert not has_coast(0, -30)
    assert not has_coast(50, 80)


def test_values_of_both_signs_are_blue_and_red() -> None:
    values = np.array([[-2.0, 0.0], [0.0, 1.0]])
    drawn = Slice("/a", values, (PlotAxis("y", None, range(2)), PlotAxis("x", None, range(2))), "", "a", {})

    painted = as_text(drawn, 40, lambda character, colour, ground: f"{character}({colour} on {ground})")

    assert "(#053061 on #053061)" in painted  # the lowest
    assert "(#f7f7f7 on #f7f7f7)" in painted  # zero
    assert "(#e58268 on #e58268)" in painted  # half as far from zero, on the other side
