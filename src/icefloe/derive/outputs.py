"""Resolve the outputs of a recipe against their inputs, which determine location, shape, metadata and
coordinates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.paths import ROOT, get_parent, join
from icefloe.cf import encode_fill_value
from icefloe.derive.arrays import DecodedCoordinates, StoredArray, array_document, check_regular
from icefloe.derive.axes import (
    Axis,
    Cells,
    CoarseAxis,
    GroupAxis,
    LookupAxis,
    SameAxis,
    Span,
    WholeAxis,
    WindowAxis,
)
from icefloe.derive.expressions import check_expression, evaluate
from icefloe.derive.functions import PART, SEGMENT, Function, InputBlock, UserFunction
from icefloe.derive.grouping import Grouping, codes_of_labels, group_cells
from icefloe.derive.recipe import RECURRING, Coarsen, Group, OutputSpec, Reduce, Same, Window
from icefloe.derive.records import RECORDS, records_group
from icefloe.derive.reductions import REDUCTIONS, SELECTIONS, identity, part_count, part_dtype, result_dtype
from icefloe.derive.user_code import UserCode
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.session import Session

BLOCK_CHUNKS: Final = 8
"""The number of input chunks per partial aggregate. Changing it would change the last digits of results."""
_MANY_CHUNKS: Final = 16
"""The number of input chunks per group above which partial aggregates are stored."""
_GROUPS_PER_CHUNK: Final = 64
"""The number of groups per output chunk when grouping by the values of an array. With recurring periods, each
period has its own chunk."""
_REDUCING_FUNCTIONS: Final = (*REDUCTIONS, *SELECTIONS, "quantile")
"""The built-in functions that reduce several cells to one."""
_PERIODS: Final = {dim: period for period, dim in RECURRING.items()}


@dataclass(frozen=True)
class Coordinate:
    """A coordinate array to write together with an output."""

    dims: tuple[str, ...]
    values: NDArray[Any]
    attributes: Mapping[str, Any]
    source: StoredArray | None = None
    """The array from which the coordinate is copied; None if it is computed."""


@dataclass(frozen=True)
class OutputDim:
    """A dimension of an output array."""

    name: str
    size: int
    chunk: int
    coordinate: Coordinate | None = None

    @property
    def spans(self) -> Cells:
        """The first cell and the end of each chunk along the dimension, one row per chunk."""
        starts = np.arange(0, self.size, self.chunk, dtype=np.int64)
        return np.stack([starts, np.minimum(starts + self.chunk, self.size)], axis=-1)


@dataclass(frozen=True)
class ResolvedInput:
    """An input of an output, and how the output depends on each dimension of the input."""

    name: str
    array: StoredArray
    axes: tuple[Axis, ...]


@dataclass(frozen=True)
class Output:
    """An output of a recipe after its shape, function and metadata have been determined."""

    spec: OutputSpec
    path: str
    records: str
    """The path of the array that stores the output's records."""
    dims: tuple[OutputDim, ...]
    inputs: tuple[ResolvedInput, ...]
    function: Function
    document: Mapping[str, Any]
    """The `zarr.json` metadata of the output array."""
    coordinates: Mapping[str, Coordinate]
    """The coordinates to write, keyed by path."""
    sources: tuple[ResolvedInput, ...] = ()
    """The original inputs, if the output is computed from stored partial aggregates."""
    partial_axes: tuple[Axis, ...] = ()
    """Axes that describe how the output depends on the partial aggregates."""

    @property
    def names(self) -> tuple[str, ...]:
        """The dimension names of the output."""
        return tuple(dim.name for dim in self.dims)

    @property
    def grid(self) -> tuple[int, ...]:
        """The number of chunks of the output along each dimension."""
        return tuple(len(dim.spans) for dim in self.dims)

    @property
    def is_by_reference(self) -> bool:
        """True if the output shares the chunks of its input by reference, so that nothing has to be
        computed."""
        return self.function.name == "by reference"

    @property
    def is_internal(self) -> bool:
        """True if the output stores partial aggregates, which are hidden from users."""
        return self.function.name == "partial"


