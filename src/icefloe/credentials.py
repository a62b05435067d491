"""Credential values, how they are chosen from arguments, and how refreshable ones are kept fresh.

Values are frozen, compare by content, pickle, and never show a secret in `repr`. A pickle does hold the
secrets: whoever sends one to a worker sends the keys along.

Nothing here talks to a network or reads the environment: `FromEnv` only says that the storage shall.
"""

from __future__ import annotations

import html
import pickle
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, Generic, TypeAlias, TypeVar

from icefloe._internal.concurrency import fork_safe_lock
from icefloe._internal.redaction import redact
from icefloe.errors import ErrorKind, InvalidInputError

__all__ = [
    "AnyAzureCredential",
    "AnyAzureStaticCredential",
    "AnyCredential",
    "AnyGcsCredential",
    "AnyGcsStaticCredential",
    "AnyS3Credential",
    "AzureCredentials",
    "AzureRefreshableCredential",
    "AzureStaticCredentials",
    "Credentials",
    "GcsBearerCredential",
    "GcsCredentials",
    "GcsStaticCredentials",
    "HttpAccess",
    "LocalFileSystemAccess",
    "S3Credentials",
    "S3StaticCredentials",
    "azure_anonymous_credentials",
    "azure_credentials",
    "azure_from_env_credentials",
    "azure_refreshable_credentials",
    "azure_static_credentials",
    "containers_credentials",
    "gcs_anonymous_credentials",
    "gcs_credentials",
    "gcs_from_env_credentials",
    "gcs_refreshable_credentials",
    "gcs_static_credentials",
    "s3_anonymous_credentials",
    "s3_credentials",
    "s3_from_env_credentials",
    "s3_refreshable_credentials",
    "s3_static_credentials",
]

T = TypeVar("T")

_SECRET = {"secret": True}
_SHOWN_IN_PART = {"secret": True, "shown": 4}
"""The letters by which one tells one key from another."""


class _Veiled:
    """A value whose secret fields appear as `****` wherever it is printed."""

    __slots__ = ()

    def __repr__(self) -> str:
        shown = []
        for item in fields(self):  # type: ignore[arg-type]  # only mixed into dataclasses
            value = getattr(self, item.name)
            veiled = value is not None and item.metadata.get("secret", False)
            start = value[: item.metadata.get("shown", 0)] if veiled else ""
            shown.append(f"{item.name}={f'{start}****' if veiled else repr(value)}")
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def _repr_html_(self) -> str:
        return f"<code>{html.escape(repr(self))}</code>"


class _Family(type):
    """A class that only groups its variants: each variant counts as an instance of it."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, tuple(v for v in vars(cls).values() if isinstance(v, type)))


@dataclass(frozen=True, slots=True, repr=False)
class S3StaticCredentials(_Veiled):
    """An S3 key pair, with a session token and the time it expires if it is temporary."""

    access_key_id: str = field(metadata=_SHOWN_IN_PART)
    secret_access_key: str = field(metadata=_SECRET)
    session_token: str | None = field(default=None, metadata=_SECRET)
    expires_after: datetime | None = None


class S3Credentials(metaclass=_Family):
    """How requests to an S3 store are signed: one of the variants below."""

    @dataclass(frozen=True, slots=True, repr=False)
    class FromEnv(_Veiled):
        """The usual AWS places: environment, container or instance role."""

    @dataclass(frozen=True, slots=True, repr=False)
    class Anonymous(_Veiled):
        """Requests are not signed."""

    @dataclass(frozen=True, slots=True, repr=False)
    class Static(_Veiled):
        """A key pair that stays the same."""

        credentials: S3StaticCredentials

    @dataclass(frozen=True, slots=True, repr=False)
    class Refreshable(_Veiled):
        """A pickled function that returns a fresh key pair, and possibly the first one."""

        pickled_function: bytes = field(metadata=_SECRET)
        current: S3StaticCredentials | None = None


@dataclass(frozen=True, slots=True, repr=False)
class GcsBearerCredential(_Veiled):
    """An OAuth token for Google Cloud Storage."""

    bearer: str = field(metadata=_SECRET)
    expires_after: datetime | None = field(default=None, kw_only=True)


class GcsStaticCredentials(metaclass=_Family):
    """A Google Cloud credential that stays the same: one of the variants below."""

    @dataclass(frozen=True, slots=True, repr=False)
    class ServiceAccount(_Veiled):
        """The file with the service account's key."""

        path: str

    @dataclass(frozen=True, slots=True, repr=False)
    class ServiceAccountKey(_Veiled):
        """The service account's key itself, JSON."""

        key: str = field(metadata=_SECRET)

    @dataclass(frozen=True, slots=True, repr=False)
    class ApplicationCredentials(_Veiled):
        """The file with application default credentials."""

        path: str

    @dataclass(frozen=True, slots=True, repr=False)
    class BearerToken(_Veiled):
        """An OAuth token."""

        token: str = field(metadata=_SECRET)


