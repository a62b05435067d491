"""obstore clients, created from picklable descriptions of locations.

obstore has its own threads, which do not survive a fork. If a process has used a client, using one in a
forked child raises an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from ipaddress import ip_address
from typing import Any, TypeAlias
from urllib.parse import urlsplit, urlunsplit

from obstore.store import AzureStore, GCSStore, HTTPStore, LocalStore, S3Store

from icefloe._version import __version__
from icefloe.config import Attribution, ChecksumAlgorithm, EffectiveStorageSettings, S3Options
from icefloe.credentials import (
    AnyAzureCredential,
    AnyAzureRefreshableCredential,
    AnyAzureStaticCredential,
    AnyGcsCredential,
    AnyS3Credential,
    AzureCredentials,
    AzureRefreshableCredential,
    AzureStaticCredentials,
    GcsBearerCredential,
    GcsCredentials,
    GcsStaticCredentials,
    Refresher,
    S3Credentials,
    S3StaticCredentials,
)
from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.storage.object_store.aws_profile import (
    has_profile_keys_from_env,
    read_profile_keys,
    read_region_from_env,
)

Client: TypeAlias = S3Store | GCSStore | AzureStore | HTTPStore

_DEFAULT_RETRY_MS = 180_000
_STREAM_TIMEOUT_S = 60
_READ_TIMEOUT_S = 3600
_WRITE_TIMEOUT_S = 600
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_CLIENT_KEYS = {
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "default_content_type",
    "http1_only",
    "http2_keep_alive_interval",
    "http2_keep_alive_timeout",
    "http2_keep_alive_while_idle",
    "http2_only",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "randomize_addresses",
    "read_timeout",
    "timeout",
    "user_agent",
}
_CHECKSUMS = {ChecksumAlgorithm.Sha256: "SHA256", ChecksumAlgorithm.Crc64Nvme: "CRC64NVME"}
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\uffff]*")
_TRUE = {"1", "true", "on", "yes", "y"}
_BOOLEAN_KEYS = {
    "allow_http",
    "allow_invalid_certificates",
    "http1_only",
    "http2_only",
    "randomize_addresses",
}

_runtime_pid: int | None = None


class ClientRole(Enum):
    """The purpose of an object store client, which determines its headers and retries."""

    READ = "read"
    WRITE = "write"
    SWAP = "swap"  # retried in `conditional_writes`, which recognizes its own writes


@dataclass(frozen=True, slots=True)
class Headers:
    """Additional HTTP headers for object store clients. Headers for reads or writes override those for all
    requests.
    """

    both: Mapping[str, str] = field(default_factory=dict)
    read: Mapping[str, str] = field(default_factory=dict)
    write: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in (pair for some in (self.both, self.read, self.write) for pair in some.items()):
            if not _HEADER_NAME.fullmatch(name):
                raise ValueError(f"invalid HTTP header name {name!r}: expected letters, digits and -")
            if not _HEADER_VALUE.fullmatch(value):
                # The value may be a secret.
                raise ValueError(f"invalid HTTP header value for {name!r}: expected printable characters")

    def of(self, role: ClientRole) -> dict[str, str]:
        """Return the HTTP headers for a client with the given role."""
        return {**self.both, **(self.read if role is ClientRole.READ else self.write)}


@dataclass(frozen=True, slots=True)
class S3Place:
    """The location of a storage in S3: a prefix in a bucket."""

    bucket: str
    prefix: str
    options: S3Options
    credentials: AnyS3Credential
    headers: Headers = field(repr=False)
    encodes_keys = False

    def __post_init__(self) -> None:
        _check_name(self.bucket)

    def client(
        self, settings: EffectiveStorageSettings, role: ClientRole, user_agent: str, source: CredentialSource
    ) -> Client:
        """Create an obstore client for a prefix in an S3 bucket."""
        options = self.options
        config: dict[str, Any] = {"skip_signature": _is_anonymous(self.credentials) or options.anonymous}
        endpoint, virtual_hosted = _s3_endpoint(self.bucket, options)
        config["virtual_hosted_style_request"] = virtual_hosted
        if endpoint:
            config["endpoint"] = endpoint
        if region := options.region or read_region_from_env():
            config["region"] = region
        if options.requester_pays:
            config["request_payer"] = True
        if options.checksum_algorithm is not None and role is not ClientRole.READ:
            config["checksum_algorithm"] = _get_checksum_name(options.checksum_algorithm)
        stream_timeout_s = options.network_stream_timeout_seconds
        client = _client_options(settings, role, self.headers.of(role), user_agent, stream_timeout_s)
        if options.allow_http:
            client["allow_http"] = True
        return S3Store(self.bucket, **_make_common_arguments(self, settings, role, config, client, source))

    @property
    def is_amazon(self) -> bool:
        """True if the location is in Amazon S3 rather than an S3-compatible store."""
        return not self.endpoint or (urlsplit(self.endpoint).hostname or "").endswith(".amazonaws.com")

    @property
    def endpoint(self) -> str | None:
        """The endpoint that receives requests; None for Amazon's own."""
        return self.options.endpoint_url or _endpoint_from_env()

    def describe(self) -> dict[str, str]:
        """Return the parts of the S3 location for display."""
        shown = {"type": "S3", "bucket": self.bucket, "prefix": self.prefix}
        shown["region"] = self.options.region or ""
        shown["endpoint_url"] = _strip_password(self.options.endpoint_url or "")
        shown["force_path_style"] = "True" if self.options.force_path_style else ""
        return {key: value for key, value in shown.items() if value}

    def source(self) -> CredentialSource:
        """Return the source of credentials for the S3 client."""
        match self.credentials:
            case S3Credentials.Static(credentials):
                return CredentialSource.of(lambda: credentials, _s3_dict)
            case S3Credentials.Refreshable(function, current):
                return CredentialSource.of(Refresher(function, current, (S3StaticCredentials,)).get, _s3_dict)
            case S3Credentials.FromEnv() if has_profile_keys_from_env():
                return CredentialSource.of(read_profile_keys, _s3_dict)
        return CredentialSource(None)