def locate_output(spec: OutputSpec, first: StoredArray, *, same_repository: bool) -> str:
    """Choose the path at which an output is stored. It is stored next to its input if both have the same
    coordinates.
    """
    if spec.path is not None:
        return spec.path
    keeps_grid = all(
        isinstance(spec.dimensions.get(dim, Same()), Same) for dim in first.dims
    ) and not _has_quantiles(spec)
    group = first.group if same_repository else ROOT
    if spec.function == "pyramid":
        return join(group, spec.name)
    if keeps_grid and same_repository:
        return join(group, spec.name)
    return join(join(group, spec.name), spec.name)


def resolve_output(
    spec: OutputSpec, path: str, arrays: Mapping[str, StoredArray], folder: str, session: Session
) -> list[Output]:
    """Resolve an output of a recipe against its inputs. Return two outputs if partial aggregates are stored.

    The output is written through `session`.
    """
    for array in arrays.values():
        check_regular(array)
    if spec.function == "anomaly":  # normals come last, whatever their position in the recipe
        arrays = dict(sorted(arrays.items(), key=lambda each: bool(set(each[1].dims) & set(_PERIODS))))
    _check_dimensions(spec, arrays)
    first = next(iter(arrays.values()))
    groupings = {
        dim: group_cells(first, dim, mapping)
        for dim, mapping in spec.dimensions.items()
        if isinstance(mapping, Group) and dim in first.dims
    }
    dims = _output_dims(spec, arrays, groupings, folder)
    code = _find_code(spec, folder)
    inputs = tuple(
        ResolvedInput(name, array, _make_axes(spec, name, array, arrays, groupings, dims, folder))
        for name, array in arrays.items()
    )
    missing = {each.dim: each.empty for each in groupings.values() if each.empty.any()}
    dtype = _choose_dtype(spec, inputs, dims, code)
    if dtype.kind not in "biufcOUT" and not _is_by_reference(spec, first, session):
        raise _make_error(
            spec, f"its values would have type {dtype}; derived arrays can only contain numbers or text"
        )
    if missing and dtype.kind in "iub":
        dtype = np.dtype("f8")
    function = Function(
        spec.function,
        _arguments(spec),
        tuple(dim.name for dim in dims),
        dtype,
        first.decoded_dtype,
        code,
        missing,
    )
    coordinates = _make_coordinates(spec, path, arrays, dims)
    attributes = _attributes(spec, first, coordinates)
    if _is_by_reference(spec, first, session):
        function = replace(function, name="by reference")
        document = {**first.document, "attributes": {**first.attributes, **attributes}}
    else:
        document = make_document(dims, spec, dtype, attributes)
    coordinates = {at: each for at, each in coordinates.items() if not _is_in_place(at, each, session)}
    records = f"{records_group(path)}{RECORDS}"
    output = Output(spec, path, records, dims, inputs, function, document, coordinates)
    return _with_partials(output)


def _find_code(spec: OutputSpec, folder: str) -> UserFunction | None:
    if ":" not in spec.function:
        return None
    return UserFunction(UserCode.find(spec.function, folder, spec.version), spec.arguments)


def _is_by_reference(spec: OutputSpec, first: StoredArray, session: Session) -> bool:
    """Return True if an output is a plain copy that can share the chunks of its input."""
    plain = spec.function == "copy" and not (spec.chunks or spec.dtype or spec.encoding)
    return plain and first.session is session and first.document["chunk_grid"]["name"] == "regular"


def _is_in_place(path: str, coordinate: Coordinate, session: Session) -> bool:
    """Return True if a coordinate would be copied onto itself, so that there is nothing to write."""
    source = coordinate.source
    return source is not None and source.session is session and source.path == path