class GcsCredentials(metaclass=_Family):
    """How requests to Google Cloud Storage are signed: one of the variants below."""

    @dataclass(frozen=True, slots=True, repr=False)
    class Anonymous(_Veiled):
        """Requests are not signed."""

    @dataclass(frozen=True, slots=True, repr=False)
    class FromEnv(_Veiled):
        """The usual Google places: environment, well-known file, instance metadata."""

    @dataclass(frozen=True, slots=True, repr=False)
    class Static(_Veiled):
        """A credential that stays the same."""

        credentials: AnyGcsStaticCredential

    @dataclass(frozen=True, slots=True, repr=False)
    class Refreshable(_Veiled):
        """A pickled function that returns a fresh token, and possibly the first one."""

        pickled_function: bytes = field(metadata=_SECRET)
        current: GcsBearerCredential | None = None


class AzureRefreshableCredential(metaclass=_Family):
    """What a function that refreshes Azure credentials returns: one of the variants below."""

    @dataclass(frozen=True, slots=True, repr=False)
    class AccessKey(_Veiled):
        """A key of the storage account."""

        key: str = field(metadata=_SECRET)
        expires_after: datetime | None = None

    @dataclass(frozen=True, slots=True, repr=False)
    class SasToken(_Veiled):
        """A shared access signature."""

        token: str = field(metadata=_SECRET)
        expires_after: datetime | None = None

    @dataclass(frozen=True, slots=True, repr=False)
    class BearerToken(_Veiled):
        """An OAuth token."""

        bearer: str = field(metadata=_SECRET)
        expires_after: datetime | None = None


class AzureStaticCredentials(metaclass=_Family):
    """An Azure credential that stays the same: one of the variants below."""

    @dataclass(frozen=True, slots=True, repr=False)
    class AccessKey(_Veiled):
        """A key of the storage account."""

        key: str = field(metadata=_SECRET)

    @dataclass(frozen=True, slots=True, repr=False)
    class SasToken(_Veiled):
        """A shared access signature."""

        token: str = field(metadata=_SECRET)

    @dataclass(frozen=True, slots=True, repr=False)
    class BearerToken(_Veiled):
        """An OAuth token."""

        token: str = field(metadata=_SECRET)


class AzureCredentials(metaclass=_Family):
    """How requests to Azure Blob Storage are signed: one of the variants below."""

    @dataclass(frozen=True, slots=True, repr=False)
    class Anonymous(_Veiled):
        """Requests are not signed; the container is public."""

    @dataclass(frozen=True, slots=True, repr=False)
    class FromEnv(_Veiled):
        """The usual Azure places: environment, managed identity, command line login."""

    @dataclass(frozen=True, slots=True, repr=False)
    class Static(_Veiled):
        """A credential that stays the same."""

        credentials: AnyAzureStaticCredential

    @dataclass(frozen=True, slots=True, repr=False)
    class Refreshable(_Veiled):
        """A pickled function that returns a fresh credential, and possibly the first one."""

        pickled_function: bytes = field(metadata=_SECRET)
        current: AnyAzureRefreshableCredential | None = None


