"""A repository's configuration as stored: FlexBuffers in the repo info file, YAML in a V1 repository.

Both hold the same plain dict. A choice among several is the name of the choice, or a dict with that one key;
YAML writes the second as a tag: `{"s3": {...}}` is `!s3 {...}`.
"""

from __future__ import annotations

from typing import Any, Final

from icefloe.encoding import flexbuffers
from icefloe.errors import ErrorKind, FormatError

CONTAINERS: Final = "virtual_chunk_containers"


def encode_config(config: dict[str, Any]) -> bytes:
    """The bytes of `Repo.config`."""
    return flexbuffers.dumps(config)


def decode_config(data: bytes, place: str) -> dict[str, Any]:
    """The configuration behind `Repo.config`."""
    try:
        config = flexbuffers.loads(data)
    except FormatError as error:
        raise FormatError(
            f"{place}: configuration: {error.message}", kind=ErrorKind.CONFIG_DESERIALIZATION
        ) from None
    return _mapping(config, place)


def encode_config_yaml(config: dict[str, Any]) -> bytes:
    """The contents of `config.yaml`."""
    from icefloe.format.config_yaml import dump_config  # few repositories need it, and it loads slowly

    return dump_config(config, CONTAINERS)


def decode_config_yaml(data: bytes, place: str) -> dict[str, Any]:
    """The configuration behind `config.yaml`."""
    from icefloe.format.config_yaml import load_config  # as above

    return _mapping(load_config(data, place), place)


def _mapping(config: Any, place: str) -> dict[str, Any]:
    if not isinstance(config, dict):
        raise FormatError(
            f"{place}: the configuration is no mapping but {type(config).__name__}",
            kind=ErrorKind.CONFIG_DESERIALIZATION,
        )
    return config