def _check_dimensions(spec: OutputSpec, arrays: Mapping[str, StoredArray]) -> None:
    first = next(iter(arrays.values()))
    known = {dim for array in arrays.values() for dim in array.dims}
    for dim, mapping in spec.dimensions.items():
        if dim not in known:
            raise _make_error(
                spec, f"no input has the dimension {dim}; dimensions are {', '.join(sorted(known))}"
            )
        if spec.is_built_in and spec.function not in _REDUCING_FUNCTIONS and mapping != Same():
            raise _make_error(
                spec, f"{spec.function} is computed cell by cell, so the mapping of {dim} can only be same"
            )
        if spec.function in _REDUCING_FUNCTIONS and isinstance(mapping, Window):
            raise _make_error(
                spec,
                f"{spec.function} cannot use the window of {dim}, because a window does not tell which cells "
                "belong to which output cell; write a function of your own",
            )
        if isinstance(mapping, Same) and (mapping.before or mapping.after) and ":" not in spec.function:
            raise _make_error(
                spec, f"{spec.function} does not support a halo along {dim}; use reduce, group or coarsen"
            )
    reduced = [each for each in spec.dimensions.values() if not isinstance(each, Same)]
    if spec.function in _REDUCING_FUNCTIONS and not reduced:
        raise _make_error(spec, f"{spec.function} requires a dimension to reduce, group or coarsen")
    if spec.function in (*_REDUCING_FUNCTIONS, "copy", "quantise") and len(arrays) != 1:
        raise _make_error(spec, f"{spec.function} takes one input, not {len(arrays)}")
    if spec.function == "anomaly" and len(arrays) != 2:
        raise _make_error(spec, "anomaly takes two inputs: the values, and the normals to subtract")
    if spec.function == "expression":
        check_expression(spec.arguments.get("expression", ""), list(arrays))
    if spec.function == "quantise" and set(spec.arguments) not in ({"digits"}, {"bits"}):
        raise _make_error(spec, "quantise requires digits or bits, such as {quantise: {digits: 2}}")
    for name, array in arrays.items():
        for axis, dim in enumerate(array.dims):
            if dim in first.dims and array.shape[axis] != first.shape[first.dims.index(dim)]:
                raise _make_error(
                    spec,
                    f"the inputs {first.path} and {array.path} differ in size along {dim}: "
                    f"{first.shape[first.dims.index(dim)]} and {array.shape[axis]} (input {name})",
                )


def _output_dims(
    spec: OutputSpec, arrays: Mapping[str, StoredArray], groupings: Mapping[str, Grouping], folder: str
) -> tuple[OutputDim, ...]:
    found: list[OutputDim] = []
    if _has_quantiles(spec):
        q = np.atleast_1d(np.asarray(_arguments(spec)["q"], np.float64))
        found.append(OutputDim("quantile", len(q), len(q), Coordinate(("quantile",), q, {})))
    for array in arrays.values():
        if spec.function == "anomaly" and found:
            break  # normals are looked up and do not add dimensions
        for axis, dim in enumerate(array.dims):
            new = _output_dim(spec, array, axis, dim, groupings)
            if new is not None and new.name not in [each.name for each in found]:
                found.append(new)
    names = {each.name for each in found}
    aliases = {name: name for name in names}
    for (
        dim,
        grouping,
    ) in groupings.items():  # `time`, `monthofyear` and `month` are names of the same dimension
        mapping = spec.dimensions[dim]
        period = mapping.by.rpartition(".")[2] if isinstance(mapping, Group) else dim
        aliases = {dim: grouping.dim, period: grouping.dim, **aliases}
    chunks = {}
    for dim, size in spec.chunks.items():
        if dim not in aliases:
            raise _make_error(
                spec, f"chunks: the output has no dimension {dim}; it has {', '.join(sorted(names))}"
            )
        chunks[aliases[dim]] = size
    return tuple(
        replace(
            each, chunk=_choose_chunk(chunks[each.name], each.size) if each.name in chunks else each.chunk
        )
        for each in found
    )


def _choose_chunk(wanted: int, size: int) -> int:
    return max(1, size) if wanted == -1 else wanted