class Credentials(metaclass=_Family):
    """The credential for one virtual chunk container: one of the variants below."""

    @dataclass(frozen=True, slots=True, repr=False)
    class S3(_Veiled):
        """For `s3://` and its relatives."""

        credentials: AnyS3Credential

    @dataclass(frozen=True, slots=True, repr=False)
    class Gcs(_Veiled):
        """For `gs://`."""

        credentials: AnyGcsCredential

    @dataclass(frozen=True, slots=True, repr=False)
    class Azure(_Veiled):
        """For `az://`."""

        credentials: AnyAzureCredential

    @dataclass(frozen=True, slots=True, repr=False)
    class LocalFileSystemAccess(_Veiled):
        """Permission to read `file://` locations; there is nothing to sign."""

    @dataclass(frozen=True, slots=True, repr=False)
    class HttpAccess(_Veiled):
        """Permission to read `http://` and `https://` locations; there is nothing to sign."""


AnyS3Credential: TypeAlias = (
    S3Credentials.Static | S3Credentials.Anonymous | S3Credentials.FromEnv | S3Credentials.Refreshable
)
AnyGcsStaticCredential: TypeAlias = (
    GcsStaticCredentials.ServiceAccount
    | GcsStaticCredentials.ServiceAccountKey
    | GcsStaticCredentials.ApplicationCredentials
    | GcsStaticCredentials.BearerToken
)
AnyGcsCredential: TypeAlias = (
    GcsCredentials.Anonymous | GcsCredentials.FromEnv | GcsCredentials.Static | GcsCredentials.Refreshable
)
AnyAzureStaticCredential: TypeAlias = (
    AzureStaticCredentials.AccessKey | AzureStaticCredentials.SasToken | AzureStaticCredentials.BearerToken
)
AnyAzureRefreshableCredential: TypeAlias = (
    AzureRefreshableCredential.AccessKey
    | AzureRefreshableCredential.SasToken
    | AzureRefreshableCredential.BearerToken
)
AnyAzureCredential: TypeAlias = (
    AzureCredentials.FromEnv
    | AzureCredentials.Anonymous
    | AzureCredentials.Static
    | AzureCredentials.Refreshable
)
AnyCredential: TypeAlias = (
    Credentials.S3
    | Credentials.Gcs
    | Credentials.Azure
    | Credentials.LocalFileSystemAccess
    | Credentials.HttpAccess
)

LocalFileSystemAccess = Credentials.LocalFileSystemAccess()
"""Authorises a `file://` virtual chunk container."""

HttpAccess = Credentials.HttpAccess()
"""Authorises an `http://` or `https://` virtual chunk container."""


class Refresher(Generic[T]):
    """Calls the user's function for a credential, and again once that one has expired.

    Safe to share between threads: one of them calls the function, the others wait for its answer. A
    credential without `expires_after` is asked for once. A copy made by pickling takes along the credential
    it was built with, not the one it holds now.
    """

    __slots__ = ("_accepted", "_current", "_function", "_initial", "_lock", "_pickled_function")

    def __init__(self, pickled_function: bytes, current: T | None, accepted: tuple[type[T], ...]) -> None:
        self._pickled_function = pickled_function
        self._initial = current
        self._current = current
        self._accepted = accepted
        self._function: Callable[[], T] | None = None
        self._lock = fork_safe_lock()

    def get(self) -> T:
        """Return a credential that has not expired; what the function raises arrives as its cause."""
        with self._lock:
            if self._current is None or _expired(self._current):
                self._current = self._call()
            return self._current

    def _call(self) -> T:
        try:
            if self._function is None:
                self._function = pickle.loads(self._pickled_function)
            fresh = self._function()
        except Exception as cause:
            raise InvalidInputError(
                f"the get_credentials function failed: {type(cause).__name__}: {cause}",
                kind=ErrorKind.INVALID_CREDENTIALS,
            ) from cause
        if not isinstance(fresh, self._accepted):
            expected = " or ".join(kind.__qualname__ for kind in self._accepted)
            raise InvalidInputError(
                f"the get_credentials function returned a {type(fresh).__name__}, "
                f"which cannot be converted to {expected}",
                kind=ErrorKind.INVALID_CREDENTIALS,
            )
        return fresh

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self._pickled_function, self._initial, self._accepted))


