from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.comparison.bisect import parse_condition
from icefloe.errors import InvalidInputError


def history(maxima: list[float], *, spec_version: int = 2) -> icefloe.Repository:
    """Make a commit for each maximum of a small field."""
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=spec_version)
    for number, top in enumerate(maxima):
        with repo.transaction("main", message=f"commit {number}") as store:
            if not number:
                zarr.create_array(
                    store, name="t2m", shape=(3, 4), dtype="f8", chunks=(1, 4), dimension_names=["time", "x"]
                )
                labels = zarr.create_array(
                    store, name="time", shape=(3,), dtype="i8", dimension_names=["time"]
                )
                labels[...] = np.array([10, 20, 30])
            array: Any = zarr.open_array(store, path="t2m")
            array[...] = 280.0
            array[1, 2] = top
    return repo


@pytest.mark.parametrize("spec_version", [1, 2])
@pytest.mark.parametrize("changed", range(1, 9))
def test_bisect_finds_the_commit_at_any_position(changed: int, spec_version: int) -> None:
    repo = history([300.0] * changed + [320.0] * (9 - changed), spec_version=spec_version)

    found = icefloe.bisect(repo, "t2m", "max > 310")

    assert found.commit.message == f"commit {changed}"
    assert found.statistics == {"max": (300.0, 320.0)}
    assert found.holds
    assert found.versions_read <= 6


def test_labels_select_part_of_the_array() -> None:
    repo = history([300.0, 320.0, 330.0])

    found = icefloe.bisect(repo, "t2m", "max > 325 or min < 200", at={"time": 20})

    assert found.commit.message == "commit 2"
    with pytest.raises(InvalidInputError, match="did not change"):
        icefloe.bisect(repo, "t2m", "max > 325", at={"time": 10})


def test_bisect_condition_is_false_before_the_array_exists() -> None:
    found = icefloe.bisect(history([300.0, 300.0]), "t2m", "not max > 310")

    assert found.commit.message == "commit 0"
    assert found.statistics == {"max": (None, 300.0)}


def test_bisect_can_start_at_a_later_snapshot() -> None:
    repo = history([320.0, 300.0, 300.0, 320.0])
    ids = [each.id for each in repo.ancestry(branch="main")]

    found = icefloe.bisect(repo, "t2m", "max > 310", from_snapshot_id=ids[2])

    assert found.commit.message == "commit 3"


@pytest.mark.parametrize(
    "text",
    [
        "max",
        "max >",
        "max > __import__('os')",
        "open('x') > 1",
        "maximum > 1",
        "max > 'x'",
        "1 < max < 2",
        "[]",
    ],
)
def test_invalid_conditions_are_rejected(text: str) -> None:
    with pytest.raises(InvalidInputError, match="condition"):
        parse_condition(text)
