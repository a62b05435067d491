from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.cli.main import main
from tests.support.derive import DAILY, make_repository, write_recipe
from tests.support.virtual.files import aged


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


def make_virtual(folder: Path, *, checksum: bool) -> Path:
    """Create a repository with one virtual chunk, and a recipe that reads it."""
    files = folder / "files"
    files.mkdir()
    file = files / "a.bin"
    file.write_bytes(np.arange(4, dtype="<f4").tobytes())
    aged(file)
    config = icefloe.RepositoryConfig.default()
    store = icefloe.local_filesystem_store(str(files))
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(f"file://{files}/", store))
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(folder / "repo")), config=config)
    with repo.transaction("main", message="a virtual chunk") as session:
        zarr.create_array(
            session, name="a", shape=(4,), chunks=(4,), dtype="<f4", compressors=None, dimension_names=("x",)
        )
        known = datetime.fromtimestamp(int(file.stat().st_mtime), UTC) if checksum else None
        session.set_virtual_ref("a/c/0", f"file://{file}", offset=0, length=16, checksum=known)
    return write_recipe(folder, {"b": {"function": {"expression": "a * 2"}, "inputs": {"a": "a"}}})


def test_virtual_inputs_are_read_from_authorized_containers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = make_virtual(tmp_path, checksum=True)

    assert main(["derive", str(recipe), "--executor", "threads"]) == 2
    assert "--authorize" in capsys.readouterr().err
    assert main(["derive", str(recipe), "--executor", "threads", "--authorize", "all"]) == 0

    repo = icefloe.Repository.open(icefloe.local_filesystem_storage(str(tmp_path / "repo")))
    found: Any = zarr.open_array(repo.readonly_session("main").store, path="b", mode="r")
    assert found[...].tolist() == [0, 2, 4, 6]


def test_virtual_inputs_without_checksums_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = make_virtual(tmp_path, checksum=False)

    assert main(["derive", str(recipe), "--executor", "threads", "--authorize", "all"]) != 0
    assert "trust_unchecked: true" in capsys.readouterr().err
    recipe.write_text(recipe.read_text() + "trust_unchecked: true\n")
    assert main(["derive", str(recipe), "--executor", "threads", "--authorize", "all"]) == 0
