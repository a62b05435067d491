"""Read windows of arrays within limits, and decode them by the CF conventions, with coordinate labels."""

from __future__ import annotations

import json
import math
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, Final

import numpy as np
import zarr
from numpy.typing import NDArray

from icefloe._internal.paths import ROOT, get_parent, join
from icefloe.cf import is_latitude, is_longitude, parse_time_coding, unpack_numbers
from icefloe.coastlines import check_latitudes, unwrapped_longitudes
from icefloe.core.chunk_grid import Grid, count_item_bytes, get_decoded_grid, get_stored_grid
from icefloe.core.workspace import Workspace
from icefloe.errors import ErrorKind, IcechunkError, InvalidInputError
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot
from icefloe.serve.asgi import RequestError
from icefloe.serve.documents import chunk_e_tag
from icefloe.serve.settings import RequestLimits
from icefloe.serve.work import check_job
from icefloe.session import Session

Index = tuple[slice, ...]
"""One slice per dimension, with explicit start, stop and step."""

NUMBERS: Final = "biuf"
_MAX_CHUNKS: Final = 50_000
"""The maximum number of chunks that a window may overlap, regardless of their size."""
_MAX_NS: Final = 2.0**62 * 1000
"""The largest distance between a time and its reference time, in nanoseconds. Times are computed in
microseconds.
"""
_MAX_LABELS: Final = 4_000_000
"""The maximum size of a coordinate that is read completely for its labels."""


class DecodedChunks:
    """A thread-safe cache of decoded chunks, from which windows of arrays are read.

    Parameters
    ----------
    capacity
        The maximum size of the cache in bytes.
    decoders
        The number of threads that may decode at the same time.
    """

    def __init__(self, capacity: int, decoders: int = 2) -> None:
        self._capacity = capacity
        self._held = 0
        self._chunks: OrderedDict[Any, NDArray[Any]] = OrderedDict()
        self._lock = threading.Lock()
        self.decoding = threading.BoundedSemaphore(decoders)
        """A semaphore that limits how many threads decode chunks at the same time."""

    def get(self, key: Any) -> NDArray[Any] | None:
        """Return a decoded chunk from the cache."""
        with self._lock:
            found = self._chunks.get(key)
            if found is not None:
                self._chunks.move_to_end(key)
            return found

    def put(self, key: Any, values: NDArray[Any]) -> None:
        """Add a decoded chunk to the cache, and drop the least recently used ones if necessary."""
        if values.nbytes > self._capacity // 2:
            return
        with self._lock:
            before = self._chunks.pop(key, None)
            self._chunks[key] = values
            self._held += values.nbytes - (0 if before is None else before.nbytes)
            while self._held > self._capacity:
                self._held -= self._chunks.popitem(last=False)[1].nbytes