def _output_dim(
    spec: OutputSpec, array: StoredArray, axis: int, dim: str, groupings: Mapping[str, Grouping]
) -> OutputDim | None:
    mapping, size = spec.dimensions.get(dim, Same()), array.shape[axis]
    chunk = int(np.diff(array.edges[axis]).max(initial=1))
    coordinate = array.coordinates.get(dim)
    if isinstance(mapping, Reduce):
        return None
    if isinstance(mapping, Same):
        return OutputDim(dim, size, chunk, _copy_coordinate(coordinate))
    if isinstance(mapping, Coarsen):
        length = -(-size // mapping.factor)
        coarse = _coarsen_coordinate(coordinate, mapping.factor, first=spec.function == "nearest")
        return OutputDim(dim, length, -(-chunk // mapping.factor), coarse)
    if isinstance(mapping, Window):
        length = size if mapping.size is None else mapping.size
        return OutputDim(
            dim, length, min(chunk, max(1, length)), _copy_coordinate(coordinate) if length == size else None
        )
    grouping = groupings[dim]
    count = len(grouping.labels)
    labels = Coordinate((grouping.dim,), grouping.labels, grouping.attributes)
    if grouping.recurring:  # independent of the number of groups, so a new group does not change the chunks
        return OutputDim(grouping.dim, count, 1 if grouping.dim in _PERIODS else _GROUPS_PER_CHUNK, labels)
    # Use as many periods as the first chunk covers, so that appended data does not change the chunk length.
    first = grouping.codes[:chunk][grouping.codes[:chunk] >= 0]
    periods = int(first.max() - first.min()) + 1 if len(first) else 1
    return OutputDim(grouping.dim, count, min(periods, chunk), labels)


def _copy_coordinate(coordinate: StoredArray | None) -> Coordinate | None:
    return None if coordinate is None else _copy(coordinate)


def _copy(coordinate: StoredArray) -> Coordinate:
    attributes = {key: value for key, value in coordinate.attributes.items() if key != "bounds"}
    return Coordinate(coordinate.dims, coordinate.values, attributes, coordinate)


def _coarsen_coordinate(coordinate: StoredArray | None, factor: int, *, first: bool) -> Coordinate | None:
    """Compute the coordinate of a coarsened dimension. The label of each coarse cell is the mean label of its
    input cells, as in xarray, or the first label."""
    if coordinate is None:
        return None
    copied = replace(_copy(coordinate), source=None)
    if first:
        return replace(copied, values=copied.values[::factor])
    if copied.values.dtype.kind not in "iuf":
        return None
    starts = np.arange(0, len(copied.values), factor)
    counts = np.diff(np.append(starts, len(copied.values)))
    sums = np.add.reduceat(copied.values.astype(np.float64), starts) if len(starts) else np.zeros(0)
    means = sums / counts
    dtype = copied.values.dtype if copied.values.dtype.kind == "f" else np.dtype("f8")
    return replace(copied, values=means.astype(dtype))


def _make_axes(
    spec: OutputSpec,
    name: str,
    array: StoredArray,
    arrays: Mapping[str, StoredArray],
    groupings: Mapping[str, Grouping],
    dims: Sequence[OutputDim],
    folder: str,
) -> tuple[Axis, ...]:
    names = [dim.name for dim in dims]
    axes: list[Axis] = []
    for axis, dim in enumerate(array.dims):
        mapping, size = spec.dimensions.get(dim, Same()), array.shape[axis]
        if isinstance(mapping, Reduce):
            axes.append(WholeAxis(size))
        elif isinstance(mapping, Coarsen):
            axes.append(CoarseAxis(dim, size, mapping.factor))
        elif isinstance(mapping, Group):
            grouping = groupings[dim]
            axes.append(GroupAxis.of(grouping.dim, grouping.codes, len(grouping.labels)))
        elif isinstance(mapping, Window):
            axes.append(WindowAxis(dim, size, UserCode.find(mapping.function, folder, spec.version)))
        elif dim in names:
            axes.append(SameAxis(dim, size, mapping.before, mapping.after))
        elif spec.function == "anomaly":
            axes.append(_find_normals(spec, array, dim, next(iter(arrays.values()))))
        else:
            raise _make_error(
                spec, f"the input {name} has the dimension {dim}, which the output lacks; reduce it"
            )
    return tuple(axes)


def _find_normals(spec: OutputSpec, normals: StoredArray, dim: str, values: StoredArray) -> LookupAxis:
    """Create the axis that assigns a climatological normal to each cell, by the month, season or day of its
    time.
    """
    labels = normals.coordinates.get(dim)
    times = [each for each in values.coordinates.values() if each.time_coding is not None]
    if dim not in _PERIODS or labels is None or not times:
        raise _make_error(
            spec,
            f"{normals.path} has the dimension {dim}, which {values.path} lacks; normals are looked up along "
            f"{', '.join(_PERIODS)} by a time coordinate",
        )
    time = times[0]
    return LookupAxis(time.dims[0], codes_of_labels(time, _PERIODS[dim], labels.values))


def _has_quantiles(spec: OutputSpec) -> bool:
    return spec.function == "quantile" and isinstance(spec.arguments.get("q"), list)


def _arguments(spec: OutputSpec) -> dict[str, Any]:
    if spec.function != "quantile":
        return dict(spec.arguments)
    q = spec.arguments.get("q")
    try:
        levels = np.atleast_1d(np.asarray(q, np.float64)) if q is not None else np.zeros(0)
    except (TypeError, ValueError):
        levels = np.zeros(0)
    if not len(levels) or (levels < 0).any() or (levels > 1).any():
        raise _make_error(
            spec, "quantile requires q: numbers between 0 and 1, such as {quantile: {q: [0.1, 0.9]}}"
        )
    return {"q": q, "method": str(spec.arguments.get("method", "linear"))}


def _choose_dtype(
    spec: OutputSpec, inputs: Sequence[ResolvedInput], dims: Sequence[OutputDim], code: UserFunction | None
) -> np.dtype[Any]:
    """Return the dtype of an output, either given in the recipe or derived from the function and its
    inputs.
    """
    if spec.dtype is not None:
        return _parse_dtype(spec, spec.dtype)
    first = inputs[0].array.decoded_dtype
    if spec.function in REDUCTIONS:
        return result_dtype(spec.function, first)
    ones = {each.name: np.ones((1,) * len(each.axes), each.array.decoded_dtype) for each in inputs}
    if spec.function == "quantile":
        import xarray as xr

        given = _arguments(spec)
        try:
            one = xr.DataArray(np.ones(1, first)).quantile(given["q"], method=given["method"])
        except (TypeError, ValueError) as error:
            raise _make_error(spec, f"quantile: {error}") from error
        return np.asarray(one).dtype
    if spec.function == "anomaly":
        return np.dtype(np.result_type(*(each.array.decoded_dtype for each in inputs), np.float16))
    if spec.function == "expression":
        try:
            with np.errstate(all="ignore"):
                found: np.dtype[Any] = np.asarray(evaluate(spec.arguments["expression"], ones)).dtype
        except (TypeError, ValueError) as error:
            types = ", ".join(str(each.dtype) for each in ones.values())
            raise _make_error(
                spec, f"the expression has no result for inputs of type {types}: {error}"
            ) from error
        return found
    if code is None:
        return first
    return _dtype_of_code(spec, inputs, dims, code)


def _parse_dtype(spec: OutputSpec, given: Any) -> np.dtype[Any]:
    try:
        found: np.dtype[Any] = np.dtype(given)
    except TypeError:
        raise _make_error(spec, f"{given!r} is not a dtype; use for example float32") from None
    return found


def _dtype_of_code(
    spec: OutputSpec, inputs: Sequence[ResolvedInput], dims: Sequence[OutputDim], code: UserFunction
) -> np.dtype[Any]:
    """Determine the dtype that a user's function returns, by calling it on blocks of ones."""
    blocks, spans = _make_small_blocks(inputs, dims)
    try:
        return code.compute(blocks, spans, tuple(dim.name for dim in dims)).dtype
    except InvalidInputError as error:
        raise _make_error(spec, f"its dtype is unknown; set dtype ({error.message})") from error


def _make_small_blocks(
    inputs: Sequence[ResolvedInput], dims: Sequence[OutputDim]
) -> tuple[list[InputBlock], dict[str, Span]]:
    """Create input blocks of ones for a single output cell, to determine the dtype that a function
    returns.
    """
    spans = {dim.name: (0, min(1, dim.size)) for dim in dims}
    blocks = []
    for each in inputs:
        cells = tuple(axis.cells(*(spans[dim] for dim in axis.outputs)) for axis in each.axes)
        values = np.ones(tuple(end - first for first, end in cells), each.array.decoded_dtype)
        coordinates = DecodedCoordinates(each.array).block(cells)
        blocks.append(
            InputBlock(
                each.name, each.array.dims, values, each.axes, cells, coordinates, each.array.attributes
            )
        )
    return blocks, spans


def _attributes(
    spec: OutputSpec, first: StoredArray, coordinates: Mapping[str, Coordinate]
) -> dict[str, Any]:
    kept = {}
    if spec.function not in ("count", "expression") and ":" not in spec.function:
        names = ("units", "long_name", "standard_name")
        kept = {key: first.attributes[key] for key in names if key in first.attributes}
    own = {path.rpartition("/")[2]: each for path, each in coordinates.items()}
    further = [name for name in str(first.attributes.get("coordinates", "")).split() if name in own]
    further += [name for name, each in own.items() if not each.dims and name not in further]
    kept |= {"coordinates": " ".join(further)} if further else {}
    if first.attributes.get("grid_mapping") in own:
        kept["grid_mapping"] = first.attributes["grid_mapping"]
    packing = ("scale_factor", "add_offset", "_FillValue")
    packed = {key: spec.encoding[key] for key in packing if key in spec.encoding}
    return {**kept, **spec.attributes, **packed}


def _make_coordinates(
    spec: OutputSpec, path: str, arrays: Mapping[str, StoredArray], dims: Sequence[OutputDim]
) -> dict[str, Coordinate]:
    group = get_parent(path) or ROOT
    found = {join(group, dim.name): dim.coordinate for dim in dims if dim.coordinate is not None}
    first = next(iter(arrays.values()))
    if spec.function == "quantile" and not _has_quantiles(spec):
        found[join(group, "quantile")] = Coordinate((), np.array(spec.arguments["q"], np.float64), {})
    for name, array in first.auxiliary.items():
        same = all(isinstance(spec.dimensions.get(dim, Same()), Same) for dim in array.dims)
        if same and join(group, name) not in found:
            found[join(group, name)] = _copy(array)
    if path in found:
        raise _make_error(
            spec, f"it would be stored at {path}, which is also the path of a coordinate; set path"
        )
    return found


def make_document(
    dims: Sequence[OutputDim], spec: OutputSpec, dtype: np.dtype[Any], attributes: Mapping[str, Any]
) -> dict[str, Any]:
    """Create the `zarr.json` metadata of an output array."""
    stored = _parse_dtype(spec, spec.encoding.get("dtype", dtype))
    kind: Any = str if stored.kind in "OUT" else stored
    fill = spec.encoding.get("_FillValue", np.nan if stored.kind == "f" else None)
    if "_FillValue" in spec.encoding and stored.kind in "iuf":
        try:
            np.array(fill, stored)
        except (TypeError, ValueError, OverflowError):
            raise _make_error(
                spec, f"the _FillValue {fill!r} in encoding is not a value of type {stored}"
            ) from None
    if stored.kind == "f" and "_FillValue" in spec.encoding:
        attributes = {**attributes, "_FillValue": encode_fill_value(fill)}
    return array_document(
        tuple(dim.size for dim in dims),
        tuple(dim.chunk for dim in dims),
        kind,
        tuple(dim.name for dim in dims),
        attributes,
        fill,
        spec.encoding.get("codec"),
    )


def _with_partials(output: Output) -> list[Output]:
    """Split an output that reduces many chunks into stored partial aggregates and their combination."""
    spec, given = output.spec, output.inputs[0]
    if spec.function not in REDUCTIONS:
        return [output]
    for number, axis in enumerate(given.axes):
        edges = given.array.edges[number]
        groups = len(axis.first) if isinstance(axis, GroupAxis) else 1
        chunks = len(edges) - 1
        if isinstance(axis, GroupAxis | WholeAxis) and chunks > _MANY_CHUNKS * max(groups, 1) ** (
            0 if _is_recurring(axis) else 1
        ):
            return _split_reduction(output, number, axis)
    return [output]


def _is_recurring(axis: Axis) -> bool:
    return isinstance(axis, GroupAxis) and bool((np.diff(axis.groups[axis.groups >= 0]) < 0).any())


def _split_reduction(output: Output, number: int, axis: GroupAxis | WholeAxis) -> list[Output]:
    """Split a reduction along an axis into partial aggregates and their combination.

    Each partial aggregate covers the cells of one group in one block of input chunks. The partial aggregates
    of a group are adjacent.
    """
    given, how = output.inputs[0], output.spec.function
    array = given.array
    size, dtype = array.shape[number], array.decoded_dtype
    block = BLOCK_CHUNKS * int(np.diff(array.edges[number]).max(initial=1))
    blocks = -(-size // block)
    groups = axis.groups if isinstance(axis, GroupAxis) else np.zeros(size, np.int64)
    pairs = groups * blocks + np.arange(size) // block
    known = groups >= 0
    keys, inverse = np.unique(pairs[known], return_inverse=True)
    codes = np.full(size, -1, np.int64)
    codes[known] = inverse
    segments = GroupAxis.of(SEGMENT, codes, len(keys))
    others = [dim for dim in output.dims if dim.name not in axis.outputs]
    parts, stored = part_count(how), part_dtype(how, dtype)
    dims = (OutputDim(PART, parts, parts), OutputDim(SEGMENT, len(keys), 1), *others)
    names = tuple(dim.name for dim in dims)
    document = array_document(
        tuple(dim.size for dim in dims),
        tuple(dim.chunk for dim in dims),
        stored,
        names,
        {},
        identity(how, dtype),
    )
    group = records_group(output.path)
    partial = Output(
        replace(output.spec, encoding={}),
        f"{group}/partial",
        f"{group}/partial_records",
        dims,
        (ResolvedInput(given.name, array, (*given.axes[:number], segments, *given.axes[number + 1 :])),),
        Function("partial", {"of": how}, names, stored, dtype),
        document,
        {},
    )
    arguments = {"of": how, "dtype": dtype.str}
    combine = replace(output.function, name="combine", arguments=arguments, input_dtype=stored)
    owners: Axis = WholeAxis(len(keys))
    if isinstance(axis, GroupAxis):
        owners = GroupAxis.of(axis.dim, keys // blocks, len(axis.first))
    # The input array is set once the partial aggregates are written.
    axes = (WholeAxis(parts), owners, *(SameAxis(dim.name, dim.size) for dim in others))
    rest = replace(output, function=combine, inputs=(), sources=output.inputs, partial_axes=axes)
    return [partial, rest]


def read_partials(output: Output, array: StoredArray) -> Output:
    """Return the output with the stored partial aggregates as its input."""
    return replace(output, inputs=(ResolvedInput(PART, array, output.partial_axes),))


def check_location(
    output: Output, existing: StoredArray | None, session: Session, *, is_derived: bool
) -> None:
    """Raise InvalidInputError if an output would overwrite one of its inputs, or an array that is not
    derived.
    """
    if existing is not None and not is_derived:
        raise _make_error(
            output.spec,
            f"the array at {output.path} was not derived; choose another path, or delete the array",
        )
    if any(each.array.path == output.path and each.array.session is session for each in output.inputs):
        raise _make_error(
            output.spec, f"it reads {output.path}, which is the output itself; choose another path"
        )


def _make_error(spec: OutputSpec, text: str) -> InvalidInputError:
    return InvalidInputError(f"output {spec.name}: {text}", ErrorKind.INVALID_COMMIT_CONFIGURATION)
