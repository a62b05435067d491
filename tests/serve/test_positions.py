"""Regions of arrays, with the labels of their coordinates."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import zarr

from icefloe.serve.positions import label_region
from icefloe.serve.settings import RequestLimits
from icefloe.serve.windows import ArrayView, DecodedChunks
from tests.support.serve import memory_repository


@pytest.mark.parametrize(
    ("path", "box", "expected"),
    [
        ("/a", {"time": (1, 3), "x": (0, 1)}, "time 2000-01-02 to 2000-01-03, x 0"),
        ("/a", {"time": (3, 5)}, ""),
        ("/a", {"gone": (0, 1)}, ""),
        ("/gone", {"time": (0, 1)}, ""),
    ],
)
def test_regions_are_described_by_labels(path: str, box: dict[str, tuple[int, int]], expected: str) -> None:
    repo = memory_repository(np.zeros((4, 2)), (4, 2), dimension_names=["time", "x"])
    with repo.transaction("main", message="time") as store:
        time = zarr.create_array(store, name="time", shape=(4,), dtype="i4", dimension_names=["time"])
        time[...] = np.arange(4)
        time.attrs["units"] = "days since 2000-01-01"
    session = repo.readonly_session("main")
    kept = DecodedChunks(1 << 20)
    open_view = partial(ArrayView, session, limits=RequestLimits(), kept=kept)

    assert label_region(open_view, path, box) == expected
