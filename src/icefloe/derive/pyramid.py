"""Multiscale pyramids: levels of an array with decreasing resolution, one group per level, for display.

Level 0 shares the references of the array itself, so it takes no space. Each further level is computed from
the previous level. The pyramid's group describes its levels in two formats: OME-Zarr 0.5, and the
`multiscales` convention that GeoZarr uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from icefloe._internal.paths import join
from icefloe.derive.arrays import StoredArray, find_array
from icefloe.derive.lineage import digest_input, find_attributes, list_derived
from icefloe.derive.recipe import Coarsen, InputSpec, OutputSpec
from icefloe.session import Session

_SMALLEST_LEVEL_CELLS: Final = 256
"""The default size limit of the coarsest level: levels are added until rows and columns have at most this
many cells.
"""
_ROWS: Final = ("y", "lat", "latitude", "nav_lat", "northing")
_COLUMNS: Final = ("x", "lon", "longitude", "nav_lon", "easting")
_HEIGHTS: Final = ("z", "level", "lev", "depth", "height", "altitude", "plev", "pressure")
_CONVENTION: Final = {
    "uuid": "d35379db-88df-4056-af3a-620245f8e347",
    "schema_url": "https://raw.githubusercontent.com/zarr-conventions/multiscales/refs/tags/v1/schema.json",
    "spec_url": "https://github.com/zarr-conventions/multiscales/blob/v1/README.md",
    "name": "multiscales",
    "description": "Multiscale layout of Zarr groups",
}
_METHODS: Final = {"mean": "average", "nearest": "nearest", "mode": "mode"}
"""The names of the resampling methods in the `multiscales` convention."""


@dataclass(frozen=True, slots=True)
class PyramidLevel:
    """One level of an array's pyramid."""

    path: str
    """The path of the array."""
    shape: tuple[int, ...]
    """The number of cells along each dimension."""


def find_levels(session: Session, path: str) -> list[PyramidLevel]:
    """Return the up-to-date levels of an array's pyramid, from fine to coarse.

    The first level is the array itself; without a pyramid, it is the only level.
    """
    array = find_array(session, path)
    if array is None:
        return []
    levels = [PyramidLevel(path, array.shape)]
    by_input = {
        str(about["inputs"][0]["array"]): about
        for each in list_derived(session)
        if (about := find_attributes(session, each)) is not None and about["level"] is not None
    }
    before = array
    while (about := by_input.pop(before.path, None)) is not None:
        level = find_array(session, str(about["path"]))
        if level is None or about["inputs"][0]["digest"] != digest_input(before):
            break
        if level.shape != before.shape:
            levels.append(PyramidLevel(level.path, level.shape))
        before = level
    return levels