@dataclass(frozen=True, slots=True)
class GcsPlace:
    """The location of a storage in Google Cloud Storage: a prefix in a bucket."""

    bucket: str
    prefix: str
    config: Mapping[str, str] = field(repr=False)
    credentials: AnyGcsCredential
    headers: Headers = field(repr=False)
    encodes_keys = True

    def __post_init__(self) -> None:
        _check_name(self.bucket)

    def client(
        self, settings: EffectiveStorageSettings, role: ClientRole, user_agent: str, source: CredentialSource
    ) -> Client:
        """Create an obstore client for a prefix in a Google Cloud Storage bucket."""
        config, client = _split_options(self.config)
        if _is_anonymous(self.credentials):
            config["skip_signature"] = True
        match self.credentials:
            case GcsCredentials.Static(GcsStaticCredentials.ServiceAccount(path)):
                config["service_account"] = path
            case GcsCredentials.Static(GcsStaticCredentials.ServiceAccountKey(key)):
                config["service_account_key"] = key
            case GcsCredentials.Static(GcsStaticCredentials.ApplicationCredentials(path)):
                config["application_credentials"] = path
        client = {**_client_options(settings, role, self.headers.of(role), user_agent), **client}
        return GCSStore(self.bucket, **_make_common_arguments(self, settings, role, config, client, source))

    def describe(self) -> dict[str, str]:
        """Return the parts of the Google Cloud Storage location for display."""
        return {"type": "GCS", "bucket": self.bucket, **({"prefix": self.prefix} if self.prefix else {})}

    def source(self) -> CredentialSource:
        """Return the source of credentials for the Google Cloud Storage client."""
        match self.credentials:
            case GcsCredentials.Static(GcsStaticCredentials.BearerToken(token)):
                return CredentialSource.of(lambda: GcsBearerCredential(token), _gcs_dict)
            case GcsCredentials.Refreshable(function, current):
                return CredentialSource.of(
                    Refresher(function, current, (GcsBearerCredential,)).get, _gcs_dict
                )
        return CredentialSource(None)


