"""Static fields, such as an orography, are stored once, and compared between files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

from icefloe import Credentials, Repository
from icefloe.cli.main import main
from icefloe.errors import InvalidInputError, StorageError
from icefloe.ingest.bad_files import ProblemsError
from tests.support.ingest.files import assert_same, days, expected, new_repo, read_all, run, write
from tests.support.ingest.modes import modes, modes_in_turn

pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs")
OROG = np.arange(20.0, dtype="f4").reshape(5, 4)
CHUNKED: dict[str, Any] = {"t2m": {"chunksizes": (2, 5, 4), "zlib": True}, "orog": {"chunksizes": (5, 4)}}


def with_orog(first: int, orog: Any = OROG) -> xr.Dataset:
    return days(first, 2, orog=(("lat", "lon"), orog, {"units": "m"}), crs=((), 1))


def files_with(folder: Path, *fields: Any) -> list[str]:
    return [
        write(folder / f"{number}.nc", with_orog(2 * number, field), CHUNKED)
        for number, field in enumerate(fields)
    ]


@modes_in_turn("dim", ["time", None])
def test_static_fields_are_stored_once(tmp_path: Path, mode: str, dim: str | None) -> None:
    files = files_with(tmp_path, OROG, OROG, OROG)
    repo = new_repo(tmp_path)

    run(repo, files, mode=mode, concat_dim=dim)

    how = {} if dim is None else {"combine": "nested", "concat_dim": dim}
    assert read_all(repo)["orog"].dims == ("lat", "lon")
    assert_same(read_all(repo), expected(files, **how))


@modes_in_turn("batch", [None, 1])
def test_static_fields_are_compared_on_append(tmp_path: Path, mode: str, batch: int | None) -> None:
    files = files_with(tmp_path, OROG, OROG, OROG, OROG + 1)
    repo = new_repo(tmp_path)
    run(repo, files[0], mode=mode)

    run(repo, files[:3], mode=mode, commit_every=batch)
    with pytest.raises(InvalidInputError, match=r"3\.nc: orog: differs from that of the repository"):
        run(repo, files, mode=mode)
    run(repo, files, mode=mode, compat="override")

    assert_same(read_all(repo), expected(files, compat="override"))


def read_orog(repo: Repository) -> Any:
    """The static field alone, because other arrays may be unreadable."""
    prefixes = Repository.open(repo.storage).config.virtual_chunk_containers or {}
    allowed = {prefix: Credentials.LocalFileSystemAccess() for prefix in prefixes}
    opened = Repository.open(repo.storage, authorize_virtual_chunk_access=allowed)
    orog: Any = zarr.open_group(opened.readonly_session("main").store, mode="r")["orog"]
    return orog[...]


def lose(file: str, change: str) -> None:
    if change == "deleted":
        Path(file).unlink()
    else:
        os.utime(file)


@pytest.mark.parametrize("change", ["deleted", "changed"])
def test_lost_static_field_is_compared_with_an_unchanged_file(tmp_path: Path, change: str) -> None:
    files = files_with(tmp_path, OROG, OROG, OROG, OROG + 1)
    repo = new_repo(tmp_path)
    run(repo, files[:2], mode="virtual")
    lose(files[0], change)

    with pytest.raises(InvalidInputError, match=r"3\.nc: orog: differs from that of the repository"):
        run(repo, files[1:], mode="virtual")
    report = run(repo, files[1:3], mode="virtual")

    assert [each.url for each in report.broken] == files[:1]
    assert not report.ok
    assert np.array_equal(read_orog(repo), OROG)


def test_lost_static_field_without_an_unchanged_file_offers_a_remedy(tmp_path: Path) -> None:
    files = files_with(tmp_path, OROG, OROG + 1)
    repo = new_repo(tmp_path)
    run(repo, files[0], mode="virtual")
    Path(files[0]).unlink()

    with pytest.raises(StorageError, match='ingest the changed file with on_change="ingest", or omit'):
        run(repo, files[1], mode="virtual")
    report = run(repo, files[1], mode="virtual", compat="override")

    assert [each.url for each in report.missing] == files[:1]
    assert np.array_equal(read_orog(repo), OROG + 1)


@pytest.mark.parametrize("how", [{}, {"compat": "override"}, {"concat_dim": "time", "commit_every": 1}])
@pytest.mark.parametrize("given", [1, 2])
def test_changed_file_of_a_static_field_can_be_ingested(tmp_path: Path, given: int, how: Any) -> None:
    files = files_with(tmp_path, OROG, OROG)[:given]
    repo = new_repo(tmp_path)
    run(repo, files, mode="virtual")
    write(Path(files[0]), with_orog(0).map(lambda each: each * 2 if each.name == "t2m" else each), CHUNKED)
    os.utime(files[0])

    report = run(repo, files, mode="virtual", on_change="ingest", **how)

    assert report.ok
    assert_same(read_all(repo), expected(files, **({"compat": "override"} if len(files) > 1 else {})))


@modes("hybrid")
def test_files_with_different_static_fields_are_named(tmp_path: Path, mode: str) -> None:
    files = files_with(tmp_path, OROG, OROG, OROG + 1, OROG, OROG + 2)
    repo = new_repo(tmp_path)

    with pytest.raises(ProblemsError) as caught:
        run(repo, files, mode=mode)
    report = run(repo, files, mode=mode, on_bad_file="skip")

    rows = [(row["file"], row["variable"], row["problem"]) for row in caught.value.problems.rows()]
    assert rows == [(file, "orog", f"differs from that of {files[0]}") for file in (files[2], files[4])]
    assert 'compat="override"' in str(caught.value)
    assert [each.source.url for each in report.bad] == [files[2], files[4]]
    assert_same(read_all(repo), expected([files[0], files[1], files[3]]))


@modes("native", "virtual")
def test_compat_override_uses_the_first_field(tmp_path: Path, mode: str) -> None:
    files = files_with(tmp_path, OROG, OROG + 1)
    repo = new_repo(tmp_path)

    report = run(repo, files, mode=mode, compat="override")

    assert report.ok
    assert_same(read_all(repo), expected(files, compat="override"))


@pytest.mark.parametrize(("data_vars", "mode"), [("all", "native"), ("different", "hybrid")])
def test_fields_can_be_stored_for_each_file(tmp_path: Path, mode: str, data_vars: str) -> None:
    files = files_with(tmp_path, OROG, OROG + 1)
    repo = new_repo(tmp_path)

    run(repo, files, mode=mode, data_vars=data_vars)

    assert_same(read_all(repo), expected(files, data_vars=data_vars))


@pytest.mark.parametrize(("batch", "mode"), [(None, "hybrid"), (1, "native")])
def test_broadcast_fields_keep_their_stored_form(tmp_path: Path, mode: str, batch: int | None) -> None:
    files = files_with(tmp_path, OROG, OROG + 1, OROG + 2, OROG + 3)
    repo = new_repo(tmp_path)
    run(repo, files[:2], mode=mode, data_vars="all")

    run(repo, files, mode=mode, commit_every=batch)

    assert_same(read_all(repo), expected(files, data_vars="all"))


def test_coordinates_without_the_dimension_are_compared(tmp_path: Path) -> None:
    parts = [days(2 * n, 2).assign_coords(run=((), n), zone=("lat", np.arange(5))) for n in range(3)]
    files = [write(tmp_path / f"{n}.nc", part) for n, part in enumerate(parts)]
    repo = new_repo(tmp_path)

    with pytest.raises(InvalidInputError, match=r"1\.nc: run: is 1, but 0 in .*0\.nc.*coords=\"different\""):
        run(repo, files)
    run(repo, files, coords="different")

    assert_same(read_all(repo), expected(files, coords="different"))


def test_differing_labels_require_inner_or_outer_join(tmp_path: Path) -> None:
    files = [write(tmp_path / "0.nc", days(0, 2)), write(tmp_path / "1.nc", days(2, 2).isel(lat=[0, 1, 3]))]
    repo = new_repo(tmp_path)

    with pytest.raises(InvalidInputError, match=r"1\.nc: lat: .*join=\"outer\""):
        run(repo, files, concat_dim="time")
    run(repo, files, concat_dim="time", join="inner")

    wanted = expected(files, combine="nested", concat_dim="time", join="inner")
    assert_same(read_all(repo), wanted)


def test_missing_variable_requires_inner_or_outer_join(tmp_path: Path) -> None:
    rain = ("time", np.ones(2, "f4"))
    files = [write(tmp_path / "0.nc", days(0, 2, rain=rain)), write(tmp_path / "1.nc", days(2, 2))]
    repo = new_repo(tmp_path)

    with pytest.raises(InvalidInputError, match=r"1\.nc: rain: is missing.*join=\"outer\""):
        run(repo, files)
    run(repo, files, join="outer")

    assert_same(read_all(repo), expected(files, join="outer"))


def test_static_field_missing_from_new_files_is_kept(tmp_path: Path) -> None:
    files = [*files_with(tmp_path, OROG), write(tmp_path / "1.nc", days(2, 2, crs=((), 1)))]
    repo = new_repo(tmp_path)
    run(repo, files[0])

    run(repo, files)

    assert read_all(repo)["orog"].values.tolist() == OROG.tolist()
    assert read_all(repo).sizes["time"] == 4


def test_combining_options_work_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = files_with(tmp_path, OROG, OROG + 1)
    words = ["ingest", *files, str(tmp_path / "repo"), "--executor", "threads"]

    assert main(words) == 2
    said = capsys.readouterr().err
    assert main([*words, "--data-vars", "all", "--coords", "minimal", "--join", "exact"]) == 0
    assert main([*words[:-3], str(tmp_path / "other"), *words[-2:], "--compat", "override"]) == 0

    assert "--compat override" in said
    assert "--data-vars all" in said


def test_skipped_files_are_listed_with_the_variable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = files_with(tmp_path, OROG, OROG + 1)

    assert (
        main(["ingest", *files, str(tmp_path / "repo"), "--executor", "threads", "--on-bad-file", "skip"])
        == 0
    )

    assert f"{files[1]}: skipped: orog: differs from that of {files[0]}" in capsys.readouterr().out


def tiles(folder: Path, first: int, fields: tuple[Any, Any] = (OROG, OROG)) -> list[str]:
    """Write two days of two tiles, each with its part of a static field."""
    return [
        write(folder / f"{first}-{number}.nc", with_orog(first, field).drop_vars("crs").isel(lat=part))
        for number, (part, field) in enumerate(zip((slice(0, 2), slice(2, 4)), fields, strict=True))
    ]


@modes("hybrid")
def test_static_fields_of_tiles_are_compared_on_append(tmp_path: Path, mode: str) -> None:
    files = [*tiles(tmp_path, 0), *tiles(tmp_path, 2), *tiles(tmp_path, 4)]
    repo = new_repo(tmp_path)

    run(repo, files[:2], mode=mode)
    run(repo, files, mode=mode, commit_every=2)

    assert read_all(repo)["orog"].dims == ("lat", "lon")
    assert_same(read_all(repo), expected(files))
    other = tiles(tmp_path, 6, (OROG, OROG + 1))
    with pytest.raises(ProblemsError, match=r"6-1.nc: orog: differs from that of the repository"):
        run(repo, other, mode=mode)


@pytest.mark.parametrize(
    "change",
    [
        lambda ds: ds.assign_coords(lat=ds["lat"] + 0.5),
        lambda ds: ds.isel(lat=slice(None, None, -1)),
        lambda ds: ds.isel(lat=slice(3)),
    ],
)
@pytest.mark.parametrize("stored", [0, 2])
def test_file_that_differs_in_two_coordinates_is_named(tmp_path: Path, change: Any, stored: int) -> None:
    files = [write(tmp_path / f"{number}.nc", days(2 * number, 2)) for number in range(3)]
    files.append(write(tmp_path / "3.nc", change(days(6, 2))))
    repo = new_repo(tmp_path)
    if stored:
        run(repo, files[:stored])

    with pytest.raises(ProblemsError) as caught:
        run(repo, files)
    report = run(repo, files, on_bad_file="skip")

    [row] = caught.value.problems.rows()
    there = "the repository" if stored else files[0]
    expected_row = (files[3], "lat", f"has different labels than {there}")
    assert (row["file"], row["variable"], row["problem"]) == expected_row
    assert "concat_dim" in row["remedy"]
    assert [each.source.url for each in report.bad] == files[3:]
    assert_same(read_all(repo), expected(files[:3]))


def test_file_without_labels_is_named(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{number}.nc", days(2 * number, 2)) for number in range(2)]
    files.append(write(tmp_path / "2.nc", days(4, 2).drop_vars("lat")))

    with pytest.raises(
        ProblemsError, match=r"2\.nc: lat: has no labels, but other files have them; name the"
    ):
        run(new_repo(tmp_path), files)
