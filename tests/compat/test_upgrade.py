"""Both libraries upgrade copies of a repository to version 2 with the same result."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import icefloe
from icefloe.format.files import read_repo_info
from tests.support.compat.histories import random_history, storage

icechunk = pytest.importorskip("icechunk")
pytestmark = [
    pytest.mark.compat,
    pytest.mark.skipif(
        not hasattr(icechunk, "upgrade_icechunk_repository"),
        reason="this release of the official library has no version 2 of the format",
    ),
]


def upgraded(library: Any, folder: Path) -> Any:
    """Return the repo info file and the other files after an upgrade."""
    library.upgrade_icechunk_repository(library.Repository.open(storage(library, folder)), dry_run=False)
    info = read_repo_info((folder / "repo").read_bytes())
    return {
        "snapshots": list(info.snapshots),
        "branches": dict(info.branches),
        "tags": dict(info.tags),
        "deleted tags": info.deleted_tags,
        "status": info.status.availability,
        "config": icefloe.Repository.fetch_config(storage(icefloe, folder)),
        "log": {repr(update.update_type) for update in info.latest_updates},
        "files": {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()},
    }


@pytest.mark.parametrize("seed", range(4))
def test_both_libraries_upgrade_to_the_same_result(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    random_history(icechunk if seed % 2 else icefloe, ours, 1, chance)
    repo = icefloe.Repository.open(storage(icefloe, ours))
    repo.save_config()
    for tag in sorted(repo.list_tags())[:1]:
        repo.delete_tag(tag)
    shutil.copytree(ours, theirs)

    assert upgraded(icefloe, ours) == upgraded(icechunk, theirs)

    reread = icechunk.Repository.open(storage(icechunk, ours))
    assert [info.id for info in reread.ancestry(branch="main")] == [
        info.id for info in icefloe.Repository.open(storage(icefloe, theirs)).ancestry(branch="main")
    ]