@dataclass(frozen=True, slots=True)
class AzurePlace:
    """The location of a storage in Azure Blob Storage: a prefix in a container."""

    account: str
    container: str
    prefix: str
    config: Mapping[str, str] = field(repr=False)
    credentials: AnyAzureCredential
    encodes_keys = True

    def __post_init__(self) -> None:
        _check_name(self.container)

    def client(
        self, settings: EffectiveStorageSettings, role: ClientRole, user_agent: str, source: CredentialSource
    ) -> Client:
        """Create an obstore client for a prefix in an Azure Blob Storage container."""
        config, client = _split_options(self.config)
        if _is_anonymous(self.credentials):
            config["skip_signature"] = True
        client = {**_client_options(settings, role, {}, user_agent), **client}
        common = _make_common_arguments(self, settings, role, config, client, source)
        return AzureStore(self.container, account_name=self.account, **common)

    def describe(self) -> dict[str, str]:
        """Return the parts of the Azure location for display."""
        shown = {"type": "Azure", "account": self.account, "container": self.container, "prefix": self.prefix}
        return {key: value for key, value in shown.items() if value}

    def source(self) -> CredentialSource:
        """Return the source of credentials for the Azure client."""
        match self.credentials:
            case AzureCredentials.Static(credentials):
                return CredentialSource.of(lambda: credentials, _azure_dict)
            case AzureCredentials.Refreshable(function, current):
                accepted = (
                    AzureRefreshableCredential.AccessKey,
                    AzureRefreshableCredential.SasToken,
                    AzureRefreshableCredential.BearerToken,
                )
                refresher: Refresher[AnyAzureRefreshableCredential] = Refresher(function, current, accepted)
                return CredentialSource.of(refresher.get, _azure_dict)
        return CredentialSource(None)


@dataclass(frozen=True, slots=True)
class HttpPlace:
    """The location of a read-only storage on a web server: a folder."""

    url: str = field(repr=False)
    config: Mapping[str, str] = field(repr=False)
    headers: Headers = field(repr=False)
    encodes_keys = True

    def client(
        self, settings: EffectiveStorageSettings, role: ClientRole, user_agent: str, source: CredentialSource
    ) -> Client:
        """Create an obstore client for a folder on a web server."""
        _, client = _split_options(self.config)
        if urlsplit(self.url).scheme == "http":
            client.setdefault("allow_http", True)
        return HTTPStore(
            self.url,
            client_options={**_client_options(settings, role, self.headers.of(role), user_agent), **client},  # type: ignore[arg-type]
            retry_config=_retry_config(settings, role),  # type: ignore[arg-type]
        )

    def describe(self) -> dict[str, str]:
        """Return the parts of the web location for display."""
        return {"type": "HTTP", "url": _strip_password(self.url)}

    def source(self) -> CredentialSource:
        """Return an empty source of credentials, because web clients send headers instead."""
        return CredentialSource(None)


_NAME = re.compile(r"[\w.:/%~;,=+!$&'()*-]*", re.ASCII)
"""Matches bucket names that obstore accepts. It panics on any other character."""


def _check_name(name: str) -> None:
    """Raise an error for a bucket name that cannot be part of a URL, or that contains credentials from a
    malformed URL.
    """
    _, at, rest = name.rpartition("@")
    if at or (":" in name and not name.startswith("arn:")):  # KEY:SEC/RET@bucket ends at the slash
        raise StorageError(
            f"bucket {rest if at else '****'}: a URL must not contain keys; pass them as credentials",
            kind=ErrorKind.STORAGE_CONFIG,
        )
    if not _NAME.fullmatch(name):
        raise StorageError(
            f"invalid bucket name {name!r}: it must consist of letters, digits, '-', '.' and '_'",
            kind=ErrorKind.STORAGE_CONFIG,
        )


