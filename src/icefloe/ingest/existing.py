"""What the repository has already: arrays that new files are added to, seen as one more source."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from zarr.errors import GroupNotFoundError

from icefloe.ingest.ledger import LedgerRow
from icefloe.ingest.packing import signature
from icefloe.ingest.sources import Source
from icefloe.ingest.survey import FileSchema, Stored, quiet, schema_of, stored_dataset
from icefloe.ingest.targets import Target
from icefloe.session import Session


@dataclass(frozen=True, slots=True)
class Part:
    """A part of what is there, and where it begins."""

    schema: FileSchema
    begin: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Existing:
    """A group of the repository."""

    stored: Stored
    schema: FileSchema
    targets: Mapping[str, Target]


def look(session: Session, group: str) -> Existing | None:
    """The arrays of a group, or None where there are none. The session must stay as it is."""
    with quiet():
        try:
            arrays = dict(zarr.open_group(session.store, path=group, mode="r").arrays())
        except (GroupNotFoundError, FileNotFoundError):
            return None
        if not arrays:
            return None
        schema = schema_of(Source("", 0, 0), stored_dataset(session, group), "")
    targets = {each.name: _target(each.name, arrays[each.name], schema) for each in schema.variables}
    return Existing(Stored(session, group), schema, targets)


def _target(name: str, array: zarr.Array[Any], schema: FileSchema) -> Target:
    found = schema.variable(name)
    if found is None:
        raise KeyError(name)
    dtype = "string" if array.dtype.kind in "TO" else np.dtype(array.dtype).str
    return Target(
        name,
        found.dims,
        tuple(array.shape),
        dtype,
        dict(array.attrs),
        found.packing,
        signature(found),
        tuple(array.chunks),
        tuple(array.shards) if array.shards else None,
        None,
        is_new=False,
        document=json.dumps(array.metadata.to_dict(), default=str) if array.shards is None else None,
    )


def parts(existing: Existing, rows: Sequence[LedgerRow], new: Sequence[FileSchema]) -> list[Part]:
    """What is there, without what new files replace, and cut where new files go between.

    What is there is cut between two sources only; anywhere, where there is no ledger of them.
    """
    schema, sizes = existing.schema, existing.schema.sizes
    if not rows:
        dims = [dim for dim in sizes if dim in schema.values and _between(schema, dim, new).any()]
        if len(dims) != 1:
            return [_part(schema, {})]
        return [
            _part(schema, {dims[0]: span}) for span in _pieces(sizes[dims[0]], _between(schema, dims[0], new))
        ]
    replaced = {file.source.url for file in new}
    kept: dict[tuple[str, ...], list[dict[str, tuple[int, int]]]] = {}
    for row in rows:
        if row.source not in replaced:
            kept.setdefault(row.names(), []).append(row.box())
    alone = len({row.names() for row in rows}) == 1
    found = []
    for names, whole in kept.items():
        cut = [dim for dim in sizes if any(box.get(dim, (0, sizes[dim])) != (0, sizes[dim]) for box in whole)]
        boxes_cut = [{dim: box[dim] for dim in cut if dim in box} for box in whole]
        mine = schema if alone else _only(schema, names)
        found += [_part(mine, box) for box in _joined(boxes_cut, schema, new)]
    return found


def _part(schema: FileSchema, box: Mapping[str, tuple[int, int]]) -> Part:
    return Part(_cut(schema, box), {dim: span[0] for dim, span in box.items()})


def _between(schema: FileSchema, dim: str, new: Sequence[FileSchema]) -> npt.NDArray[np.bool_]:
    """Whether a new file begins between a cell along a dimension and the one before it."""
    values = schema.values.get(dim)
    firsts = [file.values[dim].reshape(-1)[0] for file in new if dim in file.values and file.values[dim].size]
    if values is None or values.ndim != 1 or len(values) < 2 or not firsts:
        return np.zeros(schema.sizes.get(dim, 0) + 1, bool)
    low, high = np.minimum(values[1:], values[:-1]), np.maximum(values[1:], values[:-1])
    order = np.sort(np.array(firsts, dtype=values.dtype))
    inside = order.searchsorted(low, "right") < order.searchsorted(high, "left")
    return np.concatenate([[False], inside, [False]])


def _pieces(size: int, borders: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    edges = [0, *np.flatnonzero(borders).tolist(), size]
    return list(pairwise(edges))


def _joined(
    boxes: Sequence[dict[str, tuple[int, int]]], schema: FileSchema, new: Sequence[FileSchema]
) -> list[dict[str, tuple[int, int]]]:
    """Boxes that follow each other along their one dimension become one, if no new file goes between."""
    dims = {tuple(box) for box in boxes}
    if len(dims) != 1 or len(next(iter(dims))) != 1:
        return list(boxes)
    ((dim,),) = dims
    between = _between(schema, dim, new)
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(box[dim] for box in boxes):
        if joined and joined[-1][1] == start and not between[start]:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return [{dim: span} for span in joined]


def _only(schema: FileSchema, names: Sequence[str]) -> FileSchema:
    variables = tuple(each for each in schema.variables if each.is_coordinate or each.name in names)
    dims = {dim for each in variables for dim in each.dims}
    values = {name: schema.values[name] for name in schema.values if any(name == v.name for v in variables)}
    return replace(schema, variables=variables, sizes={d: schema.sizes[d] for d in dims}, values=values)


def _cut(schema: FileSchema, box: Mapping[str, tuple[int, int]]) -> FileSchema:
    sizes = {dim: box[dim][1] - box[dim][0] if dim in box else size for dim, size in schema.sizes.items()}
    dims = {each.name: each.dims for each in schema.variables}
    values = {
        name: value[tuple(slice(*box[dim]) if dim in box else slice(None) for dim in dims[name])]
        for name, value in schema.values.items()
    }
    return replace(schema, sizes=sizes, values=values)
