"""Feeds beside each other: every label occurs once, with its values, whatever fails.

A seed that fails is run again, with its schedule, by `python -m tests.support.simulation.feed --seed SEED`.
"""

from __future__ import annotations

import os
import random
import sys
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from icefloe import (
    AppendConflictError,
    AppendSolver,
    InvalidInputError,
    Repository,
    Session,
    in_memory_storage,
)
from icefloe.core.merge.group_commit import GroupCommits
from tests.support.servers.moto import make_bucket
from tests.support.servers.proxy import Request, faulty_proxy
from tests.support.simulation import feed_processes
from tests.support.simulation.feed import Append, put_metadata, put_rows, read_table, simulate_feed, value

BATCH = 3
# Seeds of each version of the format; `make torture` runs more.
FEEDS = int(os.environ.get("ICEFLOE_FEEDS", "3"))
PROCESSES = int(os.environ.get("ICEFLOE_FEED_PROCESSES", "3"))
DAYS = int(os.environ.get("ICEFLOE_FEED_DAYS", "5"))


@pytest.mark.parametrize("first", range(0, FEEDS, BATCH))
@pytest.mark.parametrize("spec_version", [1, 2])
def test_no_row_of_a_feed_is_lost_repeated_or_misplaced(
    spec_version: int, first: int, record_property: Callable[[str, Any], None]
) -> None:
    histories = [simulate_feed(seed, spec_version=spec_version) for seed in range(first, first + BATCH)]

    for name in ("appends", "windows", "grouped", "maintenance", "crashes", "faults"):
        record_property(f"proof feed {name}", sum(getattr(history, name) for history in histories))
    failed = [(history.seed, history.violation) for history in histories if history.violation is not None]
    assert not failed, f"run again with: python -m tests.support.simulation.feed --seed {failed[0][0]}"
    assert sum(history.appends for history in histories) > 0


def test_simulated_feed_is_reproducible() -> None:
    first, second = simulate_feed(2), simulate_feed(2)

    assert first == second
    assert first.appends > 0


@pytest.mark.skipif(sys.platform == "win32", reason="folders need a POSIX system")
@pytest.mark.parametrize("spec_version", [1, 2])
def test_processes_append_to_a_folder(tmp_path: Path, spec_version: int) -> None:
    place = {"folder": str(tmp_path / "feed")}
    feed_processes.create(place, spec_version)

    feed_processes.run(place, PROCESSES, 4)

    feed_processes.check(place, PROCESSES, 4)


def test_processes_append_to_a_bucket_that_drops_responses(s3_server: str) -> None:
    make_bucket(s3_server, "feed")
    place = {"bucket": "feed", "prefix": uuid.uuid4().hex, "endpoint_url": s3_server}
    feed_processes.create(place, 2)
    chance = random.Random(1)

    def drop(request: Request) -> str | None:
        lost = chance.random()
        return "lose-answer" if lost < 0.02 else "lose-request" if lost < 0.03 else None

    with faulty_proxy(s3_server) as proxy:
        proxy.fault, proxy.latency_s = drop, 0.005
        feed_processes.run({**place, "endpoint_url": proxy.url}, PROCESSES, 2)

    feed_processes.check(place, PROCESSES, 2)