Place: TypeAlias = S3Place | GcsPlace | AzurePlace | HttpPlace


class CredentialSource:
    """A source of credentials for obstore clients. It keeps its exceptions, because obstore reports only
    their text.

    Static credentials use it as well, because obstore would otherwise combine them with a token from the
    environment.
    """

    def __init__(self, get: Callable[[], dict[str, Any]] | None) -> None:
        self._get = get
        self.failure: InvalidInputError | None = None

    @classmethod
    def of(cls, get: Callable[[], Any], to_dict: Callable[[Any], dict[str, Any]]) -> CredentialSource:
        """Create a source of credentials from a function that returns credentials, and a function that
        converts the result for obstore.
        """
        return cls(lambda: to_dict(get()))

    @property
    def provider(self) -> Any:
        """The function that obstore calls to get credentials; None if obstore should look for credentials
        itself.
        """
        return None if self._get is None else self._provide

    def _provide(self) -> dict[str, Any]:
        self.failure = None
        try:
            return self._get()  # type: ignore[misc]  # only used if it is set
        except InvalidInputError as failure:
            self.failure = failure
            raise


def check_process() -> None:
    """Raise StorageError if this process was forked from one that had used obstore, because calls to obstore
    would hang.
    """
    global _runtime_pid
    if _runtime_pid is None:
        _runtime_pid = os.getpid()
    elif _runtime_pid != os.getpid():
        raise StorageError(
            "object storage cannot be used in a process that was forked from one that used it; "
            "start workers with the 'spawn' or 'forkserver' method",
            kind=ErrorKind.STORAGE_OTHER,
        )


def make_user_agent(attribution: Attribution | None) -> str:
    """Return the User-Agent header for requests to object stores."""
    return (attribution or Attribution()).user_agent(f"icefloe/{__version__}")


def _client_options(
    settings: EffectiveStorageSettings,
    role: ClientRole,
    headers: dict[str, str],
    agent: str,
    stream_timeout_s: int | None = _STREAM_TIMEOUT_S,
) -> dict[str, Any]:
    """Return the options of the HTTP client.

    By default, obstore aborts any request after 30 seconds, even while data arrives. Here, reads time out
    only when no data arrives for a while. For writes, only the total time can be limited, and slow
    connections need longer.
    """
    timeout_ms = settings.operation_attempt_timeout_ms
    if timeout_ms is None:
        timeout_ms = 1000 * (_READ_TIMEOUT_S if role is ClientRole.READ else _WRITE_TIMEOUT_S)
    options: dict[str, Any] = {"user_agent": agent, "timeout": timedelta(milliseconds=timeout_ms)}
    if headers:
        options["default_headers"] = headers
    if settings.connect_timeout_ms is not None:
        options["connect_timeout"] = timedelta(milliseconds=settings.connect_timeout_ms)
    if settings.read_timeout_ms is not None:
        options["read_timeout"] = timedelta(milliseconds=settings.read_timeout_ms)
    elif role is ClientRole.READ and stream_timeout_s:
        options["read_timeout"] = timedelta(seconds=stream_timeout_s)
    return options


def _make_common_arguments(
    place: S3Place | GcsPlace | AzurePlace,
    settings: EffectiveStorageSettings,
    role: ClientRole,
    config: dict[str, Any],
    client: dict[str, Any],
    source: CredentialSource,
) -> dict[str, Any]:
    """Return the arguments that are common to obstore's stores for all providers."""
    return {
        "prefix": place.prefix or None,
        "config": config,
        "client_options": client,
        "retry_config": _retry_config(settings, role),
        "credential_provider": source.provider,
    }


