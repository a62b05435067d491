"""The folder storage beside that of the official package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from icefloe.storage import ABSENT, Unchanged, local_filesystem_storage

pytestmark = pytest.mark.compat

official: Any = pytest.importorskip("icechunk")

NAMES = ["plain", "with space", "tilde~", "hash#", "分支", "a%41", "[x]", "dots..", "é"]


def test_refs_of_the_official_library_are_found(tmp_path: Path) -> None:
    create: dict[str, Any] = {"spec_version": 1} if official.__version__ >= "2" else {}
    repository = official.Repository.create(official.local_filesystem_storage(str(tmp_path)), **create)
    snapshot = repository.lookup_branch("main")
    for name in NAMES:
        repository.create_branch(name, snapshot)

    storage = local_filesystem_storage(str(tmp_path))

    listed = {info.key for info in storage.list_prefix("refs")}
    assert listed == {f"refs/branch.{name}/ref.json" for name in [*NAMES, "main"]}
    for key in listed:
        data, version = storage.get(key)
        assert snapshot.encode() in data
        storage.put(key, data, Unchanged(version))
    assert repository.lookup_branch("with space") == snapshot


@pytest.mark.skipif(not hasattr(official.Storage, "list_objects"), reason="this release cannot list")
def test_official_library_does_not_list_temporary_files(tmp_path: Path) -> None:
    storage = local_filesystem_storage(str(tmp_path))
    storage.put("chunks/a", b"x")
    storage.put("repo", b"x", ABSENT)
    (tmp_path / "chunks" / "b#17").write_bytes(b"left by a killed writer")

    listed = official.local_filesystem_storage(str(tmp_path)).list_objects()

    assert sorted(listed) == [("chunks/a", 1), ("repo", 1)]
