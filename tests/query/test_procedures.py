"""Procedures: arguments become absolute before a run, and a second run of a call changes nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.conflicts import MergeConflictError
from icefloe.errors import ConflictError, IcechunkError, InvalidInputError
from icefloe.query import procedures
from icefloe.query.procedures import PROCEDURES, ProcedureCall
from tests.support.spark.weather import CHUNKS, repository, weather


def commit(repo: icefloe.Repository, value: int, branch: str = "main") -> str:
    session = repo.writable_session(branch)
    array: Any = zarr.open_array(session.store, path="rain", mode="r+")
    array[0] = value
    return session.commit(f"rain {value}")


@pytest.fixture
def repo() -> icefloe.Repository:
    found = repository(weather(2), encoding=CHUNKS)
    commit(found, 1)
    commit(found, 2)
    found.create_branch("dev", found.lookup_branch("main"))
    session = found.writable_session("dev")
    zarr.create_array(session.store, name="snow", data=np.arange(3))
    session.commit("snow")
    commit(found, 3)
    return found


def prepare(repo: icefloe.Repository, name: str, /, *values: Any, **words: Any) -> ProcedureCall:
    return PROCEDURES[name].prepare({"w": repo}, ["w", *values], words)


def execute(repo: icefloe.Repository, name: str, call: ProcedureCall) -> list[Any]:
    return list(PROCEDURES[name].execute({"w": repo}, call))


def describe(repo: icefloe.Repository) -> dict[str, Any]:
    """Return all refs and their histories."""
    refs = {f"branch {each}": repo.lookup_branch(each) for each in sorted(repo.list_branches())}
    refs |= {f"tag {each}": repo.lookup_tag(each) for each in sorted(repo.list_tags())}
    return {name: [each.id for each in repo.ancestry(snapshot_id=tip)] for name, tip in refs.items()}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("expire", {"older_than": "0s"}),
        ("gc", {"older_than": "0s"}),
        ("verify", {"level": "chunks"}),
        ("rewrite_manifests", {}),
        ("merge", {"source": "dev"}),
        ("tag", {"name": "v1", "version": "main~1"}),
        ("branch", {"name": "hotfix", "version": "dev"}),
        ("rollback", {"version": "main~2"}),
        ("statistics", {}),
        ("history", {"limit": 2}),
    ],
)
def test_running_a_procedure_twice_changes_nothing_the_second_time(
    repo: icefloe.Repository, name: str, words: dict[str, Any]
) -> None:
    before = describe(repo)
    call = prepare(repo, name, **words)
    prepared = describe(repo)

    first = execute(repo, name, call)
    once = describe(repo)
    second = execute(repo, name, call)

    assert prepared == before
    assert (once == before) == (name in ("gc", "verify", "statistics", "history"))
    assert describe(repo) == once
    assert all(len(row) == len(PROCEDURES[name].schema) for row in first + second)
    assert not repo.verify("chunks").findings


def test_every_procedure_is_run_twice_by_a_test() -> None:
    mark = test_running_a_procedure_twice_changes_nothing_the_second_time.pytestmark[0]

    assert {name for name, _ in mark.args[1]} == set(PROCEDURES)


@pytest.mark.parametrize(
    ("name", "values", "words", "message"),
    [
        ("expire", [], {}, "older_than is missing"),
        ("expire", ["2999-01-01"], {}, "a time in the past"),
        ("expire", ["soon"], {}, "not a time"),
        ("expire", [True], {}, "a time in the past"),
        ("expire", ["1d"], {"older_than": "2d"}, "given twice"),
        ("expire", ["1d"], {"dry_run": "yes"}, "dry_run must be true or false"),
        ("gc", [], {"olderthan": "1d"}, "did you mean 'older_than'"),
        ("history", ["main", 1, 2, 3], {}, "at most 3 arguments"),
        ("history", [], {"limit": True}, "a positive number"),
        ("history", [], {"limit": -1}, "limit must be a positive number, not -1"),
        ("merge", ["dev"], {"strategy": "our"}, "strategy must be fail, ours, theirs, not 'our'"),
        ("verify", [], {"level": "deep"}, "level must be graph, objects, sources, chunks, not 'deep'"),
        ("merge", ["nope"], {}, "no branch, tag or snapshot"),
        ("tag", [], {"name": 3}, "name must be text"),
    ],
)
def test_invalid_procedure_arguments_are_rejected_before_the_run(
    repo: icefloe.Repository, name: str, values: list[Any], words: dict[str, Any], message: str
) -> None:
    with pytest.raises(IcechunkError, match=message):
        prepare(repo, name, *values, **words)


def test_unknown_and_missing_repositories_are_named(repo: icefloe.Repository) -> None:
    with pytest.raises(InvalidInputError, match="did you mean 'era5'"):
        PROCEDURES["history"].prepare({"era5": repo}, ["era"], {})
    with pytest.raises(InvalidInputError, match="the name of a repository, one of: era5"):
        PROCEDURES["history"].prepare({"era5": repo}, [], {})


def test_ages_are_converted_to_times_when_a_call_is_prepared(repo: icefloe.Repository) -> None:
    now = datetime(2030, 1, 31, tzinfo=UTC)

    calls = [
        PROCEDURES["expire"].prepare({"w": repo}, ["w", given], {}, now)
        for given in ("30d", timedelta(days=30), "2030-01-01", datetime(2030, 1, 1))
    ]

    assert {call.arguments["older_than"] for call in calls} == {datetime(2030, 1, 1, tzinfo=UTC)}


def test_rollback_keeps_commits_that_were_made_after_its_analysis(repo: icefloe.Repository) -> None:
    call = prepare(repo, "rollback", version="main~1")
    newer = commit(repo, 4)

    with pytest.raises(ConflictError):
        execute(repo, "rollback", call)

    assert repo.lookup_branch("main") == newer


def test_rollback_accepts_only_ancestors(repo: icefloe.Repository) -> None:
    with pytest.raises(InvalidInputError, match="not in the history of main"):
        execute(repo, "rollback", prepare(repo, "rollback", version="dev"))


def test_merge_with_conflicts_raises(repo: icefloe.Repository) -> None:
    commit(repo, 7, "dev")

    with pytest.raises(MergeConflictError):
        execute(repo, "merge", prepare(repo, "merge", source="dev"))
    outcome = execute(repo, "merge", prepare(repo, "merge", source="dev", strategy="theirs"))[0][0]

    assert outcome == "merged"


def test_dry_runs_of_procedures_list_planned_changes(repo: icefloe.Repository) -> None:
    before = describe(repo)

    expired = execute(repo, "expire", prepare(repo, "expire", older_than="0s", dry_run=True))
    freed = execute(repo, "gc", prepare(repo, "gc", older_than="0s", dry_run=True))

    assert {"written", "rain 2"} <= {row[2] for row in expired}
    assert {row[3] for row in expired} == {True}
    assert freed[0][-1] is True
    assert describe(repo) == before


@pytest.mark.parametrize(("limit", "name"), [("MAX_REFERENCES", "gc"), ("MAX_SNAPSHOTS", "merge")])
def test_procedures_on_large_repositories_recommend_spark(
    repo: icefloe.Repository, monkeypatch: pytest.MonkeyPatch, limit: str, name: str
) -> None:
    words = {"gc": {"older_than": "0s"}, "merge": {"source": "dev"}}[name]
    call = prepare(repo, name, **words)
    monkeypatch.setattr(procedures, limit, 1)

    with pytest.raises(InvalidInputError, match=r"on_spark\(spark, repo\)\.(garbage_collect|merge)"):
        execute(repo, name, call)


def test_procedures_that_read_chunks_have_a_lower_size_limit(
    repo: icefloe.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(procedures, "MAX_CHUNKS", 1)

    shallow = execute(repo, "verify", prepare(repo, "verify"))

    assert shallow == []
    with pytest.raises(InvalidInputError, match="handles at most 20000 and 1;"):
        execute(repo, "verify", prepare(repo, "verify", level="objects"))
