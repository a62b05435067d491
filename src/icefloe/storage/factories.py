"""Functions that create storages, with the official names and arguments."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from icefloe._internal.redaction import has_valid_port
from icefloe.config import ChecksumAlgorithm, S3Options
from icefloe.errors import ErrorKind, StorageError
from icefloe.storage.base import Storage
from icefloe.storage.local.folder import LocalStorage
from icefloe.storage.memory import MemoryStorage

if TYPE_CHECKING:  # credentials are imported on demand, because folders need none
    from icefloe.credentials import (
        AnyAzureCredential,
        AnyGcsCredential,
        AnyS3Credential,
        GcsBearerCredential,
        S3StaticCredentials,
    )
    from icefloe.storage.object_store.clients import Place

_TIGRIS_ENDPOINT = "https://t3.storage.dev"
_HF_ENDPOINT = "https://s3.hf.co"
_S3_OPTIONS = [field.name for field in dataclasses.fields(S3Options) if field.name != "anonymous"]
_S3_OTHERS = ["legacy_rooted_keys", "read_headers", "write_headers", "headers"]


def in_memory_storage() -> Storage:
    """Create an empty in-memory storage in this process.

    Returns
    -------
    Storage
        The storage.
    """
    return MemoryStorage()


def local_filesystem_storage(path: str) -> Storage:
    """Create a storage in a local folder.

    Commits are safe between processes on this host, and are synced to disk. Use `storage_from_url(path,
    sync=False)` to skip the sync.

    Parameters
    ----------
    path
        The folder.

    Returns
    -------
    Storage
        The storage.
    """
    return LocalStorage(path)


def http_storage(
    base_url: str,
    opts: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
) -> Storage:
    """Create a read-only storage on a web server that supports range requests.

    Parameters
    ----------
    base_url
        The URL of the folder.
    opts
        Client options, named as in object_store's ClientConfigKey.
    headers
        Headers to send with every request.

    Returns
    -------
    Storage
        The storage.
    """
    return _new_http(base_url, opts, headers)


def s3_storage(
    *,
    bucket: str,
    prefix: str | None,
    region: str | None = None,
    endpoint_url: str | None = None,
    allow_http: bool = False,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    expires_after: datetime | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    get_credentials: Callable[[], S3StaticCredentials] | None = None,
    scatter_initial_credentials: bool = False,
    force_path_style: bool = False,
    network_stream_timeout_seconds: int = 60,
    requester_pays: bool = False,
    checksum_algorithm: ChecksumAlgorithm | None = None,
    legacy_rooted_keys: bool | None = None,
    read_headers: dict[str, str] | None = None,
    write_headers: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
) -> Storage:
    """Create a storage in an S3 bucket, or in an S3-compatible service at `endpoint_url`.

    Parameters
    ----------
    bucket
        The name of the bucket.
    prefix
        The folder in the bucket.
    region
        The region of the bucket.
    endpoint_url
        The endpoint URL of an S3-compatible service; None for Amazon S3.
    allow_http
        Allow unencrypted connections.
    access_key_id, secret_access_key, session_token, expires_after
        A key pair, with the token and the expiration time of temporary credentials.
    anonymous
        Do not sign requests.
    from_env
        Use credentials from the environment. This is the default.
    get_credentials
        A picklable function that returns credentials.
    scatter_initial_credentials
        Call `get_credentials` now, and include its result in pickles.
    force_path_style
        Put the bucket into the path of the URL instead of the host name.
    network_stream_timeout_seconds
        Fail a request if no data is received for this time; 0 for no limit.
    requester_pays
        Access requester-pays buckets.
    checksum_algorithm
        The checksum to send with writes: Sha256 or Crc64Nvme.
    legacy_rooted_keys
        Not supported.
    read_headers, write_headers, headers
        Headers for read requests, for write requests and for all requests.

    Returns
    -------
    Storage
        The storage.
    """
    options, credentials, others = _s3_arguments(locals())
    return _new_s3(options, bucket, prefix, credentials, **others)


def s3_object_store_storage(
    *,
    bucket: str,
    prefix: str | None,
    region: str | None = None,
    endpoint_url: str | None = None,
    allow_http: bool = False,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    expires_after: datetime | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    force_path_style: bool = False,
    read_headers: dict[str, str] | None = None,
    write_headers: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
) -> Storage:
    """Create a storage in an S3 bucket. Same as `s3_storage`, but with fewer options.

    Parameters
    ----------
    bucket, prefix, region, endpoint_url, allow_http, force_path_style
        The location and the connection, as in `s3_storage`.
    access_key_id, secret_access_key, session_token, expires_after, anonymous, from_env
        The credentials, as in `s3_storage`.
    read_headers, write_headers, headers
        Headers for read requests, for write requests and for all requests.

    Returns
    -------
    Storage
        The storage.
    """
    return s3_storage(**locals())


def tigris_storage(
    *,
    bucket: str,
    prefix: str | None,
    region: str | None = None,
    endpoint_url: str | None = None,
    use_weak_consistency: bool = False,
    allow_http: bool = False,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    expires_after: datetime | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    get_credentials: Callable[[], S3StaticCredentials] | None = None,
    scatter_initial_credentials: bool = False,
    network_stream_timeout_seconds: int = 60,
    checksum_algorithm: ChecksumAlgorithm | None = None,
    legacy_rooted_keys: bool | None = None,
    read_headers: dict[str, str] | None = None,
    write_headers: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
) -> Storage:
    """Create a storage in a Tigris bucket.

    Tigris is consistent only within the region of the bucket, which is therefore required.

    Parameters
    ----------
    bucket
        The name of the bucket.
    prefix
        The folder in the bucket.
    region
        The region of the bucket.
    endpoint_url
        The endpoint URL. Default: the Tigris endpoint.
    use_weak_consistency
        Read from any region. The storage is then read-only.
    allow_http
        Allow unencrypted connections.
    access_key_id, secret_access_key, session_token, expires_after
        A key pair, with the token and the expiration time of temporary credentials.
    anonymous
        Do not sign requests.
    from_env
        Use credentials from the environment. This is the default.
    get_credentials
        A picklable function that returns credentials.
    scatter_initial_credentials
        Call `get_credentials` now, and include its result in pickles.
    network_stream_timeout_seconds
        Fail a request if no data is received for this time; 0 for no limit.
    checksum_algorithm
        The checksum to send with writes: Sha256 or Crc64Nvme.
    legacy_rooted_keys
        Not supported.
    read_headers, write_headers, headers
        Headers for read requests, for write requests and for all requests.

    Returns
    -------
    Storage
        The storage.
    """
    options, credentials, others = _s3_arguments(locals())
    return _new_tigris(options, bucket, prefix, use_weak_consistency, credentials, **others)


def r2_storage(
    *,
    bucket: str | None = None,
    prefix: str | None = None,
    account_id: str | None = None,
    endpoint_url: str | None = None,
    region: str | None = None,
    allow_http: bool = False,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    expires_after: datetime | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    get_credentials: Callable[[], S3StaticCredentials] | None = None,
    scatter_initial_credentials: bool = False,
    network_stream_timeout_seconds: int = 60,
    checksum_algorithm: ChecksumAlgorithm | None = None,
    legacy_rooted_keys: bool | None = None,
    read_headers: dict[str, str] | None = None,
    write_headers: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
) -> Storage:
    """Create a storage in a Cloudflare R2 bucket. Pass `account_id` or `endpoint_url`.

    Parameters
    ----------
    bucket
        The name of the bucket; by default the first segment of the prefix.
    prefix
        The folder in the bucket.
    account_id
        The id of the account.
    endpoint_url
        The endpoint URL.
    region
        The region of the bucket.
    allow_http
        Allow unencrypted connections.
    access_key_id, secret_access_key, session_token, expires_after
        A key pair, with the token and the expiration time of temporary credentials.
    anonymous
        Do not sign requests.
    from_env
        Use credentials from the environment. This is the default.
    get_credentials
        A picklable function that returns credentials.
    scatter_initial_credentials
        Call `get_credentials` now, and include its result in pickles.
    network_stream_timeout_seconds
        Fail a request if no data is received for this time; 0 for no limit.
    checksum_algorithm
        The checksum to send with writes: Sha256 or Crc64Nvme.
    legacy_rooted_keys
        Not supported.
    read_headers, write_headers, headers
        Headers for read requests, for write requests and for all requests.

    Returns
    -------
    Storage
        The storage.
    """
    options, credentials, others = _s3_arguments(locals())
    return _new_r2(options, bucket, prefix, account_id, credentials, **others)


def hf_storage(
    *,
    bucket: str,
    prefix: str | None,
    namespace: str,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    expires_after: datetime | None = None,
    from_env: bool | None = None,
    get_credentials: Callable[[], S3StaticCredentials] | None = None,
    scatter_initial_credentials: bool = False,
    network_stream_timeout_seconds: int = 60,
    legacy_rooted_keys: bool | None = None,
    read_headers: dict[str, str] | None = None,
    write_headers: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
) -> Storage:
    """Create a storage in a Hugging Face bucket.

    Hugging Face does not keep object metadata, so icefloe recognizes its own writes by their content.

    Parameters
    ----------
    bucket
        The name of the bucket.
    prefix
        The folder in the bucket.
    namespace
        The user or organization that owns the bucket.
    access_key_id, secret_access_key, session_token, expires_after
        A key pair, with the token and the expiration time of temporary credentials.
    from_env
        Use credentials from the environment. This is the default.
    get_credentials
        A picklable function that returns credentials.
    scatter_initial_credentials
        Call `get_credentials` now, and include its result in pickles.
    network_stream_timeout_seconds
        Fail a request if no data is received for this time; 0 for no limit.
    legacy_rooted_keys
        Not supported.
    read_headers, write_headers, headers
        Headers for read requests, for write requests and for all requests.

    Returns
    -------
    Storage
        The storage.
    """
    options, credentials, others = _s3_arguments(locals())
    return _new_hf(options, bucket, prefix, namespace, credentials, **others)


def gcs_storage(
    *,
    bucket: str,
    prefix: str | None,
    service_account_file: str | None = None,
    service_account_key: str | None = None,
    application_credentials: str | None = None,
    bearer_token: str | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    config: dict[str, str] | None = None,
    get_credentials: Callable[[], GcsBearerCredential] | None = None,
    scatter_initial_credentials: bool = False,
    read_headers: dict[str, str] | None = None,
    write_headers: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
) -> Storage:
    """Create a storage in a Google Cloud Storage bucket.

    Parameters
    ----------
    bucket
        The name of the bucket.
    prefix
        The folder in the bucket.
    service_account_file, service_account_key, application_credentials, bearer_token
        A fixed credential; see `gcs_static_credentials`.
    anonymous
        Do not sign requests.
    from_env
        Use credentials from the environment. This is the default.
    config
        Client options, named as in object_store's GoogleConfigKey.
    get_credentials
        A picklable function that returns a token.
    scatter_initial_credentials
        Call `get_credentials` now, and include its result in pickles.
    read_headers, write_headers, headers
        Headers for read requests, for write requests and for all requests.

    Returns
    -------
    Storage
        The storage.
    """
    from icefloe.credentials import gcs_credentials

    given = locals()
    credentials = gcs_credentials(**_arguments_of(gcs_credentials, given))
    others = {name: given[name] for name in ("config", "read_headers", "write_headers", "headers")}
    return _new_gcs(bucket, prefix, credentials, **others)


def azure_storage(
    *,
    account: str,
    container: str,
    prefix: str,
    access_key: str | None = None,
    sas_token: str | None = None,
    bearer_token: str | None = None,
    from_env: bool | None = None,
    anonymous: bool | None = None,
    config: dict[str, str] | None = None,
) -> Storage:
    """Create a storage in an Azure Blob Storage container.

    Parameters
    ----------
    account
        The name of the storage account.
    container
        The name of the container.
    prefix
        The folder in the container.
    access_key, sas_token, bearer_token
        A fixed credential; see `azure_static_credentials`.
    from_env
        Use credentials from the environment. This is the default.
    anonymous
        Do not sign requests.
    config
        Client options, named as in object_store's AzureConfigKey.

    Returns
    -------
    Storage
        The storage.
    """
    from icefloe.credentials import azure_credentials

    credentials = azure_credentials(**_arguments_of(azure_credentials, locals()))
    return _new_azure_blob(account, container, prefix, credentials, config=config)


def _s3_arguments(given: Mapping[str, Any]) -> tuple[S3Options, AnyS3Credential, dict[str, Any]]:
    """Split the arguments of an S3 factory into connection options, credentials and all other arguments."""
    from icefloe.credentials import s3_credentials

    options = S3Options(
        anonymous=given.get("anonymous") or False,
        **{name: given[name] for name in _S3_OPTIONS if name in given},
    )
    return options, s3_credentials(**_arguments_of(s3_credentials, given)), {n: given[n] for n in _S3_OTHERS}


def _arguments_of(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Select the arguments that a function accepts."""
    return {name: given[name] for name in inspect.signature(function).parameters if name in given}


