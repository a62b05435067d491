"""Concurrent appends: where rows go, which chunks move, and what cannot be combined."""

from __future__ import annotations

import json
import os
import random
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray

from icefloe import AppendConflictError, AppendSolver, Repository, Session, in_memory_storage
from tests.support.simulation.feed import simulate_feed

WIDTH = 4
SEEDS = range(int(os.environ.get("ICEFLOE_APPENDS", "5")))


class Feed:
    """A repository with arrays along time, whose rows tests append."""

    def __init__(
        self,
        length: int,
        chunk: int,
        *,
        names: tuple[str, ...] = ("a",),
        coordinate: bool = True,
        spec_version: int = 2,
        axis: int = 0,
        shards: bool = False,
    ) -> None:
        self.repo = Repository.create(in_memory_storage(), spec_version=spec_version)
        self.names, self.axis, self.has_labels = names, axis, coordinate
        session = self.repo.writable_session("main")
        group = zarr.open_group(session.store, mode="w")
        dims = ("time", "x") if axis == 0 else ("x", "time")
        for name in names:
            shape, chunks = self._shape(length), self._shape(chunk, 2)
            group.create_array(
                name,
                shape=shape,
                chunks=chunks,
                shards=tuple(2 * each for each in chunks) if shards else None,
                dtype="f8",
                fill_value=np.nan,
                dimension_names=dims,
            )
        if coordinate:
            group.create_array(
                "time",
                shape=(length,),
                chunks=(3,),
                dtype="i8",
                fill_value=-1,
                dimension_names=("time",),
                attributes={"units": "hours since 2026-01-01"},
            )
        self._put(group, 0, range(length), names, 0.0)
        session.commit("base")

    def _shape(self, rows: int, width: int = WIDTH) -> tuple[int, int]:
        return (rows, width) if self.axis == 0 else (width, rows)

    def append(
        self, labels: range | list[int], names: tuple[str, ...] | None = None, offset: float = 0.0
    ) -> Session:
        """Append rows in a new session, without a commit."""
        session = self.repo.writable_session("main")
        group = zarr.open_group(session.store)
        old = self._array(group, self.names[0]).shape[self.axis]
        for name in self.names:
            self._array(group, name).resize(self._shape(old + len(labels)))
        if self.has_labels:
            self._array(group, "time").resize((old + len(labels),))
        self._put(group, old, labels, self.names if names is None else names, offset)
        return session

    def _array(self, group: zarr.Group, name: str) -> Any:
        return group[name]

    def _put(
        self, group: zarr.Group, start: int, labels: range | list[int], names: tuple[str, ...], offset: float
    ) -> None:
        if not labels:
            return
        rows = slice(start, start + len(labels))
        if self.has_labels:
            self._array(group, "time")[rows] = list(labels)
        for name in names:
            values = row_values(labels, offset)
            if self.axis == 0:
                self._array(group, name)[rows] = values
            else:
                self._array(group, name)[:, rows] = values.T

    def read(self) -> tuple[list[int], dict[str, NDArray[Any]]]:
        """Return the labels and the values of each array, by row."""
        group = zarr.open_group(self.repo.readonly_session("main").store, mode="r")
        values = {name: np.asarray(self._array(group, name)[...]) for name in self.names}
        labels = self._array(group, "time")[...].tolist() if self.has_labels else []
        return labels, {name: each if self.axis == 0 else each.T for name, each in values.items()}


def row_values(labels: range | list[int], offset: float = 0.0) -> NDArray[Any]:
    """Return rows that can be recognised."""
    return np.array(labels, "f8")[:, None] * 10 + np.arange(WIDTH) + offset


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    ("length", "theirs", "ours"), [(4, 4, 4), (4, 2, 6), (3, 4, 5), (0, 3, 2), (5, 1, 1)]
)
def test_rows_of_both_sides_are_kept(length: int, theirs: int, ours: int, axis: int) -> None:
    feed = Feed(length, 4, axis=axis)
    one = feed.append(range(length, length + theirs))
    other = feed.append(range(length + theirs, length + theirs + ours))
    one.commit("one")

    other.commit("other", rebase_with=AppendSolver("time"))

    labels, values = feed.read()
    assert labels == list(range(length + theirs + ours))
    np.testing.assert_array_equal(values["a"], row_values(labels))


