"""Virtual data: references to chunks in files that stay where they are.

`virtualize` makes them of a file; docs/virtual.md is the guide.
"""

from icefloe.config import VirtualChunkContainer
from icefloe.core.virtual_chunks.range_reads import ReadLimits
from icefloe.types import VirtualChunkSpec
from icefloe.virtual.combine import Mismatch, MismatchError, combine
from icefloe.virtual.dataset import VirtualDataset
from icefloe.virtual.errors import CannotVirtualizeError, RefusalReason, Refused
from icefloe.virtual.open import virtualize
from icefloe.virtual.sources import Source
from icefloe.virtual.variables import ChunkReferences, VirtualVariable

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
