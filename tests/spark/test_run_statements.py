"""SQL statements that change arrays, compared with pandas; and those that concern branches and tags.

`ICEFLOE_STATEMENTS=300` runs more generated statements, as `make torture` does.
"""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest
import xarray as xr
import zarr

import icefloe
from icefloe.conflicts import ConflictType
from icefloe.errors import IcechunkError, InvalidInputError, RebaseFailedError
from icefloe.spark import run_statements, sql
from icefloe.spark.shuffle_write import write_blocks
from tests.support.source_tree import ROOT
from tests.support.spark.statements import DIMS, make_merge, make_update
from tests.support.spark.weather import CHUNKS, opened, repository, weather

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j closes its sockets late
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

STATEMENTS = int(os.environ.get("ICEFLOE_STATEMENTS", "3"))
ON = "ON t.time = s.time AND t.lat = s.lat AND t.lon = s.lon"
SOURCE = "SELECT timestamp_ntz'2019-12-30' AS time, 60.0 AS lat, 2.5 AS lon, 7.5 AS v"


@pytest.fixture
def repo(tmp_path: Any) -> icefloe.Repository:
    return repository(weather(), icefloe.local_filesystem_storage(str(tmp_path / "repo")), CHUNKS)


def read(repo: icefloe.Repository, version: str = "main") -> xr.Dataset:
    return opened(repo.readonly_session(version)).load()


def rows(repo: icefloe.Repository) -> pd.DataFrame:
    return read(repo).to_dataframe().reset_index()[[*DIMS, "t2m", "rain"]]


def count(frame: Any) -> tuple[int, ...]:
    return tuple(frame.collect()[0])[1:]


@pytest.mark.parametrize("seed", range(STATEMENTS))
def test_generated_statement_equals_pandas(spark: Any, repo: icefloe.Repository, seed: int) -> None:
    random = np.random.default_rng(seed)
    made = (make_merge if seed % 2 else make_update)(random, rows(repo))
    frames = {"src": spark.createDataFrame(made.source)} if len(made.source) else {}

    sql(spark, made.text, {"w": repo, **frames})

    found = rows(repo)
    pd.testing.assert_frame_equal(found, made.expected, check_dtype=False, obj=made.text)


def test_merge_touches_only_chunks_of_the_source(spark: Any, repo: icefloe.Repository) -> None:
    before = repo.lookup_branch("main")

    found = sql(
        spark,
        f"MERGE INTO w t USING ({SOURCE}) s {ON} WHEN MATCHED AND t.rain >= 0 THEN UPDATE SET t2m = s.v",
        {"w": repo},
    )

    changed = repo.diff(from_snapshot_id=before, to_snapshot_id=repo.lookup_branch("main"))
    assert count(found) == (1, 1, 0, 0)
    assert changed.updated_chunks == {"/t2m": [[0, 0, 0]]}
    assert read(repo)["t2m"].sel(time="2019-12-30", lat=60, lon=2.5) == 7.5


def test_rows_off_the_grid_are_rejected_or_extend_the_append_dimension(
    spark: Any, repo: icefloe.Repository
) -> None:
    before = repo.lookup_branch("main")
    spark.sql(SOURCE.replace("2019-12-30", "2020-01-07")).createOrReplaceTempView("later")
    text = f"MERGE INTO w t USING later s {ON} WHEN NOT MATCHED THEN INSERT (time, lat, lon, t2m)"
    text += " VALUES (s.time, s.lat, s.lon, s.v)"

    with pytest.raises(InvalidInputError, match="append_dim='time'"):
        sql(spark, text, {"w": repo})
    rejected = repo.lookup_branch("main")
    found = sql(spark, text, {"w": repo}, append_dim="time")

    assert rejected == before
    assert count(found) == (1, 0, 0, 1)
    now = read(repo)
    assert now.sizes["time"] == 11
    assert now["t2m"].sel(time="2020-01-07").count() == 1
    xr.testing.assert_equal(now.isel(time=slice(10)), weather())