def make_levels(spec: OutputSpec, group: str, array: StoredArray) -> list[OutputSpec]:
    """Expand a pyramid output into one output per level: a copy of the array, followed by levels that each
    have half the resolution."""
    drawn = drawn_dims(array)
    sizes = dict(zip(array.dims, array.shape, strict=True))
    chunks = {
        dim: max(1, int(edges[1] - edges[0])) if len(edges) > 1 else 1
        for dim, edges in zip(array.dims, array.edges, strict=True)
    }
    name = array.path.rpartition("/")[2]
    path = _make_level_path(group, 0, name)
    level = replace(
        spec, function="copy", name=f"{spec.name}/0", arguments={}, chunks={}, path=path, pyramid=spec
    )
    levels = [level]
    for number in range(1, _count_levels(spec, [sizes[dim] for dim in drawn])):
        sizes = {dim: -(-size // 2) if dim in drawn else size for dim, size in sizes.items()}
        given = InputSpec(spec.inputs[0].name, path)
        path = _make_level_path(group, number, name)
        levels.append(
            replace(
                level,
                name=f"{spec.name}/{number}",
                function=spec.arguments["method"],
                inputs=(given,),
                dimensions={dim: Coarsen(2) for dim in drawn},
                chunks={dim: min(chunk, max(1, sizes[dim])) for dim, chunk in chunks.items()},
                encoding={**_copy_encoding(array), **spec.encoding},
                path=path,
            )
        )
    return levels


def drawn_dims(array: StoredArray) -> tuple[str, ...]:
    """Return the dimensions that a pyramid coarsens: rows and columns by name, otherwise the last two."""
    rows = [dim for dim in array.dims if dim.lower() in _ROWS]
    columns = [dim for dim in array.dims if dim.lower() in _COLUMNS]
    return (rows[-1], columns[-1]) if rows and columns else array.dims[-2:]


def describe_pyramid(spec: OutputSpec, arrays: Sequence[StoredArray]) -> dict[str, Any]:
    """Return the attributes of a pyramid's group, given the arrays of its levels."""
    first = arrays[0]
    method, drawn = str(spec.arguments["method"]), drawn_dims(first)
    names = [f"{number}/{each.path.rpartition('/')[2]}" for number, each in enumerate(arrays)]
    factors = [2.0 if dim in drawn else 1.0 for dim in first.dims]
    offsets = [0.5 if dim in drawn and method != "nearest" else 0.0 for dim in first.dims]
    layout: list[dict[str, Any]] = [{"asset": "0", "transform": {"scale": [1.0] * len(factors)}}]
    for number in range(1, len(arrays)):
        transform = {"scale": factors, "translation": offsets}
        layout.append({"asset": str(number), "derived_from": str(number - 1), "transform": transform})
    found: dict[str, Any] = {
        "zarr_conventions": [_CONVENTION],
        "multiscales": {"layout": layout, "resampling_method": _METHODS[method]},
    }
    axes = _ome_axes(first, drawn)
    if axes is not None:
        datasets = [
            {"path": name, "coordinateTransformations": list(_ome_transforms(number, factors, offsets))}
            for number, name in enumerate(names)
        ]
        image = {"name": spec.name, "type": method, "axes": axes, "datasets": datasets}
        found["ome"] = {"version": "0.5", "multiscales": [image]}
    return found


def _count_levels(spec: OutputSpec, sizes: Sequence[int]) -> int:
    if spec.arguments["levels"] is not None:
        return int(spec.arguments["levels"])
    count, largest = 1, max(sizes, default=1)
    while largest > (_SMALLEST_LEVEL_CELLS if count > 1 else 1):
        largest, count = -(-largest // 2), count + 1
    return count


def _make_level_path(group: str, number: int, name: str) -> str:
    return join(join(group, str(number)), name)


def _copy_encoding(array: StoredArray) -> dict[str, Any]:
    """Return the encoding for the levels of an array: the same dtype and packing as the array."""
    known = array.decoded_attributes
    packed: Mapping[str, Any] = {
        key: known[key] for key in ("scale_factor", "add_offset", "_FillValue") if key in known
    }
    stored = array.zarr.dtype
    return {**packed, "dtype": stored.str} if stored.kind in "iuf" else {}


def _ome_axes(array: StoredArray, drawn: Sequence[str]) -> list[dict[str, str]] | None:
    """Return OME-Zarr axes metadata, or None if the dimensions are not in the required order (time, one other
    axis, two or three space axes)."""
    kinds = []
    for dim in array.dims:
        coordinate = array.coordinates.get(dim)
        is_time = coordinate is not None and coordinate.time_coding is not None
        kinds.append(
            "space"
            if dim in drawn or dim.lower() in _HEIGHTS
            else "time"
            if is_time or dim == "t"
            else "channel"
        )
    counts = [kinds.count(kind) for kind in ("time", "channel", "space")]
    ordered = sorted(kinds, key=("time", "channel", "space").index)
    if kinds != ordered or counts[0] > 1 or counts[1] > 1 or counts[2] not in (2, 3):
        return None
    return [{"name": dim, "type": kind} for dim, kind in zip(array.dims, kinds, strict=True)]


def _ome_transforms(
    number: int, factors: Sequence[float], offsets: Sequence[float]
) -> Iterator[dict[str, Any]]:
    """Return the OME-Zarr coordinate transformations from a level to level 0."""
    yield {"type": "scale", "scale": [factor**number for factor in factors]}
    if number and any(offsets):
        shifts = [offset * (factor**number - 1) for factor, offset in zip(factors, offsets, strict=True)]
        yield {"type": "translation", "translation": shifts}
