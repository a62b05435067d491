"""Keys and regions of AWS profiles, observed in signed requests."""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.storage import Storage, s3_storage
from icefloe.storage.object_store.aws_profile import has_profile_keys_from_env, read_profile_keys
from tests.storage.conftest import BUCKET, SECRET
from tests.support.servers.proxy import Proxy, faulty_proxy

CONFIG = """\
# where we are
[default]
region = eu-north-1
s3 =
    max_concurrent_requests = 20
[profile other]
region = eu-south-1
[profile sso]
sso_session = somewhere
"""
CREDENTIALS = f"""\
[default]
aws_access_key_id = default-key
aws_secret_access_key = {SECRET}
[other]
aws_access_key_id = other-key
aws_secret_access_key = {SECRET}
aws_session_token = other-token
"""


@pytest.fixture
def proxy(s3_url: str) -> Iterator[Proxy]:
    with faulty_proxy(s3_url) as running:
        yield running


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home with two profiles, and an environment without AWS variables."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "config").write_text(CONFIG)
    (tmp_path / ".aws" / "credentials").write_text(CREDENTIALS)
    return tmp_path


def storage_at(proxy: Proxy, **arguments: Any) -> Storage:
    return s3_storage(
        bucket=BUCKET,
        prefix="profiles",
        endpoint_url=proxy.url,
        allow_http=True,
        force_path_style=True,
        **arguments,
    )


def signed_for(proxy: Proxy, storage: Storage) -> tuple[str, str]:
    """Return the key and the region with which the storage signs."""
    storage.put("a", b"x")
    key, _, region, *_ = proxy.seen[-1].headers["authorization"].partition("Credential=")[2].split("/")
    return key, region


def test_default_profile_is_used(proxy: Proxy) -> None:
    assert signed_for(proxy, storage_at(proxy)) == ("default-key", "eu-north-1")
    assert signed_for(proxy, storage_at(proxy, region="us-west-2")) == ("default-key", "us-west-2")


def test_named_profile_with_a_token_is_used(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "other")

    assert signed_for(proxy, storage_at(proxy, from_env=True)) == ("other-key", "eu-south-1")
    assert proxy.seen[-1].headers["x-amz-security-token"] == "other-token"


def test_environment_variables_take_precedence_over_profiles(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "environment-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-2")

    assert signed_for(proxy, storage_at(proxy, from_env=True)) == ("environment-key", "eu-west-2")


def test_explicit_keys_use_the_region_of_the_profile(proxy: Proxy) -> None:
    given = storage_at(proxy, access_key_id="given", secret_access_key=SECRET)

    assert signed_for(proxy, given) == ("given", "eu-north-1")


def test_without_profile_files_the_default_region_is_used(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/nowhere")

    given = storage_at(proxy, access_key_id="given", secret_access_key=SECRET)

    assert signed_for(proxy, given) == ("given", "us-east-1")


def test_profiles_with_sso_or_roles_are_not_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "sso")

    assert not has_profile_keys_from_env()


def process_profile(home: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / ".aws" / "config").write_text(f"{CONFIG}[profile process]\ncredential_process = {command}\n")
    monkeypatch.setenv("AWS_PROFILE", "process")


def printing(home: Path, document: str) -> str:
    """Return the command line of a program that prints something."""
    (home / "a program.py").write_text(f"print({document!r})")
    return f'"{sys.executable}" "{home}/a program.py" {SECRET}'


KEYS = {"Version": 1, "AccessKeyId": "printed-key", "SecretAccessKey": SECRET}


def test_keys_of_a_credential_process_are_used(
    proxy: Proxy, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expires = "2099-01-01T00:00:00Z"
    document = json.dumps({**KEYS, "SessionToken": "token", "Expiration": expires})
    process_profile(home, printing(home, document), monkeypatch)

    found = read_profile_keys()

    assert (found.access_key_id, found.secret_access_key, found.session_token) == (
        "printed-key",
        SECRET,
        "token",
    )
    assert found.expires_after == datetime(2099, 1, 1, tzinfo=UTC)
    assert signed_for(proxy, storage_at(proxy))[0] == "printed-key"


def test_printed_keys_without_expiration_are_renewed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process_profile(home, printing(home, json.dumps(KEYS)), monkeypatch)

    assert read_profile_keys().expires_after is not None


@pytest.mark.parametrize(
    ("printed", "words"),
    [
        (SECRET, "not print JSON"),
        ("[]", "not print keys"),
        (json.dumps({**KEYS, "Version": 2}), "not print keys"),
        (json.dumps({**KEYS, "Expiration": SECRET}), "not print keys"),
        (json.dumps({"Version": 1, "SecretAccessKey": SECRET}), "not print keys"),
    ],
)
def test_invalid_output_of_a_credential_process_is_rejected(
    printed: str, words: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process_profile(home, printing(home, printed), monkeypatch)

    with pytest.raises(InvalidInputError, match=words) as error:
        read_profile_keys()

    assert SECRET not in str(error.value)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("/no/such/program", "cannot be run"),
        ("false", "exit code 1"),
        ('"', "not a valid command"),
        ("", "cannot be run"),
    ],
)
def test_failing_credential_process_is_reported(
    command: str, words: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process_profile(home, command, monkeypatch)

    with pytest.raises(InvalidInputError, match=words):
        read_profile_keys()


def test_location_of_profile_files_can_be_changed(
    proxy: Proxy, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, name in (("AWS_CONFIG_FILE", "config"), ("AWS_SHARED_CREDENTIALS_FILE", "credentials")):
        (home / ".aws" / name).rename(home / name)
        monkeypatch.setenv(variable, str(home / name))

    assert signed_for(proxy, storage_at(proxy)) == ("default-key", "eu-north-1")


def test_pickle_contains_no_keys_and_reads_them_again(proxy: Proxy, home: Path) -> None:
    data = pickle.dumps(storage_at(proxy))
    (home / ".aws" / "credentials").write_text(CREDENTIALS.replace("default-key", "renewed-key"))

    assert SECRET.encode() not in data
    assert signed_for(proxy, pickle.loads(data))[0] == "renewed-key"


def test_keys_removed_from_a_profile_file_are_reported(home: Path) -> None:
    (home / ".aws" / "credentials").unlink()

    with pytest.raises(InvalidInputError, match="no longer has aws_access_key_id"):
        read_profile_keys()


def test_invalid_profile_file_is_rejected(proxy: Proxy, home: Path) -> None:
    (home / ".aws" / "credentials").write_text(f"{SECRET}\n")

    with pytest.raises(StorageError, match=r"\.aws/credentials is not a valid AWS") as caught:
        storage_at(proxy)

    assert caught.value.kind == ErrorKind.STORAGE_CONFIG
    assert SECRET not in str(caught.value)
