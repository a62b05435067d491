"""Who writes the manifests: the references of large arrays are parted along a dimension, a window per task.

What is parted so is split so in the repository's configuration, too: who adds to the array later writes the
last window anew, and not all of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from icefloe._internal.ids import NodeId
from icefloe.config import (
    ManifestConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    RepositoryConfig,
)
from icefloe.config.repository import SplitSizesDict
from icefloe.core.commit.manifests import UNSPLIT, split_sizes
from icefloe.format.snapshot import ArrayNodeData, DimensionShape, NodeSnapshot
from icefloe.ingest.records import Target
from icefloe.repository import Repository

Extents = tuple[range, ...]
"""A window of a chunk grid, in chunks."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of all arrays whose references are parted, along one dimension."""

    dim: str
    size: int
    """Of a window, in cells."""
    arrays: tuple[Target, ...]

    def spans(self) -> Iterator[tuple[int, int]]:
        """Yield start and stop of each window."""
        length = max(_length(target, self.dim) for target in self.arrays)
        for start in range(0, length, self.size):
            yield start, min(start + self.size, length)

    def extents(self, span: tuple[int, int]) -> dict[str, Extents]:
        """Return the part of each array's chunk grid inside a window."""
        found = {}
        for target in self.arrays:
            grid = [range(count) for count in _grid(target)]
            axis = target.dims.index(self.dim)
            chunk = target.chunks[axis]
            grid[axis] = range(span[0] // chunk, -(-span[1] // chunk))
            found[target.name] = tuple(grid)
        return found


def windows_of(
    targets: Sequence[Target], group: str, config: RepositoryConfig, references: int
) -> Windows | None:
    """Plan windows for arrays with more than `references` references; None if there are none."""
    large = sorted(
        (each for each in targets if each.dims and math.prod(_grid(each)) > references),
        key=lambda each: -math.prod(_grid(each)),
    )
    if not large:
        return None
    first = large[0]
    axis = next(axis for axis, count in enumerate(_grid(first)) if count > 1)
    dim = first.dims[axis]
    arrays = [each for each in large if dim in each.dims]
    rules = config.effective().split_sizes
    unit = math.lcm(*(_unit(each, dim, split_sizes(rules, _node(each, group))) for each in arrays))
    per_unit = math.prod(_grid(first)) * unit / max(1, _length(first, dim))
    return Windows(dim, unit * max(1, int(references / per_unit)), tuple(arrays))


def with_splitting(repo: Repository, windows: Windows | None, group: str) -> Repository:
    """Configure the splitting of manifests for arrays without a rule."""
    if windows is None:
        return repo
    config = repo.config
    rules = config.effective().split_sizes
    known = config.manifest.splitting.to_dict() if config.manifest and config.manifest.splitting else {}
    new: SplitSizesDict = {}
    for target in windows.arrays:
        node, axis = _node(target, group), target.dims.index(windows.dim)
        if split_sizes(rules, node)[axis] == UNSPLIT:
            condition = ManifestSplitCondition.path_matches(f"^{re.escape(node.path)}$")
            size = windows.size // target.chunks[axis]
            new[condition] = {ManifestSplitDimCondition.Axis(axis): size}
    if not new:
        return repo
    splitting = ManifestSplittingConfig.from_dict({**new, **known})
    opened = repo.reopen(RepositoryConfig(manifest=ManifestConfig(splitting=splitting)))
    opened.save_config()
    return opened


def _grid(target: Target) -> tuple[int, ...]:
    return tuple(max(1, -(-size // chunk)) for size, chunk in zip(target.shape, target.chunks, strict=True))


def _length(target: Target, dim: str) -> int:
    return target.shape[target.dims.index(dim)]


def _unit(target: Target, dim: str, sizes: Sequence[int]) -> int:
    """Return the cells per window of an array's rule, or per chunk without a rule."""
    axis = target.dims.index(dim)
    return target.chunks[axis] * (1 if sizes[axis] == UNSPLIT else sizes[axis])


def _node(target: Target, group: str) -> NodeSnapshot:
    """Describe an array for splitting rules."""
    shape = tuple(map(DimensionShape, target.shape, _grid(target)))
    path = f"/{group.strip('/')}/{target.name}".replace("//", "/")
    return NodeSnapshot(NodeId(bytes(NodeId.SIZE)), path, b"", ArrayNodeData(shape, (), target.dims))


def files_within(
    boxes: Mapping[int, Mapping[str, tuple[int, int]]], dim: str, span: tuple[int, int]
) -> Iterator[int]:
    """Yield the files that overlap a window; files without the dimension belong to the first one."""
    for number, box in boxes.items():
        start, stop = box.get(dim, (0, 1))
        if start < span[1] and stop > span[0]:
            yield number
