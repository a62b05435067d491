"""Statistics never change an answer, over random histories with resizes, shifts, damage and other writers."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import icefloe
from tests.support.statistics import (
    VirtualSource,
    change,
    check_answers,
    commit_change,
    create_repository,
    damage,
    merge_changes,
)

CHANGED = r"changed|modified"
HISTORIES = int(os.environ.get("ICEFLOE_STATISTICS_HISTORIES", "3"))


@settings(max_examples=HISTORIES, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1, 2]))
def test_query_results_are_the_same_with_and_without_statistics(seed: int, spec: int) -> None:
    random = np.random.default_rng(seed)
    repo = create_repository(spec)
    for _ in range(5):
        commit_change(repo, random, collect_statistics=bool(random.random() < 0.5))
        if random.random() < 0.3:
            repo.collect_statistics()
        if random.random() < 0.3:
            damage(repo, random)
        check_answers(repo)


@settings(max_examples=HISTORIES, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1, 2]))
def test_query_results_from_statistics_are_right_after_merges(seed: int, spec: int) -> None:
    random = np.random.default_rng(seed)
    repo = create_repository(spec)
    for _ in range(4):
        merge_changes(repo, random)
        if random.random() < 0.3:
            repo.collect_statistics()
        check_answers(repo)


@pytest.mark.parametrize("spec", [1, 2])
def test_references_to_a_new_version_of_a_file_have_new_statistics(tmp_path: Path, spec: int) -> None:
    source = VirtualSource(tmp_path)
    repo = source.authorize(create_repository(spec))
    for collect in (True, False, True):
        source.commit(repo, collect_statistics=collect)
        check_answers(repo)
        repo.collect_statistics()
        check_answers(repo)


def test_a_file_that_changed_after_its_commit_is_never_read_as_the_new_one(tmp_path: Path) -> None:
    source = VirtualSource(tmp_path)
    repo = source.authorize(create_repository())
    source.commit(repo)
    source.change()

    for statistics in (True, False):
        with pytest.raises(icefloe.IcechunkError, match=CHANGED):
            icefloe.scan(repo, variables="v", statistics=statistics).aggregate(v="max")
    with pytest.raises(icefloe.IcechunkError, match=CHANGED):
        repo.collect_statistics(arrays=["/v"])


@pytest.mark.parametrize("seed", range(3))
def test_shifting_an_array_keeps_its_statistics_valid(seed: int) -> None:
    random = np.random.default_rng(seed)
    repo = create_repository()
    with repo.transaction("main", message="values", collect_statistics=True) as store:
        for _ in range(6):
            change(store, random)
    session = repo.writable_session("main")
    for path in ("/f", "/p", "/n"):
        session.shift_array(path, (int(random.integers(-1, 2)), 0))
    if session.has_uncommitted_changes:
        session.commit("shift")

    check_answers(repo)
