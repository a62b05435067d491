from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import zarr

from icefloe.derive.lineage import read_lineage
from icefloe.errors import InvalidInputError, NodeNotFoundError
from icefloe.query.metadata_tables import TABLES, View
from tests.support.derive import DAILY, OUTPUTS, derive, make_repository, write_recipe


def test_lineage_names_inputs_recipe_and_commit(tmp_path: Path) -> None:
    repo = make_repository(tmp_path)
    base = repo.lookup_branch("main")
    report = derive(write_recipe(tmp_path, {"t2m_daily": DAILY}))

    found = read_lineage(repo, "t2m_daily/t2m_daily")

    assert found == read_lineage(repo, "t2m_daily")
    assert found.is_current
    assert found.function == "mean"
    assert found.commit == report.commit
    assert [(each["array"], each["snapshot"]) for each in found.inputs] == [("/t2m", base)]


@pytest.mark.parametrize("path", ["t2m", "t2m_daily/t2m_daily"])
def test_array_is_outdated_after_input_or_output_changed(tmp_path: Path, path: str) -> None:
    repo = make_repository(tmp_path)
    recipe = write_recipe(tmp_path, {"t2m_daily": DAILY})
    derive(recipe)
    session = repo.writable_session("main")
    array: Any = zarr.open_array(session.store, path=path)
    array[0, 0, 0] = 1
    session.commit("change")

    assert not read_lineage(repo, "t2m_daily/t2m_daily").is_current
    derive(recipe)
    assert read_lineage(repo, "t2m_daily/t2m_daily").is_current


def test_array_that_was_not_derived_has_no_lineage(tmp_path: Path) -> None:
    with pytest.raises(NodeNotFoundError, match="not derived"):
        read_lineage(make_repository(tmp_path), "t2m")


def test_the_lineage_table_has_a_row_per_input(tmp_path: Path) -> None:
    repo = make_repository(tmp_path)
    outputs = {name: OUTPUTS[name] for name in ("climatology", "anomaly")}
    report = derive(write_recipe(tmp_path, outputs))
    session = repo.readonly_session("main")

    (batch,) = TABLES["lineage"].read(View(repo, session), None)

    rows = {(row["path"], row["input_path"]): row for row in batch.to_pylist()}
    assert sorted(rows) == [
        ("/anomaly", "/climatology/climatology"),
        ("/anomaly", "/t2m"),
        ("/climatology/climatology", "/t2m"),
    ]
    assert {(row["is_current"], row["commit_id"]) for row in rows.values()} == {(True, report.commit)}


def test_stored_recipes_run_code_only_from_allowed_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = make_repository(tmp_path)
    (tmp_path / "lineage_functions.py").write_text("def double(t2m):\n    return t2m * 2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    output = {"function": "lineage_functions:double", "inputs": {"t2m": "t2m"}}
    derive(write_recipe(tmp_path, {"double": output}))

    with pytest.raises(InvalidInputError, match="only the repository names"):
        derive(repo)
    with pytest.raises(InvalidInputError, match="only the repository names"):
        derive(repo, allow_module="lineage")

    assert derive(repo, allow_module="lineage_functions").kept == 24


def test_stored_recipes_compute_changed_chunks(tmp_path: Path) -> None:
    repo = make_repository(tmp_path)
    derive(write_recipe(tmp_path, OUTPUTS))
    session = repo.writable_session("main")
    array: Any = zarr.open_array(session.store, path="t2m")
    array[0, 0, 0] = 1
    session.commit("change")

    by_file = derive(tmp_path / "recipe.yaml", dry_run=True)
    report = derive(repo)

    assert {each.path: each.recomputed for each in report.outputs} == {
        each.path: each.recomputed for each in by_file.outputs
    }
    assert derive(tmp_path / "recipe.yaml").commit is None
