"""Read selected cells of an array chunk by chunk: decode each chunk and keep only the requested cells."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from itertools import product
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from icefloe.core.chunk_values import ChunkDecoder, find_decoder
from icefloe.core.workspace import Workspace
from icefloe.format.snapshot import NodeSnapshot
from icefloe.query.decode import Values
from icefloe.query.scan.plan import Span
from icefloe.query.scan.read import fetch_spans
from icefloe.session import Session

FETCHED_AHEAD: Final = 16
"""The number of chunks to prefetch concurrently from a server, to hide its latency."""
Places: TypeAlias = Mapping[int, NDArray[np.int64]]
"""The positions of the requested cells within a region, keyed by lookup dimension."""
Item = TypeVar("Item")
Result = TypeVar("Result")


class ArrayCells(Protocol):
    """An open array from which cells are read region by region.

    A region spans one chunk along each lookup dimension.
    """

    def fetch(self, region: Sequence[Span]) -> Any:
        """Fetch the chunks that cover a region of the array."""

    def take(self, fetched: Any, region: Sequence[Span], places: Places) -> Values:
        """Return the requested cells of a fetched region, as an array with the remaining dimensions first and
        the cells last.
        """


def open_cells(session: Session, path: str) -> ArrayCells:
    """Open an array for reading cells. Its chunks are decoded directly if the codecs are supported, otherwise
    by zarr.
    """
    workspace = session._workspace
    node = workspace.array("/" + path.strip("/"))
    decoder = find_decoder(json.loads(node.user_data))
    if decoder is not None:
        return _DecodedCells(workspace, node, decoder)
    import zarr

    return _ZarrCells(zarr.open_array(session.store, path=path, mode="r"))


def fetch_ahead(
    pool: Executor | None,
    fetch: Callable[[Item], Result],
    items: Iterable[Item],
    ahead: int = FETCHED_AHEAD,
) -> Iterator[tuple[Item, Result]]:
    """Fetch items in order and yield each with its result. With a pool, prefetch up to `ahead` items."""
    if pool is None:
        for item in items:
            yield item, fetch(item)
        return
    waiting: deque[tuple[Item, Future[Result]]] = deque()
    for item in items:
        waiting.append((item, pool.submit(fetch, item)))
        if len(waiting) > ahead:
            first, future = waiting.popleft()
            yield first, future.result()
    while waiting:
        first, future = waiting.popleft()
        yield first, future.result()


class _ZarrCells:
    """An array whose chunks zarr decodes."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def fetch(self, region: Sequence[Span]) -> Values:
        # docstring inherited
        return fetch_spans(self._array, region)

    def take(self, fetched: Values, region: Sequence[Span], places: Places) -> Values:
        # docstring inherited
        return _take(fetched, (slice(None),) * len(region), places)


_Selectors: TypeAlias = tuple[Any, ...]
"""One slice or index array per dimension."""
_Chunk: TypeAlias = tuple[_Selectors, _Selectors, "bytes | None"]
"""The selection within a chunk, its location in the region, and the encoded chunk bytes."""


class _DecodedCells:
    """An array whose chunks are decoded one by one, without zarr's pipeline."""

    def __init__(self, workspace: Workspace, node: NodeSnapshot, decoder: ChunkDecoder) -> None:
        self._workspace, self._node, self._decoder = workspace, node, decoder

    def fetch(self, region: Sequence[Span]) -> list[_Chunk]:
        # docstring inherited
        parts = map(_divide_span, region, self._decoder.shape)
        return [
            (tuple(each[1] for each in parts), tuple(each[2] for each in parts), self._read(parts))
            for parts in product(*parts)
        ]

    def _read(self, parts: Sequence[tuple[int, Any, slice]]) -> bytes | None:
        coords = tuple(part[0] for part in parts)
        ref = self._workspace.ref(self._node, coords)
        if ref is None:
            return None
        return self._workspace.read(ref, 0, ref.length, f"{coords} of {self._node.path}")

    def take(self, fetched: list[_Chunk], region: Sequence[Span], places: Places) -> Values:
        # docstring inherited
        rest = [axis for axis in range(len(region)) if axis not in places]
        shape = (*(region[axis].count for axis in rest), len(next(iter(places.values()))))
        found = np.full(shape, self._decoder.fill_value, self._decoder.dtype)
        for inside, target, data in fetched:
            if data is not None:
                own = tuple(target[axis] for axis in rest)
                found[own] = _take(self._decoder.decode(data), inside, places)
        return found


def _divide_span(span: Span, size: int) -> list[tuple[int, Any, slice]]:
    """Split a span by chunk. Return, for each chunk, its number, the selection within it, and the location of
    that selection in the span.
    """
    found: list[tuple[int, Any, slice]] = []
    for number in range(span.start // size, -(-span.stop // size)):
        low, high = max(number * size, span.start), min((number + 1) * size, span.stop)
        if span.wanted is None:
            inside: Any = slice(low - number * size, high - number * size)
            found.append((number, inside, slice(low - span.start, high - span.start)))
            continue
        first, last = np.searchsorted(span.wanted, (low, high))
        if first < last:
            found.append((number, span.wanted[first:last] - number * size, slice(first, last)))
    return found


def _take(values: Values, inside: _Selectors, places: Places) -> Values:
    """Return the cells at the given positions in a chunk, applying the chunk's selection to all other
    dimensions.
    """
    looked = sorted(places)
    rest = [axis for axis in range(values.ndim) if axis not in places]
    part = values.transpose(*rest, *looked)
    for number, axis in enumerate(rest):
        part = part[(slice(None),) * number + (inside[axis],)]
    cells = tuple(places[axis] for axis in looked)
    if not part.flags.c_contiguous:
        selectors: Any = (..., *cells)
        return np.asarray(part[selectors])
    flat = np.ravel_multi_index(cells, part.shape[len(rest) :])
    return np.take(part.reshape(*part.shape[: len(rest)], -1), flat, axis=-1)
