"""Differences of values, compared with a computation with Python numbers for every cell."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe import InvalidInputError, Repository, Session

DTYPES = [
    *("bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"),
    *("M8[s]", "m8[ms]"),
]
EXTREMES: dict[str, list[Any]] = {
    "bool": [False, True],
    "i8": [-(2**63), 2**63 - 1, 0],
    "u8": [0, 2**64 - 1, 2**63],
    "i1": [-128, 127, 0],
    "u1": [0, 255, 3],
    "f8": [math.nan, math.inf, -math.inf, 1.5, 0.0],
    "c16": [complex(math.nan, 1), 1 + 2j, 0j],
    "M8[s]": [np.datetime64("NaT", "s"), np.datetime64(0, "s"), np.datetime64(2**40, "s")],
}


def two_versions(
    old: Any, new: Any, chunks: Any = (2,), *, spec_version: int = 2, **options: Any
) -> tuple[Session, Session]:
    """Write an array, and then the chunks that differ."""
    repo = Repository.create(icefloe.in_memory_storage(), spec_version=spec_version)
    with repo.transaction("main", message="old") as store:
        zarr.create_array(store, name="a", data=old, chunks=chunks, **options)
    before = repo.readonly_session("main")
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[...] = new
    session.commit("new", allow_empty=True)
    return before, repo.readonly_session("main")


def difference(one: Any, other: Any) -> Any:
    """Subtract two values as Python does: None where one is missing, 0 where both are equal."""
    if isinstance(one, np.datetime64 | np.timedelta64):
        one, other = (None if np.isnat(each) else int(each.astype("i8")) for each in (one, other))
    else:
        one, other = one.item(), other.item()
    gone = [each is None or each != each for each in (one, other)]
    if all(gone) or one == other:
        return 0
    return None if any(gone) else other - one


def expected(old: Any, new: Any) -> list[Any]:
    return [difference(one, other) for one, other in zip(old.ravel(), new.ravel(), strict=True)]


@pytest.mark.parametrize("spec_version", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning", "ignore::UserWarning")
def test_differences_equal_python_arithmetic(dtype: str, spec_version: int) -> None:
    random = np.random.default_rng(7)
    pool = np.array(EXTREMES.get(dtype, [0, 1, 2, 100]), dtype)
    old, new = pool[random.integers(0, len(pool), 14)], pool[random.integers(0, len(pool), 14)]
    before, after = two_versions(old, new, spec_version=spec_version)

    found = icefloe.compare_values(before, after, "a")
    subtracted = icefloe.subtract_values(before, after, "a")

    wanted = expected(old, new)
    sizes = [abs(each) for each in wanted if each]
    assert found.cells == 14
    assert found.differing == sum(each is None or each != 0 for each in wanted)
    assert found.missing == wanted.count(None)
    assert found.largest == (max(sizes) if sizes else None)
    as_float = complex if dtype.startswith("c") else float
    values = [as_float("nan") if each is None else as_float(each) for each in wanted]
    assert np.array_equal(subtracted, np.array(values), equal_nan=True)


def test_unsigned_differences_do_not_wrap_around() -> None:
    before, after = two_versions(np.array([250, 3], "u1"), np.array([3, 250], "u1"))

    assert icefloe.subtract_values(before, after, "a").tolist() == [-247, 247]
    assert str(icefloe.compare_values(before, after, "a")) == "2 of 2 cells differ by at most 247"


def test_strings_are_compared_but_not_subtracted() -> None:
    repo = Repository.create(icefloe.in_memory_storage())
    with repo.transaction("main", message="old") as store:
        array = zarr.create_array(store, name="a", shape=(4,), chunks=(2,), dtype=str)
        array[:] = np.array(["a", "b", "c", "d"], object)
    before = repo.readonly_session("main")
    with repo.transaction("main", message="new") as store:
        zarr.open_array(store, path="a")[1:3] = np.array(["x", "c"], object)
    after = repo.readonly_session("main")

    found = icefloe.compare_values(before, after, "a")

    assert (found.differing, found.largest) == (1, None)
    with pytest.raises(InvalidInputError, match="cannot be subtracted"):
        icefloe.subtract_values(before, after, "a")


@given(st.data())
def test_difference_of_a_selection_equals_that_part_of_the_whole_difference(data: st.DataObject) -> None:
    shape = (5, 7)
    old = np.arange(35).reshape(shape)
    new = old + (np.arange(35).reshape(shape) % 4 == 0) * 3
    before, after = two_versions(old, new, (2, 3))
    part = st.integers(-5, 4) | st.slices(5).filter(lambda each: (each.step or 1) > 0)
    other = st.integers(-7, 6) | st.slices(7).filter(lambda each: (each.step or 1) > 0)
    selection = data.draw(st.tuples(part, other) | st.tuples(part) | st.just(()))

    found = icefloe.subtract_values(before, after, "a", selection)

    assert np.array_equal(found, (new - old)[selection])
    assert found.shape == (new - old)[selection].shape


def test_only_chunks_that_differ_are_read(tmp_path: Path) -> None:
    storage = icefloe.local_filesystem_storage(str(tmp_path))
    repo = Repository.create(storage, icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0))
    with repo.transaction("main", message="old") as store:
        zarr.create_array(store, name="a", data=np.arange(1, 9), chunks=(1,))
    before = repo.readonly_session("main")
    with repo.transaction("main", message="new") as store:
        zarr.open_array(store, path="a")[5] = 0
    same = icefloe.chunk_references(before, "a").table()
    needed = {5}
    for row in same.rows():
        if row["chunk_0"] not in needed:
            (tmp_path / "chunks" / row["chunk_id"]).unlink()
    again = icefloe.open(str(tmp_path))

    found = icefloe.compare_values(
        again.readonly_session(snapshot_id=before.snapshot_id), again.readonly_session("main"), "a"
    )

    assert (found.differing, found.largest, found.chunks) == (1, 6, 1)


@pytest.mark.parametrize("spec_version", [1, 2])
def test_arrays_of_different_shapes_are_compared_on_common_cells(spec_version: int) -> None:
    repo = Repository.create(icefloe.in_memory_storage(), spec_version=spec_version)
    with repo.transaction("main", message="old") as store:
        zarr.create_array(store, name="a", data=np.arange(1, 8), chunks=(2,))
    before = repo.readonly_session("main")
    with repo.transaction("main", message="new") as store:
        array = zarr.open_array(store, path="a")
        array.resize((10,))
        array[6:] = 5
    after = repo.readonly_session("main")

    grown, shrunk = icefloe.compare_values(before, after, "a"), icefloe.compare_values(after, before, "a")

    assert (grown.shape, grown.differing, grown.largest) == ((7,), 1, 2)
    assert (grown.added_cells, shrunk.removed_cells) == (3, 3)
    assert "3 cells are new" in str(grown)
    assert icefloe.subtract_values(after, before, "a").tolist() == [0] * 6 + [2]


def test_arrays_with_different_encodings_are_compared_by_value() -> None:
    repo = Repository.create(icefloe.in_memory_storage())
    values = np.arange(24).reshape(4, 6)
    with repo.transaction("main", message="old") as store:
        zarr.create_array(store, name="a", data=values, chunks=(2, 2))
    before = repo.readonly_session("main")
    with repo.transaction("main", message="new") as store:
        changed = values.copy()
        changed[3, 3] = 0
        zarr.create_array(
            store, name="a", data=changed.astype("i2"), chunks=(2, 3), shards=(4, 6), overwrite=True
        )

    found = icefloe.compare_values(before, repo.readonly_session("main"), "a")

    assert (found.cells, found.differing, found.largest) == (24, 1, 21)


def test_moved_array_is_compared_with_its_old_path() -> None:
    repo = Repository.create(icefloe.in_memory_storage())
    with repo.transaction("main", message="data") as store:
        zarr.create_array(store, name="a", data=np.arange(1, 5), chunks=(1,))
    before = repo.readonly_session("main")
    session = repo.rearrange_session("main")
    session.move("/a", "/b")
    session.commit("move")

    found = icefloe.compare_values(before, repo.readonly_session("main"), "b")

    assert (found.differing, found.chunks) == (0, 0)
    assert str(found) == "all 4 cells are equal"


@pytest.mark.parametrize("shape", [(), (0, 3)])
def test_scalars_and_empty_arrays_are_compared(shape: tuple[int, ...]) -> None:
    before, after = two_versions(np.full(shape, 1.0), np.full(shape, 3.0), "auto")

    found = icefloe.compare_values(before, after, "a")

    assert found.differing == found.cells == math.prod(shape)
    assert icefloe.subtract_values(before, after, "a").shape == shape


def test_arrays_of_different_rank_or_kind_are_rejected() -> None:
    repo = Repository.create(icefloe.in_memory_storage())
    with repo.transaction("main", message="old") as store:
        zarr.create_array(store, name="a", data=np.zeros(3))
    before = repo.readonly_session("main")
    with repo.transaction("main", message="new") as store:
        zarr.create_array(store, name="a", data=np.zeros((3, 1)), overwrite=True)

    with pytest.raises(InvalidInputError, match="cannot be compared with"):
        icefloe.compare_values(before, repo.readonly_session("main"), "a")
    with pytest.raises(InvalidInputError, match="out of bounds"):
        icefloe.subtract_values(before, before, "a", [9])
