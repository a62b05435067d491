"""Files that are described as one dataset give the same result as with xarray."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from icefloe._internal.executor import Executor
from icefloe.errors import IcechunkError
from icefloe.ingest.combine import grid
from icefloe.ingest.combine.existing import TargetState
from icefloe.ingest.combine.grid import Combined, DigestRequest, combine_files
from icefloe.ingest.combine.pieces import PieceArray
from icefloe.ingest.combine.runs import find_runs
from icefloe.ingest.discover.sources import IngestSource
from icefloe.ingest.inspect.inspect_files import digest_values
from icefloe.ingest.inspect.schema import describe_dataset
from icefloe.ingest.ledger import Ledger
from icefloe.ingest.options import Combining, Options
from icefloe.ingest.records import FileSchema, share_equal_parts, sort_along
from tests.support.ingest.files import days


def schemas(datasets: list[xr.Dataset]) -> list[FileSchema]:
    return share_equal_parts(
        [
            describe_dataset(IngestSource(f"/{number}.nc", 1, 1), each, "")
            for number, each in enumerate(datasets)
        ]
    )


def combined(files: list[FileSchema], datasets: list[xr.Dataset], how: Combining) -> Combined | str:
    class Digests(Executor):
        def map(self, task: Any, orders: Any, /) -> Any:
            for order in orders:
                dataset = datasets[int(order.source.url[1:-3])]
                yield {name: repr(dataset[name].values) for name in order.names if name in dataset}

    try:
        options = Options(combining=how)
        digests: dict[tuple[int, str], str] = {}
        state = TargetState(None, "", None, Ledger("", []))  # type: ignore[arg-type]
        ordered = sort_along(files, how.concat_dim)
        while isinstance(found := combine_files(ordered, state, options, digests), DigestRequest):
            more = digest_values(found.names, found.sources, options.reading, Digests())
            digests = found.merge_digests(digests, more)
        return found if isinstance(found, Combined) else "; ".join(each.sentence for each in found.bad)
    except IcechunkError as error:
        return type(error).__name__


def facts(found: Combined | str) -> Any:
    """Return the source of every cell, and all values that are known."""
    if isinstance(found, str):
        return found
    pieces = {}
    for name, variable in found.dataset.variables.items():
        if isinstance(variable.data, PieceArray):
            columns = variable.data.pieces._list_columns()
            rows = sorted(np.column_stack(columns).tolist())
            origins = sorted((number, each.shape) for number, each in variable.data.origins.items())
            pieces[name] = (variable.dims, variable.shape, variable.dtype, variable.attrs, rows, origins)
    small = found.dataset.drop_vars(list(pieces))
    values = {
        str(name): (each.dims, each.dtype, each.attrs, each.values.tolist(), name in found.dataset.coords)
        for name, each in small.variables.items()
    }
    return pieces, values, dict(found.dataset.attrs), found.boxes, [file.source for file in found.files]


def both(datasets: list[xr.Dataset], how: Combining) -> tuple[Any, Any, bool]:
    """Combine files with and without runs; also return whether there was a run."""
    files = schemas(datasets)
    were_runs: list[bool] = []

    def watched(*given: Any) -> Any:
        found = find_runs(*given)
        were_runs.append(found is not None)
        return found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(grid, "find_runs", watched)
        with_runs = facts(combined(files, datasets, how))
        patched.setattr(grid, "find_runs", lambda *_: None)
        without = facts(combined(files, datasets, how))
    return with_runs, without, were_runs[-1:] == [True]


AREA = np.arange(20.0).reshape(5, 4)
FIXED: dict[str, Any] = {
    "bounds": {"lat_bnds": (("lat", "nv"), np.zeros((5, 2)))},
    "grid": {"crs": ((), 0)},
    "map": {"map": (("lat", "lon"), AREA), "crs": ((), 0)},
}


@given(st.data())
def test_combining_in_runs_gives_the_same_result_as_combining_file_by_file(data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    begins = np.cumsum([0, *counts]).tolist()
    datasets = [days(begin, count) for begin, count in zip(begins, counts, strict=False)]
    odds = ["", "", "again", "units", "lat", "type", "more", "attrs", "fixed", "tiles", "tiles", "torn"]
    odds += [*FIXED, *FIXED]
    odd = data.draw(st.sampled_from(odds))
    changed = datasets[-1]
    if odd == "again":
        datasets.append(days(begins[-2], counts[-1]))
    elif odd == "units":
        changed["t2m"].attrs["long_name"] = "another"
    elif odd == "lat":
        datasets[-1] = changed.assign_coords(lat=changed["lat"] + 1)
    elif odd == "type":
        datasets[-1] = changed.astype("f8")
    elif odd == "more":
        changed["other"] = changed["t2m"] + 1
    elif odd == "attrs":
        changed.attrs["history"] = "of its own"
    elif odd == "fixed":
        datasets = [each.assign_coords(height=2.0, zone=("lat", np.arange(5))) for each in datasets]
    elif odd in FIXED:
        datasets = [each.assign(FIXED[odd]).assign_coords(area=(("lat", "lon"), AREA)) for each in datasets]
        if data.draw(st.booleans()):
            datasets[data.draw(st.integers(0, len(datasets) - 1))]["area"].values[0] += 1
        if data.draw(st.booleans()):
            datasets = [each.isel(lat=tile) for tile in (slice(2), slice(2, 5)) for each in datasets]
    elif odd in {"tiles", "torn"}:
        south, north = ([each.isel(lat=tile) for each in datasets] for tile in (slice(2), slice(2, 5)))
        datasets = south + north[odd == "torn" :]
    if data.draw(st.booleans()):
        datasets = [each.isel(time=slice(None, None, -1)) for each in datasets]
    datasets = data.draw(st.permutations(datasets))
    how = Combining(
        data.draw(st.sampled_from([None, "time"])),
        data.draw(st.sampled_from([None, "override", "equals"])),
        data.draw(st.sampled_from([None, "minimal", "different"])),
    )

    with_runs, without, _ = both(datasets, how)

    assert with_runs == without


@pytest.mark.parametrize("dim", [None, "time"])
def test_files_along_one_dimension_form_one_run(dim: str | None) -> None:
    datasets = [days(begin, 2).assign_coords(height=2.0) for begin in (4, 0, 2)]

    with_runs, without, is_run = both(datasets, Combining(dim))

    assert is_run
    assert with_runs == without


@pytest.mark.parametrize("kind", FIXED)
def test_variables_without_the_dimension_are_part_of_a_run(kind: str) -> None:
    area = {"area": (("lat", "lon"), AREA)}
    datasets = [days(begin, 2, **FIXED[kind]).assign_coords(area) for begin in (4, 0, 2)]

    with_runs, without, is_run = both(datasets, Combining())

    assert is_run
    assert with_runs == without


def test_tiles_form_one_run_per_row() -> None:
    tiles = [days(begin, 2).isel(lat=tile) for begin in (4, 0, 2) for tile in (slice(2), slice(2, 5))]

    with_runs, without, is_run = both(tiles, Combining())

    assert is_run
    assert with_runs == without


@pytest.mark.parametrize(
    ("what", "how"),
    [
        ({}, Combining("time", coords="all")),
        ({}, Combining("member")),
    ],
)
def test_other_archives_are_combined_by_xarray(what: dict[str, Any], how: Combining) -> None:
    files = schemas([days(begin, 2, **what) for begin in (0, 2)])

    assert find_runs(files, [], how, {}) is None


def test_runs_do_not_extend_over_stored_data() -> None:
    files = schemas([days(begin, 2) for begin in (0, 2, 6, 8)])
    there = schemas([days(4, 2)])

    found = find_runs(files, there, Combining("time"), {})

    assert found is not None
    assert [[number for number, _ in run] for run in found.runs] == [[0, 1], [2, 3]]
