"""Virtual chunks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from icefloe.config import EffectiveStorageSettings, VirtualChunkContainer
from icefloe.core.virtual_locations import Containers
from icefloe.credentials import AnyCredential

Authorized: TypeAlias = Mapping[str, AnyCredential | None]
"""Credentials by the url prefix of the container they are for."""


class VirtualReader:
    """Reads virtual chunks from the containers that were authorised."""

    def __init__(
        self,
        containers: Mapping[str, VirtualChunkContainer] | None = None,
        authorized: Authorized | None = None,
        settings: EffectiveStorageSettings | None = None,
    ) -> None:
        self.containers = Containers.of((containers or {}).values())
