from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.support.derive import derive, make_repository, stored_values, write_recipe

MAPPINGS: dict[str, dict[str, Any]] = {
    "same": {"function": "copy", "path": "out/out", "chunks": {"time": 5, "y": 2}},
    "coarsen": {"function": {"coarsen": {"time": 3, "x": 2}}, "chunks": {"time": 2}},
    "day": {"function": "max", "dimensions": {"time": {"group": "time.day"}}, "chunks": {"time": 2}},
    "month": {"function": "min", "dimensions": {"time": {"group": "time.monthofyear"}}},
    "reduce": {"function": "sum", "dimensions": {"y": {"reduce": True}, "x": {"reduce": True}}},
}


@pytest.mark.parametrize("name", MAPPINGS)
def test_only_chunks_that_depend_on_a_changed_chunk_are_computed(tmp_path: Path, name: str) -> None:
    repo = make_repository(tmp_path)
    recipe = write_recipe(tmp_path, {"out": {**MAPPINGS[name], "inputs": {"t2m": "t2m"}}})
    derive(recipe)
    session = repo.writable_session("main")
    array: Any = zarr.open_array(session.store, path="t2m")
    values = np.asarray(array[...])
    values[4:8, 3:, :4] += 50  # one chunk
    array[4:8, 3:, :4] = values[4:8, 3:, :4]
    session.commit("change one chunk")
    before = zarr.open_array(repo.readonly_session("main").store, path="out/out", mode="r")
    old: Any = np.asarray(before[...])

    report = derive(recipe)

    new: Any = np.asarray(zarr.open_array(repo.readonly_session("main").store, path="out/out", mode="r")[...])
    differ = np.argwhere(~((old == new) | (np.isnan(old) & np.isnan(new))))
    touched = {tuple(each) for each in (differ // np.array(before.chunks)).tolist()}
    assert touched
    assert len(touched) <= report.recomputed
    # Every other chunk is read from cells that did not change.
    assert report.recomputed <= {"same": 4, "coarsen": 4, "day": 1, "month": 1, "reduce": 1}[name]
    assert stored_values(repo, "out/out") == new.tobytes()


def test_rectangle_sums_handle_a_million_chunks() -> None:
    from icefloe.core.fingerprints import RectangleSums

    grid = np.ones((100, 100, 100, 2), np.uint64)
    at = [np.arange(100).reshape([-1 if axis == each else 1 for each in range(3)]) for axis in range(3)]

    sums = RectangleSums(grid).sum(at, [each + 1 for each in at])

    assert sums.shape == (100, 100, 100, 2)
    assert (sums == 1).all()