# The official class methods of `Storage`. They are defined here because they create its subclasses.


def _new_s3(
    config: S3Options,
    bucket: str,
    prefix: str | None,
    credentials: AnyS3Credential | None = None,
    legacy_rooted_keys: bool | None = None,
    *,
    read_headers: dict[str, str] | None = None,
    write_headers: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
) -> Storage:
    """Open a prefix in an S3-compatible bucket.

    Parameters
    ----------
    config
        The connection options.
    bucket
        The name of the bucket.
    prefix
        The folder in the bucket.
    credentials
        The credentials. Default: from the environment.
    legacy_rooted_keys
        Not supported.
    read_headers, write_headers, headers
        Headers for read requests, for write requests and for all requests.

    Returns
    -------
    Storage
        The storage.
    """
    return _open_s3(
        config, bucket, prefix, credentials, legacy_rooted_keys, (headers, read_headers, write_headers)
    )


def _new_s3_object_store(
    config: S3Options,
    bucket: str,
    prefix: str | None,
    credentials: AnyS3Credential | None = None,
    *,
    read_headers: dict[str, str] | None = None,
    write_headers: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
) -> Storage:
    """Open a prefix in an S3-compatible bucket.

    Parameters
    ----------
    config
        The connection options.
    bucket
        The name of the bucket.
    prefix
        The folder in the bucket.
    credentials
        The credentials. Default: from the environment.
    read_headers, write_headers, headers
        Headers for read requests, for write requests and for all requests.

    Returns
    -------
    Storage
        The storage.
    """
    return _open_s3(config, bucket, prefix, credentials, None, (headers, read_headers, write_headers))


