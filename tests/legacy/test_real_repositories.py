"""Repositories that old releases wrote and that cannot be distributed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from icefloe.format.manifest import INLINE, NATIVE, ETag, InlineRef, LastModified, NativeRef
from icefloe.repository import Repository
from icefloe.storage import local_filesystem_storage

FOLDER = os.environ.get("ICEFLOE_OLDER_FIXTURES", "")
PLACES = sorted(Path(FOLDER).glob("official-fixture-*")) if FOLDER else []


def test_repositories_of_2024_are_available() -> None:
    if not FOLDER:
        pytest.skip("NOT RUN: set ICEFLOE_OLDER_FIXTURES to a folder of repositories of 2024 and 2025")

    assert PLACES


@pytest.mark.parametrize("place", PLACES, ids=[place.name for place in PLACES])
def test_expected_content_is_read(place: Path) -> None:
    expected = json.loads((place / "expected.json").read_text(encoding="utf-8"))

    repo = Repository.open(local_filesystem_storage(str(place / "repo")))

    assert {name: repo.lookup_branch(name) for name in repo.list_branches()} == expected["branches"]
    assert {name: repo.lookup_tag(name) for name in repo.list_tags()} == expected["tags"]
    for id, snapshot in expected["snapshots"].items():
        info = repo.lookup_snapshot(id)
        assert (info.message, info.metadata) == (snapshot["message"], snapshot["metadata"])
        session = repo.readonly_session(snapshot_id=id)
        assert set(session._workspace.paths()) == snapshot["nodes"].keys()
        for path, node in snapshot["nodes"].items():
            found = session._workspace.node(path)
            assert found is not None
            assert json.loads(found.user_data) == node["zarr_json"]
            if "chunks" in node:
                refs = session._workspace.refs(found)
                assert [told(refs, row) for row in range(len(refs))] == [
                    {key: value for key, value in chunk.items() if key != "data" and value is not None}
                    for chunk in node["chunks"]
                ]
        if info.parent_id is not None and snapshot["has_transaction_log"]:
            repo.diff(from_snapshot_id=info.parent_id, to_snapshot_id=id)


def told(refs: Any, row: int) -> dict[str, Any]:
    """Return a reference in the form of expected.json."""
    index, ref = refs.coords[row].tolist(), refs.ref(row)
    if refs.kind[row] == INLINE:
        assert isinstance(ref, InlineRef)
        return {"index": index, "kind": "inline"}
    span = {"offset": ref.offset, "length": ref.length}
    if refs.kind[row] == NATIVE:
        assert isinstance(ref, NativeRef)
        return {"index": index, "kind": "native", "chunk_id": str(ref.chunk_id), **span}
    checks = {ETag: "ETag", LastModified: "LastModified"}
    check = ref.checksum
    value = check.value if isinstance(check, ETag) else check and check.seconds
    checksum = {"checksum": {checks[type(check)]: value}} if check else {}
    return {"index": index, "kind": "virtual", "location": ref.location, **span, **checksum}
