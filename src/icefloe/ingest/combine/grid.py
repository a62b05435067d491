"""What all the files make together: xarray combines their outlines, and no value is read for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock
from typing import Any

import numpy as np
import xarray as xr
from xarray.core import indexing as xarray_indexing

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.ingest.combine.pieces import EXISTING, Origin, PieceArray, Pieces, UndigestedError
from icefloe.ingest.inspect.schema import FileSchema, VariableSchema, quiet

indexing: Any = xarray_indexing
_PATCHING = RLock()
OVERLAPS = ("monotonic global indexes", "Could not find any dimension coordinates")
"""What xarray says of files that overlap or lie in the same place, without saying which."""
Digests = Mapping[tuple[int, str], str]
"""The hash over the values of a variable, by the number of its source and its name."""

_CHOICES = {
    "compat": ("identical", "equals", "broadcast_equals", "no_conflicts", "override", "minimal"),
    "data_vars": ("minimal", "different", "all"),
    "coords": ("minimal", "different", "all"),
    "join": ("outer", "inner", "left", "right", "exact", "override"),
}
"""What xarray knows."""


@dataclass(frozen=True, slots=True)
class Combining:
    """How files are put together; what is not said is as in `xarray.open_mfdataset`."""

    concat_dim: str | None = None
    """Files follow each other along this dimension; None lets their coordinates decide."""
    compat: str | None = None
    data_vars: str | None = None
    coords: str | None = None
    join: str | None = None

    def __post_init__(self) -> None:
        for name, known in _CHOICES.items():
            given = getattr(self, name)
            if given is not None and given not in known:
                raise InvalidInputError(
                    f"{name} is one of {', '.join(known)}, not {given!r}",
                    ErrorKind.INVALID_COMMIT_CONFIGURATION,
                )

    def arguments(self) -> dict[str, Any]:
        """Arguments for xarray's combine functions."""
        given = {name: getattr(self, name) for name in _CHOICES if getattr(self, name) is not None}
        return {**given, "combine_attrs": "override"}


_NAME_IT = "name the dimension they follow each other along as concat_dim"


def outline(
    number: int, schema: FileSchema, digests: Digests, begin: Mapping[str, int] | None = None
) -> xr.Dataset:
    """A file as a dataset whose coordinates are there and whose data is not.

    `begin` says where it begins in its source, by dimension: for parts of what the repository has.
    """
    variables = {
        each.name: _outlined(number, schema, each, digests, begin or {}) for each in schema.variables
    }
    coords = {each.name: variables.pop(each.name) for each in schema.variables if each.is_coordinate}
    return xr.Dataset(variables, coords, dict(schema.attrs))


def _outlined(
    number: int, schema: FileSchema, variable: VariableSchema, digests: Digests, begin: Mapping[str, int]
) -> xr.Variable:
    data: Any = schema.values.get(variable.name)
    if data is None:
        shape = [schema.sizes[dim] for dim in variable.dims]
        pieces = Pieces.whole(number, shape, [begin.get(dim, 0) for dim in variable.dims])
        dtype = np.dtype(variable.dtype)
        origin = Origin(_stored_shape(schema, variable, begin), digests.get((number, variable.name)))
        data = PieceArray(variable.name, shape, dtype, pieces, {number: origin})
    return xr.Variable(variable.dims, data, dict(variable.attrs))


