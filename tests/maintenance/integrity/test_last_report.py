"""The report of the last verification: stored, read back, bounded, without secrets."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import FormatError, ReadOnlyError, Repository, VerifyReport
from icefloe.cli.main import main
from icefloe.maintenance.integrity.findings import Finding, Level
from icefloe.maintenance.integrity.last_report import PATH, record_report


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repo"))
    repo = Repository.create(storage, config, spec_version=request.param)
    with repo.transaction("main", message="data") as store:
        zarr.create_array(store, name="a", data=np.arange(1, 9), chunks=(2,))
    return tmp_path / "repo"


def test_verify_stores_its_report(folder: Path) -> None:
    repo = icefloe.open(str(folder))
    assert icefloe.last_verification(repo.storage) is None

    assert main(["verify", str(folder), "--level", "objects"]) == 0

    found = icefloe.last_verification(repo.storage)
    assert found is not None
    assert found.ok
    assert found.report == repo.verify("objects")
    assert found.snapshot_id is None
    assert timedelta(0) <= datetime.now(UTC) - found.verified_at < timedelta(minutes=5)


def test_findings_are_read_back(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    next(iter((folder / "chunks").iterdir())).unlink()
    tip = icefloe.open(str(folder)).lookup_branch("main")

    assert main(["verify", str(folder), "--level", "objects", "-r", "main", "--json"]) == 5

    shown = json.loads(capsys.readouterr().out)
    found = icefloe.last_verification(icefloe.open(str(folder)).storage)
    assert found is not None
    assert not found.ok
    assert (found.snapshot_id, found.findings_total) == (tip, 1)
    assert found.report.to_dict()["findings"] == shown["findings"]


@pytest.mark.parametrize("option", ["--no-record", "--dry-run"])
def test_report_is_not_stored_on_request(folder: Path, option: str) -> None:
    main(["verify", str(folder), option])

    assert icefloe.last_verification(icefloe.open(str(folder)).storage) is None
    assert not (folder / "icefloe").exists()


def test_verify_works_without_write_permission(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise ReadOnlyError("this storage is read-only")

    monkeypatch.setattr("icefloe.cli.commands.integrity.record_report", refuse)

    assert main(["verify", str(folder)]) == 0

    assert "the report was not stored: this storage is read-only" in capsys.readouterr().err


def test_stored_report_is_bounded_and_has_no_secrets(folder: Path) -> None:
    secret = "hunter2TOPSECRET"
    finding = Finding(
        "missing", f"s3://KEY:{secret}@bucket/x", "main", f"https://u:{secret}@h/ " + "x" * 10_000
    )
    report = VerifyReport(Level.SOURCES, (finding,) * 5000, snapshots=3)
    repo = icefloe.open(str(folder))

    recorded = record_report(repo.storage, report)

    assert icefloe.last_verification(repo.storage) == recorded
    assert (recorded.findings_total, len(recorded.report.findings)) == (5000, 1000)
    data = (folder / PATH).read_bytes()
    assert secret.encode() not in data
    assert len(data) < 3 << 20


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"format": 2}', b"[" * 100_000, b"\xff"])
def test_damaged_report_raises_an_error(folder: Path, data: bytes) -> None:
    path = folder / PATH
    path.parent.mkdir(parents=True)
    path.write_bytes(data)

    with pytest.raises(FormatError, match="verify again to replace it"):
        icefloe.last_verification(icefloe.open(str(folder)).storage)
    assert main(["verify", str(folder)]) == 0
    assert icefloe.last_verification(icefloe.open(str(folder)).storage) is not None


def test_report_survives_collection_and_is_not_cloned(folder: Path, tmp_path: Path) -> None:
    repo = icefloe.open(str(folder))
    main(["verify", str(folder)])
    before = icefloe.last_verification(repo.storage)

    repo.garbage_collect(datetime.now(UTC) + timedelta(days=1))
    repo.clone_to(icefloe.local_filesystem_storage(str(tmp_path / "copy")))

    assert icefloe.last_verification(repo.storage) == before
    assert icefloe.last_verification(icefloe.open(str(tmp_path / "copy")).storage) is None
    assert repo.verify("chunks").ok