def _new_tigris(
    config: S3Options,
    bucket: str,
    prefix: str | None,
    use_weak_consistency: bool,
    credentials: AnyS3Credential | None = None,
    legacy_rooted_keys: bool | None = None,
    *,
    read_headers: dict[str, str] | None = None,
    write_headers: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
) -> Storage:
    """Open a prefix in a Tigris bucket.

    Parameters
    ----------
    config
        The connection options.
    bucket
        The name of the bucket.
    prefix
        The folder in the bucket.
    use_weak_consistency
        Read from any region. The storage is then read-only.
    credentials
        The credentials. Default: from the environment.
    legacy_rooted_keys
        Not supported.
    read_headers, write_headers, headers
        Headers for read requests, for write requests and for all requests.

    Returns
    -------
    Storage
        The storage.
    """
    if not use_weak_consistency and not config.region:
        raise StorageError(
            "Tigris storage requires a region to provide full consistency. Either set the region of the "
            "bucket or use the read-only, eventually consistent storage by passing use_weak_consistency=True",
            kind=ErrorKind.STORAGE_OTHER,
        )
    here = dataclasses.replace(config, endpoint_url=config.endpoint_url or _TIGRIS_ENDPOINT)
    # Without this header, Tigris reads from the nearest replica, which may be outdated.
    consistent = {} if use_weak_consistency else {"X-Tigris-Consistent": "true"}
    roles = ({**consistent, **(headers or {})}, read_headers, write_headers)
    return _open_s3(
        here, bucket, prefix, credentials, legacy_rooted_keys, roles, read_only=use_weak_consistency
    )


