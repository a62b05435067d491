"""Virtual and hybrid ingest: references if they fit, otherwise copies, with equal values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from icefloe import InvalidInputError, Repository
from icefloe.core.early_manifests import EarlyManifest
from icefloe.ingest.ledger import read_ledger
from tests.support.ingest.files import (
    CHUNKED,
    archive,
    chunked,
    days,
    expected,
    new_repo,
    read_all,
    run,
    write,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs"),  # zarr 3.1 about the shuffle of HDF5
]


def kinds(repo: Repository) -> dict[str, str]:
    return {Path(row.source).name: row.mode for row in read_ledger(repo.readonly_session("main"), "")}


def locations(repo: Repository) -> int:
    return len(repo.readonly_session("main").all_virtual_chunk_locations())


def test_virtual_ingest_writes_only_references(tmp_path: Path) -> None:
    files = chunked(tmp_path, 4, 2, 3)
    repo = new_repo(tmp_path)

    run(repo, files[:2], mode="virtual")
    run(repo, files, mode="virtual")

    xr.testing.assert_identical(read_all(repo), expected(files))
    assert set(kinds(repo).values()) == {"virtual"}
    assert locations(repo) == 5


def test_variables_that_cannot_be_referenced_are_rejected_in_virtual_mode(tmp_path: Path) -> None:
    repo = new_repo(tmp_path)
    files = [*chunked(tmp_path, 4), *chunked(tmp_path, 2, first=4, complevel=1, shuffle=False)]
    before = repo.lookup_branch("main")

    with pytest.raises(InvalidInputError, match="its codecs is") as caught:
        run(repo, files, mode="virtual")

    assert files[1] in str(caught.value)
    assert repo.lookup_branch("main") == before


def test_hybrid_mode_copies_variables_that_cannot_be_referenced(tmp_path: Path) -> None:
    """Other codecs, an end within a chunk, a beginning within a chunk."""
    files = chunked(tmp_path, 4)
    files += chunked(tmp_path, 2, first=4, shuffle=False)
    files += chunked(tmp_path, 3, first=6)
    files += chunked(tmp_path, 3, first=9)
    files += chunked(tmp_path, 2, first=12)
    repo = new_repo(tmp_path)

    report = run(repo, files, mode="hybrid")

    xr.testing.assert_identical(read_all(repo), expected(files))
    assert list(kinds(repo).values()) == ["virtual", "native", "native", "native", "virtual"]
    copied = {Path(each.source).name: each.text for each in report.findings}
    assert "codecs" in copied["004.nc"]
    assert "does not begin and end with chunks" in copied["006.nc"]
    assert locations(repo) == 3


def manifests(repo: Repository, name: str = "t2m") -> list[tuple[range, ...]]:
    data: Any = repo.readonly_session("main")._workspace.array(f"/{name}").node_data
    return [ref.extents for ref in data.manifests]


def test_tasks_write_the_manifests_of_large_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows end within files, which two tasks parse, each for its part."""
    files = chunked(tmp_path, 4, 6, 2, 4)
    repo = new_repo(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(EarlyManifest, "refs", None)  # the driver reads none of them
        run(repo, files, mode="virtual", manifest_references=3)

    assert manifests(repo) == [(range(3), range(1), range(1)), *_windows(3, 8, 3)]
    xr.testing.assert_identical(read_all(repo), expected(files))
    log = repo.diff(from_snapshot_id=_parent(repo), to_branch="main")
    assert len(log.updated_chunks["/t2m"]) == 8

    # What is added later makes the last window anew, and one more.
    more = [*files, *chunked(tmp_path, 4, first=16)]
    run(Repository.open(repo.storage), more, mode="virtual")
    assert manifests(repo) == _windows(0, 10, 3)
    xr.testing.assert_identical(read_all(repo), expected(more))


def _windows(start: int, stop: int, size: int) -> list[tuple[range, ...]]:
    return [(range(at, min(at + size, stop)), range(1), range(1)) for at in range(start, stop, size)]


def _parent(repo: Repository) -> str:
    return [info.id for info in repo.ancestry(branch="main")][1]


def test_copied_chunks_and_manifests_of_tasks_are_merged(tmp_path: Path) -> None:
    files = chunked(tmp_path, 4, 2)
    files += chunked(tmp_path, 2, first=6, shuffle=False)
    files += chunked(tmp_path, 6, first=8)
    repo = new_repo(tmp_path)

    run(repo, files, mode="hybrid", manifest_references=2)

    xr.testing.assert_identical(read_all(repo), expected(files))
    assert list(kinds(repo).values()) == ["virtual", "virtual", "native", "virtual"]
    assert manifests(repo) == _windows(0, 7, 2)


def test_hybrid_mode_ingests_files_without_chunks(tmp_path: Path) -> None:
    files = archive(tmp_path, (3, 3))
    repo = new_repo(tmp_path)

    run(repo, files, mode="hybrid")

    xr.testing.assert_identical(read_all(repo), expected(files))


def test_grid_mappings_are_copied(tmp_path: Path) -> None:
    """A variable without dimensions does not prevent references."""
    described = days(0, 4, crs=((), 0, {"grid_mapping_name": "latitude_longitude"}))
    file = write(tmp_path / "0.nc", described, CHUNKED)
    repo = new_repo(tmp_path)

    report = run(repo, file, mode="virtual")

    xr.testing.assert_identical(read_all(repo), expected([file]))
    assert locations(repo) == 2
    assert not report.findings


def test_broadcast_variables_are_copied(tmp_path: Path) -> None:
    """Bounds of latitudes and grid mappings, which `data_vars="all"` repeats for each file."""
    files = []
    for first in (0, 2):
        part = days(first, 2, lat_bnds=(("lat", "bnds"), np.arange(10.0).reshape(5, 2)), crs=((), 1))
        part["lat"].attrs["bounds"] = "lat_bnds"
        files.append(write(tmp_path / f"{first}.nc", part, CHUNKED))
    repo = new_repo(tmp_path)

    run(repo, files, mode="virtual", data_vars="all")

    xr.testing.assert_identical(read_all(repo), expected(files, data_vars="all"))
    assert locations(repo) == 2


def test_float32_scale_factors_are_reported(tmp_path: Path) -> None:
    packed = {"t2m": {**CHUNKED["t2m"], "dtype": "i2", "scale_factor": np.float32(0.1), "_FillValue": -9}}
    file = write(tmp_path / "0.nc", days(0, 4), packed)
    repo = new_repo(tmp_path)

    report = run(repo, file, mode="virtual")

    assert [each.variable for each in report.findings if "32-bit" in each.text] == ["t2m"]
    xr.testing.assert_allclose(read_all(repo), expected([file]))


def rows_of(folder: Path, name: str, first: int, rows: list[int], encoding: dict[str, Any]) -> str:
    part = days(first, 2).isel(lat=rows)
    part["t2m"] = part["t2m"].astype(encoding.pop("dtype", "f4"))
    return write(folder / name, part, {"t2m": {"chunksizes": (2, 1, 4), **encoding}})


@pytest.mark.parametrize("mode", ["virtual", "hybrid"])
def test_cells_without_a_file_are_missing(tmp_path: Path, mode: str) -> None:
    """Rows that only some files have are missing in the others."""
    files = [
        rows_of(tmp_path, "0.nc", 0, [0, 1, 2], {"_FillValue": -1.0}),
        rows_of(tmp_path, "1.nc", 2, [2, 3, 4], {"_FillValue": -1.0}),
    ]
    repo = new_repo(tmp_path)

    run(repo, files, mode=mode, concat_dim="time", join="outer")

    wanted = expected(files, combine="nested", concat_dim="time", join="outer")
    xr.testing.assert_identical(read_all(repo), wanted)
    assert locations(repo) == 6


@pytest.mark.parametrize(
    ("rows", "encoding", "said"),
    [
        ([2, 3, 4], {"dtype": "i2"}, "is not a missing value"),
        ([0, 2, 4], {}, "are not adjacent"),
    ],
)
def test_chunks_with_gaps_and_no_missing_value_are_copied(
    tmp_path: Path, rows: list[int], encoding: dict[str, Any], said: str
) -> None:
    files = [
        rows_of(tmp_path, "0.nc", 0, [0, 1, 2], {**encoding}),
        rows_of(tmp_path, "1.nc", 2, rows, {**encoding}),
    ]
    repo = new_repo(tmp_path)

    with pytest.raises(InvalidInputError, match=said):
        run(repo, files, mode="virtual", concat_dim="time", join="outer")
    run(repo, files, mode="hybrid", concat_dim="time", join="outer")

    wanted = expected(files, combine="nested", concat_dim="time", join="outer")
    xr.testing.assert_identical(read_all(repo), wanted)
