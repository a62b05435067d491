"""Access the official package, which may be missing or too old."""

from __future__ import annotations

import asyncio
from importlib import metadata
from pathlib import Path
from typing import Any

BUCKET = "s3://my-bucket/"
_NEEDED = (2, 3)


def why_unavailable() -> str:
    """Explain why the official package cannot be used; empty if it can."""
    try:
        version = metadata.version("icechunk")
    except metadata.PackageNotFoundError:
        version = "none"
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers >= _NEEDED:
        return ""
    return f"the comparison needs icechunk >= 2.3 (Python >= 3.12); installed: {version}"


def open_repository(folder: Path) -> Any:
    """Open the repository in a folder, without caches."""
    import icechunk

    return icechunk.Repository.open(icechunk.local_filesystem_storage(str(folder)), config=_config(icechunk))


def create_with_array(folder: Path, path: str, grid: tuple[int, ...], chunk: int) -> Any:
    """Create a repository with one array, and commit it."""
    import icechunk
    import zarr

    storage = icechunk.local_filesystem_storage(str(folder))
    repository = icechunk.Repository.create(storage, config=_config(icechunk))
    session = repository.writable_session("main")
    zarr.create_array(
        session.store,
        name=path.strip("/"),
        shape=tuple(count * chunk for count in grid),
        chunks=(chunk,) * len(grid),
        dtype="f4",
        compressors=None,
    )
    session.commit("array")
    return repository


def all_batches(folder: Path, path: str) -> list[Any]:
    """Read all references of an array with the official iterator, as columns and a list of locations."""
    store = open_repository(folder).readonly_session("main").store

    async def collect() -> list[Any]:
        return [batch async for batch in store.array_chunk_iterator(path.strip("/"))]

    return asyncio.run(collect())


def _config(icechunk: Any) -> Any:
    config = icechunk.RepositoryConfig.default()
    store = icechunk.s3_store(region="us-east-1")
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(BUCKET, store))
    return config