def _retry_config(settings: EffectiveStorageSettings, role: ClientRole) -> dict[str, Any]:
    return {
        "max_retries": 0 if role is ClientRole.SWAP else settings.max_tries - 1,
        "retry_timeout": timedelta(milliseconds=settings.operation_timeout_ms or _DEFAULT_RETRY_MS),
        "backoff": {
            "init_backoff": timedelta(milliseconds=max(settings.initial_backoff_ms, 1)),
            "max_backoff": timedelta(milliseconds=max(settings.max_backoff_ms, 1)),
        },
    }


def _split_options(options: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split options into store options and HTTP client options, which obstore expects separately."""
    store: dict[str, Any] = {}
    client: dict[str, Any] = {}
    for key, value in options.items():
        if key.lower() not in _CLIENT_KEYS:
            store[key] = value
        elif key.lower() in _BOOLEAN_KEYS:
            client[key.lower()] = value.lower() in _TRUE
        else:
            client[key.lower()] = value
    return store, client


def _s3_endpoint(bucket: str, options: S3Options) -> tuple[str | None, bool]:
    """Return the endpoint for obstore, and True if the bucket is part of the host name."""
    virtual_hosted = not options.force_path_style and "." not in bucket
    if not options.endpoint_url:
        return None, virtual_hosted
    url = urlsplit(options.endpoint_url)
    if not virtual_hosted or _is_address(url.hostname or ""):
        return options.endpoint_url.rstrip("/"), False
    return urlunsplit((url.scheme, f"{bucket}.{url.netloc}", url.path.rstrip("/"), "", "")), True


def _get_checksum_name(algorithm: ChecksumAlgorithm) -> str:
    """Return obstore's name for a checksum algorithm."""
    try:
        return _CHECKSUMS[algorithm]
    except KeyError:
        raise StorageError(
            f"writes cannot have a {algorithm.name} checksum; use Sha256 or Crc64Nvme, or none, because "
            "signed writes have a SHA-256 anyway",
            kind=ErrorKind.STORAGE_CONFIG,
        ) from None


def _endpoint_from_env() -> str | None:
    """Return the endpoint that obstore would take from the environment."""
    return next((os.environ[name] for name in _ENDPOINT_VARIABLES if os.environ.get(name)), None)


def _is_address(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _is_anonymous(credentials: AnyS3Credential | AnyGcsCredential | AnyAzureCredential) -> bool:
    return isinstance(
        credentials, (S3Credentials.Anonymous, GcsCredentials.Anonymous, AzureCredentials.Anonymous)
    )


def _make_aware(time: datetime | None) -> datetime | None:
    return time.astimezone() if time is not None and time.tzinfo is None else time


def _s3_dict(credential: S3StaticCredentials) -> dict[str, Any]:
    return {
        "access_key_id": credential.access_key_id,
        "secret_access_key": credential.secret_access_key,
        "token": credential.session_token,
        "expires_at": _make_aware(credential.expires_after),
    }


def _gcs_dict(credential: GcsBearerCredential) -> dict[str, Any]:
    return {"token": credential.bearer, "expires_at": _make_aware(credential.expires_after)}


def _azure_dict(credential: AnyAzureStaticCredential | AnyAzureRefreshableCredential) -> dict[str, Any]:
    expires_at = _make_aware(getattr(credential, "expires_after", None))
    match credential:
        case AzureStaticCredentials.AccessKey(key) | AzureRefreshableCredential.AccessKey(key):
            return {"access_key": key, "expires_at": expires_at}
        case AzureStaticCredentials.SasToken(token) | AzureRefreshableCredential.SasToken(token):
            return {"sas_token": token.removeprefix("?"), "expires_at": expires_at}
        case AzureStaticCredentials.BearerToken(token):
            return {"token": token, "expires_at": expires_at}
        case AzureRefreshableCredential.BearerToken(bearer):
            return {"token": bearer, "expires_at": expires_at}


def _strip_password(url: str) -> str:
    parts = urlsplit(url)
    if "@" not in parts.netloc and not parts.query:
        return url
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def make_local_object_store() -> Any:
    """Return an obstore store for the local file system, for libraries that expect an obstore store."""
    check_process()
    return LocalStore()
