"""Problems of files and options are explained in a sentence, and the branch does not move."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from icefloe import IcechunkError, InvalidInputError
from icefloe.ingest.bad_files import ProblemsError, explain
from icefloe.ingest.job import ingest
from icefloe.ingest.options import make_options
from tests.support.ingest.files import (
    START,
    Travelling,
    archive,
    days,
    expected,
    new_repo,
    read,
    read_all,
    run,
    write,
)
from tests.support.ingest.modes import modes_in_turn

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def refused(folder: Path, sources: Any, **options: Any) -> str:
    """The sentence; nothing was committed."""
    repo = new_repo(folder)
    before = repo.lookup_branch("main")
    with pytest.raises(IcechunkError) as caught:
        run(repo, sources, **options)
    assert repo.lookup_branch("main") == before
    return str(caught.value)


def test_pattern_without_matches_is_refused(tmp_path: Path) -> None:
    assert "nothing matches" in refused(tmp_path, str(tmp_path / "*.nc"))
    assert "no such file" in refused(tmp_path, str(tmp_path / "a.nc"))
    assert "no source was given" in refused(tmp_path, [])


def test_damaged_file_stops_the_job_or_is_skipped(tmp_path: Path) -> None:
    files = archive(tmp_path)
    Path(files[1]).write_bytes(b"no NetCDF")
    repo = new_repo(tmp_path)

    sentence = refused(tmp_path, files)
    report = run(repo, files, on_bad_file="skip")

    assert files[1] in sentence
    assert [each.source.url for each in report.bad] == [files[1]]
    xr.testing.assert_identical(read(repo), expected([files[0], files[2]]))


def test_unreadable_data_stops_the_job_or_is_skipped(tmp_path: Path) -> None:
    """The header of the file is intact: the problem appears when values are read."""
    files = []
    for first in (0, 4, 8):
        values = np.random.default_rng(first).normal(size=(4, 50, 60))
        time = START + np.arange(first, first + 4) * np.timedelta64(1, "D")
        dataset = xr.Dataset({"a": (("time", "y", "x"), values)}, {"time": time})
        files.append(
            write(
                tmp_path / f"{first}.nc",
                dataset,
                {"a": {"zlib": True, "chunksizes": (4, 50, 60), "fletcher32": True}},
            )
        )
    whole = bytearray(Path(files[1]).read_bytes())
    middle = len(whole) // 2
    whole[middle : middle + 2000] = bytes(2000)
    Path(files[1]).write_bytes(whole)
    repo = new_repo(tmp_path)

    sentence = refused(tmp_path, files)
    report = run(repo, files, on_bad_file="skip")

    assert files[1] in sentence
    assert [each.source.url for each in report.bad] == [files[1]]
    xr.testing.assert_identical(read(repo), expected([files[0], files[2]]))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda ds: ds.assign(t2m=ds["t2m"].assign_attrs(units="degC")), "is in degC, others are in K"),
        (lambda ds: ds.assign(t2m=ds["t2m"].astype("U")), "is of type"),
        (lambda ds: ds.drop_vars(["lat", "lon"]).isel(lat=slice(3)), "cells along lat"),
        (lambda ds: ds.rename(lat="latitude"), "has the dimensions"),
        (lambda ds: ds.convert_calendar("noleap"), "calendar"),
    ],
)
def test_disagreeing_files_are_reported(tmp_path: Path, change: Any, said: str) -> None:
    files = archive(tmp_path)
    files.append(write(tmp_path / "odd.nc", change(days(9, 2))))

    sentence = refused(tmp_path, files, concat_dim="time")
    repo = new_repo(tmp_path)
    report = run(repo, files, concat_dim="time", on_bad_file="skip")

    assert said in sentence
    assert files[-1] in sentence
    assert {each.source.url for each in report.bad} == {files[-1]}
    xr.testing.assert_equal(read(repo), expected(files[:-1]))


def test_file_without_times_needs_concat_dim(tmp_path: Path) -> None:
    """It cannot be ordered among others, but can be concatenated along a named dimension."""
    files = [*archive(tmp_path), write(tmp_path / "none.nc", days(9, 2).isel(time=slice(0)))]
    repo, other = new_repo(tmp_path), new_repo(tmp_path)

    sentence = refused(tmp_path, files)
    report = run(repo, files, on_bad_file="skip")
    run(other, files[::-1], concat_dim="time")

    assert f"{files[-1]}: t2m: has no cells along time" in sentence
    assert {each.source.url for each in report.bad} == {files[-1]}
    xr.testing.assert_identical(read(repo), expected(files[:-1]))
    xr.testing.assert_identical(read(other), expected(files[:-1]))


def test_file_that_differs_from_most_is_reported(tmp_path: Path) -> None:
    """Even if it comes first, and in archives with separate files for each variable."""
    files = archive(tmp_path, (3, 3, 3))
    write(Path(files[0]), days(0, 3).assign(t2m=days(0, 3).t2m.assign_attrs(units="degC")))
    others = [
        write(tmp_path / f"p{n}.nc", (days(n * 3, 3) * 2).rename(t2m="p").assign_attrs(title="invented"))
        for n in range(3)
    ]
    repo = new_repo(tmp_path)

    report = run(repo, [*files, *others], on_bad_file="skip", join="outer")

    assert [each.source.url for each in report.bad] == [files[0]]
    xr.testing.assert_identical(read(repo), expected([*files[1:], *others], join="outer"))


@pytest.mark.parametrize("options", [{}, {"concat_dim": "time"}])
def test_overlapping_times_are_reported(tmp_path: Path, options: dict[str, Any]) -> None:
    files = [write(tmp_path / "0.nc", days(0, 4)), write(tmp_path / "1.nc", days(2, 4))]

    refused(tmp_path, files, **options)


def test_file_that_overlaps_stored_times_is_rejected(tmp_path: Path) -> None:
    repo = new_repo(tmp_path)
    run(repo, archive(tmp_path))
    before = repo.lookup_branch("main")

    with pytest.raises(ProblemsError, match="time"):
        run(repo, write(tmp_path / "more.nc", days(1, 2)), concat_dim="time")

    assert repo.lookup_branch("main") == before


def test_gaps_in_time_are_reported(tmp_path: Path) -> None:
    files = [write(tmp_path / "0.nc", days(0, 4)), write(tmp_path / "1.nc", days(9, 4))]

    report = run(new_repo(tmp_path), files)

    assert [finding.text.split(" ")[:2] for finding in report.findings] == [["has", "a"]]
    assert report.findings[0].source == files[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"chunks": {"height": 3}}, "which is not a dimension"),
        ({"chunks": {"time": 0}}, "must be positive"),
        ({"chunks": {"time": 2}, "shards": {"time": 3}}, "whole chunks"),
        ({"codec": "zip"}, "unknown codec"),
        ({"codec": "zstd:x"}, "codec"),
        ({"chunks": {"time": -1}, "memory_bytes": 10}, "more memory per task"),
        ({"variables": ["t3m"]}, "no file has the variable 't3m'; did you mean t2m?"),
        ({"mode": "quick"}, "mode must be one of"),
        ({"commit_every": 0}, "positive integer"),
        ({"branch": "dev"}, "dev"),
        ({"size": 3}, "has no option size"),
    ],
)
def test_invalid_options_are_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    assert said in refused(tmp_path, archive(tmp_path), **options)


def test_chunks_that_differ_from_stored_ones_are_refused(tmp_path: Path) -> None:
    files = archive(tmp_path)
    repo = new_repo(tmp_path)
    run(repo, files[:2], chunks={"time": 2})

    with pytest.raises(InvalidInputError, match="rechunk"):
        run(repo, files, chunks={"time": 3})


def test_values_beyond_the_stored_type_are_refused(tmp_path: Path) -> None:
    packed = {"t2m": {"dtype": "i2", "scale_factor": 0.5, "add_offset": 0.0, "_FillValue": -9}}
    repo = new_repo(tmp_path)
    run(repo, write(tmp_path / "0.nc", days(0, 2), packed))
    before = repo.lookup_branch("main")

    with pytest.raises(InvalidInputError, match="cannot be represented in the stored form"):
        run(repo, write(tmp_path / "1.nc", days(2, 2) / 3))

    assert repo.lookup_branch("main") == before


def test_advice_on_the_second_line_of_an_xarray_error_is_shown() -> None:
    """cfgrib names the messages to select in this way."""
    error = ValueError(
        "multiple values, try one of:\n    filter_by_keys={'a': 1}\n    filter_by_keys={'a': 2}"
    )

    assert explain(error) == "ValueError: multiple values, try one of: filter_by_keys={'a': 1}"
    assert explain(KeyError()) == "KeyError"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_file_without_read_permission_is_reported(tmp_path: Path) -> None:
    files = archive(tmp_path)
    Path(files[1]).chmod(0)

    assert files[1] in refused(tmp_path, files)


def test_file_changed_during_ingest_is_reported(tmp_path: Path) -> None:
    """Between the inspection and the reading of its values, or while they are read."""
    files = archive(tmp_path, (3, 3, 3))

    class Changing(Travelling):
        def map(self, task: Any, items: Any, /) -> Any:
            if task.run.__name__ in {"write_blocks", "write_references"}:
                write(Path(files[1]), days(3, 3) + 1)
            return super().map(task, items)

    for mode in ("native", "virtual"):
        repo = new_repo(tmp_path)
        before = repo.lookup_branch("main")

        with pytest.raises(InvalidInputError, match=f"{files[1]}: .*the file changed while it was ingested"):
            ingest(repo, files, make_options(mode=mode), Changing())

        assert repo.lookup_branch("main") == before


def rows(path: Path, times: list[int]) -> str:
    """Write a file with these days as times."""
    time = START + np.array(times) * np.timedelta64(1, "D")
    return write(path, xr.Dataset({"a": ("time", np.array(times, "f8"))}, {"time": time}))


@modes_in_turn(
    "times,said,concat_dim",
    [
        ([3, 4, 4, 5], "time: 2024-01-05 00:00:00 appears twice in the file", None),
        ([3, 4, 4, 5], "time: 2024-01-05 00:00:00 appears twice in the file", "time"),
        ([3, 4, 5, 4], "time: 2024-01-05 00:00:00 appears twice in the file", None),
        ([3, 5, 4], "time: 2024-01-05 00:00:00 follows 2024-01-06 00:00:00 in the file", None),
        ([3, 5, 4], "time: 2024-01-05 00:00:00 follows 2024-01-06 00:00:00 in the file", "time"),
        ([3, 4, 5, 4], "time: 2024-01-05 00:00:00 appears twice in the file", "time"),
    ],
)
def test_file_with_repeated_or_unsorted_times_is_skipped(
    tmp_path: Path, times: list[int], said: str, concat_dim: str | None, mode: str
) -> None:
    good = [rows(tmp_path / "a.nc", [0, 1, 2]), rows(tmp_path / "c.nc", [6, 7, 8])]
    bad = rows(tmp_path / "b.nc", times)
    options: dict[str, Any] = {"mode": mode, "concat_dim": concat_dim}

    sentence = refused(tmp_path, [good[0], bad, good[1]], **options)
    repo = new_repo(tmp_path)
    report = run(repo, [good[0], bad, good[1]], on_bad_file="skip", **options)

    assert f"{bad}: {said}" in sentence
    assert [each.source.url for each in report.bad] == [bad]
    assert [
        source.url
        for source in run(repo, [*good, bad], dry_run=True, on_bad_file="skip").outcome.sources.known
    ] == good


def test_repeated_times_cannot_be_appended(tmp_path: Path) -> None:
    repo = new_repo(tmp_path)
    run(repo, rows(tmp_path / "a.nc", [0, 1, 2]))
    bad = rows(tmp_path / "b.nc", [3, 4, 4])

    with pytest.raises(ProblemsError, match=r"b\.nc: time: .* appears twice"):
        run(repo, bad)


@pytest.mark.parametrize(
    ("times", "commit_every"), [([2, 3], 2), ([6, 7, 8], None), ([0, 1], 2), ([7], None)]
)
def test_file_that_overlaps_others_is_skipped(
    tmp_path: Path, times: list[int], commit_every: int | None
) -> None:
    files = [rows(tmp_path / "a.nc", [0, 1, 2]), rows(tmp_path / "b.nc", [6, 7, 8])]
    files.append(rows(tmp_path / "copy.nc", times))
    repo = new_repo(tmp_path)

    assert "overlap" in refused(tmp_path, files, commit_every=commit_every)
    report = run(repo, files, on_bad_file="skip", commit_every=commit_every)

    assert len(report.bad) == 1
    assert read(repo)["time"].to_index().is_unique
    assert run(new_repo(tmp_path), files, on_bad_file="skip", dry_run=True).plan is not None


def test_files_may_share_labels_of_other_dimensions(tmp_path: Path) -> None:
    """Files are concatenated along another dimension."""
    files = []
    for number in range(2):
        dataset = xr.Dataset({"a": (("run", "ray"), np.ones((1, 3)))}, {"run": [number], "ray": [10, 20, 20]})
        files.append(write(tmp_path / f"{number}.nc", dataset))
    repo = new_repo(tmp_path)

    report = run(repo, files, concat_dim="run")

    assert report.bad == ()
    assert read(repo)["ray"].values.tolist() == [10, 20, 20]


def sweep(*days: int, elevation: float | None = None) -> xr.Dataset:
    """A radar sweep: several rays have the same time."""
    times = START + np.array(days) * np.timedelta64(1, "D")
    values = np.arange(len(days) * 3, dtype="f4").reshape(len(days), 3)
    found = xr.Dataset({"dbz": (("time", "range"), values)}, {"time": times, "range": [0.0, 0.0, 100.0]})
    return found if elevation is None else found.expand_dims(elevation=[elevation])


@pytest.mark.parametrize(("mode", "concat_dim"), [("native", "elevation"), ("virtual", None)])
def test_repeated_labels_are_accepted_along_other_dimensions(
    tmp_path: Path, mode: str, concat_dim: str | None
) -> None:
    one, two = (
        write(tmp_path / f"{degrees}.nc", sweep(0, 0, 1, 1, elevation=degrees)) for degrees in (1.0, 2.0)
    )
    alone, together = new_repo(tmp_path), new_repo(tmp_path)

    first = run(alone, one, mode=mode, concat_dim=concat_dim)
    second = run(alone, [one, two], mode=mode, concat_dim=concat_dim)
    both = run(together, [one, two], mode=mode, concat_dim=concat_dim)

    assert first.ok
    assert second.ok
    assert both.ok
    assert read_all(alone).sizes == {"elevation": 2, "time": 4, "range": 3}
    xr.testing.assert_identical(read_all(alone), read_all(together))


def test_profile_files_may_repeat_times(tmp_path: Path) -> None:
    files = [
        write(
            tmp_path / f"{number}.nc",
            xr.Dataset(
                {"t": ("obs", np.arange(3.0))},
                {"obs": np.arange(3) + 3 * number, "time": ("obs", np.repeat(START, 3))},
            ),
        )
        for number in range(2)
    ]
    repo = new_repo(tmp_path)

    assert run(repo, files).ok
    assert (read(repo)["time"].values == START).all()


def test_single_file_may_repeat_times_without_concat_dim(tmp_path: Path) -> None:
    file = write(tmp_path / "a.nc", sweep(0, 0, 1))

    assert run(new_repo(tmp_path), file).ok
    with pytest.raises(ProblemsError, match=r"a\.nc: time: 2024-01-01 00:00:00 appears twice .*concat_dim"):
        run(new_repo(tmp_path), file, concat_dim="time")


def test_stored_repeated_times_cannot_be_appended_to(tmp_path: Path) -> None:
    repo = new_repo(tmp_path)
    run(repo, write(tmp_path / "a.nc", sweep(0, 0, 1)))

    with pytest.raises(
        ProblemsError, match=r"b\.nc: time: .*2024-01-01 .* twice in the repository; concatenate"
    ):
        run(repo, write(tmp_path / "b.nc", sweep(2, 3)))


def test_file_with_repeated_times_replaces_its_old_version(tmp_path: Path) -> None:
    repo = new_repo(tmp_path)
    run(repo, write(tmp_path / "a.nc", sweep(0, 0, 1)))

    report = run(repo, write(tmp_path / "a.nc", sweep(0, 0, 0, 1, 1)), on_change="ingest")

    assert report.ok
    assert read(repo).sizes == {"time": 5, "range": 3}
