"""Ingest on a local Spark: executors read the files, and the driver commits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import xarray as xr

from icefloe import IcechunkError
from icefloe.cli.main import main
from icefloe.ingest.options import Check
from icefloe.spark import ingest, rechunk
from tests.support.ingest.files import (
    archive,
    assert_same,
    expected,
    map_files,
    new_repo,
    read,
    tree,
    write_groups,
)

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j closes its sockets late
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def test_ingest_runs_on_spark_executors(spark: Any, tmp_path: Path) -> None:
    files = archive(tmp_path, (3, 4, 2))
    repo = new_repo(tmp_path)
    seen: list[tuple[str, int, int]] = []

    ingest(spark, files[:2], repo, chunks={"time": 2, "lat": 2}, progress=lambda *done: seen.append(done))
    report = ingest(spark, files, repo)

    assert_same(read(repo), expected(files))
    assert [len(report.outcome.sources.known), len(report.commits)] == [2, 1]
    assert seen[-1][1] == seen[-1][2] > 0


def test_ingest_of_groups_runs_on_spark_executors(spark: Any, tmp_path: Path) -> None:
    files = [write_groups(tmp_path / f"{day}.nc", day) for day in (0, 2)]
    native, virtual = new_repo(tmp_path), new_repo(tmp_path)

    ingest(spark, files, native, group="below")
    ingest(spark, files, virtual, group="below", mode="virtual")

    assert tree(native).keys() == {"below/air", "below/fixed/land"}
    for path, found in tree(virtual).items():
        xr.testing.assert_identical(found, tree(native)[path])
    assert tree(native)["below/air"].sizes["time"] == 4


def test_maps_are_rechunked_to_series_on_executors(spark: Any, tmp_path: Path) -> None:
    """Rechunk with little memory, so that executors spill data for later tasks."""
    files, repo = map_files(tmp_path, 12), new_repo(tmp_path)

    report = ingest(spark, files, repo, chunks={"time": 10, "lat": 10, "lon": 10}, memory_bytes=90_000)

    assert_same(read(repo), expected(files))
    assert report.plan is not None
    assert (report.plan.spilled_bytes, report.plan.read_factor) == (12 * 40 * 50 * 4, 1)
    assert report.plan.memory_bytes <= 90_000


def test_array_is_rechunked_on_executors(spark: Any, tmp_path: Path) -> None:
    files = archive(tmp_path)
    repo = new_repo(tmp_path)
    ingest(spark, files, repo, chunks={"time": 1})

    report = rechunk(spark, repo, "/", {"time": -1, "lat": 2})

    assert_same(read(repo), expected(files))
    changed = {each.path: each.chunks for each in report.arrays}
    assert changed == {"/t2m": (9, 2, 4)}
    assert report.commit == repo.lookup_branch("main")


def test_data_is_published_only_if_sql_checks_pass(spark: Any, tmp_path: Path) -> None:
    files = archive(tmp_path, (3, 2))
    repo = new_repo(tmp_path)
    good = [
        "SELECT time FROM staged WHERE t2m < 0",
        "SELECT count(*) FROM staged WHERE t2m IS NULL",
        "SELECT max(t2m) < 100 FROM staged",
    ]

    first = ingest(spark, files[:1], repo, checks=[Check("sql", query=query) for query in good])

    assert [(each.passed, each.text) for each in first.checks] == [(True, "no problems found")] * 3
    tip = next(iter(repo.ancestry(branch="main")))
    assert [each["name"] for each in tip.metadata["icefloe_ingest"]["checks"]] == [
        f"sql {each}" for each in good
    ]
    bad = {
        "SELECT lat, max(t2m) FROM staged GROUP BY lat ORDER BY lat": "the first one is -60.0, 50.375",
        "SELECT (SELECT count(*) FROM staged) = (SELECT count(*) FROM published)": "the query returned false",
        "SELECT count(*) FROM staged": "the query returned 100, not 0 or true",
    }
    second = ingest(spark, files, repo, checks=[Check("sql", query=query) for query in bad])
    assert [each.passed for each in second.checks] == [False] * 3
    for said, wanted in zip(second.checks, bad.values(), strict=True):
        assert wanted in said.text
    assert repo.lookup_branch("main") == first.published
    assert second.failed_branch == "main.ingest-failed"
    with pytest.raises(IcechunkError, match="no_such_table"):
        ingest(spark, files, repo, checks=[Check("sql", query="SELECT * FROM no_such_table")])
    assert repo.lookup_branch("main") == first.published


def test_ingest_command_runs_on_spark(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = archive(tmp_path / "data")
    place = str(tmp_path / "repo")

    # Without Spark, because the command would stop the session that other tests share.
    words = ["ingest", str(tmp_path / "data" / "*.nc"), place, "--executor", "threads", "--json"]
    assert main([*words, "--chunks", "time=2", "--metadata", "run=7"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert found["ingested"] == files
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["known"] == files
