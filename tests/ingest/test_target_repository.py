"""The repository that an ingest creates, and removes if it stays empty."""

from __future__ import annotations

from pathlib import Path

from icefloe import local_filesystem_storage
from icefloe.ingest.target_repository import open_or_create


def test_failed_ingest_removes_its_new_repository_and_keeps_user_files(tmp_path: Path) -> None:
    with open_or_create(local_filesystem_storage(str(tmp_path)), dry_run=False):
        (tmp_path / "report.txt").write_text("of a user")
        (tmp_path / "snapshots/notes").write_text("of a user")

    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == {
        "report.txt",
        "snapshots/notes",
    }