class ArrayView:
    """A view of an array in one snapshot, from which windows are read and labelled for display.

    Parameters
    ----------
    session
        A session on the snapshot.
    path
        The path of the array.
    limits
        The resources that one window may use.
    kept
        The cache of decoded chunks.
    shape
        View only this part of the array, starting at its first element; by default all of it.

    Raises
    ------
    RequestError
        There is no such array, or it cannot be decoded here.
    """

    def __init__(
        self,
        session: Session,
        path: str,
        limits: RequestLimits,
        kept: DecodedChunks,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        self.session = session
        self.path = path
        self.node = _array_node(session._workspace, path)
        self.document: dict[str, Any] = json.loads(self.node.user_data)
        self._limits = limits
        self._kept = kept
        self._lock = threading.Lock()
        self.shape = self.whole_shape if shape is None else shape
        """The length of the view along each dimension."""

    def crop(self, shape: tuple[int, ...]) -> ArrayView:
        """Return a view of the part of the array that starts at its first element and has the given shape."""
        return ArrayView(self.session, self.path, self._limits, self._kept, shape)

    @cached_property
    def array(self) -> zarr.Array[Any]:
        """The zarr array from which windows are read."""
        try:
            return zarr.open_array(self.session.store, path=self.path.strip("/"), mode="r")
        except (ImportError, LookupError, TypeError, ValueError) as error:
            if isinstance(error, IcechunkError):
                raise
            raise RequestError(501, f"{self.path} cannot be decoded here: {error}") from None

    @property
    def whole_shape(self) -> tuple[int, ...]:
        """The shape of the whole array. The view may show only part of it."""
        return tuple(self.document["shape"])

    @property
    def dims(self) -> tuple[str, ...]:
        """The name of each dimension, or its number if it has no name."""
        names = self.document.get("dimension_names") or [None] * len(self.shape)
        return tuple(name or f"dim_{axis}" for axis, name in enumerate(names))

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of the array."""
        found: dict[str, Any] = self.document.get("attributes") or {}
        return found

    @property
    def units(self) -> str:
        """The units of the decoded values, unless they are times."""
        return "" if self.coding is not None else str(self.attributes.get("units", ""))

    @property
    def stored_units(self) -> str:
        """The units of the numbers that are drawn. For times, these are `hours since 2000-01-01`."""
        return str(self.attributes.get("units", ""))

    @cached_property
    def flags(self) -> dict[int, str]:
        """The meaning of each class value, from the CF attributes `flag_values` and `flag_meanings`; empty
        for other arrays.
        """
        values, meanings = self.attributes.get("flag_values"), self.attributes.get("flag_meanings")
        if not isinstance(values, list) or not isinstance(meanings, str) or self.is_packed:
            return {}
        names = meanings.split()
        is_valid = len(values) == len(names) and all(type(each) is int for each in values)
        return dict(zip(values, names, strict=True)) if is_valid else {}

    @property
    def title(self) -> str:
        """The title of the array: its long name, or else its path."""
        named = self.attributes.get("long_name") or self.attributes.get("standard_name")
        return str(named or self.path.strip("/") or "/")

    @cached_property
    def coding(self) -> Any:
        """The CF time encoding of the array, or None if its values are not times."""
        return parse_time_coding(self.attributes.get("units"), self.attributes.get("calendar"))

    @cached_property
    def grid(self) -> Grid:
        """The grid of the smallest parts of the array that can be decoded separately."""
        return get_decoded_grid(self.document)

    @property
    def is_numeric(self) -> bool:
        """True if windows of the array can be drawn because its values are numbers."""
        return self.array.dtype.kind in NUMBERS

    # Reading

    def whole(self) -> Index:
        """Return the window that covers the whole view."""
        return tuple(slice(0, size, 1) for size in self.shape)

    def touched_bytes(self, index: Index) -> int:
        """Return the decoded size of all chunks that a window overlaps."""
        if not all(len(range(part.start, part.stop)) for part in index):
            return 0
        chunks = self.grid.find_touched(index)
        return self.grid.elements(chunks) * count_item_bytes(self.array.dtype)

    def count_touched(self, index: Index) -> int:
        """Return the number of chunks that a window overlaps."""
        if not all(len(range(part.start, part.stop)) for part in index):
            return 0
        return math.prod(map(len, self.grid.find_touched(index)))

    def read(self, index: Index) -> NDArray[Any]:
        """Read a window in the array's own data type.

        Raises
        ------
        RequestError
            The chunks that the window overlaps are too large.
        """
        touched, most = self.touched_bytes(index), self._limits.decoded_bytes
        if touched > most:
            raise RequestError(
                413,
                f"this view touches chunks of {touched / 2**20:.0f} MiB when decoded; at most "
                f"{most / 2**20:.0f} MiB are decoded per request. Use `icefloe rechunk` to create smaller"
                " chunks",
            )
        shape = tuple(len(range(part.start, part.stop, part.step)) for part in index)
        chunks = self.count_touched(index)
        if chunks > _MAX_CHUNKS:
            raise RequestError(
                413, f"this view touches {chunks} chunks; at most {_MAX_CHUNKS} are read per request"
            )
        found = np.empty(shape, self.array.dtype)
        if found.size:
            for coords in product(*self.grid.find_touched(index)):
                check_job()
                self._copy(coords, index, found)
        return found

    def _copy(self, coords: tuple[int, ...], index: Index, into: NDArray[Any]) -> None:
        """Copy the part of a decoded chunk that lies inside a window."""
        source, target = [], []
        for box, part in zip(self.grid.inside(coords), index, strict=True):
            first = part.start + -(-max(box.start - part.start, 0) // part.step) * part.step
            stop = min(box.stop, part.stop)
            count = len(range(first, stop, part.step))
            source.append(slice(first - box.start, stop - box.start, part.step))
            at = (first - part.start) // part.step
            target.append(slice(at, at + count))
            if not count:
                return
        into[tuple(target)] = self._decode_chunk(coords)[tuple(source)]

    def _decode_chunk(self, coords: tuple[int, ...]) -> NDArray[Any]:
        key = self.identity_of(coords)
        found = self._kept.get(key)
        if found is None:
            with self._kept.decoding:
                found = np.asarray(self.array[self.grid.inside(coords)])
            self._kept.put(key, found)
        return found

    def identity_of(self, coords: tuple[int, ...]) -> Any:
        """Return a key for a decoded chunk. It is equal in all versions with the same chunk and codecs."""
        outer = stored_coords(self.document, self.grid, coords)
        ref = self.session._workspace.ref(self.node, outer)
        what = None if ref is None else chunk_e_tag(ref)
        shape = tuple(part.stop - part.start for part in self.grid.inside(coords))
        same = json.dumps(
            [self.document[name] for name in ("data_type", "codecs", "fill_value")], sort_keys=True
        )
        inner = coords if outer != coords else ()
        return (what, shape, same, inner)

    # Meaning

    def numbers(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Decode values as numbers: unpacked, and with NaN for missing ones."""
        if values.dtype.kind not in NUMBERS:
            raise RequestError(400, f"{self.path} has values of type {values.dtype}, which cannot be drawn")
        return unpack_numbers(values, self.attributes)

    @property
    def is_packed(self) -> bool:
        """True if the values are packed with a scale or offset."""
        return any(
            isinstance(self.attributes.get(name), int | float) for name in ("scale_factor", "add_offset")
        )

    def texts(self, values: NDArray[Any]) -> NDArray[np.object_]:
        """Format values exactly, as text; empty for missing values."""
        flat = values.reshape(-1)
        if self.coding is not None and flat.dtype.kind in NUMBERS:
            found = times_as_text(self.coding, flat)
        elif flat.dtype.kind in NUMBERS:
            meant = self.numbers(flat)
            shown = meant if self.is_packed else flat
            found = ["" if meant[at] != meant[at] else value_text(shown[at]) for at in range(len(flat))]
            if self.flags and flat.dtype.kind in "iu":
                found = [f"{text} {self.flags.get(int(text), '')}".rstrip() if text else "" for text in found]
        else:
            found = [value_text(each) for each in flat]
        return np.array(found, dtype=object).reshape(values.shape)

    # Coordinates

    def coordinate(self, axis: int) -> WindowCoordinate:
        """Read the coordinate that labels one dimension."""
        with self._lock:
            known: dict[int, WindowCoordinate] = self.__dict__.setdefault("_coordinates", {})
            if axis not in known:
                known[axis] = self._read_coordinate(axis)
            return known[axis]

    def _read_coordinate(self, axis: int) -> WindowCoordinate:
        name, size, whole = self.dims[axis], self.shape[axis], self.whole_shape[axis]
        path = None if "/" in name or name in ("", ".", "..") else join(get_parent(self.path) or ROOT, name)
        node = None if path is None else self.session._workspace.node(path)
        if node is None or path == self.path or not isinstance(node.node_data, ArrayNodeData):
            return WindowCoordinate(name, size)
        other = ArrayView(self.session, node.path, self._limits, self._kept)
        if other.shape != (whole,) or count_item_bytes(other.array.dtype) * whole > _MAX_LABELS:
            return WindowCoordinate(name, size)
        if other.count_touched(other.whole()) > _MAX_CHUNKS:
            return WindowCoordinate(name, size)
        values = other.read(other.whole())[:size]
        return WindowCoordinate(name, size, values, other.attributes)


@dataclass(frozen=True, slots=True, eq=False)
class WindowCoordinate:
    """The coordinate that labels one dimension of a window, or its indices if there is none."""

    name: str
    size: int
    values: NDArray[Any] | None = None
    attributes: Mapping[str, Any] | None = None

    @property
    def units(self) -> str:
        """The units of the coordinate, unless its values are times."""
        units = str((self.attributes or {}).get("units", ""))
        return "" if self._coding() is not None else units

    def labels(self, at: Iterable[int]) -> list[str]:
        """Format coordinate values for display."""
        wanted = np.fromiter(at, np.int64)
        if self.values is None:
            return [str(number) for number in wanted.tolist()]
        values = self.values[wanted]
        coding = self._coding()
        if coding is not None and values.dtype.kind in NUMBERS:
            return times_as_text(coding, values)
        return [value_text(each) for each in values]

    def range_text(self, first: int, last: int) -> str:
        """Format a range with its labels, such as `time 2025-04-01 to 2025-05-30`."""
        labels = self.labels((first, last))
        return f"{self.name} {labels[0]}" + (f" to {labels[1]}" if first != last else "")

    def find(self, text: str) -> int:
        """Find the position whose label is nearest to a text such as `2025-03-03`, `50N` or `-12.5`.

        Raises
        ------
        RequestError
            The text is not a label of this coordinate, or lies more than half a step outside it.
        """
        text = text.strip()
        if self.is_time and self.values is not None:
            return self._find_time(text)
        if self.values is not None and self.values.dtype.kind not in NUMBERS:
            found = [at for at, label in enumerate(self.labels(range(self.size))) if label == text]
            if found:
                return found[0]
            raise RequestError(400, f"{self.name} has no label {text!r}")
        number = _parse_number(text)
        if number is None or not self.size:
            raise RequestError(400, f"{text!r} is not a number, and {self.name} has numbers as labels")
        values = np.asarray(np.arange(self.size) if self.values is None else self.values, "f8")
        distances = np.abs(values - number)
        if self.longitudes is not None:
            distances = np.minimum(distances % 360, -distances % 360)
        return self._choose_nearest(text, values, distances)

    def _choose_nearest(self, text: str, values: NDArray[Any], distances: NDArray[Any]) -> int:
        """Return the nearest position, unless it is more than half a step away."""
        known = np.sort(values[np.isfinite(values)])
        if not len(known):
            raise RequestError(400, f"{self.name} has no values")
        at = int(np.nanargmin(distances))
        if len(known) > 1 and distances[at] > np.diff(known).max() * (0.5 + 1e-6):
            ends = self.labels([int(np.nanargmin(values)), int(np.nanargmax(values))])
            raise RequestError(400, f"{self.name} {text} is outside {ends[0]} to {ends[1]}")
        return at

    def _find_time(self, text: str) -> int:
        labels = self.labels(range(self.size))
        wanted = text.replace(" ", "T")
        starting = [at for at, label in enumerate(labels) if label.startswith(wanted)] if wanted else []
        if starting:
            return starting[0]
        try:  # calendars agree well enough to find the nearest time
            moment = np.datetime64(wanted, "s")
            times = np.array(labels, "M8[s]")
        except ValueError:
            raise RequestError(400, f"{self.name} has no time {text!r}; write 2025-03-03") from None
        values, number = (each.astype("f8") for each in (times, np.array(moment)))
        values[np.isnat(times)] = np.nan
        return self._choose_nearest(text, values, np.abs(values - number))

    @property
    def latitudes(self) -> NDArray[np.float64] | None:
        """The coordinate values if they are latitudes by the CF conventions or by name, otherwise None."""
        return check_latitudes(self.values) if is_latitude(self.name, self.attributes or {}) else None

    @property
    def longitudes(self) -> NDArray[np.float64] | None:
        """The coordinate values without jumps if they are longitudes by the CF conventions or by name,
        otherwise None.
        """
        return unwrapped_longitudes(self.values) if is_longitude(self.name, self.attributes or {}) else None

    @property
    def is_time(self) -> bool:
        """True if the coordinate values are encoded times."""
        return self._coding() is not None

    def _coding(self) -> Any:
        found = self.attributes or {}
        return parse_time_coding(found.get("units"), found.get("calendar"))


def _parse_number(text: str) -> float | None:
    """Parse a number, which may be written as a latitude or longitude such as 50N or 12.5°W."""
    match = re.fullmatch(r"([-+]?[\d.]+(?:e[-+]?\d+)?)\s*°?\s*([NSEW]?)", text, re.IGNORECASE)
    try:
        number = float(match[1]) if match else None
    except ValueError:
        return None
    return -number if match and number is not None and match[2].upper() in ("S", "W") else number


def stored_coords(document: Mapping[str, Any], grid: Grid, coords: tuple[int, ...]) -> tuple[int, ...]:
    """Return the coordinates of the stored chunk or shard that contains a separately decoded part."""
    outer = get_stored_grid(document)
    if outer.counts == grid.counts:
        return coords
    starts = [part.start for part in grid.box(coords)]
    return tuple(
        int(np.searchsorted(edge, start, "right")) - 1
        for edge, start in zip(outer.edges, starts, strict=True)
    )


def parse_index(text: str, shape: Sequence[int]) -> Index:
    """Parse an array index such as `120:125,:,::2`.

    Raises
    ------
    InvalidInputError
        The index does not fit the shape.
    """
    parts = text.split(",") if text else []
    if len(parts) != len(shape):
        raise _make_index_error(
            f"the index {text!r} has {len(parts)} parts, and the array {len(shape)} dimensions"
        )
    return tuple(_parse_part(part, size) for part, size in zip(parts, shape, strict=True))


def _parse_part(part: str, size: int) -> slice:
    try:
        numbers = [int(number) if number.strip() else None for number in part.split(":")]
    except ValueError:
        raise _make_index_error(f"{part!r} is not an index or a range") from None
    if ":" not in part:
        at = numbers[0]
        if at is None or not 0 <= at < size:
            raise _make_index_error(f"{part!r} is outside a dimension of {size}")
        return slice(at, at + 1, 1)
    start, stop, step = (*numbers, None, None)[:3]
    if (
        len(numbers) > 3
        or (step is not None and step < 1)
        or (start or 0) < 0
        or (stop is not None and stop < 0)
    ):
        raise _make_index_error(f"{part!r} is not a range")
    first = min(start or 0, size)
    return slice(first, max(first, size if stop is None else min(stop, size)), step or 1)


def times_as_text(coding: Any, values: NDArray[Any]) -> list[str]:
    """Format times as text: empty if missing, or the stored number if it is too large for a time."""
    sizes = np.abs(values.astype("f8"))
    there = sizes < _MAX_NS / coding.unit_ns
    found = np.full(len(values), "", dtype=object)
    far = np.isfinite(sizes) & ~there
    found[far] = [value_text(each) for each in values[far]]
    try:
        found[there] = coding.texts(coding.microseconds(values[there]))
    except (ValueError, OverflowError):
        return [value_text(each) for each in values]
    texts = [str(each) for each in found]
    if all(each.endswith("T00:00:00") or not each for each in texts):
        return [each.removesuffix("T00:00:00") for each in texts]
    return texts


def value_text(value: Any) -> str:
    """Format a value as the shortest text that parses to the same value of its type."""
    if isinstance(value, np.datetime64 | np.timedelta64):
        return "" if np.isnat(value) else str(value)
    if isinstance(value, np.floating | float) and math.isfinite(value):
        size = abs(float(value))
        return np.format_float_positional(value, trim="-") if size == 0 or 1e-4 <= size < 1e16 else str(value)
    return str(value)


def _array_node(workspace: Workspace, path: str) -> NodeSnapshot:
    node = workspace.node(path)
    if node is None:
        raise RequestError(404, f"there is no array {path} in this version")
    if not isinstance(node.node_data, ArrayNodeData):
        raise RequestError(404, f"{path} is a group")
    return node


def _make_index_error(text: str) -> InvalidInputError:
    return InvalidInputError(text, kind=ErrorKind.INVALID_CHUNK_INDEX)
