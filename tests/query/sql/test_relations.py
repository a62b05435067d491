"""Resolve the table names of a query."""

from __future__ import annotations

from icefloe.query.sql.parse import parse_query
from icefloe.query.sql.relations import ArrayRelation, Sessions, resolve_relation
from tests.support.spark.weather import put, repository, weather


def test_table_used_twice_in_a_query_is_read_at_one_snapshot() -> None:
    repo = repository(weather(2))
    first_use, second_use = parse_query("SELECT * FROM w JOIN w AS v USING (time)", ["w"]).uses
    opened: Sessions = {}

    first = resolve_relation(first_use, {"w": repo}, opened)
    put(repo, weather(3), group="later")
    second = resolve_relation(second_use, {"w": repo}, opened)

    assert isinstance(first, ArrayRelation)
    assert isinstance(second, ArrayRelation)
    assert second.session.snapshot_id == first.session.snapshot_id != repo.lookup_branch("main")
