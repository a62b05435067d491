"""A repository with one of everything that the formats before version 1 could hold."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import zarr
import zarr.codecs

from icefloe.config import RepositoryConfig, VirtualChunkContainer
from icefloe.config.stores import ObjectStoreConfig
from icefloe.credentials import AnyCredential
from icefloe.format.manifest import InlineRef
from icefloe.repository import Repository
from icefloe.session import Session
from icefloe.storage import in_memory_storage
from icefloe.storage.base import Storage

codecs: Any = zarr.codecs

DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
]
FILLS: dict[str, Any] = {
    "bool": True,
    "int64": -(2**63),
    "uint64": 2**64 - 1,
    "float16": 0.1,
    "float32": 0.1,
    "float64": -np.inf,
    "complex64": complex(np.nan, -np.inf),
    "complex128": complex(0.1, np.inf),
}
CODECS: dict[str, dict[str, Any]] = {
    "none": {"compressors": None},
    "gzip": {"compressors": codecs.GzipCodec(level=3)},
    "zstd": {"compressors": codecs.ZstdCodec(level=5, checksum=True)},
    "blosc": {"compressors": codecs.BloscCodec(cname="lz4", shuffle="bitshuffle", typesize=8)},
    "crc32c": {"compressors": [codecs.GzipCodec(), codecs.Crc32cCodec()]},
    "transpose": {"filters": codecs.TransposeCodec(order=(1, 0))},
    "big-endian": {"serializer": codecs.BytesCodec(endian="big")},
    "sharding": {"chunks": (2, 3), "shards": (4, 6)},
}


def config_for(folder: Path) -> RepositoryConfig:
    """Return one that allows virtual chunks in a folder."""
    prefix = f"{folder.as_uri()}/"
    container = VirtualChunkContainer(prefix, ObjectStoreConfig.LocalFileSystem(str(folder)))
    config = RepositoryConfig(inline_chunk_threshold_bytes=16)
    config.set_virtual_chunk_container(container)
    return config


def authorized(folder: Path) -> dict[str, AnyCredential | None]:
    """Return the authorization to read virtual chunks in a folder."""
    from icefloe.credentials import LocalFileSystemAccess

    return {f"{folder.as_uri()}/": LocalFileSystemAccess}


def make(folder: Path, *, small: bool = False) -> tuple[Repository, dict[str, str]]:
    """Return a repository of version 2 in memory, and tags to be written as deleted, with their snapshots.

    A small one has a few arrays of each sort.
    """
    storage: Storage = in_memory_storage()
    repo = Repository.create(storage, config_for(folder), authorized(folder))
    session = repo.writable_session("main")
    root = zarr.create_group(
        session.store, attributes={"title": "é🧊", "n": [1, None, {"x": 2.5}], "big": 2**60}
    )
    for dtype in ("int8", "int64", "uint8", "complex64") if small else DTYPES:
        array = root.create_array(
            f"types/{dtype}", shape=(5, 3), chunks=(2, 2), dtype=dtype, fill_value=FILLS.get(dtype, 7)
        )
        array[:3] = np.arange(9).reshape(3, 3).astype(dtype)
    root.create_array("scalar", shape=(), dtype="int32", fill_value=3)[...] = 9
    root.create_array("empty", shape=(0, 3), chunks=(1, 3), dtype="float64", dimension_names=["a", None])
    text = root.create_array("text/日本 语", shape=(4,), chunks=(2,), dtype=str, fill_value="ß")
    text[:2] = np.array(["a", "bb"], dtype=object)
    first = session.commit("types", {"by": {"name": "x", "n": [1, 2.5, None]}})
    session = repo.writable_session("main")
    values = np.arange(48, dtype="int64").reshape(6, 8)
    for name, options in list(CODECS.items())[:: 7 if small else 1]:
        group: Any = zarr.open_group(session.store)
        array = group.create_array(
            f"codecs/{name}",
            **{"shape": (6, 8), "chunks": (4, 3), "dtype": "int64", "fill_value": -1} | options,
        )
        array[:] = values
    session.commit("codecs ❄")
    repo.create_branch("dev", first)
    repo.create_tag("first", first)
    session = repo.writable_session("dev")
    zarr.open_array(session.store, path="types/int64")[0, 0] = 42
    del zarr.open_group(session.store)["types/int8"]
    dev = session.commit("on dev")
    file = folder / "external.bin"
    file.write_bytes(np.arange(100, dtype="int32").tobytes())
    session = repo.writable_session("main")
    virtual = zarr.open_group(session.store).create_array(
        "virtual", shape=(4,), chunks=(2,), dtype="int32", compressors=None, fill_value=0
    )
    session.store.set_virtual_ref("virtual/c/0", file.as_uri(), offset=40, length=8)
    virtual.attrs["kind"] = "virtual"
    session.commit("virtual")
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="types/uint8").resize((9, 3))
    zarr.open_group(session.store).attrs["more"] = True
    repo.create_tag("last", session.commit("only metadata"))
    return repo, {"gone": dev}


def described(repo: Repository) -> dict[str, Any]:
    """Return all that users see of a repository, apart from ids that may differ."""
    found: dict[str, Any] = {"branches": {}, "tags": {}}

    @cache  # branches share most of their snapshots
    def nodes(snapshot_id: str) -> dict[str, Any]:
        return seen(repo.readonly_session(snapshot_id=snapshot_id))

    for branch in repo.list_branches():
        found["branches"][branch] = [
            (info.message, info.written_at, info.metadata, nodes(info.id))
            for info in repo.ancestry(branch=branch)
        ]
    for tag in repo.list_tags():
        found["tags"][tag] = repo.lookup_snapshot(repo.lookup_tag(tag)).message
    return found


def seen(session: Session) -> dict[str, Any]:
    """Return the nodes of a snapshot: their metadata, and a hash of the chunks of arrays."""
    workspace, found = session._workspace, {}
    for path in workspace.paths():
        node = workspace.node(path)
        assert node is not None
        document = json.loads(node.user_data)
        if not document.get("storage_transformers"):
            document.pop("storage_transformers", None)
        chunks = hashlib.sha256()
        refs = workspace.refs(node)
        for row, coords in enumerate(refs.coords.tolist()):
            ref = refs.ref(row)
            size = len(ref.data) if isinstance(ref, InlineRef) else ref.length
            chunks.update(repr((coords, type(ref))).encode() + workspace.read(ref, 0, size))
        found[path] = (document, chunks.hexdigest())
    return found


def values(session: Session) -> dict[str, Any]:
    """Return the values of all arrays as zarr reads them."""
    root = zarr.open_group(session.store, mode="r")
    arrays = [(path, node) for path, node in root.members(max_depth=None) if isinstance(node, zarr.Array)]
    return {path: repr(np.asarray(array[...]).tolist()) for path, array in arrays}
