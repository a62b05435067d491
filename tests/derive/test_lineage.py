from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import zarr

from icefloe.derive.lineage import read_lineage
from icefloe.errors import NodeNotFoundError
from tests.support.derive import DAILY, derive, make_repository, write_recipe


def test_lineage_names_inputs_recipe_and_commit(tmp_path: Path) -> None:
    repo = make_repository(tmp_path)
    base = repo.lookup_branch("main")
    report = derive(write_recipe(tmp_path, {"t2m_daily": DAILY}))

    found = read_lineage(repo, "t2m_daily/t2m_daily")

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
