"""AWS profiles from `~/.aws/config` and `~/.aws/credentials`.

obstore supports environment variables and the roles of instances and containers, but not these files. This
module reads keys and regions from them, and runs the `credential_process` of a profile. SSO and assumed roles
are not supported.
"""

from __future__ import annotations

import configparser
import json
import os
import shlex
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from icefloe.credentials import S3StaticCredentials
from icefloe.errors import ErrorKind, InvalidInputError, StorageError

_PROCESS: Final = "credential_process"
_PROCESS_TIMEOUT_S: Final = 60
_READ_AGAIN_AFTER: Final = timedelta(minutes=15)  # other programs may renew the keys in the files


def read_region_from_env() -> str | None:
    """Return the region of the current AWS profile; None if the environment sets a region, which takes
    precedence.
    """
    if os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"):
        return None
    return _profile_from_env().get("region")


def has_profile_keys_from_env() -> bool:
    """Return True if the keys of the AWS profile apply: the profile has keys or a credential program, and the
    environment has no keys.
    """
    if os.environ.get("AWS_ACCESS_KEY_ID"):
        return False
    profile = _profile_from_env()
    return _PROCESS in profile or {"aws_access_key_id", "aws_secret_access_key"} <= profile.keys()


def read_profile_keys() -> S3StaticCredentials:
    """Return the keys of the current AWS profile. They expire after a while, so that they are read again."""
    found = _profile_from_env()
    if _PROCESS in found and "aws_access_key_id" not in found:
        return _read_keys_of_process(found[_PROCESS])
    try:
        keys = found["aws_access_key_id"], found["aws_secret_access_key"]
    except KeyError as missing:
        raise InvalidInputError(
            f"the AWS profile no longer has {missing.args[0]}", kind=ErrorKind.INVALID_CREDENTIALS
        ) from None
    return S3StaticCredentials(*keys, found.get("aws_session_token"), datetime.now(UTC) + _READ_AGAIN_AFTER)


def _read_keys_of_process(command: str) -> S3StaticCredentials:
    """Run a credential program, and return the keys and the expiration time that it prints as JSON."""
    answer = _run_process(command)
    try:
        if answer["Version"] != 1:
            raise ValueError
        expires = datetime.fromisoformat(answer["Expiration"]) if answer.get("Expiration") else None
        keys = str(answer["AccessKeyId"]), str(answer["SecretAccessKey"]), answer.get("SessionToken")
    except (KeyError, TypeError, ValueError):
        raise _make_no_keys_error("does not print keys in version 1 of the format") from None
    if expires is None:
        expires = datetime.now(UTC) + _READ_AGAIN_AFTER
    return S3StaticCredentials(*keys, expires if expires.tzinfo else expires.replace(tzinfo=UTC))


def _run_process(command: str) -> Any:
    try:
        done = subprocess.run(
            shlex.split(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            check=True,
            timeout=_PROCESS_TIMEOUT_S,
        )
        return json.loads(done.stdout)
    except subprocess.CalledProcessError as error:
        raise _make_no_keys_error(f"ended with exit code {error.returncode}") from None
    except subprocess.TimeoutExpired:
        raise _make_no_keys_error(f"did not end within {_PROCESS_TIMEOUT_S} s") from None
    except (OSError, IndexError) as error:
        raise _make_no_keys_error(
            f"cannot be run: {getattr(error, 'strerror', None) or 'it is empty'}"
        ) from None
    except ValueError:
        raise _make_no_keys_error("is not a valid command, or does not print JSON") from None


def _make_no_keys_error(reason: str) -> InvalidInputError:
    """Return the error for a failed credential program. It omits the command and its output, because both may
    contain secrets.
    """
    return InvalidInputError(
        f"the credential_process of the AWS profile {reason}; run it yourself to see why",
        kind=ErrorKind.INVALID_CREDENTIALS,
    )


def _profile_from_env() -> dict[str, str]:
    """Return the settings of the profile named by AWS_PROFILE. Those in the credentials file take
    precedence.
    """
    name = os.environ.get("AWS_PROFILE") or "default"
    config = os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config"
    credentials = os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials"
    plain = ("default",) if name == "default" else ()
    return {**_read_settings(config, *plain, f"profile {name}"), **_read_settings(credentials, name)}


def _read_settings(path: str, *sections: str) -> Mapping[str, str]:
    file = os.path.expanduser(path)
    parser = configparser.RawConfigParser(default_section="", delimiters=("=",), strict=False)
    try:
        with open(file, encoding="utf-8") as lines:
            parser.read_file(lines)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return {}
    except (configparser.Error, UnicodeDecodeError):
        # The parser's messages quote the file, which contains secrets.
        raise StorageError(
            f"{file} is not a valid AWS configuration file; correct it, or name another one with "
            "AWS_CONFIG_FILE or AWS_SHARED_CREDENTIALS_FILE",
            kind=ErrorKind.STORAGE_CONFIG,
        ) from None
    return {key: value for name in sections if parser.has_section(name) for key, value in parser.items(name)}