def test_whole_chunks_move_without_being_read() -> None:
    feed = Feed(4, 2)
    one, other = feed.append(range(4, 6)), feed.append(range(6, 12))
    solver = AppendSolver("time")
    one.commit("one")

    other.commit("other", rebase_with=solver)

    (done,) = solver.appended
    # Six rows are three chunks along time and two along x; only chunks of the coordinate are rewritten.
    assert (done.num_rows, done.num_moved, done.num_collapsed) == (6, 6, 0)
    assert done.num_rewritten <= 3
    assert done.is_ascending


def test_concurrent_writers_may_append_different_arrays() -> None:
    feed = Feed(3, 2, names=("a", "b"))
    one, other = feed.append([3, 4], ("a",)), feed.append([3, 4], ("b",))
    one.commit("one")
    solver = AppendSolver("time")

    other.commit("other", rebase_with=solver)

    labels, values = feed.read()
    assert labels == [0, 1, 2, 3, 4]
    for name in ("a", "b"):
        np.testing.assert_array_equal(values[name], row_values(labels))
    assert solver.appended[0].num_collapsed == 2


def test_equal_rows_of_both_sides_are_stored_once() -> None:
    feed = Feed(2, 2)
    one, other = feed.append([2, 3]), feed.append([3, 4])
    one.commit("one")

    other.commit("other", rebase_with=AppendSolver("time"))

    labels, values = feed.read()
    assert labels == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(values["a"], row_values(labels))


def test_different_values_for_a_label_conflict() -> None:
    feed = Feed(2, 2)
    one, other = feed.append([2]), feed.append([2], offset=0.5)
    tip = one.commit("one")

    with pytest.raises(
        AppendConflictError, match=r"/a along time: both sides wrote time=2026-01-01T02:00:00"
    ):
        other.commit("other", rebase_with=AppendSolver("time"))

    assert feed.repo.lookup_branch("main") == tip
    assert other.has_uncommitted_changes


def test_rows_without_a_coordinate_are_appended_by_position() -> None:
    feed = Feed(3, 2, coordinate=False)
    one, other = feed.append([3]), feed.append([4, 5])
    one.commit("one")

    other.commit("other", rebase_with=AppendSolver("time"))

    np.testing.assert_array_equal(feed.read()[1]["a"], row_values(range(6)))


def test_append_report_tells_if_labels_are_not_ascending() -> None:
    feed = Feed(2, 2)
    one, other = feed.append([8]), feed.append([5])
    one.commit("one")
    solver = AppendSolver("time")

    other.commit("other", rebase_with=solver)

    assert feed.read()[0] == [0, 1, 8, 5]
    assert not solver.appended[0].is_ascending


def test_strict_order_refuses_earlier_labels() -> None:
    feed = Feed(2, 2)
    one, other = feed.append([8]), feed.append([5])
    one.commit("one")

    with pytest.raises(
        AppendConflictError, match="labels from 2026-01-01T05:00:00 cannot be added: they are not"
    ):
        other.commit("other", rebase_with=AppendSolver("time", order="strict"))


def test_sorted_order_inserts_rows_by_label() -> None:
    feed = Feed(2, 2)
    one, other = feed.append([8, 9]), feed.append([5, 6])
    one.commit("one")

    other.commit("other", rebase_with=AppendSolver("time", order="sorted"))

    labels, values = feed.read()
    assert labels == [0, 1, 5, 6, 8, 9]
    np.testing.assert_array_equal(values["a"], row_values(labels))


def test_unknown_order_is_an_error() -> None:
    with pytest.raises(ValueError, match="order must be one of commit, sorted, strict, not 'newest'"):
        AppendSolver("time", order="newest")  # type: ignore[arg-type]


