"""Check that credentials for a virtual chunk container are sent only to trusted servers.

The author of a repository controls its stored configuration. Without this check, an endpoint named there
would receive the credentials of readers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from icefloe.config import ObjectStoreConfig, S3Options, VirtualChunkContainer
from icefloe.config.stores import AnyObjectStoreConfig
from icefloe.credentials import (
    AnyCredential,
    AzureCredentials,
    Credentials,
    GcsCredentials,
    S3Credentials,
)
from icefloe.storage.base import Storage

if TYPE_CHECKING:
    from icefloe.storage.object_store.clients import Place

_REGION = re.compile(r"[A-Za-z0-9-]+")
_ACCOUNT = re.compile(r"[A-Za-z0-9-]+")
# Not just any host below amazonaws.com: customers control ec2-....compute.amazonaws.com.
_AMAZON = re.compile(
    r"s3(-accelerate|-fips|-external-1)?(\.dualstack)?([.-][a-z]{2}(-[a-z]+)+-\d+)?\.amazonaws\.com(\.cn)?"
)
_TIGRIS = re.compile(r"t3\.storage\.dev|fly\.storage\.tigris\.dev")
_GOOGLE = re.compile(r"storage\.googleapis\.com|storage\.[a-z0-9-]+\.rep\.googleapis\.com")
_MICROSOFT = re.compile(
    r"[a-z0-9-]+\.(blob|dfs)\.(core\.windows\.net|core\.chinacloudapi\.cn|core\.usgovcloudapi\.net)"
    r"|(blob|dfs|onelake)\.(blob\.|dfs\.)?fabric\.microsoft\.com"
)
_VENDORS = re.compile(r"^(azure_storage_|azure_|google_|gcs_)")
_ENDPOINTS = ("base_url", "endpoint")
_ACCOUNTS = ("account", "account_name")
_HARMLESS = frozenset(
    {
        *_ACCOUNTS,
        *("allow_http", "bucket", "bucket_name", "container", "container_name"),
        *("connect_timeout", "default_content_type", "http1_only", "http2_keep_alive_interval"),
        *("http2_keep_alive_timeout", "http2_keep_alive_while_idle", "http2_only", "pool_idle_timeout"),
        *("pool_max_idle_per_host", "randomize_addresses", "read_timeout", "skip_signature", "timeout"),
        *("use_fabric_endpoint", "user_agent"),
    }
)
"""Options of Google and Azure stores that do not affect which server receives a request."""


def find_foreign_endpoint(
    container: VirtualChunkContainer, credential: AnyCredential | None, storage: Storage
) -> str | None:
    """Find an untrusted endpoint that would receive credentials, because only the stored configuration names
    it.

    Returns
    -------
    str or None
        The endpoint, or the option that redirects requests. None if no credentials are sent, or if they go
        to the provider of the store or to the endpoint of the repository's own storage.
    """
    store = container.store
    match store:
        case ObjectStoreConfig.S3(options) | ObjectStoreConfig.S3Compatible(options):
            provider = _AMAZON
        case ObjectStoreConfig.Tigris(options):
            provider = _TIGRIS
        case ObjectStoreConfig.Gcs(opts):
            return _find_foreign_option(opts or {}, _GOOGLE, credential, _find_location(storage))
        case ObjectStoreConfig.Azure(opts):
            return _find_foreign_option(opts or {}, _MICROSOFT, credential, _find_location(storage))
        case _:
            return None  # folders and web servers receive no credentials
    if _is_anonymous(credential) or options.anonymous:
        return None
    return _find_foreign_s3(options, provider, _find_location(storage))


def is_same_endpoint(one: str, other: str) -> bool:
    """Return True if two endpoint URLs refer to the same server, with or without the default port."""
    return _normalize(one) == _normalize(other)


def is_same_server(store: AnyObjectStoreConfig, other: AnyObjectStoreConfig) -> bool:
    """Return True if two virtual chunk containers use the same endpoint, so that trust in one extends to the
    other.
    """
    mine, yours = getattr(store, "options", None), getattr(other, "options", None)
    if not isinstance(mine, S3Options) or not isinstance(yours, S3Options):
        return store == other
    if mine.endpoint_url and yours.endpoint_url:
        return is_same_endpoint(mine.endpoint_url, yours.endpoint_url)
    return mine.endpoint_url == yours.endpoint_url and mine.region == yours.region


def find_endpoint(store: AnyObjectStoreConfig) -> str:
    """Return the endpoint of a virtual chunk container if its options name one; otherwise an empty string."""
    match store:
        case ObjectStoreConfig.S3(options) | ObjectStoreConfig.S3Compatible(options):
            return options.endpoint_url or ""
        case ObjectStoreConfig.Gcs(opts) | ObjectStoreConfig.Azure(opts):
            named = {_VENDORS.sub("", name.lower()): value for name, value in (opts or {}).items()}
            return " ".join(named[name] for name in (*_ENDPOINTS, *_ACCOUNTS) if name in named)
    return ""


def _find_foreign_s3(options: S3Options, provider: re.Pattern[str], place: Place | None) -> str | None:
    from icefloe.storage.object_store.clients import S3Place

    if options.region and not _REGION.fullmatch(options.region):
        return f"https://s3.{options.region}.amazonaws.com"  # the host name is derived from it
    endpoint = options.endpoint_url
    if not endpoint or _is_at(endpoint, provider):
        return None
    own = place.endpoint if isinstance(place, S3Place) else None
    return None if own and is_same_endpoint(endpoint, own) else endpoint


def _find_foreign_option(
    options: Mapping[str, str],
    provider: re.Pattern[str],
    credential: AnyCredential | None,
    place: Place | None,
) -> str | None:
    if _is_anonymous(credential):
        return None
    own = {_VENDORS.sub("", name.lower()): value for name, value in getattr(place, "config", {}).items()}
    for spelled, value in options.items():
        name = _VENDORS.sub("", spelled.lower())
        if name in _ACCOUNTS and not _ACCOUNT.fullmatch(value):
            return f"https://{value}.blob.core.windows.net"  # the host name is derived from it
        if name in _HARMLESS or own.get(name) == value:
            continue
        if name not in _ENDPOINTS:
            return f"{spelled}={value}"
        if not _is_at(value, provider):
            return value
    return None


def _find_location(storage: Storage) -> Any:
    """Return the object store location of a repository; None if it is not in an object store."""
    return getattr(storage, "location", None)


def _is_anonymous(credential: AnyCredential | None) -> bool:
    match credential:
        case Credentials.S3(inner) | Credentials.Gcs(inner) | Credentials.Azure(inner):
            return isinstance(
                inner, (S3Credentials.Anonymous, GcsCredentials.Anonymous, AzureCredentials.Anonymous)
            )
    return False


def _is_at(endpoint: str, provider: re.Pattern[str]) -> bool:
    scheme, host, port, _ = _normalize(endpoint)
    return scheme == "https" and port == "443" and provider.fullmatch(host) is not None


def _normalize(endpoint: str) -> tuple[str, str, str, str]:
    """Split a URL into scheme, host, port and path, the way clients interpret it."""
    try:
        url = urlsplit(endpoint)
        port = url.port or {"https": 443, "http": 80}.get(url.scheme)
    except ValueError:
        return ("", endpoint, "", "")
    if not url.hostname or "@" in url.netloc or "\\" in endpoint or not endpoint.isprintable():
        return ("", endpoint, "", "")
    return (url.scheme, url.hostname, str(port), url.path.rstrip("/"))
