"""Credentials: create them from arguments, and renew them with a function if they are refreshable.

Credentials are frozen, compare by content, can be pickled, and never show a secret in `repr`. Pickles do
contain the secrets, so sending one to a worker sends the keys.

Nothing in this module uses the network or reads the environment: `FromEnv` only tells the storage to read the
environment.
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
"""Field metadata for secrets whose first characters are shown, to tell one key from another."""


class _HidesSecrets:
    """A mixin for classes whose secret fields are displayed as `****`."""

    __slots__ = ()

    def __repr__(self) -> str:
        shown = []
        for item in fields(self):  # type: ignore[arg-type]  # only mixed into dataclasses
            value = getattr(self, item.name)
            is_hidden = value is not None and item.metadata.get("secret", False)
            start = value[: item.metadata.get("shown", 0)] if is_hidden else ""
            shown.append(f"{item.name}={f'{start}****' if is_hidden else repr(value)}")
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def _repr_html_(self) -> str:
        return f"<code>{html.escape(repr(self))}</code>"


class _Family(type):
    """A metaclass for classes that only group variants. Objects of a variant count as instances of the
    class.
    """

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, tuple(v for v in vars(cls).values() if isinstance(v, type)))


@dataclass(frozen=True, slots=True, repr=False)
class S3StaticCredentials(_HidesSecrets):
    """S3 credentials: a key pair, with a session token and an expiration time if it is temporary."""

    access_key_id: str = field(metadata=_SHOWN_IN_PART)
    """The access key id."""
    secret_access_key: str = field(metadata=_SECRET)
    """The secret access key."""
    session_token: str | None = field(default=None, metadata=_SECRET)
    """The session token of temporary credentials."""
    expires_after: datetime | None = None
    """The time at which the credentials expire."""


class S3Credentials(metaclass=_Family):
    """Credentials for requests to an S3 store: one of the nested variants."""

    @dataclass(frozen=True, slots=True, repr=False)
    class FromEnv(_HidesSecrets):
        """S3 credentials from the environment, a profile, or the role of a container or instance."""

    @dataclass(frozen=True, slots=True, repr=False)
    class Anonymous(_HidesSecrets):
        """S3 credentials for unsigned requests."""

    @dataclass(frozen=True, slots=True, repr=False)
    class Static(_HidesSecrets):
        """S3 credentials with a fixed key pair."""

        credentials: S3StaticCredentials

    @dataclass(frozen=True, slots=True, repr=False)
    class Refreshable(_HidesSecrets):
        """S3 credentials from a pickled function that returns new key pairs, with an optional initial key
        pair.
        """

        pickled_function: bytes = field(metadata=_SECRET)
        current: S3StaticCredentials | None = None


@dataclass(frozen=True, slots=True, repr=False)
class GcsBearerCredential(_HidesSecrets):
    """An OAuth token as a credential for Google Cloud Storage."""

    bearer: str = field(metadata=_SECRET)
    """The token."""
    expires_after: datetime | None = field(default=None, kw_only=True)
    """The time at which the token expires."""


class GcsStaticCredentials(metaclass=_Family):
    """A fixed Google Cloud credential: one of the nested variants."""

    @dataclass(frozen=True, slots=True, repr=False)
    class ServiceAccount(_HidesSecrets):
        """A Google Cloud credential: the path of a service account key file."""

        path: str

    @dataclass(frozen=True, slots=True, repr=False)
    class ServiceAccountKey(_HidesSecrets):
        """A Google Cloud credential: a service account key as JSON."""

        key: str = field(metadata=_SECRET)

    @dataclass(frozen=True, slots=True, repr=False)
    class ApplicationCredentials(_HidesSecrets):
        """A Google Cloud credential: the path of an application default credentials file."""

        path: str

    @dataclass(frozen=True, slots=True, repr=False)
    class BearerToken(_HidesSecrets):
        """A Google Cloud credential: a fixed OAuth token."""

        token: str = field(metadata=_SECRET)


class GcsCredentials(metaclass=_Family):
    """Credentials for requests to Google Cloud Storage: one of the nested variants."""

    @dataclass(frozen=True, slots=True, repr=False)
    class Anonymous(_HidesSecrets):
        """Google Cloud credentials for unsigned requests."""

    @dataclass(frozen=True, slots=True, repr=False)
    class FromEnv(_HidesSecrets):
        """Google Cloud credentials from the environment, the well-known file, or the instance metadata."""

    @dataclass(frozen=True, slots=True, repr=False)
    class Static(_HidesSecrets):
        """A fixed Google Cloud credential."""

        credentials: AnyGcsStaticCredential

    @dataclass(frozen=True, slots=True, repr=False)
    class Refreshable(_HidesSecrets):
        """Google Cloud credentials from a pickled function that returns new tokens, with an optional initial
        token.
        """

        pickled_function: bytes = field(metadata=_SECRET)
        current: GcsBearerCredential | None = None


class AzureRefreshableCredential(metaclass=_Family):
    """An Azure credential returned by a refresh function: one of the nested variants."""

    @dataclass(frozen=True, slots=True, repr=False)
    class AccessKey(_HidesSecrets):
        """A refreshed Azure credential: a storage account key."""

        key: str = field(metadata=_SECRET)
        expires_after: datetime | None = None

    @dataclass(frozen=True, slots=True, repr=False)
    class SasToken(_HidesSecrets):
        """A refreshed Azure credential: a shared access signature."""

        token: str = field(metadata=_SECRET)
        expires_after: datetime | None = None

    @dataclass(frozen=True, slots=True, repr=False)
    class BearerToken(_HidesSecrets):
        """A refreshed Azure credential: an OAuth token."""

        bearer: str = field(metadata=_SECRET)
        expires_after: datetime | None = None


class AzureStaticCredentials(metaclass=_Family):
    """A fixed Azure credential: one of the nested variants."""

    @dataclass(frozen=True, slots=True, repr=False)
    class AccessKey(_HidesSecrets):
        """A fixed Azure credential: a storage account key."""

        key: str = field(metadata=_SECRET)

    @dataclass(frozen=True, slots=True, repr=False)
    class SasToken(_HidesSecrets):
        """A fixed Azure credential: a shared access signature."""

        token: str = field(metadata=_SECRET)

    @dataclass(frozen=True, slots=True, repr=False)
    class BearerToken(_HidesSecrets):
        """A fixed Azure credential: an OAuth token."""

        token: str = field(metadata=_SECRET)


class AzureCredentials(metaclass=_Family):
    """Credentials for requests to Azure Blob Storage: one of the nested variants."""

    @dataclass(frozen=True, slots=True, repr=False)
    class Anonymous(_HidesSecrets):
        """Azure credentials for unsigned requests to a public container."""

    @dataclass(frozen=True, slots=True, repr=False)
    class FromEnv(_HidesSecrets):
        """Azure credentials from the environment, a managed identity, or the Azure CLI login."""

    @dataclass(frozen=True, slots=True, repr=False)
    class Static(_HidesSecrets):
        """A fixed Azure credential."""

        credentials: AnyAzureStaticCredential

    @dataclass(frozen=True, slots=True, repr=False)
    class Refreshable(_HidesSecrets):
        """Azure credentials from a pickled function that returns new credentials, with an optional initial
        credential.
        """

        pickled_function: bytes = field(metadata=_SECRET)
        current: AnyAzureRefreshableCredential | None = None


class Credentials(metaclass=_Family):
    """Credentials for one virtual chunk container: one of the nested variants."""

    @dataclass(frozen=True, slots=True, repr=False)
    class S3(_HidesSecrets):
        """Credentials for virtual chunks at `s3://` locations, including S3-compatible stores."""

        credentials: AnyS3Credential

    @dataclass(frozen=True, slots=True, repr=False)
    class Gcs(_HidesSecrets):
        """Credentials for virtual chunks at `gs://` locations."""

        credentials: AnyGcsCredential

    @dataclass(frozen=True, slots=True, repr=False)
    class Azure(_HidesSecrets):
        """Credentials for virtual chunks at `az://` locations."""

        credentials: AnyAzureCredential

    @dataclass(frozen=True, slots=True, repr=False)
    class LocalFileSystemAccess(_HidesSecrets):
        """Permission to read virtual chunks at `file://` locations, without credentials."""

    @dataclass(frozen=True, slots=True, repr=False)
    class HttpAccess(_HidesSecrets):
        """Permission to read virtual chunks at `http://` and `https://` locations, without credentials.

        Requests are not signed.
        """


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
"""Authorizes a `file://` virtual chunk container."""

HttpAccess = Credentials.HttpAccess()
"""Authorizes an `http://` or `https://` virtual chunk container."""


class Refresher(Generic[T]):
    """Provides credentials, and calls the user's refresh function again once they have expired.

    Threads can share a refresher. One of them calls the function, and the others wait for the result. A
    credential without `expires_after` is requested once. A pickled copy contains the credential that the
    refresher was created with, not the current one.
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
        """Return credentials that have not expired. Raise InvalidInputError if the refresh function fails."""
        with self._lock:
            if self._current is None or _is_expired(self._current):
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
    """Create S3 credentials from a function that is called again whenever they expire.

    Parameters
    ----------
    get_credentials
        The function. It must be picklable.
    scatter_initial_credentials
        Call the function now, and include its result in every pickle, so that workers need not all call it at
        startup.

    Returns
    -------
    S3Credentials.Refreshable
        The credentials.
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
    """Create S3 credentials from a fixed key pair.

    Parameters
    ----------
    access_key_id
        The access key id.
    secret_access_key
        The secret access key.
    session_token
        The session token of temporary credentials.
    expires_after
        The time at which the credentials expire.

    Returns
    -------
    S3Credentials.Static
        The credentials.
    """
    static = S3StaticCredentials(access_key_id, secret_access_key, session_token, expires_after)
    return S3Credentials.Static(static)


def s3_anonymous_credentials() -> S3Credentials.Anonymous:
    """Create S3 credentials for unsigned requests.

    Returns
    -------
    S3Credentials.Anonymous
        The credentials.
    """
    return S3Credentials.Anonymous()


def s3_from_env_credentials() -> S3Credentials.FromEnv:
    """Create S3 credentials from the environment of the process that opens the storage.

    Returns
    -------
    S3Credentials.FromEnv
        The credentials.
    """
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
    """Create S3 credentials from arguments or, without arguments, from the environment.

    Pass only one of a key pair, `anonymous`, `from_env` and `get_credentials`.

    Parameters
    ----------
    access_key_id
        The access key id.
    secret_access_key
        The secret access key.
    session_token
        The session token of temporary credentials.
    expires_after
        The time at which the credentials expire.
    anonymous
        Do not sign requests.
    from_env
        Use credentials from the environment.
    get_credentials
        A picklable function that returns credentials.
    scatter_initial_credentials
        Call the function now, and include its result in pickles.

    Returns
    -------
    S3Credentials variant
        The credentials.

    Raises
    ------
    ValueError
        If the arguments conflict, or part of the key pair is missing.
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
    """Create a fixed Google Cloud credential from the first argument that is not None.

    Parameters
    ----------
    service_account_file
        The path of a service account key file.
    service_account_key
        A service account key as JSON.
    application_credentials
        The path of an application default credentials file.
    bearer_token
        An OAuth token.

    Returns
    -------
    GcsStaticCredentials variant
        The credential.

    Raises
    ------
    ValueError
        If no argument is given.
    """
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
    """Create Google Cloud credentials from a function that is called again whenever they expire.

    Parameters
    ----------
    get_credentials
        The function. It must be picklable.
    scatter_initial_credentials
        Call the function now, and include its result in every pickle.

    Returns
    -------
    GcsCredentials.Refreshable
        The credentials.
    """
    current = get_credentials() if scatter_initial_credentials else None
    return GcsCredentials.Refreshable(pickle.dumps(get_credentials), current)


