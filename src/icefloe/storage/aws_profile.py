"""What the files that the AWS tools share, `~/.aws/config` and `~/.aws/credentials`, say of a profile.

obstore knows the environment and the roles of instances and containers, not these files. Keys and regions are
taken from them; profiles that only tell where keys can be had (SSO, roles, other programs) are not followed.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from icefloe.credentials import S3StaticCredentials
from icefloe.errors import ErrorKind, InvalidInputError, StorageError

_READ_AGAIN_AFTER = timedelta(minutes=15)  # other programs renew the keys in the files


def profile_region_from_env() -> str | None:
    """The region of the profile in use; None where the environment has one, which goes first."""
    if os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"):
        return None
    return _profile_from_env().get("region")


def has_profile_keys_from_env() -> bool:
    """Whether keys are to be taken from a profile: it has some, and the environment has none."""
    if os.environ.get("AWS_ACCESS_KEY_ID"):
        return False
    return {"aws_access_key_id", "aws_secret_access_key"} <= _profile_from_env().keys()


def profile_keys() -> S3StaticCredentials:
    """The keys of the profile in use, to be asked for again when they expire."""
    found = _profile_from_env()
    try:
        keys = found["aws_access_key_id"], found["aws_secret_access_key"]
    except KeyError as missing:
        raise InvalidInputError(
            f"the AWS profile has no {missing.args[0]} any more", kind=ErrorKind.INVALID_CREDENTIALS
        ) from None
    return S3StaticCredentials(*keys, found.get("aws_session_token"), datetime.now(UTC) + _READ_AGAIN_AFTER)


def _profile_from_env() -> dict[str, str]:
    """The settings of the profile that AWS_PROFILE names; those in the file of credentials go first."""
    name = os.environ.get("AWS_PROFILE") or "default"
    config = os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config"
    credentials = os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials"
    plain = ("default",) if name == "default" else ()
    return {**_settings(config, *plain, f"profile {name}"), **_settings(credentials, name)}


def _settings(path: str, *sections: str) -> Mapping[str, str]:
    file = os.path.expanduser(path)
    parser = configparser.RawConfigParser(default_section="", delimiters=("=",), strict=False)
    try:
        with open(file, encoding="utf-8") as lines:
            parser.read_file(lines)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return {}
    except (configparser.Error, UnicodeDecodeError):
        # Their texts quote the file, which holds secrets.
        raise StorageError(
            f"{file} is no file of AWS profiles: correct it, or name another one in the environment",
            kind=ErrorKind.STORAGE_CONFIG,
        ) from None
    return {key: value for name in sections if parser.has_section(name) for key, value in parser.items(name)}
