"""The stored configuration of a repository: FlexBuffers in the repo info file, YAML in V1 repositories.

Both contain the same plain dict. A variant is its name, or a dict with its name as the only key; YAML writes
the latter as a tag: `{"s3": {...}}` is `!s3 {...}`.
"""

from __future__ import annotations

from typing import Any, Final

from icefloe.encoding import flexbuffers
from icefloe.errors import ErrorKind, FormatError

CONTAINERS: Final = "virtual_chunk_containers"


def encode_config(config: dict[str, Any]) -> bytes:
    """Encode `Repo.config`."""
    return flexbuffers.dumps(config)


def decode_config(data: bytes, place: str) -> dict[str, Any]:
    """Decode `Repo.config`."""
    try:
        config = flexbuffers.loads(data)
    except FormatError as error:
        raise FormatError(
            f"{place}: configuration: {error.message}", kind=ErrorKind.CONFIG_DESERIALIZATION
        ) from None
    return _require_mapping(config, place)


def encode_config_yaml(config: dict[str, Any]) -> bytes:
    """Encode the content of `config.yaml`."""
    from icefloe.format.config_yaml import dump_config  # slow to import, and rarely needed

    return dump_config(config, CONTAINERS)


def decode_config_yaml(data: bytes, place: str) -> dict[str, Any]:
    """Decode the content of `config.yaml`."""
    from icefloe.format.config_yaml import load_config  # as above

    return _require_mapping(load_config(data, place), place)


def _require_mapping(config: Any, place: str) -> dict[str, Any]:
    if not isinstance(config, dict):
        raise FormatError(
            f"{place}: the configuration must be a mapping, not {type(config).__name__}",
            kind=ErrorKind.CONFIG_DESERIALIZATION,
        )
    return config
