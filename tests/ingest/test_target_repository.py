"""The repository that an ingest makes, and takes away again where nothing came of it."""

from __future__ import annotations

from pathlib import Path

from icefloe import local_filesystem_storage
from icefloe.ingest.target_repository import repository_at


def test_a_repository_that_stays_empty_goes_without_the_files_of_users(tmp_path: Path) -> None:
    with repository_at(local_filesystem_storage(str(tmp_path)), dry_run=False):
        (tmp_path / "report.txt").write_text("of a user")
        (tmp_path / "snapshots/notes").write_text("of a user")

    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == {
        "report.txt",
        "snapshots/notes",
    }
