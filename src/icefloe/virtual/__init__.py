"""Virtual data: references to chunks in files that stay where they are."""

from icefloe.config import VirtualChunkContainer
from icefloe.core.range_reads import ReadLimits
from icefloe.types import VirtualChunkSpec

__all__ = ["ReadLimits", "VirtualChunkContainer", "VirtualChunkSpec"]
