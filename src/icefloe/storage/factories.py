"""The functions that make storages, with the official names and arguments."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from icefloe.config import ChecksumAlgorithm, S3Options
from icefloe.storage import opening
from icefloe.storage.base import Storage

if TYPE_CHECKING:  # credentials are loaded where they are needed: a folder has none
    from icefloe.credentials import GcsBearerCredential, S3StaticCredentials


def in_memory_storage() -> Storage:
    """A storage in the memory of this process; every call makes another, empty one."""
    return Storage.new_in_memory()


def local_filesystem_storage(path: str) -> Storage:
    """A folder of this machine.

    Commits are safe between processes of this host. They wait until the disk has the data;
    `storage_from_url(path, sync=False)` does not.
    """
    return Storage.new_local_filesystem(path)


def http_storage(
    base_url: str,
    opts: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
) -> Storage:
    """A repository on a web server, for reading; the server must honour range requests.

    `opts` are object_store's ClientConfigKey names in snake case; `headers` go with every request.
    """
    return opening.http(base_url, opts, headers)


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
    """A prefix in a bucket of S3, or of a store that speaks S3 at `endpoint_url`.

    Credentials are chosen as by `s3_credentials`: without any, those of the environment.
    `network_stream_timeout_seconds` is how long no byte may arrive, 0 for ever. Of the checksum algorithms
    only Sha256 can be asked for. Headers of a role go over those for both.
    """
    from icefloe.credentials import s3_credentials

    options = S3Options(
        region=region,
        endpoint_url=endpoint_url,
        allow_http=allow_http,
        anonymous=anonymous or False,
        force_path_style=force_path_style,
        network_stream_timeout_seconds=network_stream_timeout_seconds,
        requester_pays=requester_pays,
        checksum_algorithm=checksum_algorithm,
    )
    credentials = s3_credentials(
        access_key_id=access_key_id,
        secret_access_key=secret_access_key,
        session_token=session_token,
        expires_after=expires_after,
        anonymous=anonymous,
        from_env=from_env,
        get_credentials=get_credentials,
        scatter_initial_credentials=scatter_initial_credentials,
    )
    return opening.s3(
        options, bucket, prefix, credentials, legacy_rooted_keys, read_headers, write_headers, headers
    )


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
    """The same as `s3_storage`, which has more options: here one client serves both names."""
    return s3_storage(
        bucket=bucket,
        prefix=prefix,
        region=region,
        endpoint_url=endpoint_url,
        allow_http=allow_http,
        access_key_id=access_key_id,
        secret_access_key=secret_access_key,
        session_token=session_token,
        expires_after=expires_after,
        anonymous=anonymous,
        from_env=from_env,
        force_path_style=force_path_style,
        read_headers=read_headers,
        write_headers=write_headers,
        headers=headers,
    )


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
    """A prefix in a bucket of Tigris.

    It is consistent only within its region, which must be given; with `use_weak_consistency` any region is
    read, and nothing can be written.
    """
    from icefloe.credentials import s3_credentials

    options = S3Options(
        region=region,
        endpoint_url=endpoint_url,
        allow_http=allow_http,
        anonymous=anonymous or False,
        network_stream_timeout_seconds=network_stream_timeout_seconds,
        checksum_algorithm=checksum_algorithm,
    )
    credentials = s3_credentials(
        access_key_id=access_key_id,
        secret_access_key=secret_access_key,
        session_token=session_token,
        expires_after=expires_after,
        anonymous=anonymous,
        from_env=from_env,
        get_credentials=get_credentials,
        scatter_initial_credentials=scatter_initial_credentials,
    )
    return opening.tigris(
        options,
        bucket,
        prefix,
        use_weak_consistency,
        credentials,
        legacy_rooted_keys,
        read_headers,
        write_headers,
        headers,
    )


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
    """A prefix in a bucket of Cloudflare R2, named by `account_id` or `endpoint_url`.

    Without a bucket the first segment of the prefix is taken for it.
    """
    from icefloe.credentials import s3_credentials

    options = S3Options(
        region=region,
        endpoint_url=endpoint_url,
        allow_http=allow_http,
        anonymous=anonymous or False,
        network_stream_timeout_seconds=network_stream_timeout_seconds,
        checksum_algorithm=checksum_algorithm,
    )
    credentials = s3_credentials(
        access_key_id=access_key_id,
        secret_access_key=secret_access_key,
        session_token=session_token,
        expires_after=expires_after,
        anonymous=anonymous,
        from_env=from_env,
        get_credentials=get_credentials,
        scatter_initial_credentials=scatter_initial_credentials,
    )
    return opening.r2(
        options,
        bucket,
        prefix,
        account_id,
        credentials,
        legacy_rooted_keys,
        read_headers,
        write_headers,
        headers,
    )


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
    """A prefix in a bucket of Hugging Face, of the user or organisation `namespace`.

    The gateway drops the metadata of objects, so a write of ours is recognised by its content.
    """
    from icefloe.credentials import s3_credentials

    options = S3Options(network_stream_timeout_seconds=network_stream_timeout_seconds)
    credentials = s3_credentials(
        access_key_id=access_key_id,
        secret_access_key=secret_access_key,
        session_token=session_token,
        expires_after=expires_after,
        from_env=from_env,
        get_credentials=get_credentials,
        scatter_initial_credentials=scatter_initial_credentials,
    )
    return opening.hf(
        options,
        bucket,
        prefix,
        namespace,
        credentials,
        legacy_rooted_keys,
        read_headers,
        write_headers,
        headers,
    )


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
    """A prefix in a bucket of Google Cloud Storage.

    Credentials are chosen as by `gcs_credentials`. `config` are object_store's GoogleConfigKey names.
    """
    from icefloe.credentials import gcs_credentials

    credentials = gcs_credentials(
        service_account_file=service_account_file,
        service_account_key=service_account_key,
        application_credentials=application_credentials,
        bearer_token=bearer_token,
        from_env=from_env,
        anonymous=anonymous,
        get_credentials=get_credentials,
        scatter_initial_credentials=scatter_initial_credentials,
    )
    return opening.gcs(bucket, prefix, credentials, config, read_headers, write_headers, headers)


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
    """A prefix in a container of Azure Blob Storage.

    Credentials are chosen as by `azure_credentials`. `config` are object_store's AzureConfigKey names.
    """
    from icefloe.credentials import azure_credentials

    credentials = azure_credentials(
        access_key=access_key,
        sas_token=sas_token,
        bearer_token=bearer_token,
        from_env=from_env,
        anonymous=anonymous,
    )
    return opening.azure(account, container, prefix, credentials, config)
