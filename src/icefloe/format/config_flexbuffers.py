"""The repository configuration as FlexBuffers, stored in the repo info file. For V1, see `config_yaml`.

Both formats store the same plain dict. A variant is represented by its name, or by a dict with its name as
the only key. YAML writes such a dict as a tag: `{"s3": {...}}` becomes `!s3 {...}`.
"""

from __future__ import annotations

from typing import Any, Final

from icefloe.encoding import flexbuffers
from icefloe.errors import ErrorKind, FormatError

CONTAINERS: Final = "virtual_chunk_containers"


def encode_config(config: dict[str, Any]) -> bytes:
    """Encode a repository configuration as FlexBuffers, for the field `Repo.config` of V2 repositories."""
    return flexbuffers.dumps(config)


def decode_config(data: bytes, place: str) -> dict[str, Any]:
    """Decode a repository configuration from the FlexBuffers in the field `Repo.config` of V2
    repositories.
    """
    try:
        config = flexbuffers.loads(data)
    except FormatError as error:
        raise FormatError(
            f"{place}: configuration: {error.message}", kind=ErrorKind.CONFIG_DESERIALIZATION
        ) from None
    return require_mapping(config, place)


def require_mapping(config: Any, place: str) -> dict[str, Any]:
    """Check that a decoded configuration is a mapping, and return it; raise FormatError otherwise."""
    if not isinstance(config, dict):
        raise FormatError(
            f"{place}: the configuration must be a mapping, not {type(config).__name__}",
            kind=ErrorKind.CONFIG_DESERIALIZATION,
        )
    return config
