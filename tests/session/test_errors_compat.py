"""Wrong calls fail with the same class and kind of error as in the official package."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe

official: Any = pytest.importorskip("icechunk")

pytestmark = pytest.mark.compat

NOWHERE = "00000000000000000000"


class Place:
    """A repository with a short history, created by one of the two packages."""

    def __init__(self, package: Any, version: int) -> None:
        self.package = package
        self.repo = package.Repository.create(package.in_memory_storage(), spec_version=version)
        session = self.repo.writable_session("main")
        group = zarr.open_group(session.store, mode="a")
        group.create_array("a", data=np.arange(12).reshape(4, 3), chunks=(1, 3))
        group.create_group("g")
        self.first = session.commit("first")
        self.repo.create_tag("t", self.first)
        self.repo.create_tag("gone", self.first)
        self.repo.delete_tag("gone")

    @property
    def reading(self) -> Any:
        return self.repo.readonly_session("main")

    @property
    def writing(self) -> Any:
        return self.repo.writable_session("main")

    @property
    def moving(self) -> Any:
        return self.repo.rearrange_session("main")

    async def coordinates(self, path: str) -> list[Any]:
        return [each async for each in self.reading.chunk_coordinates(path)]


def _status(place: Place) -> Any:
    return place.package.RepoStatus(place.package.RepoAvailability.read_only)


BOTH: dict[str, Callable[[Place], Any]] = {
    "ancestry of nothing": lambda p: p.repo.ancestry(),
    "ancestry of two": lambda p: p.repo.ancestry(branch="main", tag="t"),
    "ancestry of no branch": lambda p: p.repo.ancestry(branch="nope"),
    "ancestry of no tag": lambda p: p.repo.ancestry(tag="nope"),
    "ancestry of no id": lambda p: p.repo.ancestry(snapshot_id="nope"),
    "graph of two": lambda p: p.repo.ancestry_graph(branch="main", tag="t"),
    "graph of no branch": lambda p: p.repo.ancestry_graph(branch="nope"),
    "diff to nothing": lambda p: p.repo.diff(from_branch="main"),
    "diff from nothing": lambda p: p.repo.diff(to_branch="main"),
    "diff to itself": lambda p: p.repo.diff(from_branch="main", to_branch="main"),
    "session on nothing": lambda p: p.repo.readonly_session(),
    "session on two": lambda p: p.repo.readonly_session("main", tag="t"),
    "time of a tag": lambda p: p.repo.readonly_session(tag="t", as_of=datetime.now(UTC)),
    "time without zone": lambda p: p.repo.readonly_session("main", as_of=datetime.now()),
    "time too early": lambda p: p.repo.readonly_session("main", as_of=datetime.now(UTC) - timedelta(9)),
    "session on no branch": lambda p: p.repo.writable_session("nope"),
    "lookup no branch": lambda p: p.repo.lookup_branch("nope"),
    "lookup no tag": lambda p: p.repo.lookup_tag("nope"),
    "lookup deleted tag": lambda p: p.repo.lookup_tag("gone"),
    "lookup no id": lambda p: p.repo.lookup_snapshot("nope"),
    "create main": lambda p: p.repo.create_branch("main", p.first),
    "create branch at no id": lambda p: p.repo.create_branch("b", "nope"),
    "delete main": lambda p: p.repo.delete_branch("main"),
    "delete no branch": lambda p: p.repo.delete_branch("nope"),
    "delete no tag": lambda p: p.repo.delete_tag("nope"),
    "delete deleted tag": lambda p: p.repo.delete_tag("gone"),
    "create tag twice": lambda p: p.repo.create_tag("t", p.first),
    "create deleted tag": lambda p: p.repo.create_tag("gone", p.first),
    "reset no branch": lambda p: p.repo.reset_branch("nope", p.first),
    "reset from elsewhere": lambda p: p.repo.reset_branch("main", p.first, from_snapshot_id=NOWHERE),
    "inspect no snapshot": lambda p: p.repo.inspect_snapshot(NOWHERE),
    "inspect no manifest": lambda p: p.repo.inspect_manifest(NOWHERE),
    "inspect no log": lambda p: p.repo.inspect_transaction_log(NOWHERE),
    "create with version 7": lambda p: p.package.Repository.create(
        p.package.in_memory_storage(), spec_version=7
    ),
    "create with a text for a version": lambda p: p.package.Repository.create(
        p.package.in_memory_storage(), spec_version="2"
    ),
    "create twice": lambda p: p.package.Repository.create(p.repo.storage),
    "create twice, unclean": lambda p: p.package.Repository.create(
        p.repo.storage, spec_version=int(p.repo.spec_version), check_clean_root=False
    ),
    "open nothing": lambda p: p.package.Repository.open(p.package.in_memory_storage()),
    "config of nothing": lambda p: p.package.Repository.fetch_config(p.package.in_memory_storage()),
    "default metadata no dict": lambda p: p.repo.set_default_commit_metadata(3),
    "default metadata no json": lambda p: p.repo.set_default_commit_metadata({"a": object()}),
    "commit metadata no json": lambda p: p.writing.commit("x", {"a": object()}, allow_empty=True),
    "read-only commit": lambda p: p.reading.commit("x"),
    "read-only amend": lambda p: p.reading.amend("x"),
    "read-only discard": lambda p: p.reading.discard_changes(),
    "read-only move": lambda p: p.reading.move("/a", "/b"),
    "read-only shift": lambda p: p.reading.shift_array("/a", (1, 0)),
    "read-only reindex": lambda p: p.reading.reindex_array("/a", lambda i: None),
    "commit nothing": lambda p: p.writing.commit("x"),
    "move in a writable session": lambda p: p.writing.move("/a", "/b"),
    "node id of nothing": lambda p: p.reading.get_node_id("/nope"),
    "node id of a relative path": lambda p: p.reading.get_node_id("a"),
    "chunk type in nothing": lambda p: p.reading.chunk_type("/nope", [0]),
    "chunk type in a group": lambda p: p.reading.chunk_type("/g", [0]),
    "chunk type of a relative path": lambda p: p.reading.chunk_type("a", [0, 0]),
    "coordinates of nothing": lambda p: asyncio.run(p.coordinates("/nope")),
    "coordinates of a group": lambda p: asyncio.run(p.coordinates("/g")),
    "shift a relative path": lambda p: p.writing.shift_array("a", (1, 0)),
    "shift nothing": lambda p: p.writing.shift_array("/nope", (1, 0)),
    "shift a group": lambda p: p.writing.shift_array("/g", (1, 0)),
    "shift by a fraction": lambda p: p.writing.shift_array("/a", (0.5, 0)),
    "reindex out of the grid": lambda p: p.writing.reindex_array("/a", lambda i: [4, 0]),
    "reindex by a number": lambda p: p.writing.reindex_array("/a", 3),
    "pickle a writable session": lambda p: p.writing.__getstate__(),
    "status without zone": lambda p: p.package.RepoStatus(p.package.RepoAvailability.online, datetime.now()),
}

V1: dict[str, Callable[[Place], Any]] = {
    "get status": lambda p: p.repo.get_status(),
    "set status": lambda p: p.repo.set_status(_status(p)),
    "metadata": lambda p: p.repo.metadata,
    "set metadata": lambda p: p.repo.set_metadata({}),
    "update metadata": lambda p: p.repo.update_metadata({}),
    "flags": lambda p: p.repo.feature_flags(),
    "set flag": lambda p: p.repo.set_feature_flag("create_tag", False),
    "ops log": lambda p: p.repo.ops_log(),
    "inspect repo info": lambda p: p.repo.inspect_repo_info(),
    "rearrange": lambda p: p.repo.rearrange_session("main"),
    "amend": lambda p: p.writing.amend("x", allow_empty=True),
    "slash in a branch": lambda p: p.repo.create_branch("a/b", p.first),
    "slash in a tag": lambda p: p.repo.create_tag("a/b", p.first),
}

V2: dict[str, Callable[[Place], Any]] = {
    "unknown flag": lambda p: p.repo.set_feature_flag("nope", True),
    "lookup nowhere": lambda p: p.repo.lookup_snapshot(NOWHERE),
    "branch at nowhere": lambda p: p.repo.create_branch("b", NOWHERE),
    "reset to nowhere": lambda p: p.repo.reset_branch("main", NOWHERE),
    "tag nowhere": lambda p: p.repo.create_tag("n", NOWHERE),
    "move the root": lambda p: p.moving.move("/", "/b"),
    "move a relative path": lambda p: p.moving.move("a", "/b"),
    "move out of the tree": lambda p: p.moving.move("/a", "/../b"),
    "move nothing": lambda p: p.moving.move("/nope", "/b"),
    "move below nothing": lambda p: p.moving.move("/a", "/nope/b"),
    "move below an array": lambda p: p.moving.move("/g", "/a/b"),
    "move onto itself": lambda p: p.moving.move("/a", "/a"),
    "move over another": lambda p: p.moving.move("/a", "/g"),
    "write in a rearrange session": lambda p: zarr.open_group(p.moving.store).create_group("k"),
    "shift in a rearrange session": lambda p: p.moving.shift_array("/a", (1, 0)),
    "write to a read-only repository": lambda p: (p.repo.set_status(_status(p)), p.writing),
    "branch in a read-only repository": lambda p: (
        p.repo.set_status(_status(p)),
        p.repo.create_branch("b", p.first),
    ),
    "flag off": lambda p: (p.repo.set_feature_flag("create_tag", False), p.repo.create_tag("n", p.first)),
    "amend the first": lambda p: (
        p.repo.create_branch("b", "1CECHNKREP0F1RSTCMT0"),
        p.repo.writable_session("b").amend("x", allow_empty=True),
    ),
}


def failure(place: Place, call: Callable[[Place], Any]) -> tuple[str, str | None]:
    """Return the class and kind of the error that a call raises."""
    try:
        call(place)
    except Exception as error:  # noqa: BLE001  # whatever it is, the other package must raise it too
        known = [cls.__name__ for cls in type(error).__mro__ if hasattr(official, cls.__name__)]
        return (known or [type(error).__name__])[0], getattr(error, "kind", None)
    return "nothing", None


def cases() -> list[Any]:
    table = [(1, BOTH), (2, BOTH), (1, V1), (2, V2)]
    return [
        pytest.param(version, call, id=f"v{version} {name}")
        for version, calls in table
        for name, call in calls.items()
    ]


@pytest.mark.parametrize(("version", "call"), cases())
def test_error_types_equal_the_official_ones(version: int, call: Callable[[Place], Any]) -> None:
    if official.__version__ != "2.3.0":
        pytest.skip("compares with release 2.3.0")

    assert failure(Place(icefloe, version), call) == failure(Place(official, version), call)
