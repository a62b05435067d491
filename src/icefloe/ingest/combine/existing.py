"""Read the existing arrays of the target group, and split them into parts that new files can be combined
with.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr
import zarr
from zarr.errors import GroupNotFoundError

from icefloe._internal.warnings import ignore_warnings
from icefloe.ingest.discover.sources import IngestSource
from icefloe.ingest.inspect.open import open_stored
from icefloe.ingest.inspect.packing import make_signature
from icefloe.ingest.inspect.schema import describe_dataset
from icefloe.ingest.ledger import Ledger, LedgerRow
from icefloe.ingest.records import FileSchema, StoredGroup, Target, VariableSchema, join_path
from icefloe.repository import Repository
from icefloe.session import Session


@dataclass(frozen=True, slots=True)
class ExistingPart:
    """A part of the existing arrays that is combined with new files."""

    schema: FileSchema
    box: Mapping[str, tuple[int, int]]
    """The start and the stop along each dimension that the part does not cover completely."""

    @property
    def begin(self) -> dict[str, int]:
        """The start of this part of the existing arrays, for each dimension in `box`."""
        return {dim: start for dim, (start, _) in self.box.items()}


@dataclass(frozen=True, slots=True)
class ExistingArrays:
    """The existing arrays of a group, and their schema."""

    stored: StoredGroup
    schema: FileSchema
    targets: Mapping[str, Target]


@dataclass(frozen=True, slots=True)
class TargetState:
    """The existing arrays and the ledger of a target group at one snapshot."""

    session: Session
    group: str
    existing: ExistingArrays | None
    ledger: Ledger
    """The ledger of the target group, including rows for groups below it."""
    below: str = ""
    """The path of the selected group relative to the target group; empty for the target group itself."""
    lost: Mapping[str, IngestSource | None] = field(default_factory=dict)
    """Static fields to replace, because the files they reference are missing or changed. Each has an
    unchanged ingested file to compare the new values with, or None if there is none.
    """

    @property
    def rows(self) -> list[LedgerRow]:
        """The ledger rows of the selected group."""
        return [row for row in self.ledger.rows if row.target_group == self.below]

    def select_group(self, path: str) -> TargetState:
        """Return the state of a group below the target group: its existing arrays and its ledger."""
        if path == self.below:
            return self
        group = join_path(self.group.removesuffix(self.below), path)
        return replace(self, group=group, existing=inspect_group(self.session, group), below=path)

    def list_schemas(self) -> dict[str, FileSchema]:
        """Return the schemas of existing arrays by group, for the target group and all groups below it."""
        states = [
            self.select_group(group)
            for group in sorted({"", *(row.target_group for row in self.ledger.rows)})
        ]
        return {each.below: each.existing.schema for each in states if each.existing is not None}

    def with_session(self, session: Session) -> TargetState:
        """Return a copy of the target state that reads through another session at the same snapshot."""
        existing = self.existing and replace(self.existing, stored=StoredGroup(session, self.group))
        return replace(self, session=session, existing=existing)

    def rename_sources(self, names: Mapping[str, str]) -> TargetState:
        """Return a copy of the target state with some sources renamed in the ledger."""
        return replace(self, ledger=self.ledger.rename_sources(names)) if names else self


def read_target(
    repo: Repository, branch: str, group: str, ledger: Ledger, known: TargetState | None = None
) -> TargetState:
    """Read the existing arrays and the ledger of a target group at the tip of a branch.

    If `known` is from the same snapshot, the arrays are not inspected again. The ledger is read only if
    `ledger` is from another snapshot.
    """
    session = repo.readonly_session(branch=branch)
    if known is not None and known.session.snapshot_id == session.snapshot_id:
        return known.with_session(session)
    if ledger.snapshot_id != session.snapshot_id:
        ledger = Ledger.read(session, group)
    return TargetState(session, join_path(group, ""), inspect_group(session, group), ledger)


def inspect_group(session: Session, group: str) -> ExistingArrays | None:
    """Describe the existing arrays of a group. Return None if there are none. The session must be
    read-only.
    """
    with ignore_warnings():
        try:
            arrays = dict(zarr.open_group(session.store, path=group, mode="r").arrays())
        except (GroupNotFoundError, FileNotFoundError):
            return None
        if not arrays:
            return None
        schema = describe_dataset(IngestSource("", 0, 0), open_stored(session, group), "")
    targets = {each.name: describe_array(arrays[each.name], each) for each in schema.variables}
    return ExistingArrays(StoredGroup(session, group), schema, targets)


def describe_array(array: zarr.Array[Any], schema: VariableSchema) -> Target:
    """Describe an existing array by its metadata and its xarray schema."""
    return Target(
        schema.name,
        schema.dims,
        tuple(array.shape),
        "string" if array.dtype.kind in "TO" else np.dtype(array.dtype).str,
        dict(array.attrs),
        schema.packing,
        make_signature(schema),
        tuple(array.chunks),
        tuple(array.shards) if array.shards else None,
        array.fill_value,
        is_new=False,
        document=json.dumps(array.metadata.to_dict(), default=str) if array.shards is None else None,
    )


def split_existing(
    existing: ExistingArrays, rows: Sequence[LedgerRow], new: Sequence[FileSchema], *, replacing: bool = False
) -> list[ExistingPart]:
    """Split the existing arrays into parts, so that new files can be inserted between them.

    Regions that new files replace are left out, and the remaining parts are split where new files are
    inserted. The region of a ledger row is never split; regions that the ledger does not list may be split
    anywhere. With `replacing`, new files also replace regions that the ledger does not list.
    """
    schema, sizes = existing.schema, existing.schema.sizes
    again = {file.source.url for file in new}
    kept: dict[tuple[str, ...], list[Mapping[str, tuple[int, int]]]] = {}
    for row in rows:
        if row.source not in again:
            kept.setdefault(row.names, []).append(row.box)
    groups = {row.names for row in rows}
    unnamed = _list_data_variables(schema) - {name for names in groups for name in names}
    left = [cut for box in _find_foreign_boxes(schema, rows) for cut in _split_box(box, schema, new)]
    by_hand = [box for box, is_repeated in left if not (is_repeated and replacing)]
    others = _list_data_variables(schema) - {each.name for file in new for each in file.variables}
    found = [
        _make_part(_keep_variables(schema, others), box)
        for box, is_repeated in left
        if is_repeated and replacing and others
    ]
    for names, boxes in kept.items():
        cut = [dim for dim in sizes if any(box.get(dim, (0, sizes[dim])) != (0, sizes[dim]) for box in boxes)]
        spans = dict.fromkeys(tuple((dim, box[dim]) for dim in cut if dim in box) for box in boxes)
        boxes_cut = [dict(box) for box in spans]
        if len(groups) == 1:
            boxes_cut += by_hand
            by_hand = []
        mine = schema if len(groups) == 1 else _keep_variables(schema, {*names, *unnamed})
        found += [_make_part(mine, box) for box in _join_boxes(boxes_cut, schema, new)]
    return [*found, *(_make_part(schema, box) for box in by_hand)]


def find_remaining(state: TargetState, new: Sequence[FileSchema]) -> ExistingArrays | None:
    """Return the existing arrays of a group. Return None if new files replace all of them."""
    again = {file.source.url for file in new}
    if state.rows and all(row.source in again for row in state.rows):
        return None
    return state.existing


def find_overwritten(
    existing: ExistingArrays, rows: Sequence[LedgerRow], new: Sequence[FileSchema]
) -> list[str]:
    """List the regions that new files would overwrite although the ledger does not list them."""
    left = (
        cut
        for box in _find_foreign_boxes(existing.schema, rows)
        for cut in _split_box(box, existing.schema, new)
    )
    return [
        ", ".join(f"{dim} {start} to {stop - 1}" for dim, (start, stop) in box.items()) or "all of it"
        for box, is_repeated in left
        if is_repeated
    ]


def _find_foreign_boxes(schema: FileSchema, rows: Sequence[LedgerRow]) -> list[dict[str, tuple[int, int]]]:
    """Return the boxes of existing cells that no ledger row covers, because other programs wrote them."""
    if not rows:
        return [{}]
    boxes = [row.box for row in rows]
    runs: dict[str, list[tuple[int, int, bool]]] = {}
    for dim, size in schema.sizes.items():
        spans = np.array([box[dim] for box in boxes if dim in box], np.int64).reshape(-1, 2)
        begins, ends = (np.bincount(column, minlength=size + 1) for column in spans.T)
        known = (begins - ends).cumsum()[:size] > 0
        if len(spans) and not known.all():
            borders = np.concatenate([[False], known[1:] != known[:-1], [False]])
            runs[dim] = [(start, stop, bool(known[start])) for start, stop in _split_at(size, borders)]
    return [
        {dim: (start, stop) for dim, (start, stop, _) in zip(runs, box, strict=True)}
        for box in product(*runs.values())
        if not all(known for _, _, known in box)
    ]


def _split_box(
    box: dict[str, tuple[int, int]], schema: FileSchema, new: Sequence[FileSchema]
) -> Iterator[tuple[dict[str, tuple[int, int]], bool]]:
    """Split a box where new files begin or end. Yield each part, and whether new files repeat its labels."""
    dims = list(_find_differing_dimensions(schema, new))
    if len(dims) != 1 or set(box) - set(dims):
        yield box, not dims
        return
    (dim,) = dims
    repeated, borders = _mark_repeated_labels(schema, dim, new), _mark_insertions(schema, dim, new)
    borders[1:-1] |= repeated[1:] != repeated[:-1]
    start, stop = box.get(dim, (0, schema.sizes[dim]))
    inside = [at for at in np.flatnonzero(borders).tolist() if start < at < stop]
    for span in pairwise([start, *inside, stop]):
        yield ({dim: span} if inside or box else {}), bool(repeated[span[0]])


def _find_differing_dimensions(schema: FileSchema, new: Sequence[FileSchema]) -> Iterator[str]:
    """Yield the dimensions along which the labels of new files differ from the existing arrays."""
    for dim, size in schema.sizes.items():
        labels = schema.values.get(dim)
        if labels is not None and labels.ndim == 1 and size:
            theirs = [file.values[dim] for file in new if dim in file.values]
            if any(not np.array_equal(each, labels) for each in theirs):
                yield dim


def _mark_repeated_labels(schema: FileSchema, dim: str, new: Sequence[FileSchema]) -> npt.NDArray[np.bool_]:
    """Return a mask of the existing labels along a dimension that also appear in new files."""
    theirs = np.concatenate([file.values[dim].reshape(-1) for file in new if dim in file.values])
    found: npt.NDArray[np.bool_] = xr.Variable(dim, schema.values[dim]).to_index().isin(theirs)
    return found


def _make_part(schema: FileSchema, box: Mapping[str, tuple[int, int]]) -> ExistingPart:
    return ExistingPart(_cut_schema(schema, box), dict(box))


def _mark_insertions(schema: FileSchema, dim: str, new: Sequence[FileSchema]) -> npt.NDArray[np.bool_]:
    """Return a mask of the boundaries between existing cells where a new file must be inserted."""
    values = schema.values.get(dim)
    firsts = [file.values[dim].reshape(-1)[0] for file in new if dim in file.values and file.values[dim].size]
    if values is None or values.ndim != 1 or len(values) < 2 or not firsts:
        return np.zeros(schema.sizes.get(dim, 0) + 1, bool)
    low, high = np.minimum(values[1:], values[:-1]), np.maximum(values[1:], values[:-1])
    order = np.sort(np.array(firsts, dtype=values.dtype))
    inside = order.searchsorted(low, "right") < order.searchsorted(high, "left")
    return np.concatenate([[False], inside, [False]])


def _split_at(size: int, borders: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    edges = [0, *np.flatnonzero(borders).tolist(), size]
    return list(pairwise(edges))


def _join_boxes(
    boxes: Sequence[dict[str, tuple[int, int]]], schema: FileSchema, new: Sequence[FileSchema]
) -> list[dict[str, tuple[int, int]]]:
    """Merge adjacent boxes, unless a new file must be inserted between them.

    Boxes are merged along one dimension if they are equal along all other dimensions. In a grid with several
    dimensions, a new file may also fill a hole, so boxes stay split where it begins and ends.
    """
    found = list(boxes)
    if len({frozenset(box) for box in boxes}) != 1:
        return found
    dims = list(boxes[0])
    for dim in dims:
        between = _mark_insertions(schema, dim, new)
        if len(dims) > 1:
            between |= _mark_ends_of_files(schema, dim, new)
        rows: dict[tuple[Any, ...], list[tuple[int, int]]] = {}
        for box in found:
            rest = tuple((other, box[other]) for other in dims if other != dim)
            rows.setdefault(rest, []).append(box[dim])
        found = [
            {**dict(rest), dim: span} for rest, spans in rows.items() for span in _join_spans(spans, between)
        ]
    return found


def _mark_ends_of_files(schema: FileSchema, dim: str, new: Sequence[FileSchema]) -> npt.NDArray[np.bool_]:
    """Return a mask of the cell boundaries where a new file begins or ends. Without labels, return all
    boundaries.
    """
    labels = schema.values.get(dim)
    theirs = [file.values[dim] for file in new if dim in file.values and file.values[dim].size]
    found = np.zeros(schema.sizes[dim] + 1, bool)
    index = None if labels is None or labels.ndim != 1 else xr.Variable(dim, labels).to_index()
    if index is None or not index.is_unique or len(theirs) < len(new):
        return ~found
    for end, step in ((0, 0), (-1, 1)):
        at = index.get_indexer([each.reshape(-1)[end] for each in theirs])
        found[at[at >= 0] + step] = True
    return found


def _join_spans(spans: Sequence[tuple[int, int]], between: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if joined and joined[-1][1] == start and not between[start]:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined


def drop_variables(schema: FileSchema, names: Collection[str]) -> FileSchema:
    """Return the schema of existing arrays without the named data variables."""
    return _keep_variables(schema, _list_data_variables(schema) - set(names))


def _list_data_variables(schema: FileSchema) -> set[str]:
    return {each.name for each in schema.variables if not each.is_coordinate}


def _keep_variables(schema: FileSchema, names: Collection[str]) -> FileSchema:
    variables = tuple(each for each in schema.variables if each.is_coordinate or each.name in names)
    dims = {dim for each in variables for dim in each.dims}
    values = {name: schema.values[name] for name in schema.values if any(name == v.name for v in variables)}
    return replace(schema, variables=variables, sizes={d: schema.sizes[d] for d in dims}, values=values)


def _cut_schema(schema: FileSchema, box: Mapping[str, tuple[int, int]]) -> FileSchema:
    sizes = {dim: box[dim][1] - box[dim][0] if dim in box else size for dim, size in schema.sizes.items()}
    dims = {each.name: each.dims for each in schema.variables}
    values = {
        name: value[tuple(slice(*box[dim]) if dim in box else slice(None) for dim in dims[name])]
        for name, value in schema.values.items()
    }
    return replace(schema, sizes=sizes, values=values)