@pytest.mark.parametrize("spec_version", [1, 2])
def test_a_window_of_three_days_is_correct_at_every_commit(
    monkeypatch: pytest.MonkeyPatch, spec_version: int
) -> None:
    monkeypatch.setattr(
        "icefloe.maintenance.window.SMALL_ARRAY_BYTES", 1 << 10
    )  # move arrays, rewrite labels
    repo = Repository.create(in_memory_storage(), spec_version=spec_version)
    with repo.transaction("main", message="create") as store:
        group = zarr.create_group(store)
        group.create_array("time", shape=(0,), chunks=(64,), dtype="i8", dimension_names=["time"])
        for name, hours in (("a", 6), ("b", 12)):
            names = ("time", "x")
            group.create_array(name, shape=(0, 8), chunks=(hours, 8), dtype="f4", dimension_names=names)
    chance = random.Random(spec_version)
    written: dict[str, set[int]] = {"a": set(), "b": set()}

    def check(session: Session) -> list[int]:
        group = zarr.open_group(session.store, mode="r")
        labels: list[int] = np.asarray(group["time"]).tolist()
        for name, hours in written.items():
            expected = [label if label in hours else 0 for label in labels]
            assert (np.asarray(group[name]) == np.array(expected)[:, None]).all(), name
        return labels

    for day in range(DAYS):
        reader = repo.readonly_session("main")
        before = check(reader)
        known = {name: set(hours) for name, hours in written.items()}
        # Two writers of one array each, and one that appends both arrays for the hours after them.
        jobs = [("a", 0, 12), ("b", 0, 12), ("ab", 12, 24)]
        sessions = [repo.writable_session("main") for _ in jobs]
        for session, (arrays, first, last) in zip(sessions, jobs, strict=True):
            group = zarr.open_group(session.store)
            added = np.arange(day * 24 + first, day * 24 + last)
            for name in ("time", "a", "b"):
                array: Any = group[name]
                rows = array.shape[0]
                array.resize((rows + len(added), *array.shape[1:]))
                if name == "time":
                    array[rows:] = added
                elif name in arrays:
                    array[rows:] = np.repeat(added[:, None], 8, 1)
        order = [0, 1, 2] if chance.random() < 0.5 else [1, 0, 2]
        for number in order:
            if chance.random() < 0.4:
                with suppress(InvalidInputError):  # no chunk starts before the window
                    repo.keep_window(72.0, "time")
                check(repo.readonly_session("main"))
            arrays, first, last = jobs[number]
            for name in arrays:
                written[name] |= set(range(day * 24 + first, day * 24 + last))
            sessions[number].commit(f"day {day}", rebase_with=AppendSolver("time"))
            check(repo.readonly_session("main"))
        repo.keep_window(72.0, "time")
        labels = check(repo.readonly_session("main"))
        end = (day + 1) * 24
        assert labels == list(range(labels[0], end))
        assert labels[0] <= max(end - 1 - 72, 0) < labels[0] + 12 + (day < 3) * 72
        written, latest = known, written
        assert check(reader) == before  # readers of an earlier snapshot see its rows
        written = latest
        if day % 4 == 3:
            now = datetime.now(UTC)
            repo.expire_snapshots(now)
            repo.garbage_collect(now)


class FeedMachine(RuleBasedStateMachine):
    """Sessions that append, commit in any order and keep windows, compared by label after each step."""

    def __init__(self, spec_version: int) -> None:
        super().__init__()
        self.repo = Repository.create(in_memory_storage(), spec_version=spec_version)
        session = self.repo.writable_session("main")
        put_metadata(session, 0)
        session.commit("created")
        self.rows: dict[int, dict[str, int]] = {}
        """The expected values of each label."""
        self.open: dict[int, tuple[Session, list[Append]]] = {}
        self.latest = 0

    @rule(number=st.integers(0, 2))
    def begin(self, number: int) -> None:
        self.open[number] = self.repo.writable_session("main"), []

    @rule(number=st.integers(0, 2), count=st.integers(1, 4), names=st.sampled_from(["a", "b", "ab"]))
    def append(self, number: int, count: int, names: str) -> None:
        if number in self.open:
            session, done = self.open[number]
            rows = Append("", tuple(range(self.latest, self.latest + count)), tuple(names))
            self.latest += count
            put_rows(session, rows)
            done.append(rows)

    @rule(number=st.integers(0, 2), order=st.sampled_from(["commit", "sorted"]), grouped=st.booleans())
    def commit(self, number: int, order: Any, grouped: bool) -> None:
        session, done = self.open.pop(number, (None, []))
        if session is None or not done:
            return
        session._groups = GroupCommits(0) if grouped else None
        if order == "sorted" and not self._is_ascending(session):
            # Rows cannot be inserted by label where others are out of order.
            with suppress(AppendConflictError):
                session.commit("append", rebase_with=AppendSolver("time", order=order))
                self._add(done)
            return
        session.commit("append", rebase_with=AppendSolver("time", order=order))
        self._add(done)

    def _is_ascending(self, session: Session) -> bool:
        """Return whether the labels of a session and of the branch are ascending."""
        tables = (read_table(each)["time"] for each in (self.repo.readonly_session("main"), session))
        return all(labels == sorted(labels) for labels in tables)

    def _add(self, done: list[Append]) -> None:
        for rows in done:
            self.rows |= {label: {name: value(label, name) for name in rows.names} for label in rows.labels}

    @rule(keep=st.integers(0, 12))
    def keep_window(self, keep: int) -> None:
        labels = read_table(self.repo.readonly_session("main"))["time"]
        if labels == sorted(labels):
            self.repo.keep_window(float(keep), "time")
            self.rows = {label: row for label, row in self.rows.items() if label >= labels[-1] - keep}

    @invariant()
    def each_label_has_its_values(self) -> None:
        table = read_table(self.repo.readonly_session("main"))
        found = {
            label: {name: table[name][row] for name in ("a", "b") if table[name][row] >= 0}
            for row, label in enumerate(table["time"])
        }
        assert len(table["time"]) == len(self.rows)
        assert found == self.rows


@pytest.mark.parametrize("spec_version", [1, 2])
def test_random_appends_and_windows_match_the_model(spec_version: int) -> None:
    machine: Any = partial(FeedMachine, spec_version)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=int(os.environ.get("ICEFLOE_EXAMPLES", "6")),
            stateful_step_count=15,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
