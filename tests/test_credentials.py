"""Credential values: how they are chosen, kept secret, compared, pickled and refreshed."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pytest

from icefloe import credentials as c
from icefloe.errors import ErrorKind, InvalidInputError

SECRET = "hunter2-secret"
HOUR = timedelta(hours=1)


def s3_keys() -> c.S3StaticCredentials:
    return c.S3StaticCredentials("AKIA", SECRET)


def gcs_token() -> c.GcsBearerCredential:
    return c.GcsBearerCredential(SECRET)


def azure_key() -> c.AnyAzureRefreshableCredential:
    return c.AzureRefreshableCredential.AccessKey(SECRET)


ALL_VALUES: list[Any] = [
    c.S3StaticCredentials(SECRET, SECRET, SECRET, datetime(2030, 1, 1, tzinfo=UTC)),
    c.s3_static_credentials(access_key_id="a", secret_access_key=SECRET, session_token=SECRET),
    c.s3_anonymous_credentials(),
    c.s3_from_env_credentials(),
    c.s3_refreshable_credentials(s3_keys),
    c.s3_refreshable_credentials(s3_keys, scatter_initial_credentials=True),
    c.gcs_static_credentials(service_account_file="/key.json"),
    c.gcs_static_credentials(service_account_key=SECRET),
    c.gcs_static_credentials(application_credentials="/adc.json"),
    c.gcs_static_credentials(bearer_token=SECRET),
    c.gcs_credentials(bearer_token=SECRET),
    c.gcs_anonymous_credentials(),
    c.gcs_from_env_credentials(),
    c.gcs_refreshable_credentials(gcs_token, scatter_initial_credentials=True),
    c.GcsBearerCredential(SECRET, expires_after=datetime(2030, 1, 1, tzinfo=UTC)),
    c.azure_static_credentials(access_key=SECRET),
    c.azure_static_credentials(sas_token=SECRET),
    c.azure_static_credentials(bearer_token=SECRET),
    c.azure_credentials(access_key=SECRET),
    c.azure_anonymous_credentials(),
    c.azure_from_env_credentials(),
    c.azure_refreshable_credentials(azure_key, scatter_initial_credentials=True),
    c.AzureRefreshableCredential.SasToken(SECRET, expires_after=datetime(2030, 1, 1, tzinfo=UTC)),
    c.AzureRefreshableCredential.BearerToken(SECRET),
    c.Credentials.S3(c.s3_credentials(access_key_id="a", secret_access_key=SECRET)),
    c.LocalFileSystemAccess,
    c.HttpAccess,
]


@pytest.mark.parametrize("value", ALL_VALUES, ids=lambda v: type(v).__qualname__)
def test_values_can_be_pickled_and_compared_and_hide_secrets(value: Any) -> None:
    copy = pickle.loads(pickle.dumps(value))

    assert copy == value
    assert hash(copy) == hash(value)
    assert SECRET not in repr(value) + str(value) + f"{value}"
    with pytest.raises((AttributeError, TypeError)):
        value.anything = 1


def test_credential_variants_are_instances_of_their_union() -> None:
    assert isinstance(c.s3_anonymous_credentials(), c.S3Credentials)
    assert isinstance(c.gcs_credentials(bearer_token="t"), c.GcsCredentials)
    assert isinstance(c.azure_static_credentials(access_key="k"), c.AzureStaticCredentials)
    assert isinstance(c.HttpAccess, c.Credentials)
    assert not isinstance(c.s3_anonymous_credentials(), c.GcsCredentials)


@pytest.mark.parametrize(
    ("arguments", "variant"),
    [
        ({}, c.S3Credentials.FromEnv),
        ({"from_env": True}, c.S3Credentials.FromEnv),
        ({"anonymous": False}, c.S3Credentials.FromEnv),
        ({"anonymous": True}, c.S3Credentials.Anonymous),
        ({"anonymous": True, "from_env": False}, c.S3Credentials.Anonymous),
        ({"get_credentials": s3_keys}, c.S3Credentials.Refreshable),
        ({"access_key_id": "a", "secret_access_key": "b"}, c.S3Credentials.Static),
        ({"access_key_id": "a", "secret_access_key": "b", "session_token": "t"}, c.S3Credentials.Static),
    ],
)
def test_s3_credentials_returns_the_kind_that_the_arguments_describe(
    arguments: dict[str, Any], variant: type
) -> None:
    assert type(c.s3_credentials(**arguments)) is variant


@pytest.mark.parametrize(
    "arguments",
    [
        {"access_key_id": "a"},
        {"session_token": "t"},
        {"from_env": False},
        {"anonymous": True, "from_env": True},
        {"anonymous": True, "access_key_id": "a", "secret_access_key": "b"},
        {"from_env": True, "access_key_id": "a", "secret_access_key": "b"},
        {"get_credentials": s3_keys, "anonymous": True},
        {"get_credentials": s3_keys, "from_env": True},
    ],
)
def test_s3_credentials_rejects_contradictory_arguments(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="s3_credentials"):
        c.s3_credentials(**arguments)


def test_gcs_get_credentials_function_is_used() -> None:
    """The official function returns FromEnv here and never calls the function."""
    assert type(c.gcs_credentials(get_credentials=gcs_token)) is c.GcsCredentials.Refreshable
    assert type(c.gcs_credentials(get_credentials=gcs_token, from_env=False)) is c.GcsCredentials.Refreshable


@pytest.mark.parametrize(
    ("arguments", "variant"),
    [
        ({}, c.GcsCredentials.FromEnv),
        ({"from_env": True}, c.GcsCredentials.FromEnv),
        ({"anonymous": True, "bearer_token": "t"}, c.GcsCredentials.Anonymous),
        ({"bearer_token": "t"}, c.GcsCredentials.Static),
        ({"service_account_file": "f", "from_env": False}, c.GcsCredentials.Static),
    ],
)
def test_gcs_credentials_returns_the_kind_that_the_arguments_describe(
    arguments: dict[str, Any], variant: type
) -> None:
    assert type(c.gcs_credentials(**arguments)) is variant


@pytest.mark.parametrize(
    ("arguments", "variant"),
    [
        ({}, c.AzureCredentials.FromEnv),
        ({"anonymous": True, "access_key": "k"}, c.AzureCredentials.Anonymous),
        ({"get_credentials": azure_key}, c.AzureCredentials.Refreshable),
        ({"sas_token": "t"}, c.AzureCredentials.Static),
    ],
)
def test_azure_credentials_returns_the_kind_that_the_arguments_describe(
    arguments: dict[str, Any], variant: type
) -> None:
    assert type(c.azure_credentials(**arguments)) is variant


@pytest.mark.parametrize(
    "call",
    [
        lambda: c.gcs_credentials(from_env=False),
        lambda: c.gcs_credentials(from_env=True, bearer_token="t"),
        lambda: c.gcs_credentials(from_env=True, get_credentials=gcs_token),
        lambda: c.gcs_static_credentials(),
        lambda: c.azure_credentials(from_env=False),
        lambda: c.azure_credentials(from_env=True, access_key="k"),
        lambda: c.azure_credentials(access_key="k", sas_token="t"),
        lambda: c.azure_static_credentials(),
    ],
)
def test_contradictory_arguments_are_rejected(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="Conflicting"):
        call()


def test_containers_credentials_wraps_credentials_by_type() -> None:
    s3, gcs, azure = c.s3_credentials(), c.gcs_credentials(), c.azure_credentials()

    wrapped = c.containers_credentials(
        {"s3://a/": s3, "gs://a/": gcs, "az://a/": azure, "file:///": c.LocalFileSystemAccess, "x://": None}
    )

    assert wrapped == {
        "s3://a/": c.Credentials.S3(s3),
        "gs://a/": c.Credentials.Gcs(gcs),
        "az://a/": c.Credentials.Azure(azure),
        "file:///": c.LocalFileSystemAccess,
        "x://": None,
    }
    with pytest.raises(ValueError, match="Unknown credential type"):
        c.containers_credentials({"s3://a/": "key"})  # type: ignore[dict-item]


class Counting:
    """Returns keys with a given time to live and counts how often it was asked."""

    calls: ClassVar[list[int]] = []

    def __init__(self, lifetime: timedelta | None) -> None:
        self.lifetime = lifetime

    def __call__(self) -> c.S3StaticCredentials:
        self.calls.append(1)
        expires = None if self.lifetime is None else datetime.now(UTC) + self.lifetime
        return c.S3StaticCredentials("a", f"secret-{len(self.calls)}", expires_after=expires)


def refresher(function: Callable[[], Any], scatter: bool = False) -> c.Refresher[c.S3StaticCredentials]:
    value = c.s3_refreshable_credentials(function, scatter)
    return c.Refresher(value.pickled_function, value.current, (c.S3StaticCredentials,))


@pytest.mark.parametrize(("lifetime", "expected_calls"), [(None, 1), (HOUR, 1), (-HOUR, 3)])
def test_refresher_calls_again_only_after_expiration(lifetime: timedelta | None, expected_calls: int) -> None:
    Counting.calls.clear()
    source = refresher(Counting(lifetime))

    for _ in range(3):
        source.get()

    assert len(Counting.calls) == expected_calls


def test_pickled_credential_is_used_until_it_expires() -> None:
    Counting.calls.clear()
    source = refresher(Counting(HOUR), scatter=True)

    copy = pickle.loads(pickle.dumps(source))

    assert copy.get() == source.get()
    assert len(Counting.calls) == 1


def test_refresher_is_called_once_by_many_threads() -> None:
    Counting.calls.clear()
    source = refresher(Counting(HOUR))
    threads = [threading.Thread(target=source.get) for _ in range(16)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(Counting.calls) == 1


def test_expiry_without_a_time_zone_is_local_time() -> None:
    def soon() -> datetime:
        return datetime.now() + HOUR

    assert not c._is_expired(c.S3StaticCredentials("a", "b", expires_after=soon()))
    assert c._is_expired(c.S3StaticCredentials("a", "b", expires_after=datetime.now() - HOUR))


def failing() -> c.S3StaticCredentials:
    raise RuntimeError("bad creds")


def wrong_type() -> int:
    return 42


@pytest.mark.parametrize(
    ("function", "text"), [(failing, "bad creds"), (wrong_type, "cannot be converted"), (42, "not callable")]
)
def test_failing_credential_functions_are_reported(function: Any, text: str) -> None:
    with pytest.raises(InvalidInputError, match=text) as caught:
        refresher(function).get()

    assert caught.value.kind == ErrorKind.INVALID_CREDENTIALS
