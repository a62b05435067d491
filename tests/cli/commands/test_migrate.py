"""The command `icefloe migrate`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import icefloe
from icefloe.cli import errors as faults
from icefloe.cli import main as app
from icefloe.cli import progress as meter
from tests.support.format import golden


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return golden.unpack("handmade-002-alpha8", tmp_path) / "repo"


def test_dry_run_reports_what_would_be_migrated(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["migrate", str(old), "--dry-run", "--json"]) == 0

    report = json.loads(capsys.readouterr().out)
    assert (report["snapshots"], report["references"], report["gaps"]) == (4, 73, [])
    assert not (old / "repo").exists()


def test_migration_to_another_location_reports_progress(
    old: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    new = old.parent / "new"
    monkeypatch.setattr(meter, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(meter, "_LINE_S", 0.0)

    assert app.main(["migrate", str(old), "--to", str(new)]) == 0

    printed = capsys.readouterr()
    assert "wrote 4 snapshots, 2 branches, 1 tag, " in printed.out
    assert "copied: 3 of 3 chunk objects" in printed.out
    assert "snapshots compared: 4 of 4" in printed.err
    assert app.main(["log", str(new)]) == 0
    assert "data ❄" in capsys.readouterr().out


def test_repository_is_migrated_in_place(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["migrate", str(old), "--delete-old-files"]) == 0

    assert sorted(path.name for path in old.iterdir()) == [
        "chunks",
        "manifests",
        "repo",
        "snapshots",
        "transactions",
    ]
    capsys.readouterr()
    assert app.main(["migrate", str(old)]) == faults.FAILED
    assert "there is nothing to upgrade" in capsys.readouterr().err


def test_missing_objects_are_reported(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (old / "chunks" / "65C2772WK3CDTTQBF43G").unlink()

    assert app.main(["migrate", str(old)]) == faults.FAILED

    assert "chunks/65C2772WK3CDTTQBF43G is missing" in capsys.readouterr().err
    assert app.main(["migrate", str(old), "--keep-gaps"]) == 0
    assert "missing: chunks/65C2772WK3CDTTQBF43G" in capsys.readouterr().out


def test_version_1_is_upgraded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "v1"
    icefloe.Repository.create(icefloe.local_filesystem_storage(str(place)), spec_version=1)

    assert app.main(["migrate", str(place), "--to", str(tmp_path / "x")]) == faults.USAGE
    assert app.main(["migrate", str(place), "--dry-run"]) == 0
    assert not (place / "repo").exists()
    assert app.main(["migrate", str(place)]) == 0

    printed = capsys.readouterr().out
    assert "can be upgraded from version 1 to version 2: 1 snapshot, 1 branch, 0 tags" in printed
    assert "upgraded from version 1 to version 2: 1 snapshot" in printed
    assert (place / "repo").exists()
    assert (place / "refs").exists()
    # As after an upgrade that was stopped before it had deleted the old files.
    assert app.main(["migrate", str(place), "--delete-old-files"]) == 0
    assert "deleted the files of version 1" in capsys.readouterr().out
    assert not [path for path in (place / "refs").rglob("*") if path.is_file()]
    assert app.main(["migrate", str(place), "--delete-old-files"]) == faults.FAILED


def test_commands_read_repositories_of_old_formats(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["info"], ["log"], ["tree"], ["refs"]):
        assert app.main([*command, str(old)]) == 0
    assert "grp" in capsys.readouterr().out
    assert app.main(["gc", str(old), "--older-than", "7d"]) == faults.FAILED
    assert "`icefloe migrate` turns it" in capsys.readouterr().err


def test_migration_of_an_empty_location_fails(tmp_path: Path) -> None:
    assert app.main(["migrate", str(tmp_path)]) == faults.NOT_FOUND