def _new_r2(
    config: S3Options,
    bucket: str | None = None,
    prefix: str | None = None,
    account_id: str | None = None,
    credentials: AnyS3Credential | None = None,
    legacy_rooted_keys: bool | None = None,
    *,
    read_headers: dict[str, str] | None = None,
    write_headers: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
) -> Storage:
    """Open a prefix in a Cloudflare R2 bucket.

    Parameters
    ----------
    config
        The connection options.
    bucket
        The name of the bucket.
    prefix
        The folder in the bucket.
    account_id
        The id of the account, if the options contain no endpoint.
    credentials
        The credentials. Default: from the environment.
    legacy_rooted_keys
        Not supported.
    read_headers, write_headers, headers
        Headers for read requests, for write requests and for all requests.

    Returns
    -------
    Storage
        The storage.
    """
    if not bucket:
        bucket, _, prefix = _to_folder(prefix).partition("/")
    if not bucket:
        raise _make_config_error("Either bucket or prefix must be provided.")
    endpoint = config.endpoint_url
    if not endpoint:
        if not account_id:
            raise _make_config_error("Either endpoint_url or account_id must be provided.")
        endpoint = f"https://{account_id}.r2.cloudflarestorage.com"
    here = dataclasses.replace(
        config, endpoint_url=endpoint, region=config.region or "auto", force_path_style=True
    )
    roles = (headers, read_headers, write_headers)
    return _open_s3(here, bucket, prefix, credentials, legacy_rooted_keys, roles)