def gcs_anonymous_credentials() -> GcsCredentials.Anonymous:
    """Create Google Cloud credentials for unsigned requests."""
    return GcsCredentials.Anonymous()


def gcs_from_env_credentials() -> GcsCredentials.FromEnv:
    """Create Google Cloud credentials from the environment of the process that opens the storage.

    Returns
    -------
    GcsCredentials.FromEnv
        The credentials.
    """
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
    """Create Google Cloud credentials from arguments or, without arguments, from the environment.

    `anonymous` takes precedence, followed by a fixed credential, `get_credentials` and the environment.

    Parameters
    ----------
    service_account_file
        The path of a service account key file.
    service_account_key
        A service account key as JSON.
    application_credentials
        The path of an application default credentials file.
    bearer_token
        An OAuth token.
    from_env
        Use credentials from the environment.
    anonymous
        Do not sign requests.
    get_credentials
        A picklable function that returns a token.
    scatter_initial_credentials
        Call the function now, and include its result in pickles.

    Returns
    -------
    GcsCredentials variant
        The credentials.

    Raises
    ------
    ValueError
        If the arguments conflict.
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
    """Create a fixed Azure credential from exactly one argument.

    Parameters
    ----------
    access_key
        A key of the storage account.
    sas_token
        A shared access signature.
    bearer_token
        An OAuth token.

    Returns
    -------
    AzureStaticCredentials variant
        The credential.

    Raises
    ------
    ValueError
        If not exactly one argument is given.
    """
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
    """Create Azure credentials from a function that is called again whenever they expire.

    Parameters
    ----------
    get_credentials
        The function. It must be picklable.
    scatter_initial_credentials
        Call the function now, and include its result in every pickle.

    Returns
    -------
    AzureCredentials.Refreshable
        The credentials.
    """
    current = get_credentials() if scatter_initial_credentials else None
    return AzureCredentials.Refreshable(pickle.dumps(get_credentials), current)


def azure_from_env_credentials() -> AzureCredentials.FromEnv:
    """Create Azure credentials from the environment of the process that opens the storage.

    Returns
    -------
    AzureCredentials.FromEnv
        The credentials.
    """
    return AzureCredentials.FromEnv()


def azure_anonymous_credentials() -> AzureCredentials.Anonymous:
    """Create Azure credentials for unsigned requests.

    Returns
    -------
    AzureCredentials.Anonymous
        The credentials.
    """
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
    """Create Azure credentials from arguments or, without arguments, from the environment.

    `anonymous` takes precedence, followed by `get_credentials`, a fixed credential and the environment.

    Parameters
    ----------
    access_key
        A key of the storage account.
    sas_token
        A shared access signature.
    bearer_token
        An OAuth token.
    from_env
        Use credentials from the environment.
    anonymous
        Do not sign requests.
    get_credentials
        A picklable function that returns a credential.
    scatter_initial_credentials
        Call the function now, and include its result in pickles.

    Returns
    -------
    AzureCredentials variant
        The credentials.

    Raises
    ------
    ValueError
        If the arguments conflict.
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


def make_credential_from_env(url_prefix: str, *, anonymous: bool = False) -> AnyCredential:
    """Create a credential from the environment for a virtual chunk container, by the scheme of its URL."""
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
    """Convert credentials by URL prefix to the form accepted by `authorize_virtual_chunk_access`.

    Parameters
    ----------
    m
        The credentials. Use `LocalFileSystemAccess` and `HttpAccess` for containers without authentication;
        None is deprecated.

    Returns
    -------
    dict
        The credentials, for `authorize_virtual_chunk_access`.

    Raises
    ------
    ValueError
        If a value is not a credential.
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
    """Check the credentials of virtual chunk containers, by URL prefix, and warn about prefixes without
    credentials.
    """
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


def _is_expired(credential: object) -> bool:
    expires_after: datetime | None = getattr(credential, "expires_after", None)
    if expires_after is None:
        return False
    if expires_after.tzinfo is None:
        expires_after = expires_after.astimezone()  # naive times are local times
    return expires_after <= datetime.now(UTC)