def test_statement_with_a_key_is_applied_once(spark: Any, repo: icefloe.Repository) -> None:
    key: dict[str, Any] = {"txn_app_id": "nightly", "txn_version": 7}
    text = "INSERT INTO w (time, lat, lon, rain) VALUES ('2019-12-30', 60, 2.5D, 3)"

    first = sql(spark, text, {"w": repo}, **key)
    after = repo.lookup_branch("main")
    second = sql(spark, text.replace("3)", "4)"), {"w": repo}, **key)

    assert (count(first), count(second)) == ((1, 0, 0, 1), (0, 0, 0, 0))
    assert repo.lookup_branch("main") == after
    assert read(repo)["rain"].sel(time="2019-12-30", lat=60, lon=2.5) == 3


def test_concurrent_statements_with_the_same_key_make_one_commit(
    spark: Any, repo: icefloe.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    key: dict[str, Any] = {"txn_app_id": "nightly", "txn_version": 8}
    text = "UPDATE w SET rain = rain + 1 WHERE lat = 60"
    original = write_blocks

    def overtaken(*args: Any) -> Any:
        monkeypatch.setattr(run_statements, "write_blocks", original)
        sql(spark, text, {"w": repo}, **key)
        return original(*args)

    monkeypatch.setattr(run_statements, "write_blocks", overtaken)

    found = sql(spark, text, {"w": repo}, **key)

    assert found.collect()[0].snapshot_id == repo.lookup_branch("main")
    assert [each.message for each in repo.ancestry(branch="main")][:2] == ["UPDATE w", "written"]
    assert (read(repo)["rain"].sel(lat=60) == weather()["rain"].sel(lat=60) + 1).all()


def test_delete_makes_cells_missing_if_the_fill_value_is_decoded_as_missing(
    spark: Any, repo: icefloe.Repository
) -> None:
    with pytest.raises(InvalidInputError, match="/rain cannot be deleted: its fill value"):
        sql(spark, "DELETE FROM w WHERE lat > 50", {"w": repo})
    found = sql(spark, "DELETE FROM w.t2m WHERE lat > 50", {"w": repo})

    assert count(found) == (160, 0, 160, 0)
    assert read(repo)["t2m"].sel(lat=slice(None, 55)).isnull().all()
    assert sql(spark, "SELECT count(*) FROM w", {"w": repo}).collect()[0][0] == 480


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("UPDATE w SET lat = 3", "lat is a coordinate"),
        ("UPDATE w SET humidity = 3", "no column 'humidity'"),
        (f"MERGE INTO w t USING ({SOURCE}) s {ON} WHEN MATCHED THEN UPDATE SET time = s.time", "coordinate"),
        (
            f"MERGE INTO w t USING ({SOURCE} UNION ALL {SOURCE}) s {ON} WHEN MATCHED THEN UPDATE SET t2m = v",
            "two rows have the same coordinates",
        ),
        (
            f"MERGE INTO w t USING ({SOURCE}) s ON t.time = s.time WHEN MATCHED THEN UPDATE SET t2m = v",
            "does not determine the lat",
        ),
        (f"MERGE INTO w t USING ({SOURCE}) s {ON} WHEN MATCHED THEN UPDATE SET *", "no column 'rain'"),
        (f"MERGE INTO w t USING ({SOURCE}) s {ON} WHEN MATCHED THEN UPDATE SET t2m = lat", "in both tables"),
        (f"MERGE INTO w t USING ({SOURCE}) s {ON} WHEN MATCHED THEN INSERT *", "UPDATE or DELETE"),
        ("INSERT INTO w (time, lat, t2m) VALUES ('2019-12-30', 60, 3)", "lon is missing"),
        ("INSERT INTO w (time, lat, lon, rain) VALUES ('2019-12-30', 60, 2.5, 3.5)", "rain cannot hold"),
        ("INSERT OVERWRITE w SELECT 1", "mode='overwrite'"),
        ("UPDATE w.refs SET name = 'x'", "metadata table"),
        ("UPDATE w VERSION AS OF 'v1' SET rain = 1", "v1 is a tag"),
        ("UPDATE w SET", "cannot be parsed"),
    ],
)
def test_mistakes_are_reported_and_change_nothing(
    spark: Any, repo: icefloe.Repository, text: str, message: str
) -> None:
    before = repo.lookup_branch("main")
    repo.create_tag("v1", before)

    with pytest.raises(IcechunkError, match=message):
        sql(spark, text, {"w": repo})

    assert repo.lookup_branch("main") == before


