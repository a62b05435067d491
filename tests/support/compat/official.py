"""Open repositories with the official package, and read everything that it reports."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

icechunk: Any = pytest.importorskip("icechunk")

KNOWS_V2 = int(icechunk.__version__.split(".")[0]) >= 2
needs_v2 = pytest.mark.skipif(not KNOWS_V2, reason="this icechunk knows version 1 of the format only")

_ALL_GRIDS = {"array.rectilinear_chunks": True}

icechunk.set_logs_filter("error")


def create(folder: Path, spec: int, config: Any) -> Any:
    """Return a new repository of the official package."""
    options = {"spec_version": spec} if KNOWS_V2 else {}
    storage = icechunk.local_filesystem_storage(str(folder))
    return icechunk.Repository.create(storage, config=config, **options)


def open_repository(folder: Path, prefixes: tuple[str, ...] = ()) -> Any:
    """Return a repository, with its stored configuration, and permission to read local virtual chunks."""
    return icechunk.Repository.open(
        icechunk.local_filesystem_storage(str(folder)),
        config=_config(prefixes) if prefixes else None,
        authorize_virtual_chunk_access=_authorized(prefixes),
    )


def _config(prefixes: tuple[str, ...]) -> Any:
    """Return a configuration with a container per local URL prefix."""
    made = icechunk.RepositoryConfig()
    for prefix in prefixes:
        store = icechunk.local_filesystem_store(prefix.removeprefix("file://").rstrip("/"))
        made.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, store))
    return made


def _authorized(prefixes: tuple[str, ...]) -> Any:
    """Return credentials for the prefixes, which newer releases require."""
    if not prefixes:
        return None
    access = icechunk.credentials.LocalFileSystemAccess if KNOWS_V2 else None
    return icechunk.containers_credentials(dict.fromkeys(prefixes, access))


def inspect(found: Any) -> dict[str, Any]:
    """Parse the result of an `inspect_` method, which is text in older releases."""
    known: dict[str, Any] = json.loads(found) if isinstance(found, str) else found
    return known


def tree(repository: Any, snapshot: str) -> dict[str, Any]:
    """Return every node of a snapshot: attributes, and the contents of arrays or the error they raise."""
    store = repository.readonly_session(snapshot_id=snapshot).store
    try:
        root = zarr.open_group(store, mode="r", use_consolidated=False)
    except FileNotFoundError:
        return {}
    found: dict[str, Any] = {"/": dict(root.attrs)}
    with warnings.catch_warnings(), zarr.config.set(_ALL_GRIDS):
        # Nodes that releases before 1.1.3 sorted to where their readers do not look, and old data types.
        warnings.simplefilter("ignore", UserWarning)
        members = list(root.members(max_depth=None))
    for path, node in members:
        found[f"/{path}"] = _array(node) if isinstance(node, zarr.Array) else dict(node.attrs)
    return found


def _array(array: Any) -> dict[str, Any]:
    facts = {"attributes": dict(array.attrs), "shape": array.shape, "dtype": str(array.dtype)}
    facts |= {"names": array.metadata.dimension_names, "data": read(array)}
    return facts


def read(array: Any) -> str:
    """Return a digest of an array's contents, or the error that reading it raises."""
    try:
        values = np.ascontiguousarray(array[...])
    except icechunk.IcechunkError as error:
        return type(error).__name__
    return digest(values)


def digest(values: Any) -> str:
    """Return one short text for the contents of an array."""
    text = values.tolist() if values.dtype.hasobject else np.ascontiguousarray(values).tobytes()
    return hashlib.sha256(repr(text).encode()).hexdigest()


def history(repository: Any) -> dict[str, Any]:
    """Branches, tags, and the ancestry of each with all that is known of a snapshot."""
    branches = {name: repository.lookup_branch(name) for name in repository.list_branches()}
    tags = {name: repository.lookup_tag(name) for name in repository.list_tags()}
    tips = sorted({*branches.values(), *tags.values()})
    return {"branches": branches, "tags": tags, "ancestry": {tip: ancestry(repository, tip) for tip in tips}}


