"""The parts of zarr.json that the engine needs: the node type, the shape and the chunk grid."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.snapshot import ArrayNodeData, DimensionShape, GroupNodeData, NodeData

_U32_MAX = 0xFFFFFFFF


def parse_zarr_metadata(data: bytes, path: str, *, rectilinear: bool) -> NodeData:
    """Parse the zarr.json of a node; raise InvalidInputError if it is invalid."""
    try:
        metadata = json.loads(data.decode("utf-8"))  # json.loads would also accept UTF-16
    except (ValueError, RecursionError) as error:
        raise _make_metadata_error(path, f"invalid JSON: {error}") from None
    if not isinstance(metadata, dict):
        raise _make_metadata_error(path, "not a JSON object")
    node_type = metadata.get("node_type")
    if node_type == "group":
        return GroupNodeData()
    if node_type != "array":
        raise _make_metadata_error(path, f'node_type is {node_type!r}, expected "array" or "group"')
    shape = _check_sizes(metadata.get("shape"), path, "shape")
    counts = _count_chunks(metadata.get("chunk_grid"), shape, path, rectilinear=rectilinear)
    names = metadata.get("dimension_names")
    if names is not None:
        if not isinstance(names, list) or len(names) != len(shape):
            raise _make_metadata_error(path, f"dimension_names must be a list of {len(shape)} names")
        names = tuple(name if isinstance(name, str) and name else None for name in names)
    dimensions = tuple(map(DimensionShape, shape, counts))
    return ArrayNodeData(dimensions, (), names)


def _count_chunks(grid: Any, shape: Sequence[int], path: str, *, rectilinear: bool) -> list[int]:
    configuration = grid.get("configuration") if isinstance(grid, dict) else None
    if not isinstance(grid, dict) or not isinstance(configuration, dict):
        raise _make_metadata_error(path, "chunk_grid must have a name and a configuration")
    match grid.get("name"):
        case "regular":
            chunks = _check_sizes(configuration.get("chunk_shape"), path, "chunk_shape")
            if len(chunks) != len(shape):
                raise _make_metadata_error(
                    path, f"chunk_shape has {len(chunks)} dimensions, but shape has {len(shape)}"
                )
            if any(length and not chunk for length, chunk in zip(shape, chunks, strict=True)):
                raise _make_metadata_error(path, "chunk_shape is 0 in a dimension that has elements")
            counts = [-(-length // max(chunk, 1)) for length, chunk in zip(shape, chunks, strict=True)]
        case "rectilinear":
            if not rectilinear:
                raise _make_metadata_error(
                    path,
                    "Non-regular chunk grids are not supported in icechunk format version 1;"
                    " create the repository with spec_version=2",
                )
            edges = configuration.get("chunk_shapes")
            if not isinstance(edges, list) or len(edges) != len(shape):
                raise _make_metadata_error(path, f"chunk_shapes must have {len(shape)} dimensions")
            counts = [
                _count_rectilinear_chunks(edge, length, path)
                for edge, length in zip(edges, shape, strict=True)
            ]
        case name:
            raise _make_metadata_error(path, f"unknown chunk grid {name!r}")
    if any(count > _U32_MAX for count in counts):
        raise _make_metadata_error(path, "more than 2**32 - 1 chunks along one dimension")
    return counts


def _count_rectilinear_chunks(edges: Any, length: int, path: str) -> int:
    """Count the chunks along one dimension, given as a chunk size or as a list of sizes and `[size, count]`
    pairs.
    """
    if isinstance(edges, int) and not isinstance(edges, bool) and edges > 0:
        return -(-length // edges)
    if not isinstance(edges, list):
        raise _make_metadata_error(path, "chunk_shapes must contain a size or a list of sizes per dimension")
    count = covered = 0
    for edge in edges:
        run = edge if isinstance(edge, list) else [edge, 1]
        if len(run) != 2 or not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in run):
            raise _make_metadata_error(path, f"expected a chunk size or a [size, count] pair, not {edge!r}")
        count += run[1]
        covered += run[0] * run[1]
    if covered < length:
        raise _make_metadata_error(
            path, f"the chunks of a dimension cover only {covered} of {length} elements"
        )
    return count


def _check_sizes(value: Any, path: str, name: str) -> list[int]:
    numbers = value if isinstance(value, list) else None
    if numbers is None or not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers):
        raise _make_metadata_error(path, f"{name} must be a list of non-negative integers")
    if any(n >= 1 << 64 for n in numbers):
        raise _make_metadata_error(path, f"{name} exceeds 64 bits")
    return numbers


def _make_metadata_error(path: str, what: str) -> InvalidInputError:
    return InvalidInputError(f"bad metadata for {path}: {what}", kind=ErrorKind.BAD_METADATA)
