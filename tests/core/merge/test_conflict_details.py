"""Descriptions of conflicting chunks: coordinate labels, and differences of values."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from icefloe import (
    ChunkDetails,
    Credentials,
    DifferingCell,
    MergeConflictError,
    Repository,
    VirtualChunkContainer,
    in_memory_storage,
    local_filesystem_storage,
    local_filesystem_store,
)
from icefloe.config import RepositoryConfig

DAYS = {"units": "days since 2024-03-01", "calendar": "proleptic_gregorian"}


def repository(arrays: dict[str, dict[str, Any]], spec_version: int = 2) -> Repository:
    """Create a repository with some arrays on main, and a branch dev."""
    repo = Repository.create(in_memory_storage(), spec_version=spec_version)
    session = repo.writable_session("main")
    for name, options in arrays.items():
        zarr.create_array(session.store, name=name, **options)
    repo.create_branch("dev", session.commit("start"))
    return repo


def put(repo: Repository, branch: str, values: dict[str, Any]) -> str:
    """Write whole arrays, or `(region, values)` of them."""
    session = repo.writable_session(branch)
    for name, value in values.items():
        region, each = value if isinstance(value, tuple) else (..., value)
        zarr.open_array(session.store, path=name)[region] = each
    return session.commit(branch)


def details(repo: Repository, **options: Any) -> list[ChunkDetails | None]:
    return repo.merge("dev", "main", message="m", dry_run=True).conflicts.details(**options)


def weather(spec_version: int = 2) -> Repository:
    time = np.arange(20, dtype="i4")
    field = {
        "data": np.zeros((20, 6, 3), "f4"),
        "chunks": (10, 4, 3),
        "dimension_names": ["time", "lat", "x"],
        "attributes": {"units": "K"},
    }
    arrays = {
        "time": {"data": time, "chunks": (20,), "dimension_names": ["time"], "attributes": DAYS},
        "lat": {"data": np.linspace(50, 55, 6), "chunks": (2,), "dimension_names": ["lat"]},
        "t2m": field,
    }
    return repository(arrays, spec_version)


@pytest.mark.parametrize("spec_version", [1, 2])
def test_details_contain_labels_and_differences(spec_version: int) -> None:
    repo = weather(spec_version)
    put(repo, "main", {"t2m": (np.s_[:12, 5, 0], 1.5)})
    put(repo, "dev", {"t2m": (np.s_[9:, 5, 0], np.arange(9, 20, dtype="f4"))})

    first, second = details(repo)

    assert first == ChunkDetails(
        "time=2024-03-01..2024-03-10, lat=54..55, x[0:3]",
        num_cells=60,
        num_differing=10,
        num_missing_on_one_side=0,
        largest_difference=7.5,
        units="K",
        cells=(
            DifferingCell("time=2024-03-10, lat=55, x[0]", "1.5", "9.0"),
            *(DifferingCell(f"time=2024-03-0{day}, lat=55, x[0]", "1.5", "0.0") for day in (1, 2)),
        ),
    )
    assert str(second) == (
        "time=2024-03-11..2024-03-20, lat=54..55, x[0:3]: 10 of 60 cells differ, by up to 19 K"
    )


def test_conflict_error_and_table_show_details() -> None:
    repo = weather()
    for branch, value in (("main", 1), ("dev", 3)):
        put(repo, branch, {"t2m": (np.s_[0, 0, 0], value)})
    line = "t2m at time=2024-03-01..2024-03-10, lat=50..53, x[0:3]: 1 of 120 cells differs, by up to 2 K"

    with pytest.raises(MergeConflictError) as failed:
        repo.merge("dev", "main", message="m")

    error = failed.value
    assert str(error).splitlines() == [f"{error.message}; {error.hint}", f"  {line}"]
    assert f"\n    {line}" in repr(failed.value.result.conflicts)


def test_labels_of_both_sides_are_shown_if_they_differ() -> None:
    """For example, if two jobs append to the same array."""
    repo = weather()
    for branch, day in (("main", 20), ("dev", 25)):
        session = repo.writable_session(branch)
        for name in ("time", "t2m"):
            array = zarr.open_array(session.store, path=name)
            array.resize((25, *array.shape[1:]))
            array[20:25] = np.arange(day, day + 5) if name == "time" else 1 + day
        session.commit("append")

    texts = list(map(str, details(repo)))

    assert any(
        text.startswith(
            "time=2024-03-21..2024-03-25, lat=50..53, x[0:3] "
            "(theirs: time=2024-03-26..2024-03-30, lat=50..53, x[0:3]): 60 of 60 cells differ, by up to 5"
        )
        for text in texts
    )
    assert any("by up to 5 days" in text for text in texts)


def test_coordinates_of_enclosing_groups_and_other_calendars_are_used() -> None:
    options = {"dimension_names": ["time"], "attributes": {**DAYS, "calendar": "360_day"}}
    repo = repository(
        {
            "time": {"data": np.array([29.0, 29.25]), **options},
            "air/upper/t": {"data": np.zeros(2), "chunks": (1,), "dimension_names": ["time"]},
        }
    )
    for branch, value in (("main", 1), ("dev", 2)):
        put(repo, branch, {"air/upper/t": value})

    assert [str(each) for each in details(repo)] == [
        "time=2024-03-30: 1 of 1 cells differs, by up to 1",
        "time=2024-03-30T06:00:00: 1 of 1 cells differs, by up to 1",
    ]


@pytest.mark.parametrize(
    ("dtype", "attributes", "ours", "theirs", "told"),
    [
        ("f8", {}, [1, np.nan, np.nan, 2], [1, np.nan, 3, 2], "1 of 4 cells differs, 1 missing on one side"),
        ("f8", {}, [np.inf, 0, 0, 1], [0, 0, 0, 1], "1 of 4 cells differs, by up to inf"),
        (
            "i2",
            {"scale_factor": 0.5, "_FillValue": -1, "units": "m"},
            *([4, -1, 0, 0], [8, 3, 0, 0]),
            "2 of 4 cells differ, by up to 2 m, 1 missing on one side",
        ),
        ("i8", {}, [2**62, 0, 0, 0], [-(2**62), 0, 0, 0], "1 of 4 cells differs, by up to 9.22337e+18"),
        ("u1", {}, [0, 0, 0, 1], [255, 0, 0, 1], "1 of 4 cells differs, by up to 255"),
        ("bool", {}, [True, True], [False, True], "1 of 2 cells differs"),
        ("c16", {}, [3 + 4j, 0, 0, 1], [0, 0, 0, 1], "1 of 4 cells differs, by up to 5"),
        ("str", {}, ["a", "b", "c", "d"], ["a", "x", "c", "y"], "2 of 4 cells differ"),
        ("M8[ns]", {}, np.arange(4).view("M8[s]"), np.ones(4, "M8[s]"), "3 of 4 cells differ, by up to 2 s"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:The data type")
def test_values_of_any_type_are_compared(
    dtype: str, attributes: dict[str, Any], ours: Any, theirs: Any, told: str
) -> None:
    size = len(ours)
    array = {"shape": (size,), "chunks": (size,), "dtype": dtype, "attributes": attributes}
    repo = repository({"v": array})
    put(repo, "main", {"v": np.array(ours)})
    put(repo, "dev", {"v": np.array(theirs)})

    (found,) = details(repo)

    assert str(found) == f"dimension 0[0:{size}]: {told}"


def test_equal_values_in_different_chunks_are_reported() -> None:
    repo = repository({"v": {"shape": (900,), "chunks": (900,), "dtype": "f8", "compressors": None}})
    for branch in ("main", "dev"):
        put(repo, branch, {"v": 1})

    (found,) = details(repo)

    assert str(found) == "dimension 0[0:900]: none of 900 cells differs"


def test_deleted_chunk_has_the_fill_value() -> None:
    repo = repository({"v": {"data": np.ones(4, "f4"), "chunks": (4,), "fill_value": 7}})
    put(repo, "main", {"v": 2})
    session = repo.writable_session("dev")
    session._workspace.delete_chunk(session._workspace.array("/v"), (0,))
    session.commit("delete")

    (found,) = details(repo)

    assert str(found) == "dimension 0[0:4]: 4 of 4 cells differ, by up to 5"


def test_array_without_dimensions_has_no_labels() -> None:
    repo = repository({"v": {"shape": (), "dtype": "f8"}})
    put(repo, "main", {"v": 1})
    put(repo, "dev", {"v": 3})

    with pytest.raises(MergeConflictError) as failed:
        repo.merge("dev", "main", message="m")

    assert str(failed.value).splitlines()[1:] == ["  v: 1 of 1 cells differs, by up to 2"]


def test_sharded_and_uneven_chunks_are_compared() -> None:
    repo = repository({"s": {"shape": (8,), "chunks": (2,), "shards": (4,), "dtype": "i4"}})
    session = repo.writable_session("main")
    document = json.loads(session._workspace.array("/s").user_data)
    sizes = {"kind": "inline", "chunk_shapes": [[3, [2, 2], 1]]}
    document["chunk_grid"] = {"name": "rectilinear", "configuration": sizes}
    document["codecs"] = [{"name": "bytes", "configuration": {"endian": "little"}}]
    session._workspace.set_metadata("/uneven", json.dumps(document).encode())
    repo.reset_branch("dev", session.commit("uneven"))
    for branch, value in (("main", 1), ("dev", 4)):
        session = repo.writable_session(branch)
        zarr.open_array(session.store, path="s")[5] = value
        session._workspace.write("/uneven", (2,), np.array([0, value], "<i4").tobytes())
        session.commit(branch)

    assert {str(each) for each in details(repo)} == {
        "dimension 0[4:8]: 1 of 4 cells differs, by up to 3",
        "dimension 0[5:7]: 1 of 2 cells differs, by up to 3",
    }


def test_moved_arrays_are_compared() -> None:
    repo = weather()
    session = repo.rearrange_session("dev")
    session.move("/t2m", "/temperature")
    session.commit("rename")
    put(repo, "main", {"t2m": (np.s_[0, 0, 0], 1)})
    put(repo, "dev", {"temperature": (np.s_[0, 0, 0], 2)})

    with pytest.raises(MergeConflictError, match=r"temperature at time=2024-03-01\.\.2024-03-10, lat=50"):
        repo.merge("dev", "main", message="m")


def test_conflicts_of_cherry_picks_and_reverts_are_described() -> None:
    repo = weather()
    first = put(repo, "main", {"t2m": (np.s_[0, 0, 0], 1)})
    put(repo, "main", {"t2m": (np.s_[0, 0, 0], 5)})

    (undone,) = repo.revert(first, branch="main", dry_run=True).conflicts.details()
    (picked,) = repo.cherry_pick(first, branch="main", dry_run=True, message="again").conflicts.details()

    assert str(undone).endswith("1 of 120 cells differs, by up to 5 K")
    assert str(picked).endswith("1 of 120 cells differs, by up to 4 K")


def test_only_the_first_conflicts_are_read() -> None:
    repo = repository({"v": {"shape": (1000,), "chunks": (1,), "dtype": "i4"}})
    for branch, value in (("main", 1), ("dev", 2)):
        put(repo, branch, {"v": value})
    rows = repo.merge("dev", "main", message="m", dry_run=True).conflicts
    found = rows.details()

    assert len(rows) == 1000
    assert len(found) == 20
    assert [each is not None and each.num_cells == 1 for each in found] == [True] * 10 + [False] * 10
    assert found[19] == ChunkDetails("dimension 0[19:20]")
    assert repr(rows).splitlines()[-1] == "and 980 more"
    assert rows.details(2, most_compared=0) == [
        ChunkDetails("dimension 0[0:1]"),
        ChunkDetails("dimension 0[1:2]"),
    ]


def test_unreadable_chunks_are_reported(tmp_path: Path) -> None:
    repo = Repository.create(local_filesystem_storage(str(tmp_path)))
    session = repo.writable_session("main")
    for name, data in (("time", np.arange(900)), ("v", np.zeros(900))):
        options: dict[str, Any] = {"chunks": (900,), "compressors": None, "dimension_names": ["time"]}
        zarr.create_array(session.store, name=name, data=data, **options)
    repo.create_branch("dev", session.commit("start"))
    put(repo, "main", {"v": 1})
    put(repo, "dev", {"v": 2})
    for path in (tmp_path / "chunks").iterdir():
        path.unlink()

    (found,) = details(repo)
    merged = repo.merge("dev", "main", message="m", strategy="theirs")

    assert found is not None
    assert found.where == "time[0:900]"
    assert found.problem is not None
    assert found.problem.startswith("ours cannot be read: ")
    assert str(found).startswith("time[0:900]: values not compared, ours cannot be read: ")
    assert merged.outcome == "merged"


def test_unauthorized_virtual_chunks_are_reported(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(8))
    prefix = f"file://{tmp_path}/"
    config = RepositoryConfig.default()
    config.set_virtual_chunk_container(VirtualChunkContainer(prefix, local_filesystem_store(str(tmp_path))))
    repo = Repository.create(
        in_memory_storage(),
        config,
        authorize_virtual_chunk_access={prefix: Credentials.LocalFileSystemAccess()},
    )
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="v", shape=(1,), chunks=(1,), dtype="i4", compressors=None)
    repo.create_branch("dev", session.commit("start"))
    put(repo, "main", {"v": 5})
    session = repo.writable_session("dev")
    session.store.set_virtual_ref("v/c/0", f"{prefix}data", offset=0, length=4)
    session.commit("refer")
    closed = repo.reopen(authorize_virtual_chunk_access={})

    (read,), (unread,) = details(repo), details(closed)

    assert read is not None
    assert (read.num_differing, read.largest_difference) == (1, 5)
    assert unread is not None
    assert "authorize the virtual chunk container" in str(unread)


def test_oversized_chunks_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icefloe.core.merge.conflict_details._MAX_BYTES", 100)
    repo = repository({"v": {"shape": (100,), "chunks": (100,), "dtype": "f8"}})
    for branch, value in (("main", 1), ("dev", 2)):
        put(repo, branch, {"v": value})

    (found,) = details(repo)

    assert found is not None
    assert found.problem == "ours cannot be read: a chunk of 800 B is too large to compare"


def test_merge_conflict_error_keeps_its_conflicts_when_pickled() -> None:
    repo = weather()
    for branch, value in (("main", 1), ("dev", 3)):
        put(repo, branch, {"t2m": (np.s_[0, 0, 0], value)})
    with pytest.raises(MergeConflictError) as failed:
        repo.merge("dev", "main", message="m")

    copied = pickle.loads(pickle.dumps(failed.value))

    assert type(copied) is MergeConflictError
    assert (copied.message, copied.kind) == (failed.value.message, failed.value.kind)
    assert str(copied) == str(failed.value)
    assert list(copied.result.conflicts) == list(failed.value.result.conflicts)
    assert copied.result.conflicts.details() == failed.value.result.conflicts.details()
    assert copied.result.changes == failed.value.result.changes


def test_cells_are_shown_with_unpacked_values() -> None:
    packed = {"scale_factor": 0.5, "add_offset": 10, "_FillValue": -1}
    repo = repository(
        {
            "t": {"data": np.zeros((2, 3), "i2"), "chunks": (2, 3), "attributes": packed},
            "when": {"data": np.zeros(2, "i4"), "chunks": (2,), "attributes": DAYS},
            "text": {"shape": (2,), "dtype": "str", "chunks": (2,)},
        }
    )
    put(repo, "main", {"t": [[0, 4, 0], [0, 0, -1]], "when": [0, 3], "text": np.array(["a", "c"])})
    put(repo, "dev", {"t": [[0, 2, 0], [0, 9, 5]], "when": [0, 31], "text": np.array(["a", "\x1b[31m"])})

    shown = {str(cell) for each in details(repo) if each is not None for cell in each.cells}

    assert shown == {
        "dimension 0[1], dimension 1[1]: ours 10, theirs 14.5",
        "dimension 0[0], dimension 1[1]: ours 12, theirs 11",
        "dimension 0[1], dimension 1[2]: ours missing, theirs 12.5",
        "dimension 0[1]: ours 2024-03-04, theirs 2024-04-01",
        "dimension 0[1]: ours c, theirs \\x1b[31m",
    }
