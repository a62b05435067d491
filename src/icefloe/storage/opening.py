"""What stands behind `Storage.new_s3` and its like: arguments become places, places become storages."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from icefloe._internal.redaction import has_valid_port
from icefloe.config import S3Options, StorageSettings
from icefloe.errors import ErrorKind, StorageError
from icefloe.storage.base import Storage
from icefloe.storage.constructors import makers
from icefloe.storage.local.folder import LocalStorage
from icefloe.storage.memory import MemoryStorage

if TYPE_CHECKING:
    from icefloe.credentials import AnyAzureCredential, AnyGcsCredential, AnyS3Credential
    from icefloe.storage.object_store.clients import Place

_TIGRIS_ENDPOINT = "https://t3.storage.dev"
_HF_ENDPOINT = "https://s3.hf.co"


def s3(
    options: S3Options,
    bucket: str,
    prefix: str | None,
    credentials: AnyS3Credential | None = None,
    legacy_rooted_keys: bool | None = None,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    read_only: bool = False,
    settings: StorageSettings | None = None,
) -> Storage:
    """A storage in a bucket that speaks S3."""
    from icefloe.credentials import s3_anonymous_credentials, s3_from_env_credentials
    from icefloe.storage.object_store.clients import Headers, S3Place  # obstore takes its time to import

    if legacy_rooted_keys:
        if prefix:
            text = "legacy_rooted_keys is only valid with an empty prefix"
        else:
            text = "keys with a leading slash cannot be reached: move the repository under a prefix"
        raise StorageError(text, kind=ErrorKind.STORAGE_OTHER)
    if credentials is None:
        credentials = s3_anonymous_credentials() if options.anonymous else s3_from_env_credentials()
    roles = Headers(dict(headers or {}), dict(read_headers or {}), dict(write_headers or {}))
    place = S3Place(bucket, _folder(prefix), dataclasses.replace(options), credentials, roles)
    return _stored_at(place, read_only=read_only, settings=settings)


def tigris(
    options: S3Options,
    bucket: str,
    prefix: str | None,
    use_weak_consistency: bool,
    credentials: AnyS3Credential | None = None,
    legacy_rooted_keys: bool | None = None,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Storage:
    """A storage in a bucket of Tigris."""
    if not use_weak_consistency and not options.region:
        raise StorageError(
            "Tigris storage requires a region to provide full consistency. Either set the region of the "
            "bucket or use the read-only, eventually consistent storage by passing use_weak_consistency=True",
            kind=ErrorKind.STORAGE_OTHER,
        )
    here = dataclasses.replace(options, endpoint_url=options.endpoint_url or _TIGRIS_ENDPOINT)
    # Without this header Tigris answers from the nearest copy, which may be an old one.
    consistent = {} if use_weak_consistency else {"X-Tigris-Consistent": "true"}
    return s3(
        here,
        bucket,
        prefix,
        credentials,
        legacy_rooted_keys,
        read_headers,
        write_headers,
        {**consistent, **(headers or {})},
        read_only=use_weak_consistency,
    )


def r2(
    options: S3Options,
    bucket: str | None,
    prefix: str | None,
    account_id: str | None = None,
    credentials: AnyS3Credential | None = None,
    legacy_rooted_keys: bool | None = None,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Storage:
    """A storage in a bucket of Cloudflare R2."""
    if not bucket:
        bucket, _, prefix = _folder(prefix).partition("/")
    if not bucket:
        raise _wrong_config("Either bucket or prefix must be provided.")
    endpoint = options.endpoint_url
    if not endpoint:
        if not account_id:
            raise _wrong_config("Either endpoint_url or account_id must be provided.")
        endpoint = f"https://{account_id}.r2.cloudflarestorage.com"
    here = dataclasses.replace(
        options, endpoint_url=endpoint, region=options.region or "auto", force_path_style=True
    )
    return s3(here, bucket, prefix, credentials, legacy_rooted_keys, read_headers, write_headers, headers)


def hf(
    options: S3Options,
    bucket: str,
    prefix: str | None,
    namespace: str,
    credentials: AnyS3Credential | None = None,
    legacy_rooted_keys: bool | None = None,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Storage:
    """A storage in a bucket of Hugging Face, whose gateway drops metadata."""
    here = dataclasses.replace(
        options,
        endpoint_url=f"{_HF_ENDPOINT}/{namespace}",
        region=options.region or "us-east-1",
        force_path_style=True,
    )
    return s3(here, bucket, prefix, credentials, legacy_rooted_keys, read_headers, write_headers, headers)


def gcs(
    bucket: str,
    prefix: str | None,
    credentials: AnyGcsCredential | None = None,
    config: Mapping[str, str] | None = None,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Storage:
    """A storage in a bucket of Google Cloud Storage."""
    from icefloe.credentials import gcs_from_env_credentials
    from icefloe.storage.object_store.clients import GcsPlace, Headers  # obstore takes its time to import

    roles = Headers(dict(headers or {}), dict(read_headers or {}), dict(write_headers or {}))
    place = GcsPlace(
        bucket, _folder(prefix), dict(config or {}), credentials or gcs_from_env_credentials(), roles
    )
    return _stored_at(place)


def azure(
    account: str,
    container: str,
    prefix: str | None,
    credentials: AnyAzureCredential | None = None,
    config: Mapping[str, str] | None = None,
) -> Storage:
    """A storage in a container of Azure Blob Storage."""
    from icefloe.credentials import azure_from_env_credentials
    from icefloe.storage.object_store.clients import AzurePlace  # obstore takes its time to import

    chosen = credentials or azure_from_env_credentials()
    return _stored_at(AzurePlace(account, container, _folder(prefix), dict(config or {}), chosen))


def http(
    base_url: str,
    config: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Storage:
    """A folder of a web server, for reading."""
    from icefloe.storage.object_store.clients import Headers, HttpPlace  # obstore takes its time to import

    check_web_url(base_url)
    return _stored_at(HttpPlace(base_url, dict(config or {}), Headers(dict(headers or {}))))


def check_web_url(url: str) -> None:
    """Raise StorageError for a URL that is not that of a web server."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise StorageError(f"not an http url: {url!r}", kind=ErrorKind.CANNOT_PARSE_URL)
    if not has_valid_port(url):
        raise StorageError(
            f"{url}: the port is not a number; write / as %2F, # as %23 and ? as %3F in a password",
            kind=ErrorKind.CANNOT_PARSE_URL,
        )


def _stored_at(place: Place, *, read_only: bool = False, settings: StorageSettings | None = None) -> Storage:
    from icefloe.storage.object_store.storage import ObjectStorage  # obstore takes its time to import

    return ObjectStorage(place, settings, read_only=read_only)


def _folder(prefix: str | None) -> str:
    return (prefix or "").strip("/")


def _wrong_config(text: str) -> StorageError:
    return StorageError(f"storage configuration error: {text}", kind=ErrorKind.STORAGE_CONFIG)


makers.update(
    in_memory=MemoryStorage,
    local_filesystem=LocalStorage,
    s3=s3,
    tigris=tigris,
    r2=r2,
    hf=hf,
    gcs=gcs,
    azure=azure,
    http=http,
)