def _stored_shape(schema: FileSchema, variable: VariableSchema, begin: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of the variable where it comes from; of a part of it, one that no part can have."""
    return tuple(-1 if dim in begin else schema.sizes[dim] for dim in variable.dims)


def combine(
    outlines: Callable[[Digests], Sequence[xr.Dataset]],
    how: Combining,
    digested: Callable[[str], Digests],
) -> tuple[xr.Dataset, Digests]:
    """The dataset that all of them make together.

    Where xarray wants to know whether variables are equal, `digested` is asked for hashes of their values,
    which are returned too.
    """
    digests: dict[tuple[int, str], str] = {}
    while True:
        try:
            return combined(outlines(digests), how), digests
        except UndigestedError as unknown:
            more = digested(unknown.name)
            if not set(more) - set(digests):
                raise InvalidInputError(
                    f"the files cannot be combined: several have {unknown.name} for the same place; leave "
                    f"out those that others repeat, or {_NAME_IT}",
                    ErrorKind.INVALID_ARRAY_METADATA,
                ) from None
            digests.update(more)


def combined(datasets: Sequence[xr.Dataset], how: Combining) -> xr.Dataset:
    """What xarray makes of some outlines."""
    try:
        with quiet(), _without_masks():
            if how.concat_dim is None:
                found = xr.combine_by_coords(list(datasets), **how.arguments())
            else:
                found = xr.combine_nested(list(datasets), concat_dim=how.concat_dim, **how.arguments())
    except (ValueError, NotImplementedError, TypeError, KeyError) as error:
        reason = " ".join(str(error).split())
        if how.concat_dim is None and "dimension coordinates" in reason:
            dims = dict.fromkeys(str(dim) for dataset in datasets for dim in dataset.dims)
            reason += f"; {_NAME_IT}; there are {', '.join(dims)}"
        raise InvalidInputError(
            f"the files cannot be combined: {reason}", ErrorKind.INVALID_ARRAY_METADATA
        ) from error
    if not isinstance(found, xr.Dataset):
        raise InvalidInputError("the files do not make a dataset", ErrorKind.INVALID_ARRAY_METADATA)
    return found


@contextmanager
def _without_masks() -> Iterator[None]:
    """Let xarray make no mask, as large as the data, of which cells of an outline are missing.

    An outline knows that itself. For all other arrays, and other threads, xarray does as it always does.
    """
    usual = indexing.create_mask

    def create_mask(indexer: Any, shape: Any, data: Any = None) -> Any:
        return np.array(False) if isinstance(data, PieceArray) else usual(indexer, shape, data)

    with _PATCHING:
        indexing.create_mask = create_mask
        try:
            yield
        finally:
            indexing.create_mask = usual


Box = Mapping[str, tuple[int, int]]
"""The first cell and the one after the last, by dimension."""


def boxes(dataset: xr.Dataset) -> dict[int, dict[str, tuple[int, int]]]:
    """Where each source is in the dataset."""
    found: dict[int, dict[str, tuple[int, int]]] = {}
    for dims, pieces in _all_pieces(dataset):
        columns = (pieces.source.tolist(), pieces.starts.tolist(), pieces.stops.tolist())
        for source, starts, stops in zip(*columns, strict=True):
            if source == EXISTING:
                continue
            box = found.setdefault(source, {})
            for dim, start, stop in zip(dims, starts, stops, strict=True):
                known = box.get(dim, (start, stop))
                box[dim] = (min(known[0], start), max(known[1], stop))
    return found


def side_by_side(dataset: xr.Dataset) -> tuple[str, ...]:
    """The dimensions along which sources lie side by side."""
    found: set[str] = set()
    for dims, pieces in _all_pieces(dataset):
        partial = (pieces.shape != [dataset.sizes[dim] for dim in dims]).any(axis=0).tolist()
        found.update(dim for dim, is_partial in zip(dims, partial, strict=True) if is_partial)
    return tuple(str(dim) for dim in dataset.sizes if dim in found)


def moves(dataset: xr.Dataset) -> dict[str, list[tuple[int, int, int]]]:
    """Where parts of what is there go: first cell, the one after the last, and by how much they move."""
    found: dict[str, set[tuple[int, int, int]]] = {}
    for dims, pieces in _all_pieces(dataset):
        mine = pieces.taken(pieces.source == EXISTING)
        for axis, dim in enumerate(dims):
            begin, size = mine.source_starts[:, axis], mine.shape[:, axis]
            rows = np.stack([begin, begin + size, mine.starts[:, axis] - begin], axis=1)
            found.setdefault(dim, set()).update(map(tuple, rows[mine.axes[:, axis] >= 0].tolist()))
    return {dim: sorted(spans) for dim, spans in found.items()}


def _all_pieces(dataset: xr.Dataset) -> Iterator[tuple[tuple[str, ...], Pieces]]:
    for variable in dataset.variables.values():
        if isinstance(variable.data, PieceArray):
            yield tuple(map(str, variable.dims)), variable.data.pieces
