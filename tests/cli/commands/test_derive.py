from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import zarr

from icefloe.cli.main import main
from tests.support.derive import DAILY, make_repository, write_recipe


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main([*arguments, "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, found


def test_derive_computes_checks_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repo = make_repository(tmp_path)
    recipe = str(write_recipe(tmp_path, {"t2m_daily": DAILY}))

    assert run(capsys, "derive", recipe, "--check")[0] == 5
    code, report = run(capsys, "derive", recipe, "--executor", "threads")
    assert (code, report["recomputed"], report["moved"], report["kept"]) == (0, 24, 0, 0)
    assert run(capsys, "derive", recipe, "--check")[0] == 0
    assert report["commit"] == repo.lookup_branch("main")

    session = repo.writable_session("main")
    array: Any = zarr.open_array(session.store, path="t2m")
    array[0, 0, 0] = 300
    session.commit("change a cell")

    planned = run(capsys, "derive", recipe, "--dry-run")[1]
    assert (planned["recomputed"], planned["kept"], planned["commit"]) == (1, 23, None)
    assert run(capsys, "derive", recipe, "--check")[0] == 5
    assert run(capsys, "lineage", str(tmp_path / "repo"), "t2m_daily/t2m_daily")[1]["is_current"] is False


def test_output_shows_number_of_computed_chunks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_repository(tmp_path)
    recipe = str(write_recipe(tmp_path, {"t2m_daily": DAILY}))

    assert main(["derive", recipe, "--executor", "threads"]) == 0
    assert "/t2m_daily/t2m_daily: 24 of 24 chunks computed" in capsys.readouterr().out
    assert main(["lineage", str(tmp_path / "repo"), "t2m_daily/t2m_daily"]) == 0
    assert "up to date" in capsys.readouterr().out


def test_missing_recipe_is_named_in_the_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["derive", str(tmp_path / "absent.yaml")]) != 0
    assert "absent.yaml" in capsys.readouterr().err
