"""Statistics never change an answer, over random histories with resizes, shifts, damage and other writers."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.statistics import change, check_answers, commit_change, create_repository, damage


@settings(max_examples=int(os.environ.get("ICEFLOE_STATISTICS_HISTORIES", "3")), deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1, 2]))
def test_answers_do_not_depend_on_statistics(seed: int, spec: int) -> None:
    random = np.random.default_rng(seed)
    repo = create_repository(spec)
    for _ in range(5):
        commit_change(repo, random, collect_statistics=bool(random.random() < 0.5))
        if random.random() < 0.3:
            repo.collect_statistics()
        if random.random() < 0.3:
            damage(repo, random)
        check_answers(repo)


@pytest.mark.parametrize("seed", range(3))
def test_a_shift_keeps_statistics_and_answers(seed: int) -> None:
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
