"""Create repositories with one virtual array, for tests of reading."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import zarr

import icefloe
from icefloe.config import RepositoryConfig, StorageRetriesSettings, StorageSettings, VirtualChunkContainer
from icefloe.config.stores import AnyObjectStoreConfig
from icefloe.session import Session

QUICK = StorageSettings(retries=StorageRetriesSettings(max_tries=3, initial_backoff_ms=1, max_backoff_ms=2))


def session_with(
    prefix: str,
    store: AnyObjectStoreConfig,
    credential: Any,
    *,
    name: str | None = None,
    shape: int = 16,
    chunk: int = 4,
) -> Session:
    """Create a session with an array `a` of bytes, and one container that is authorized with a credential."""
    config = RepositoryConfig(storage=QUICK)
    config.set_virtual_chunk_container(VirtualChunkContainer(prefix, store, name))
    authorized = {prefix: credential} if credential is not None else None
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), config, authorized)
    session = repo.writable_session("main")
    zarr.create_array(
        session.store, name="a", shape=(shape,), chunks=(chunk,), dtype="u1", compressors=None, fill_value=0
    )
    return session


def read_ref(
    session: Session,
    location: str,
    offset: int = 0,
    length: int = 4,
    checksum: str | datetime | None = None,
    *,
    validate: bool = True,
) -> bytes:
    """Set the first chunk to a reference, and read it."""
    session.store.set_virtual_ref(
        "a/c/0", location, offset=offset, length=length, checksum=checksum, validate_container=validate
    )
    found = session.store.get_sync("a/c/0")
    return b"" if found is None else found.to_bytes()