def s3_refreshable_credentials(
    get_credentials: Callable[[], S3StaticCredentials],
    scatter_initial_credentials: bool = False,
) -> S3Credentials.Refreshable:
    """Credentials asked for by calling `get_credentials`, and again each time they expire.

    The function must be picklable. With `scatter_initial_credentials` it is called at once and the answer
    travels in every pickle, so that many workers need not all call it when they start.
    """
    current = get_credentials() if scatter_initial_credentials else None
    return S3Credentials.Refreshable(pickle.dumps(get_credentials), current)


def s3_static_credentials(
    *,
    access_key_id: str,
    secret_access_key: str,
    session_token: str | None = None,
    expires_after: datetime | None = None,
) -> S3Credentials.Static:
    """A key pair that stays the same."""
    static = S3StaticCredentials(access_key_id, secret_access_key, session_token, expires_after)
    return S3Credentials.Static(static)


def s3_anonymous_credentials() -> S3Credentials.Anonymous:
    """Unsigned requests."""
    return S3Credentials.Anonymous()


def s3_from_env_credentials() -> S3Credentials.FromEnv:
    """Credentials from the environment of the process that opens the storage."""
    return S3Credentials.FromEnv()


def s3_credentials(
    *,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    expires_after: datetime | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    get_credentials: Callable[[], S3StaticCredentials] | None = None,
    scatter_initial_credentials: bool = False,
) -> AnyS3Credential:
    """The S3 credential these arguments describe; with none of them, the one of the environment.

    The ways exclude each other: a key pair, `anonymous`, `from_env` or `get_credentials`. Anything else is
    a ValueError.
    """
    keys_given = any(v is not None for v in (access_key_id, secret_access_key, session_token, expires_after))
    ways = [keys_given, bool(anonymous), bool(from_env), get_credentials is not None]
    if sum(ways) > 1:
        raise ValueError("Conflicting arguments to s3_credentials function")
    if get_credentials is not None:
        return s3_refreshable_credentials(get_credentials, scatter_initial_credentials)
    if anonymous:
        return s3_anonymous_credentials()
    if access_key_id and secret_access_key:
        return s3_static_credentials(
            access_key_id=access_key_id,
            secret_access_key=secret_access_key,
            session_token=session_token,
            expires_after=expires_after,
        )
    if keys_given:
        raise ValueError("s3_credentials needs both access_key_id and secret_access_key")
    if from_env is False:
        raise ValueError("Conflicting arguments to s3_credentials function: from_env=False and nothing else")
    return s3_from_env_credentials()


def gcs_static_credentials(
    *,
    service_account_file: str | None = None,
    service_account_key: str | None = None,
    application_credentials: str | None = None,
    bearer_token: str | None = None,
) -> AnyGcsStaticCredential:
    """A Google Cloud credential that stays the same; the first argument given decides."""
    if service_account_file is not None:
        return GcsStaticCredentials.ServiceAccount(service_account_file)
    if service_account_key is not None:
        return GcsStaticCredentials.ServiceAccountKey(service_account_key)
    if application_credentials is not None:
        return GcsStaticCredentials.ApplicationCredentials(application_credentials)
    if bearer_token is not None:
        return GcsStaticCredentials.BearerToken(bearer_token)
    raise ValueError("Conflicting arguments to gcs_static_credentials function: no credential given")


def gcs_refreshable_credentials(
    get_credentials: Callable[[], GcsBearerCredential],
    scatter_initial_credentials: bool = False,
) -> GcsCredentials.Refreshable:
    """A token asked for by calling `get_credentials`; see `s3_refreshable_credentials`."""
    current = get_credentials() if scatter_initial_credentials else None
    return GcsCredentials.Refreshable(pickle.dumps(get_credentials), current)


