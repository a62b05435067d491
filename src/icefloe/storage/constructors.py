"""The official class methods that make storages, `Storage.new_s3` and its like.

The functions that do it live in `factories`, above the classes they make; they are registered here by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from icefloe.config import S3Options

if TYPE_CHECKING:
    from icefloe.credentials import AnyAzureCredential, AnyGcsCredential, AnyS3Credential
    from icefloe.storage.base import Storage

makers: dict[str, Callable[..., Any]] = {}


class StorageConstructors:
    """The class methods of `Storage`; the `*_storage` functions are easier to use."""

    @classmethod
    def new_in_memory(cls) -> Storage:
        """See `in_memory_storage`."""
        return _make("in_memory")

    @classmethod
    def new_local_filesystem(cls, path: str) -> Storage:
        """See `local_filesystem_storage`."""
        return _make("local_filesystem", path)

    @classmethod
    def new_s3(
        cls,
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
        """See `s3_storage`."""
        return _make(
            "s3",
            config,
            bucket,
            prefix,
            credentials,
            legacy_rooted_keys,
            read_headers,
            write_headers,
            headers,
        )

    @classmethod
    def new_s3_object_store(
        cls,
        config: S3Options,
        bucket: str,
        prefix: str | None,
        credentials: AnyS3Credential | None = None,
        *,
        read_headers: dict[str, str] | None = None,
        write_headers: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Storage:
        """See `s3_object_store_storage`."""
        return _make("s3", config, bucket, prefix, credentials, None, read_headers, write_headers, headers)

    @classmethod
    def new_tigris(
        cls,
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
        """See `tigris_storage`."""
        return _make(
            "tigris",
            config,
            bucket,
            prefix,
            use_weak_consistency,
            credentials,
            legacy_rooted_keys,
            read_headers,
            write_headers,
            headers,
        )

    @classmethod
    def new_r2(
        cls,
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
        """See `r2_storage`."""
        return _make(
            "r2",
            config,
            bucket,
            prefix,
            account_id,
            credentials,
            legacy_rooted_keys,
            read_headers,
            write_headers,
            headers,
        )

    @classmethod
    def new_hf(
        cls,
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
        """See `hf_storage`."""
        return _make(
            "hf",
            config,
            bucket,
            prefix,
            namespace,
            credentials,
            legacy_rooted_keys,
            read_headers,
            write_headers,
            headers,
        )

    @classmethod
    def new_gcs(
        cls,
        bucket: str,
        prefix: str | None,
        credentials: AnyGcsCredential | None = None,
        *,
        config: dict[str, str] | None = None,
        read_headers: dict[str, str] | None = None,
        write_headers: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Storage:
        """See `gcs_storage`."""
        return _make("gcs", bucket, prefix, credentials, config, read_headers, write_headers, headers)

    @classmethod
    def new_azure_blob(
        cls,
        account: str,
        container: str,
        prefix: str,
        credentials: AnyAzureCredential | None = None,
        *,
        config: dict[str, str] | None = None,
    ) -> Storage:
        """See `azure_storage`."""
        return _make("azure", account, container, prefix, credentials, config)

    @classmethod
    def new_http(
        cls,
        base_url: str,
        config: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Storage:
        """See `http_storage`."""
        return _make("http", base_url, config, headers)

    @classmethod
    def new_redirect(cls, base_url: str) -> Storage:
        """See `redirect_storage`."""
        return _make("redirect", base_url)


def _make(name: str, *arguments: object) -> Storage:
    storage: Storage = makers[name](*arguments)
    return storage