UPDATE = "UPDATE w SET t2m = rain WHERE lat = 60"
CONDITIONAL = (
    f"MERGE INTO w t USING ({SOURCE} UNION ALL {SOURCE.replace('60.0', '35.0')}) s {ON}"
    " WHEN MATCHED AND t.rain >= 0 AND s.lat > 50 THEN UPDATE SET t2m = t.rain"
)


@pytest.mark.parametrize(
    ("text", "times", "conflicts"),
    [
        (UPDATE, slice(None), True),
        (CONDITIONAL, slice(4), True),  # read to evaluate the condition, although it does not hold
        (CONDITIONAL, slice(4, None), False),  # other chunks
    ],
)
def test_commit_that_changes_data_read_by_the_statement_conflicts(
    spark: Any,
    repo: icefloe.Repository,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    times: slice,
    conflicts: bool,
) -> None:
    original = write_blocks
    rows = slice(None) if text == UPDATE else slice(3, None)

    def disturbed(*args: Any) -> Any:
        session = repo.writable_session("main")
        array: Any = zarr.open_array(session.store, path="rain", mode="r+")
        array[times, rows] = 1
        session.commit("meanwhile")
        return original(*args)

    monkeypatch.setattr(run_statements, "write_blocks", disturbed)

    if conflicts:
        with pytest.raises(RebaseFailedError) as raised:
            sql(spark, text, {"w": repo})
        assert [(each.path, each.conflict_type) for each in raised.value.conflicts] == [
            ("/rain", ConflictType.ReadDataChanged)
        ]
        assert repo.lookup_snapshot(repo.lookup_branch("main")).message == "meanwhile"
    else:
        sql(spark, text, {"w": repo})
        now, before = (each.sel(time="2019-12-30", lat=60, lon=2.5) for each in (read(repo), weather()))
        assert now["t2m"] == before["rain"]
        assert (read(repo)["rain"][times, rows] == 1).all()


def test_examples_of_the_guide_run(
    spark: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs/how-to/statements.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"spark": spark}

    for example in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(example, "statements.md", "exec"), names)

    t2m = read(names["repo"])["t2m"]
    assert tuple(names["merged"].collect()[0])[1:] == (2, 2, 0, 0)
    assert t2m.sizes["time"] == 5
    assert t2m.sel(time="2024-03-02", lat=50, lon=10).item() == pytest.approx(280.75 - 273.15)
    assert t2m.sel(lat=60, time=slice(None, "2024-03-02")).isnull().all()


def test_branches_and_tags_are_created_listed_and_dropped(spark: Any, repo: icefloe.Repository) -> None:
    names = {"w": repo}

    sql(spark, "CREATE BRANCH dev IN w", names)
    sql(spark, "ALTER TABLE w CREATE TAG `v 1` AS OF VERSION 'dev'", names)
    sql(spark, "UPDATE w VERSION AS OF 'dev' SET rain = 0 WHERE lon = 0", names, message="no rain")

    assert [row.name for row in sql(spark, "SHOW BRANCHES IN w", names).collect()] == ["dev", "main"]
    assert [row.name for row in sql(spark, "SHOW TAGS", names).collect()] == ["v 1"]
    history = sql(spark, "DESCRIBE HISTORY w VERSION AS OF 'dev' LIMIT 2", names).collect()
    assert [row.message for row in history] == ["no rain", "written"]
    assert (read(repo, "dev")["rain"].sel(lon=0) == 0).all()
    xr.testing.assert_equal(read(repo), weather())
    sql(spark, "DROP BRANCH dev IN w", names)
    sql(spark, "DROP TAG IF EXISTS `v 1`", names)
    assert (repo.list_branches(), repo.list_tags()) == ({"main"}, set())