def gcs_anonymous_credentials() -> GcsCredentials.Anonymous:
    """Unsigned requests."""
    return GcsCredentials.Anonymous()


def gcs_from_env_credentials() -> GcsCredentials.FromEnv:
    """Credentials from the environment of the process that opens the storage."""
    return GcsCredentials.FromEnv()


def gcs_credentials(
    *,
    service_account_file: str | None = None,
    service_account_key: str | None = None,
    application_credentials: str | None = None,
    bearer_token: str | None = None,
    from_env: bool | None = None,
    anonymous: bool | None = None,
    get_credentials: Callable[[], GcsBearerCredential] | None = None,
    scatter_initial_credentials: bool = False,
) -> AnyGcsCredential:
    """The Google Cloud credential these arguments describe; with none of them, the one of the environment.

    `anonymous` goes first, then a static value, then `get_credentials`, then the environment.
    """
    static_values = (service_account_file, service_account_key, application_credentials, bearer_token)
    if anonymous:
        return gcs_anonymous_credentials()
    if any(value is not None for value in static_values):
        if from_env:
            raise ValueError("Conflicting arguments to gcs_credentials function: from_env and a static value")
        return GcsCredentials.Static(
            gcs_static_credentials(
                service_account_file=service_account_file,
                service_account_key=service_account_key,
                application_credentials=application_credentials,
                bearer_token=bearer_token,
            )
        )
    if get_credentials is not None:
        if from_env:
            raise ValueError("Conflicting arguments to gcs_credentials function: from_env, get_credentials")
        return gcs_refreshable_credentials(get_credentials, scatter_initial_credentials)
    if from_env is False:
        raise ValueError("Conflicting arguments to gcs_credentials function: from_env=False and nothing else")
    return gcs_from_env_credentials()


def azure_static_credentials(
    *,
    access_key: str | None = None,
    sas_token: str | None = None,
    bearer_token: str | None = None,
) -> AnyAzureStaticCredential:
    """An Azure credential that stays the same; exactly one argument must be given."""
    if [access_key, sas_token, bearer_token].count(None) != 2:
        raise ValueError("Conflicting arguments to azure_static_credentials function: give exactly one")
    if access_key is not None:
        return AzureStaticCredentials.AccessKey(access_key)
    if sas_token is not None:
        return AzureStaticCredentials.SasToken(sas_token)
    return AzureStaticCredentials.BearerToken(str(bearer_token))


def azure_refreshable_credentials(
    get_credentials: Callable[[], AnyAzureRefreshableCredential],
    scatter_initial_credentials: bool = False,
) -> AzureCredentials.Refreshable:
    """A credential asked for by calling `get_credentials`; see `s3_refreshable_credentials`."""
    current = get_credentials() if scatter_initial_credentials else None
    return AzureCredentials.Refreshable(pickle.dumps(get_credentials), current)


def azure_from_env_credentials() -> AzureCredentials.FromEnv:
    """Credentials from the environment of the process that opens the storage."""
    return AzureCredentials.FromEnv()


def azure_anonymous_credentials() -> AzureCredentials.Anonymous:
    """Unsigned requests."""
    return AzureCredentials.Anonymous()


def azure_credentials(
    *,
    access_key: str | None = None,
    sas_token: str | None = None,
    bearer_token: str | None = None,
    from_env: bool | None = None,
    anonymous: bool | None = None,
    get_credentials: Callable[[], AnyAzureRefreshableCredential] | None = None,
    scatter_initial_credentials: bool = False,
) -> AnyAzureCredential:
    """The Azure credential these arguments describe; with none of them, the one of the environment.

    `anonymous` goes first, then `get_credentials`, then a static value, then the environment.
    """
    if anonymous:
        return azure_anonymous_credentials()
    if get_credentials is not None:
        return azure_refreshable_credentials(get_credentials, scatter_initial_credentials)
    if any(value is not None for value in (access_key, sas_token, bearer_token)):
        if from_env:
            raise ValueError("Conflicting arguments to azure_credentials function: from_env, a static value")
        return AzureCredentials.Static(
            azure_static_credentials(access_key=access_key, sas_token=sas_token, bearer_token=bearer_token)
        )
    if from_env is False:
        raise ValueError("Conflicting arguments to azure_credentials function: from_env=False, nothing else")
    return azure_from_env_credentials()