def ancestry(repository: Any, snapshot: str) -> list[tuple[Any, ...]]:
    """Return id, parent, message, metadata and time of a snapshot and all its ancestors."""
    return [
        (info.id, info.parent_id, info.message, dict(info.metadata), info.written_at)
        for info in repository.ancestry(snapshot_id=snapshot)
    ]


def diffs(repository: Any, snapshot: str) -> Iterator[tuple[str, Any]]:
    """Return the changes of a snapshot and of all its ancestors."""
    for info in repository.ancestry(snapshot_id=snapshot):
        if info.parent_id is not None:
            yield info.id, diff(repository, info.parent_id, info.id)


def diff(repository: Any, parent: str, child: str) -> dict[str, Any]:
    """Return the changes between two snapshots."""
    found = repository.diff(from_snapshot_id=parent, to_snapshot_id=child)
    names = [
        "new_groups",
        "new_arrays",
        "deleted_groups",
        "deleted_arrays",
        "updated_groups",
        "updated_arrays",
    ]
    changes: dict[str, Any] = {name: sorted(getattr(found, name)) for name in names}
    chunks = found.updated_chunks
    changes["updated_chunks"] = {path: sorted(map(tuple, coords)) for path, coords in chunks.items()}
    if KNOWS_V2:
        changes["moved_nodes"] = sorted(map(str, found.moved_nodes))
    return changes


def everything(repository: Any) -> dict[str, Any]:
    """Return everything that the official package reports about a repository, for comparisons."""
    seen = history(repository)
    snapshots = sorted({info[0] for line in seen["ancestry"].values() for info in line})
    seen["trees"] = {tip: tree(repository, tip) for tip in seen["branches"].values()}
    seen["diffs"] = {tip: list(diffs(repository, tip)) for tip in seen["ancestry"]}
    seen["snapshots"] = {id: _without_sizes(inspect(repository.inspect_snapshot(id))) for id in snapshots}
    seen["locations"] = {
        id: sorted(repository.readonly_session(snapshot_id=id).all_virtual_chunk_locations())
        for id in snapshots
    }
    seen["config"] = sorted(repr(repository.config).splitlines())  # containers come in any order
    if has_repo_info(repository):
        seen["ops_log"] = [(str(u.kind), u.updated_at, u.backup_path) for u in repository.ops_log()]
        seen["status"], seen["metadata"] = str(repository.get_status()), repository.get_metadata()
        seen["flags"] = [str(flag) for flag in repository.feature_flags()]
        logged = [info["id"] for info in repository.inspect_repo_info()["snapshots"]]
        seen["logs"] = {id: _transaction_log(repository, id) for id in logged}
    return seen


def _transaction_log(repository: Any, id: str) -> Any:
    try:
        log = _headless(repository.inspect_transaction_log(id))
    except icechunk.IcechunkError as error:  # the first snapshot of a migrated repository has none
        return type(error).__name__
    for array in log["updated_chunks"]:
        array["chunks"].sort()  # not sorted by releases 0.2.18 to 1.1.21
    return log


def has_repo_info(repository: Any) -> bool:
    """Return whether the repository has version 2."""
    return KNOWS_V2 and int(repository.spec_version) >= 2


def _headless(found: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key != "header"}


def _without_sizes(snapshot: dict[str, Any]) -> dict[str, Any]:
    """Return a snapshot without properties of the encoder: header, file sizes and order of nodes."""
    manifests = [
        {key: value for key, value in manifest.items() if key != "size_bytes"}
        for manifest in snapshot["manifests"]
    ]
    nodes = sorted(snapshot["nodes"], key=lambda node: str(node["path"]))
    return _headless(snapshot) | {"manifests": manifests, "nodes": nodes}


def utc(moment: datetime) -> datetime:
    """Return a time without zone as one in UTC, as the official package gives them."""
    return moment.replace(tzinfo=UTC)


def open_array(session: Any, path: str) -> Any:
    """Return an array of a session."""
    return zarr.open_array(session.store, path=path, mode="r")
