"""Access to external files, which keeps secrets apart from the stored configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from icefloe._internal.redaction import may_be_secret
from icefloe.config.stores import AnyObjectStoreConfig, ObjectStoreConfig
from icefloe.credentials import AnyCredential, Credentials
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.storage.urls import storage_from_url

_QUERY = re.compile(r"\?(?=[^/?]*=)")
"""Matches the start of a URL query, but not a `?` wildcard in a file name pattern."""


@dataclass(frozen=True, slots=True)
class Access:
    """Access to external files: the store configuration of a virtual chunk container, and its secret
    credential.
    """

    store: AnyObjectStoreConfig
    credential: AnyCredential = field(repr=False)


def split_query(url: str) -> tuple[str, str]:
    """Split the URL of external files into the URL proper and the access options in its query."""
    whole, *query = _QUERY.split(url, maxsplit=1)
    return whole, query[0] if query else ""


def get_access(url: str, options: Mapping[str, Any]) -> Access:
    """Create the access to external files in a bucket, a container or on a web server, from
    `storage_from_url` options.
    """
    from icefloe.storage.object_store.clients import (  # importing obstore is slow
        AzurePlace,
        GcsPlace,
        HttpPlace,
        S3Place,
    )
    from icefloe.storage.object_store.storage import ObjectStorage

    whole, query = split_query(url)
    parts = urlsplit(whole)
    origin = f"{parts.scheme}://{parts.netloc}"
    in_query = f"?{query}" if query and not parts.scheme.startswith("http") else ""
    storage = storage_from_url(origin + in_query, **options)
    place = storage.location if isinstance(storage, ObjectStorage) else None
    match place:
        case S3Place():
            kind = ObjectStoreConfig.S3Compatible if place.options.endpoint_url else ObjectStoreConfig.S3
            return Access(kind(place.options), Credentials.S3(place.credentials))
        case GcsPlace():
            _refuse_secrets(origin, place.config)
            return Access(ObjectStoreConfig.Gcs(dict(place.config)), Credentials.Gcs(place.credentials))
        case AzurePlace():
            _refuse_secrets(origin, place.config)
            store = ObjectStoreConfig.Azure({"account": place.account, **place.config})
            return Access(store, Credentials.Azure(place.credentials))
        case HttpPlace():
            headers = dict(place.headers.both) or None
            return Access(ObjectStoreConfig.Http(dict(place.config), headers), Credentials.HttpAccess())
    raise InvalidInputError(f"cannot read files from {parts.scheme}:// URLs", kind=ErrorKind.CANNOT_PARSE_URL)


def refuse_secrets(store: AnyObjectStoreConfig, place: str) -> AnyObjectStoreConfig:
    """Return the access unchanged if a stored configuration may contain it; raise InvalidInputError if it
    contains secrets.
    """
    if isinstance(store, ObjectStoreConfig.Http) and store.headers:
        raise InvalidInputError(
            f"{place}: headers may contain secrets, and references would store them in the configuration "
            "of the repository; add a virtual chunk container yourself, or copy the data",
            kind=ErrorKind.INVALID_CREDENTIALS,
        )
    return store


def _refuse_secrets(place: str, config: Mapping[str, str]) -> None:
    if secret := sorted(name for name in config if may_be_secret(name)):
        raise InvalidInputError(
            f"{place}: {', '.join(secret)} must not be part of config; pass it as a separate option",
            kind=ErrorKind.INVALID_CREDENTIALS,
        )
