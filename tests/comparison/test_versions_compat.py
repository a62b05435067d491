"""Comparisons of histories that the official package wrote."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

import icefloe
from tests.support.edits import CreateArray, CreateGroup, Write, make
from tests.support.random_history import RandomHistory, keys

official: Any = pytest.importorskip("icechunk")

pytestmark = pytest.mark.compat


def stored(repo: Any, snapshot_id: str) -> dict[str, bytes]:
    """Return all keys of a snapshot with their bytes, read by the official package."""
    store = repo.readonly_session(snapshot_id=snapshot_id).store
    prototype = default_buffer_prototype()
    return {key: sync(store.get(key, prototype)).to_bytes() for key in keys(store)}


@pytest.mark.parametrize("spec_version", [1, 2])
@pytest.mark.parametrize("seed", range(2))
def test_chunks_with_different_bytes_differ(tmp_path: Path, spec_version: int, seed: int) -> None:
    is_old = official.__version__.startswith("1.")
    if is_old and spec_version == 2:
        pytest.skip("release 1 writes version 1 only")
    storage = official.local_filesystem_storage(str(tmp_path))
    options = {} if is_old else {"spec_version": spec_version}
    theirs = official.Repository.create(storage, **options)
    history = RandomHistory(theirs, seed)
    for _ in range(8):
        history.step()
    ours = icefloe.open(str(tmp_path))

    for one, other in permutations(history.random.sample(history.commits, 4), 2):
        found = icefloe.compare(*(ours.readonly_session(snapshot_id=id) for id in (one, other)))

        before, after = stored(theirs, one), stored(theirs, other)
        chunks = {key for key in before.keys() | after.keys() if not key.endswith("zarr.json")}
        for key in chunks:
            path, _, at = f"/{key}".rpartition("/c/")
            each = found.chunks.get(path)
            added, removed, changed = (
                [] if each is None else getattr(each, name).tolist()
                for name in ("added", "removed", "changed")
            )
            assert ([int(at)] in added) == (key not in before)
            assert ([int(at)] in removed) == (key not in after)
            # written again with equal bytes is another reference
            if before.get(key) != after.get(key):
                assert [int(at)] in [*added, *removed, *changed]


@pytest.mark.parametrize("spec_version", [1, 2])
def test_blame_works_on_official_histories(tmp_path: Path, spec_version: int) -> None:
    is_old = official.__version__.startswith("1.")
    if is_old and spec_version == 2:
        pytest.skip("release 1 writes version 1 only")
    options = {} if is_old else {"spec_version": spec_version}
    theirs = official.Repository.create(official.local_filesystem_storage(str(tmp_path)), **options)
    session = theirs.writable_session("main")
    make(session, [CreateGroup("/"), CreateArray("/a", (5,))])
    session.commit("arrays")
    writers: dict[int, str] = {}
    for number, chunks in enumerate(((0, 1, 2), (1,), (2, 3), (4,))):
        session = theirs.writable_session("main")
        make(session, [Write("/a", (at,), b"%d %d" % (number, at)) for at in chunks])
        writers |= dict.fromkeys(chunks, session.commit("write"))
    shifted = 0
    if hasattr(session, "shift_array"):
        session = theirs.writable_session("main")
        session.shift_array("/a", (-1,))
        session.commit("shift")
        shifted = 1

    found = icefloe.blame(icefloe.open(str(tmp_path)), "a").table()

    assert {row["chunk_0"] + shifted: row["snapshot_id"] for row in found.rows()} == {
        at: id for at, id in writers.items() if at >= shifted
    }
    theirs.expire_snapshots(theirs.lookup_snapshot(writers[3]).written_at)
    rows = icefloe.blame(icefloe.open(str(tmp_path)), "a").table().rows()
    known = {id: id for id in (writers[3], writers[4])}
    assert {row["chunk_0"] + shifted: row["snapshot_id"] for row in rows} == {
        at: known.get(id, "older") for at, id in writers.items() if at >= shifted
    }
