"""Read the decoded values of virtual datasets, through an in-memory repository."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import zarr

from icefloe.config import RepositoryConfig
from icefloe.credentials import AnyCredential, make_credential_from_env
from icefloe.repository import Repository
from icefloe.storage import in_memory_storage
from icefloe.store import IcechunkStore
from icefloe.virtual.sources import FindAccess, make_container, make_default_access
from icefloe.virtual.write import WritableDataset, write_dataset


def open_store(dataset: WritableDataset, access: FindAccess = make_default_access) -> IcechunkStore:
    """Write a virtual dataset, without refused variables, to an in-memory repository, and return
    its store.
    """
    config = RepositoryConfig()
    authorized: dict[str, AnyCredential] = {}
    for location in dict.fromkeys(source.location for source in dataset.sources):
        store, credential = access(location)
        container = make_container(location, store)
        if container.url_prefix not in authorized:
            config.set_virtual_chunk_container(container)
            authorized[container.url_prefix] = credential or make_credential_from_env(location)
    repository = Repository.create(in_memory_storage(), config, authorized)
    session = repository.writable_session("main")
    write_dataset(dataset.drop_refused(), session.store)
    return session.store


def open_dataset(
    dataset: WritableDataset, access: FindAccess, *, store: IcechunkStore | None = None, **options: Any
) -> Any:
    """Open a virtual dataset with xarray (see `VirtualDataset.to_xarray`). An already open store
    is reused.
    """
    import xarray

    opened = open_store(dataset, access) if store is None else store
    return xarray.open_zarr(opened, **{"consolidated": False, "zarr_format": 3, "chunks": None, **options})


def open_values(
    dataset: WritableDataset,
    paths: Sequence[str],
    access: FindAccess = make_default_access,
) -> dict[str, Any]:
    """Read the decoded values of virtual variables, given their paths."""
    opened = open_store(dataset, access)
    found: dict[str, Any] = {}
    with warnings.catch_warnings():  # about data types and codecs that are not in the core specification
        warnings.simplefilter("ignore")
        for path in paths:
            found[path] = np.asarray(zarr.open_array(opened, path=path, mode="r", zarr_format=3)[...])
    return found
