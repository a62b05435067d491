"""Virtual data: references to chunks in existing files, which are not copied.

`virtualize` parses one file, `combine` joins the virtual datasets of many files, and
`VirtualDataset.to_icechunk` writes the references to a repository. See docs/how-to/virtual.md for a guide.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from icefloe.config import VirtualChunkContainer
from icefloe.virtual.combine import Mismatch, MismatchError, combine
from icefloe.virtual.dataset import VirtualDataset
from icefloe.virtual.errors import CannotVirtualizeError, RefusalReason, Refused
from icefloe.virtual.open import virtualize
from icefloe.virtual.sources import Source
from icefloe.virtual.variables import ChunkReferences, VirtualVariable

if TYPE_CHECKING:
    from icefloe.core.virtual_chunks.range_reads import ReadLimits
    from icefloe.types import VirtualChunkSpec

__all__ = [
    "CannotVirtualizeError",
    "ChunkReferences",
    "Mismatch",
    "MismatchError",
    "ReadLimits",
    "RefusalReason",
    "Refused",
    "Source",
    "VirtualChunkContainer",
    "VirtualChunkSpec",
    "VirtualDataset",
    "VirtualVariable",
    "combine",
    "virtualize",
]


def __getattr__(name: str) -> Any:
    homes = {"ReadLimits": "icefloe.core.virtual_chunks.range_reads", "VirtualChunkSpec": "icefloe.types"}
    if name not in homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(homes[name]), name)