def _new_hf(
    config: S3Options,
    bucket: str,
    prefix: str | None,
    namespace: str,
    credentials: AnyS3Credential | None = None,
    legacy_rooted_keys: bool | None = None,
    *,
    read_headers: dict[str, str] | None = None,
    write_headers: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
) -> Storage:
    """Open a prefix in a Hugging Face bucket. Hugging Face does not keep object metadata.

    Parameters
    ----------
    config
        The connection options.
    bucket
        The name of the bucket.
    prefix
        The folder in the bucket.
    namespace
        The user or organization that owns the bucket.
    credentials
        The credentials. Default: from the environment.
    legacy_rooted_keys
        Not supported.
    read_headers, write_headers, headers
        Headers for read requests, for write requests and for all requests.

    Returns
    -------
    Storage
        The storage.
    """
    here = dataclasses.replace(
        config,
        endpoint_url=f"{_HF_ENDPOINT}/{namespace}",
        region=config.region or "us-east-1",
        force_path_style=True,
    )
    roles = (headers, read_headers, write_headers)
    return _open_s3(here, bucket, prefix, credentials, legacy_rooted_keys, roles)


def _open_s3(
    options: S3Options,
    bucket: str,
    prefix: str | None,
    credentials: AnyS3Credential | None,
    legacy_rooted_keys: bool | None,
    headers: tuple[Mapping[str, str] | None, ...],
    *,
    read_only: bool = False,
) -> Storage:
    """Open an S3-compatible bucket. The three sets of headers apply to all requests, to reads and to
    writes.
    """
    from icefloe.credentials import s3_anonymous_credentials, s3_from_env_credentials
    from icefloe.storage.object_store.clients import Headers, S3Place  # importing obstore is slow

    if legacy_rooted_keys:
        if prefix:
            text = "legacy_rooted_keys is only valid with an empty prefix"
        else:
            text = "keys with a leading slash are not supported; move the repository to a prefix"
        raise StorageError(text, kind=ErrorKind.STORAGE_OTHER)
    if credentials is None:
        credentials = s3_anonymous_credentials() if options.anonymous else s3_from_env_credentials()
    roles = Headers(*(dict(each or {}) for each in headers))
    place = S3Place(bucket, _to_folder(prefix), dataclasses.replace(options), credentials, roles)
    return _make_storage_at(place, read_only=read_only)


