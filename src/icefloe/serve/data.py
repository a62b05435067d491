"""Serve the data that pages request: windows as colours, exact values, series and chunk maps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import numpy as np

from icefloe._internal.concurrency import get_pool
from icefloe.errors import NotFoundError
from icefloe.serve.array_plot import PlotStatistics, as_colours, choose_layout, coast
from icefloe.serve.asgi import Receive, RequestError
from icefloe.serve.chunkmap import ChunkMap, chunk_references, draw_changes, draw_chunk_map, draw_missing
from icefloe.serve.compare import changed_chunks, common_shape, compare_values, difference_of
from icefloe.serve.requests import (
    BYTES,
    IMMUTABLE,
    NO_CACHE,
    OpenVersions,
    Request,
    Response,
    check_response,
    json_response,
    meta_header,
    required_raw,
)
from icefloe.serve.series import cell_history, read_series
from icefloe.serve.windows import ArrayView, parse_index
from icefloe.serve.work import Decoders

_MAX_STEPS: Final = 64


class Data:
    """Handles data requests from pages: windows, exact values, series and chunk maps.

    Parameters
    ----------
    opened
        The versions and arrays of the repository.
    decoders
        The threads that decode chunks.
    """

    def __init__(self, opened: OpenVersions, decoders: Decoders) -> None:
        self._opened = opened
        self._decoders = decoders
        self._kinds: dict[str, Callable[[Request], Response]] = {
            "window": self._window,
            "tile": self._tile,
            "series": self._series,
            "history": self._cell_history,
            "chunks": self._chunks,
            "coast": self._coast,
        }

    async def answer(self, request: Request, receive: Receive) -> Response:
        """Handle a data request from a page: for a window, exact values, a series or a chunk map."""
        kind = request.segments[1] if len(request.segments) > 1 else ""
        if kind == "refs":
            return await asyncio.wrap_future(get_pool("serve-refs", 4).submit(self._refs, request))
        if kind not in self._kinds:
            raise RequestError(404, "unknown data request")
        found = await self._decoders.run(partial(self._kinds[kind], request), receive)
        if len(found.body) > self._opened.limits.response_bytes:
            raise RequestError(
                413, f"{len(found.body)} bytes are too many for one response; request a smaller window"
            )
        return found

    def _refs(self, request: Request) -> Response:
        """Send the number of commits on a branch since a snapshot. Open pages poll it."""
        branch, since = request.query.get("branch", ""), request.query.get("since", "")
        try:
            tip = self._opened.repo.lookup_branch(branch)
        except NotFoundError:
            return json_response({"tip": None, "new": 0}, [NO_CACHE])
        newer = 0
        if tip != since:
            for info in islice(self._opened.repo.ancestry(snapshot_id=tip), 1000):
                if info.id == since:
                    break
                newer += 1
        tag = f'"{tip}-{newer}"'.encode()
        return json_response({"tip": tip, "new": newer}, [NO_CACHE, (b"etag", tag)])

    def _window(self, request: Request) -> Response:
        """Send a window as colours, or as raw values in the data type of the array."""
        raw, path = required_raw(request, 2), request.node_path(3)
        if b"..." in raw:
            return self._difference_window(request, raw, path)
        shown = self._opened.show(unquote_to_bytes(raw).decode())
        view = self._opened.view(shown.snapshot_id, path)
        index = parse_index(request.query.get("index", ""), view.shape)
        check_response(index, 8, self._opened.limits.response_bytes)
        values = view.read(index)
        cache = IMMUTABLE if shown.is_fixed else NO_CACHE
        if request.query.get("format") == "raw":
            meta = {"dtype": str(values.dtype), "shape": values.shape}
            if values.dtype.kind in "OT":
                raise RequestError(400, f"{path} has values of variable length")
            return Response(np.ascontiguousarray(values).tobytes(), [BYTES, cache, meta_header(meta)])
        return _make_picture(view, index, view.numbers(values), request, cache)

    def _difference_window(self, request: Request, raw: bytes, path: str) -> Response:
        before, after = self._opened.show_both(raw)
        old, new = self._opened.view(before.snapshot_id, path), self._opened.view(after.snapshot_id, path)
        shape = common_shape(old, new)
        if shape is None:
            raise RequestError(400, "the array has a different number of dimensions in the two versions")
        index = parse_index(request.query.get("index", ""), shape)
        check_response(index, 8, self._opened.limits.response_bytes)
        found = compare_values(old, new, index)
        cache = IMMUTABLE if before.is_fixed and after.is_fixed else NO_CACHE
        extra = {"differing": found.differing, "most": found.most, "cells": int(found.values.size)}
        return _make_picture(new, index, found.values, request, cache, extra)

    def _tile(self, request: Request) -> Response:
        """Send exact values as text, which pages show for the cell below the pointer."""
        raw, path = required_raw(request, 2), request.node_path(3)
        shown = [self._opened.show(unquote_to_bytes(part).decode()) for part in raw.split(b"...")]
        found = []
        view = None
        for each in shown[:2]:
            view = self._opened.view(each.snapshot_id, path)
            index = parse_index(request.query.get("index", ""), view.shape)
            check_response(index, 32, 1 << 20)
            found.append((view, view.read(index)))
        if view is None:
            raise RequestError(404, "the URL lacks a version")
        body: dict[str, Any] = {"values": [view.texts(values).reshape(-1).tolist() for view, values in found]}
        if len(found) == 2 and found[0][1].shape == found[1][1].shape and view.is_numeric:
            (old, one), (new, other) = found
            numbers = difference_of(old, one, new, other).values.reshape(-1)
            body["difference"] = ["" if each != each else f"{each:.6g}" for each in numbers.tolist()]
        body["labels"] = [
            view.coordinate(axis).labels(range(p.start, p.stop, p.step)) for axis, p in enumerate(index)
        ]
        body["units"] = view.units
        fixed = all(each.is_fixed for each in shown)
        return json_response(body, [IMMUTABLE if fixed else NO_CACHE])

    def _series(self, request: Request) -> Response:
        shown = self._opened.show(unquote_to_bytes(required_raw(request, 2)).decode())
        view = self._opened.view(shown.snapshot_id, request.node_path(3))
        at = parse_index(request.query.get("index", ""), view.shape)
        axis = request.number("axis")
        if axis >= len(view.shape):
            raise RequestError(400, f"there is no dimension {axis}")
        cache = IMMUTABLE if shown.is_fixed else NO_CACHE
        return json_response(read_series(view, at, axis, self._opened.limits), [cache])

    def _cell_history(self, request: Request) -> Response:
        shown = self._opened.show(unquote_to_bytes(required_raw(request, 2)).decode())
        path = request.node_path(3)
        view = self._opened.view(shown.snapshot_id, path)
        at = parse_index(request.query.get("index", ""), view.shape)
        if any(part.stop - part.start != 1 for part in at):
            raise RequestError(400, "name one cell: one index per dimension")
        commits = iter(self._opened.repo.ancestry(snapshot_id=shown.snapshot_id))
        rows = cell_history(path, at, commits, self._opened.view)
        body = [{name: getattr(row, name) for name in row.__slots__} for row in rows]
        return json_response({"commits": body, "units": view.units}, [NO_CACHE])

    def _chunks(self, request: Request) -> Response:
        """Send a chunk map with one byte per cell, and the meanings of the codes in a header."""
        if b"..." in required_raw(request, 2):
            return self._changed_chunks(request)
        shown = self._opened.show(unquote_to_bytes(required_raw(request, 2)).decode())
        path, by = request.node_path(3), request.query.get("by", "kind")
        key = ("chunks", shown.snapshot_id, path, by)
        drawn = self._opened.results.get(key)
        if drawn is None:
            drawn = self._opened.results.put(key, self._draw_chunks(shown.snapshot_id, path, by))
        return Response(drawn.codes.tobytes(), [BYTES, NO_CACHE, meta_header(drawn.facts())])

    def _draw_chunks(self, snapshot_id: str, path: str, by: str) -> ChunkMap:
        view = self._opened.view(snapshot_id, path)
        if by == "missing":
            found = self._opened.statistics(snapshot_id, path)
            if found is None:
                raise RequestError(
                    400, f"{path} has no counts of missing values, or too many chunks to draw them"
                )
            return draw_missing(found)
        writers = self._opened.writers(snapshot_id, path) if by == "commit" else None
        return draw_chunk_map(view, chunk_references(view), by, writers)

    def _changed_chunks(self, request: Request) -> Response:
        """Send a map of the chunks that differ between two versions."""
        before, after = self._opened.show_both(required_raw(request, 2))
        path = request.node_path(3)
        old, new = self._opened.view(before.snapshot_id, path), self._opened.view(after.snapshot_id, path)
        key = ("changes", before.snapshot_id, after.snapshot_id, path)
        drawn = self._opened.results.get(key)
        if drawn is None:
            changes = changed_chunks(old.session, new.session, path)
            drawn = self._opened.results.put(key, draw_changes(new, chunk_references(new), changes))
        return Response(drawn.codes.tobytes(), [BYTES, NO_CACHE, meta_header(drawn.facts())])

    def _coast(self, request: Request) -> Response:
        shown = self._opened.show(unquote_to_bytes(required_raw(request, 2)).decode())
        view = self._opened.view(shown.snapshot_id, request.node_path(3))
        layout = choose_layout(view, {}, request.query.get("y", ""), request.query.get("x", ""))
        return json_response(coast(view, layout), [IMMUTABLE if shown.is_fixed else NO_CACHE])


def _make_picture(
    view: ArrayView, index: Any, numbers: Any, request: Request, cache: tuple[bytes, bytes], extra: Any = None
) -> Response:
    """Encode array values as quantized colours, with exact statistics of each step along an axis."""
    steps = request.number("axis", len(view.shape))
    whole = PlotStatistics.of(numbers)
    meta: dict[str, Any] = {"low": whole.low, "high": whole.high, "shape": numbers.shape, **(extra or {})}
    if steps < numbers.ndim and numbers.shape[steps] <= _MAX_STEPS:
        moved = np.moveaxis(numbers, steps, 0)
        meta["steps"] = [PlotStatistics.of(each).as_dict() for each in moved]
        part = index[steps]
        meta["labels"] = view.coordinate(steps).labels(range(part.start, part.stop, part.step))
        numbers = moved
    else:
        meta["steps"] = [whole.as_dict()]
    return Response(as_colours(numbers, whole.low, whole.high), [BYTES, cache, meta_header(meta)])