def test_arrays_without_the_dimension_may_be_rewritten_with_equal_values() -> None:
    feed = Feed(2, 2)
    with feed.repo.transaction("main", message="height") as store:
        zarr.create_array(store, name="height", data=np.array([1.0, np.nan]))
        zarr.create_array(store, name="level", shape=(), dtype="f8", fill_value=0)
    sessions = [feed.append([2]), feed.append([3])]
    for session in sessions:
        zarr.open_array(session.store, path="height")[...] = [1.0, np.nan]
        zarr.open_array(session.store, path="level")[...] = np.nan
    sessions[0].commit("one")

    sessions[1].commit("other", rebase_with=AppendSolver("time"))

    assert feed.read()[0] == [0, 1, 2, 3]


def test_arrays_without_the_dimension_conflict_if_values_differ() -> None:
    feed = Feed(2, 2)
    with feed.repo.transaction("main", message="height") as store:
        zarr.create_array(store, name="height", data=np.array([1.0, 2.0]))
    sessions = [feed.append([2]), feed.append([3])]
    for value, session in enumerate(sessions):
        zarr.open_array(session.store, path="height")[...] = 7.0 + value
    tip = sessions[0].commit("one")

    with pytest.raises(Exception, match="1 conflicts found"):
        sessions[1].commit("other", rebase_with=AppendSolver("time"))

    assert feed.repo.lookup_branch("main") == tip


def test_attribute_that_one_side_changed_is_kept() -> None:
    feed = Feed(2, 2)
    one, other = feed.append([2]), feed.append([3])
    zarr.open_array(one.store, path="a").attrs["units"] = "K"
    one.commit("one")

    other.commit("other", rebase_with=AppendSolver("time"))

    assert zarr.open_array(feed.repo.readonly_session("main").store, path="a").attrs["units"] == "K"
    assert feed.read()[0] == [0, 1, 2, 3]


def test_attribute_that_both_sides_changed_conflicts() -> None:
    feed = Feed(2, 2)
    sessions = [feed.append([2]), feed.append([3])]
    for unit, session in zip("KC", sessions, strict=True):
        zarr.open_array(session.store, path="a").attrs["units"] = unit
    sessions[0].commit("one")

    with pytest.raises(AppendConflictError, match="both sides changed its attributes"):
        sessions[1].commit("other", rebase_with=AppendSolver("time"))


@pytest.mark.parametrize(
    ("changed", "name"),
    [({"dtype": "i8", "fill_value": 0}, "data_type"), ({"compressors": None}, "codecs")],
)
@pytest.mark.parametrize("ours_is_replaced", [True, False])
def test_array_with_a_changed_encoding_on_one_side_conflicts(
    changed: dict[str, Any], name: str, ours_is_replaced: bool
) -> None:
    """Chunks of one side cannot be read with the metadata of the other."""
    feed = Feed(4, 2)
    sessions = [feed.append([4]), feed.append([5])]
    options: dict[str, Any] = {"dtype": "f8", "fill_value": np.nan, **changed}
    zarr.open_group(sessions[ours_is_replaced].store).create_array(
        "a", shape=(5, WIDTH), chunks=(2, 2), dimension_names=("time", "x"), overwrite=True, **options
    )
    tip = sessions[0].commit("one")

    with pytest.raises(AppendConflictError, match=f"do not agree on its ({name}|fill_value)"):
        sessions[1].commit("other", rebase_with=AppendSolver("time"))

    assert feed.repo.lookup_branch("main") == tip


@pytest.mark.parametrize("ours", [True, False])
def test_omitted_defaults_in_the_metadata_are_equal(ours: bool) -> None:
    """Other writers do not spell out what zarr does."""
    feed = Feed(4, 2)
    sessions = [feed.append([4]), feed.append([5])]
    workspace = sessions[ours].workspace
    document = json.loads(workspace.array("/a").user_data)
    del document["storage_transformers"]
    workspace.set_metadata("/a", json.dumps(document).encode())
    sessions[0].commit("one")

    sessions[1].commit("other", rebase_with=AppendSolver("time"))

    assert feed.read()[0] == [0, 1, 2, 3, 4, 5]