def _new_gcs(
    bucket: str,
    prefix: str | None,
    credentials: AnyGcsCredential | None = None,
    *,
    config: dict[str, str] | None = None,
    read_headers: dict[str, str] | None = None,
    write_headers: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
) -> Storage:
    """Open a prefix in a Google Cloud Storage bucket.

    Parameters
    ----------
    bucket
        The name of the bucket.
    prefix
        The folder in the bucket.
    credentials
        The credentials. Default: from the environment.
    config
        Client options, named as in object_store.
    read_headers, write_headers, headers
        Headers for read requests, for write requests and for all requests.

    Returns
    -------
    Storage
        The storage.
    """
    from icefloe.credentials import gcs_from_env_credentials
    from icefloe.storage.object_store.clients import GcsPlace, Headers  # importing obstore is slow

    roles = Headers(*(dict(each or {}) for each in (headers, read_headers, write_headers)))
    chosen = credentials or gcs_from_env_credentials()
    return _make_storage_at(GcsPlace(bucket, _to_folder(prefix), dict(config or {}), chosen, roles))


def _new_azure_blob(
    account: str,
    container: str,
    prefix: str,
    credentials: AnyAzureCredential | None = None,
    *,
    config: dict[str, str] | None = None,
) -> Storage:
    """Open a prefix in an Azure Blob Storage container.

    Parameters
    ----------
    account
        The name of the storage account.
    container
        The name of the container.
    prefix
        The folder in the container.
    credentials
        The credentials. Default: from the environment.
    config
        Client options, named as in object_store.

    Returns
    -------
    Storage
        The storage.
    """
    from icefloe.credentials import azure_from_env_credentials
    from icefloe.storage.object_store.clients import AzurePlace  # importing obstore is slow

    chosen = credentials or azure_from_env_credentials()
    return _make_storage_at(AzurePlace(account, container, _to_folder(prefix), dict(config or {}), chosen))


def _new_http(
    base_url: str,
    config: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
) -> Storage:
    """Open a folder on a web server for reading.

    Parameters
    ----------
    base_url
        The URL of the folder.
    config
        Client options, named as in object_store.
    headers
        Headers to send with every request.

    Returns
    -------
    Storage
        The storage.
    """
    from icefloe.storage.object_store.clients import Headers, HttpPlace  # importing obstore is slow

    check_web_url(base_url)
    return _make_storage_at(HttpPlace(base_url, dict(config or {}), Headers(dict(headers or {}))))


def check_web_url(url: str) -> None:
    """Raise StorageError if a URL is not a valid web server URL."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise StorageError(f"not an http url: {url!r}", kind=ErrorKind.CANNOT_PARSE_URL)
    if not has_valid_port(url):
        raise StorageError(
            f"{url}: the port is not a number; in a password, write / as %2F, # as %23 and ? as %3F",
            kind=ErrorKind.CANNOT_PARSE_URL,
        )


def _make_storage_at(place: Place, *, read_only: bool = False) -> Storage:
    from icefloe.storage.object_store.storage import ObjectStorage  # importing obstore is slow

    return ObjectStorage(place, read_only=read_only)


def _to_folder(prefix: str | None) -> str:
    return (prefix or "").strip("/")


def _make_config_error(text: str) -> StorageError:
    return StorageError(f"storage configuration error: {text}", kind=ErrorKind.STORAGE_CONFIG)


Storage.new_in_memory = staticmethod(in_memory_storage)
Storage.new_local_filesystem = staticmethod(local_filesystem_storage)
Storage.new_s3 = staticmethod(_new_s3)
Storage.new_s3_object_store = staticmethod(_new_s3_object_store)
Storage.new_tigris = staticmethod(_new_tigris)
Storage.new_r2 = staticmethod(_new_r2)
Storage.new_hf = staticmethod(_new_hf)
Storage.new_gcs = staticmethod(_new_gcs)
Storage.new_azure_blob = staticmethod(_new_azure_blob)
Storage.new_http = staticmethod(_new_http)
