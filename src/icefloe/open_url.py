"""`icefloe.open`: open a repository by path or URL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icefloe.config import Attribution, RepositoryConfig
from icefloe.credentials import AnyCredential
from icefloe.repository import Repository
from icefloe.storage.disk_cache import AnyDiskCache
from icefloe.storage.urls import storage_from_url


def open(
    url: str,
    *,
    config: RepositoryConfig | None = None,
    authorize_virtual_chunk_access: Mapping[str, AnyCredential | None] | None = None,
    attribution: Attribution | None = None,
    disk_cache: AnyDiskCache | None = None,
    **options: Any,
) -> Repository:
    """Open the repository at a path or URL.

    Parameters
    ----------
    url
        A path, or a URL such as `s3://bucket/prefix`.
    config, authorize_virtual_chunk_access, attribution, disk_cache
        See `Repository.open`.
    **options
        Storage options; see `storage_from_url`.

    Returns
    -------
    Repository

    Raises
    ------
    RepositoryNotFoundError
        If there is no repository at this location.

    Examples
    --------
    >>> import icefloe
    >>> repo = icefloe.open("s3://bucket/weather", region="eu-west-1")  # doctest: +SKIP
    """
    storage = storage_from_url(url, **options)
    return Repository.open(
        storage, config, authorize_virtual_chunk_access, attribution, disk_cache=disk_cache
    )
