"""Files that lack variables, or some of the coordinates: the result equals `open_mfdataset`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from icefloe.errors import InvalidInputError
from tests.support.ingest.files import (
    OUTER,
    PRESENT,
    assert_same,
    days,
    expected,
    new_repo,
    read,
    run,
    write,
)
from tests.support.ingest.fuzz import outcome

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs"),  # zarr 3.1 about the codecs of HDF5
]


def with_p(dataset: xr.Dataset, dtype: str = "f4") -> xr.Dataset:
    return dataset.assign(p=(dataset.t2m.dims, (dataset.t2m.values * 2).astype(dtype), {"units": "mm"}))


A, B, C = days(0, 3), days(3, 4), days(7, 2)
PACKED: dict[str, Any] = {"p": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -9}}
CASES: dict[str, list[tuple[xr.Dataset, Any]]] = {
    "a variable": [(with_p(A), None), (B, None), (with_p(C), None)],
    "whole numbers": [(with_p(A, "i4"), None), (B, None), (C, None)],
    "packed values": [(with_p(A), PACKED), (B, None), (with_p(C), PACKED)],
    "times": [(A.assign(v=("time", A.time.values)), None), (B, None)],
    "rows": [(A.isel(lat=[0, 2, 4]), None), (B.isel(lat=[0, 1, 2]), None), (C, None)],
    "a tile": [
        (A.isel(lat=slice(2)), None),
        (A.isel(lat=slice(2, 5)), None),
        (B.isel(lat=slice(2, 5)), None),
    ],
    "a scalar coordinate": [(A.assign_coords(height=2.0), None), (B, None)],
    "a static variable": [(A.assign(m=("lat", np.arange(5.0))), None), (B, None)],
    "a variable in files of its own": [(A, None), (B, None), (A.rename(t2m="q"), None)],
}


def files_of(folder: Path, parts: list[tuple[xr.Dataset, Any]]) -> list[str]:
    return [write(folder / f"{n}.nc", part, encoding) for n, (part, encoding) in enumerate(parts)]


@pytest.mark.parametrize("case", CASES)
def test_missing_variables_are_filled_as_in_xarray(tmp_path: Path, case: str) -> None:
    files = files_of(tmp_path, CASES[case])
    repo = new_repo(tmp_path)

    run(repo, files, chunks={"time": 2} if case == "times" else {"time": 2, "lat": 3}, **OUTER)

    assert_same(read(repo), expected(files, **OUTER))


def test_missing_variables_are_filled_along_concat_dim(tmp_path: Path) -> None:
    files = files_of(tmp_path, CASES["a variable"])
    repo = new_repo(tmp_path)

    report = run(repo, files, concat_dim="time")

    assert_same(read(repo), expected(files, combine="nested", concat_dim="time"))
    assert "is missing, but other files have it" in next(
        each.text for each in report.findings if each.variable == "p"
    )


def test_new_variables_and_rows_can_be_added_later(tmp_path: Path) -> None:
    """A variable that the repository lacks, and rows between the stored ones."""
    files = files_of(tmp_path, [(A.isel(lat=[0, 2, 4]), None), (with_p(B), None)])
    repo = new_repo(tmp_path)

    run(repo, files[0], chunks={"time": 2, "lat": 1})
    run(repo, files, **OUTER)

    assert_same(read(repo), expected(files, **OUTER))


def test_missing_text_becomes_an_empty_string(tmp_path: Path) -> None:
    texts = A.assign(s=("time", np.array(["x", "y", "z"], object)))
    repo = new_repo(tmp_path)

    run(repo, files_of(tmp_path, [(texts, None), (B, None)]), **OUTER)

    assert read(repo)["s"].values.tolist() == ["x", "y", "z", "", "", "", ""]


def test_two_values_for_the_same_cell_are_refused(tmp_path: Path) -> None:
    repo = new_repo(tmp_path)
    files = files_of(tmp_path, [(A, None), (with_p(days(1, 3)), None)])
    before = repo.lookup_branch("main")

    with pytest.raises(InvalidInputError, match="several files have t2m at the same position"):
        run(repo, files, **OUTER)

    assert repo.lookup_branch("main") == before


@pytest.mark.parametrize(
    ("kind", "seed", "mode"),
    [("usual", 11, "native"), ("odd", 37, "native"), ("odd", 17, "hybrid"), ("alike", 9, "virtual")],
)
def test_random_archives_equal_open_mfdataset(tmp_path: Path, kind: str, seed: int, mode: str) -> None:
    """Some of the archives that `python -m tests.support.ingest.fuzz` tries."""
    assert outcome(tmp_path, kind, seed, mode, combining=PRESENT) == "the same"