def test_consolidated_metadata_describes_the_final_length() -> None:
    feed = Feed(2, 2)
    session = feed.repo.writable_session("main")
    workspace = session.workspace
    arrays = {name: json.loads(workspace.array(f"/{name}").user_data) for name in ("a", "time")}
    document = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    document["consolidated_metadata"] = {"kind": "inline", "must_understand": False, "metadata": arrays}
    workspace.set_metadata("/", json.dumps(document).encode())
    session.commit("consolidate")
    one, other = feed.append([2]), feed.append([3])
    one.commit("one")

    other.commit("other", rebase_with=AppendSolver("time"))

    root = feed.repo.readonly_session("main").workspace.node("/")
    assert root is not None
    found = json.loads(root.user_data)["consolidated_metadata"]["metadata"]
    assert {name: each["shape"] for name, each in found.items()} == {"a": [4, WIDTH], "time": [4]}


def test_rows_can_be_appended_after_the_oldest_rows_were_dropped() -> None:
    feed = Feed(4, 2)
    other = feed.append([4, 5])
    report = feed.repo.keep_window(timedelta(hours=1))
    assert report.dropped == {"/": 2}

    other.commit("other", rebase_with=AppendSolver("time"))

    labels, values = feed.read()
    assert labels == [2, 3, 4, 5]
    np.testing.assert_array_equal(values["a"], row_values(labels))


@pytest.mark.parametrize("seed", [39, 48, 70, 128])
def test_simulated_feeds_that_once_lost_rows_are_correct(seed: int) -> None:
    """Rows appeared behind the end, were inserted twice, or lost a value in the chunk at the old end."""
    assert simulate_feed(seed, spec_version=1).violation is None


def test_repeated_rebases_do_not_duplicate_location_texts() -> None:
    """Each rebase takes references apart and puts them together again."""
    feed = Feed(4, 1)
    late = feed.append(range(50, 58))
    for label in range(10, 16):
        feed.append([label]).commit("one")
        late.rebase(AppendSolver("time"))

    refs = late.workspace.refs(late.workspace.array("/a"))

    assert len(refs.locations) < 100
    late.commit("late")
    assert feed.read()[0] == [0, 1, 2, 3, *range(10, 16), *range(50, 58)]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_appends_match_a_model(seed: int) -> None:
    chance = random.Random(seed)
    feed = Feed(
        length := chance.randint(0, 5),
        chance.randint(1, 4),
        names=("a", "b"),
        spec_version=chance.choice([1, 2]),
        axis=chance.choice([0, 1]),
        shards=chance.random() < 0.3,
    )
    order = chance.choice(["commit", "commit", "sorted", "strict"])
    labels = list(range(length))
    model: dict[str, dict[int, float]] = {name: dict.fromkeys(labels, 0.0) for name in feed.names}
    latest = 100
    for _ in range(2):
        sessions: list[tuple[Session, list[int], tuple[str, ...], float]] = []
        for _ in range(chance.randint(2, 4)):
            if sessions and chance.random() < 0.3:
                fresh, offset = sessions[-1][1], chance.choice([0.0, 0.0, 0.5])
            else:
                count = chance.randint(1, 5)
                fresh, offset, latest = list(range(latest, latest + count)), 0.0, latest + count
            names = chance.choice([("a",), ("b",), ("a", "b")])
            sessions.append((feed.append(fresh, names, offset), fresh, names, offset))
        chance.shuffle(sessions)
        for session, fresh, names, offset in sessions:
            clashes = any(model[name].get(label, offset) != offset for name in names for label in fresh)
            new = [label for label in fresh if label not in labels]
            is_late = bool(new and labels) and min(new) < max(labels)
            try:
                session.commit("append", rebase_with=AppendSolver("time", order=order))  # type: ignore[arg-type]
            except AppendConflictError:
                assert clashes or (is_late and order != "commit")
                continue
            assert not clashes
            labels = sorted({*labels, *new}) if order == "sorted" else [*labels, *new]
            for name in names:
                model[name] |= dict.fromkeys(fresh, offset)
            found, values = feed.read()
            assert found == labels
            for name, offsets in model.items():
                expected = np.full((len(labels), WIDTH), np.nan)
                for row, label in enumerate(labels):
                    if label in offsets:
                        expected[row] = row_values([label], offsets[label])[0]
                np.testing.assert_array_equal(values[name], expected)