def credential_from_env(url_prefix: str, *, anonymous: bool = False) -> AnyCredential:
    """Return the credential of this process for a virtual chunk container, by the scheme of its URL."""
    match url_prefix.partition("://"):
        case ("file", *_) | (_, "", _):
            return Credentials.LocalFileSystemAccess()
        case ("http" | "https", *_):
            return Credentials.HttpAccess()
        case ("gs" | "gcs", *_):
            return Credentials.Gcs(gcs_anonymous_credentials() if anonymous else gcs_from_env_credentials())
        case ("az" | "azure" | "abfs", *_):
            return Credentials.Azure(azure_from_env_credentials())
    return Credentials.S3(s3_anonymous_credentials() if anonymous else s3_from_env_credentials())


def containers_credentials(
    m: Mapping[
        str,
        AnyS3Credential
        | AnyGcsCredential
        | AnyAzureCredential
        | Credentials.LocalFileSystemAccess
        | Credentials.HttpAccess
        | None,
    ],
) -> dict[str, AnyCredential | None]:
    """Credentials by url prefix, in the form that authorises virtual chunk containers.

    For containers without authentication use `LocalFileSystemAccess` and `HttpAccess`; None is deprecated.
    """
    wrapped: dict[str, AnyCredential | None] = {}
    for prefix, credential in m.items():
        if credential is None or isinstance(
            credential, (Credentials.LocalFileSystemAccess, Credentials.HttpAccess)
        ):
            wrapped[prefix] = credential
        elif isinstance(credential, AnyS3Credential):
            wrapped[prefix] = Credentials.S3(credential)
        elif isinstance(credential, AnyGcsCredential):
            wrapped[prefix] = Credentials.Gcs(credential)
        elif isinstance(credential, AnyAzureCredential):
            wrapped[prefix] = Credentials.Azure(credential)
        else:
            raise ValueError(f"Unknown credential type {type(credential)}")
    return wrapped


_INSTEAD_OF_NONE = {
    "file": "LocalFileSystemAccess()",
    **dict.fromkeys(("s3", "tigris"), "s3_from_env_credentials()"),
    **dict.fromkeys(("gs", "gcs"), "gcs_anonymous_credentials()"),
    **dict.fromkeys(("az", "azure", "abfs"), "azure_from_env_credentials()"),
    **dict.fromkeys(("http", "https"), "HttpAccess()"),
}


def check_authorization(
    authorized: Mapping[str, AnyCredential | None],
) -> dict[str, AnyCredential | None]:
    """Check the credentials of virtual chunk containers, by URL prefix, and warn about None."""
    for prefix, credential in authorized.items():
        if credential is not None and not isinstance(credential, AnyCredential):
            raise TypeError(
                f"the credential for {redact(prefix)} is a {type(credential).__qualname__}, expected one of "
                "Credentials; containers_credentials converts it"
            )
        scheme = prefix.partition("://")[0]
        if credential is None and scheme in _INSTEAD_OF_NONE:
            warnings.warn(
                f"None for {redact(prefix)} in authorize_virtual_chunk_access is deprecated; pass "
                f"{_INSTEAD_OF_NONE[scheme]}",
                DeprecationWarning,
                stacklevel=5,
            )
    return dict(authorized)


def _expired(credential: object) -> bool:
    expires_after: datetime | None = getattr(credential, "expires_after", None)
    if expires_after is None:
        return False
    if expires_after.tzinfo is None:
        expires_after = expires_after.astimezone()  # naive times are local times
    return expires_after <= datetime.now(UTC)
