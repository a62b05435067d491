"""Maintenance commands on the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.cli import errors as faults
from icefloe.cli.progress import Meter
from tests.support.terminal import Terminal


def test_gc_table_lists_objects_with_reasons(typed: Terminal) -> None:
    typed("expire", "--keep-last", "1", "--tags")

    rows = typed.json("gc", "--older-than", "0s", "--dry-run", "--table")

    assert {row["kind"] for row in rows} >= {"snapshot", "manifest"}
    assert all(row["reason"] and row["bytes"] > 0 for row in rows)
    assert "reason" in typed("gc", "--older-than", "0s", "--dry-run", "--table").splitlines()[0]
    typed("gc", "--older-than", "0s", "--table", code=faults.USAGE)


def test_deletions_and_rewritten_manifests_are_counted(
    monkeypatch: pytest.MonkeyPatch, typed: Terminal
) -> None:
    told: list[tuple[str, int, int]] = []
    monkeypatch.setattr(Meter, "__call__", lambda _, *what: told.append(what))

    typed("rewrite-manifests")
    typed("expire", "--keep-last", "1", "--tags")
    typed("gc", "--older-than", "0s", "--yes")

    assert told[0][0] == "manifests"
    assert told[-1] == ("delete requests", 1, 1)


def test_gc_shortens_the_operations_log(typed: Terminal) -> None:
    arguments = ("gc", "--older-than", "7d", "--ops-log-older-than", "0s")
    before = len(typed.json("ops"))

    planned = typed(*arguments, "--dry-run")
    done = typed.json(*arguments)

    assert f"would delete {before - 1} backups of the operations log" in planned
    assert f"{before} operations would be left" in planned
    # The collection is an operation, too.
    assert done["ops_log"]["backups_deleted"] == before
    assert done["ops_log"]["entries_left"] == len(typed.json("ops")) == before + 1


def test_gc_command_requires_yes_to_delete_recent_objects(typed: Terminal) -> None:
    typed("gc", "--older-than", "1h", code=faults.USAGE)

    assert "--yes" in typed.errors
    typed("gc", "--older-than", "2999-01-01", code=faults.USAGE)
    assert "is in the future" in typed.errors
    typed("gc", "--older-than", "1h", "--yes")


def test_expire_dry_run_shows_kept_snapshots(typed: Terminal) -> None:
    shown = typed.json("expire", "--keep-last", "1", "--dry-run")

    assert [row["kept"] for row in shown["snapshots"]] == [True, True, True]  # the tag keeps one
    assert shown["freed"]["snapshots"] == 0
    again = typed.json("expire", "--keep-last", "1", "--tags", "--dry-run")
    assert again["freed"]["snapshots"] == 1
    assert "would expire" in typed("expire", "--older-than", "0s", "--dry-run")
    assert len(typed.json("log")) == 3


def test_expire_command_applies_retention_rules(typed: Terminal) -> None:
    gone = typed.json("expire", "--keep-daily", "1", "--keep-on", "main:last=1", "--tags")["expired"]

    assert len(gone) == 1
    assert len(typed.json("log")) == 2
    assert typed.json("refs")[0]["name"] == "main"


def test_expire_rejects_contradictory_options(typed: Terminal) -> None:
    for words in (
        (),
        ("--older-than", "1d", "--keep-last", "2"),
        ("--older-than", "2999-01-01"),
        ("--keep-on", "main"),
        ("--keep-on", "main:often=3"),
        ("--keep-last", "1", "--branches"),
    ):
        typed("expire", *words, code=faults.USAGE)

    assert len(typed.json("log")) == 3


def test_storage_lists_bytes_by_array_and_snapshot(typed: Terminal) -> None:
    (array,) = typed.json("storage", "--by", "array")
    rows = typed.json("storage", "--by", "snapshot")
    (one,) = typed.json("storage", "--by", "array", "-r", "v1")

    assert array["array"] == "/air/t2m"
    assert array["chunks"] == 6  # small chunks are inline, and stored again in each manifest
    assert one["chunks"] == 3
    assert [row["message"] for row in rows] == ["correct t2m", "add t2m", "Repository initialized"]
    assert typed.json("storage", "--if-older-than", "0s")["snapshots"] == 0


def test_rewrite_with_pack_also_packs_manifests_of_later_commits(typed: Terminal) -> None:
    repo = icefloe.Repository.open(icefloe.local_filesystem_storage(typed.repo))
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="b", data=np.arange(3), chunks=(1,))
    session.commit("another array")

    assert typed.json("rewrite-manifests", "--pack")["manifests"] == 1
    manifest = icefloe.Repository.open(repo.storage).config.manifest
    assert manifest is not None
    assert manifest.pack_small_arrays
    assert typed.json("rewrite-manifests", "--no-pack")["manifests"] == 2


def test_dry_run_of_rewrite_manifests_writes_nothing(typed: Terminal) -> None:
    assert typed.json("rewrite-manifests", "--dry-run")["manifests"] == 1
    assert len(typed.json("log")) == 3


def test_verify_checks_one_version_with_checksums(typed: Terminal) -> None:
    assert "recorded" in typed("checksums record")
    assert typed.json("checksums record")["recorded"] == 0
    assert typed.json("verify", "-r", "main", "--no-history", "--checksums")["checksums"] > 0
    assert typed.json("verify", "--incremental")["skipped"] == 0
    assert typed.json("verify", "--incremental")["skipped"] == 3
    typed("verify", "--no-history", code=faults.USAGE)
    typed("verify", "-r", "nope", code=faults.NOT_FOUND)


def test_repair_restores_chunks_from_a_clone(typed: Terminal, tmp_path: Path) -> None:
    typed("clone", str(tmp_path / "copy"))
    repo = icefloe.open(typed.repo)
    (manifest,) = repo.list_manifest_files(repo.lookup_branch("main"))
    repo.storage.delete([f"manifests/{manifest.id}"])
    typed("verify", code=faults.FINDINGS)

    typed("repair", "--dry-run", code=faults.FINDINGS)
    told = typed.json("repair", "--from", str(tmp_path / "copy"))

    assert [row["action"] for row in told["actions"]] == ["restored"]
    typed("verify", "-r", "main", "--no-history", "--level", "chunks")
    assert "nothing to repair" in typed("repair")


@pytest.mark.needs("xarray")
def test_repair_without_a_ledger_restores_nothing(typed: Terminal) -> None:
    repo = icefloe.open(typed.repo)
    (manifest,) = repo.list_manifest_files(repo.lookup_branch("main"))
    repo.storage.delete([f"manifests/{manifest.id}"])

    told = typed.json("repair", "--from-ledger", "--virtual", code=faults.FINDINGS)

    assert told["complete"] is False
    assert {row["action"] for row in told["actions"]} == {"left unchanged"}
    typed("repair", "--relocate", "nowhere", code=faults.USAGE)
    assert "OLD=NEW" in typed.errors


def test_dry_runs_of_read_only_commands_count_snapshots(typed: Terminal) -> None:
    assert typed.json("verify", "--dry-run") == {
        "dry_run": True,
        "level": "graph",
        "snapshots": 3,
        "skipped": 0,
    }
    typed("verify", "--incremental")
    assert "would check 0 snapshots, skip 3" in typed("verify", "--incremental", "--dry-run")
    assert typed.json("storage", "--dry-run") == {"dry_run": True, "snapshots": 3}
    assert typed.json("verify", "--level", "objects")["level"] == "objects"
