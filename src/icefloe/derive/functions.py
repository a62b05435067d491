"""The functions that compute derived arrays, applied block by block."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.derive.axes import Axis, Cells, GroupAxis, LookupAxis, SameAxis, Span
from icefloe.derive.expressions import evaluate
from icefloe.derive.reductions import (
    REDUCTIONS,
    SELECTIONS,
    combine_parts,
    finish,
    identity,
    reduce_parts,
    reduce_values,
    select_values,
)
from icefloe.derive.user_code import UserCode
from icefloe.errors import ErrorKind, IcechunkError, InvalidInputError

Values = NDArray[Any]

PART = "part"
"""The dimension along which a partial aggregate stores its numbers, such as count and sum."""
SEGMENT = "segment"
"""The dimension along which partial aggregates are stored. Each covers the cells of one group in one block of
input chunks.
"""
_ALL_BLOCKS = ("blocks", "inputs", "arrays")
"""The names of function parameters that receive a dictionary of all inputs."""


@dataclass(frozen=True)
class InputBlock:
    """The decoded cells of one input that are needed to compute an output chunk."""

    name: str
    dims: tuple[str, ...]
    values: Values
    axes: tuple[Axis, ...]
    cells: tuple[Span, ...]
    """The range of input cells along each dimension."""
    coordinates: Mapping[str, tuple[tuple[str, ...], Values, Mapping[str, Any]]] = field(default_factory=dict)
    """The coordinates of the cells: dimensions, decoded values and attributes."""
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def codes(self, spans: Mapping[str, Span]) -> list[Cells | None]:
        """Return, per axis, the output cell to which each cell of the block belongs; None if they correspond
        one to one.
        """
        return [
            axis.codes(cells, *(spans[dim] for dim in axis.outputs))
            for axis, cells in zip(self.axes, self.cells, strict=True)
        ]

    def lengths(self, spans: Mapping[str, Span]) -> list[int]:
        """Return the number of output cells along each axis of the block; 1 for a dropped axis."""
        return [
            1 if axis.is_dropped else spans[axis.outputs[-1]][1] - spans[axis.outputs[-1]][0]
            for axis in self.axes
        ]


@dataclass(frozen=True)
class Function:
    """The function of a derived array, ready to compute blocks. It is pickled and sent to executors."""

    name: str
    arguments: Mapping[str, Any]
    output_dims: tuple[str, ...]
    dtype: np.dtype[Any]
    """The dtype of computed values, before encoding."""
    input_dtype: np.dtype[Any]
    """The dtype of the decoded values of the first input."""
    code: UserFunction | None = None
    missing: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    """Masks of the output cells that have no input cells, keyed by dimension."""

    def compute(self, blocks: Sequence[InputBlock], spans: Mapping[str, Span]) -> Values:
        """Compute the output cells in the given ranges from input blocks."""
        values = self._compute_checked(blocks, spans)
        expected = tuple(spans[dim][1] - spans[dim][0] for dim in self.output_dims)
        if values.shape != expected:
            raise _make_error(
                f"{self.name} returned an array of shape {values.shape} for {self.output_dims}; expected "
                f"{expected}"
            )
        values = values if values.dtype == self.dtype else _cast_result(values, self.dtype, self.name)
        return self._drop_missing(values, spans)

    def _compute_checked(self, blocks: Sequence[InputBlock], spans: Mapping[str, Span]) -> Values:
        try:
            with np.errstate(all="ignore"):
                return self._compute(blocks, spans)
        except (TypeError, ValueError) as error:  # numpy does not support the operation for this type
            if isinstance(error, IcechunkError):
                raise
            types = ", ".join(str(each.values.dtype) for each in blocks)
            raise _make_error(
                f"{self.name} cannot be computed for values of type {types}: {error}"
            ) from error

    def _compute(self, blocks: Sequence[InputBlock], spans: Mapping[str, Span]) -> Values:
        first = blocks[0]
        if self.code is not None:
            return self.code.compute(blocks, spans, self.output_dims)
        if self.name in REDUCTIONS:
            values = reduce_values(self.name, first.values, first.codes(spans), first.lengths(spans))
            return _drop_axis(first, values)
        if self.name in SELECTIONS:
            return _drop_axis(
                first, select_values(self.name, first.values, first.codes(spans), first.lengths(spans))
            )
        if self.name == "partial":
            return self._compute_partial(first, spans)
        if self.name == "combine":
            return self._combine(first, spans)
        if self.name == "quantile":
            return self._compute_quantile(first, spans)
        if self.name == "anomaly":
            normal = _align_block(blocks[1], self.output_dims, spans)
            return np.asarray(_align_block(first, self.output_dims, spans) - normal)
        if self.name == "expression":
            arrays = {each.name: _align_block(each, self.output_dims, spans) for each in blocks}
            found = np.asarray(evaluate(self.arguments["expression"], arrays))
            return np.broadcast_to(found, tuple(spans[dim][1] - spans[dim][0] for dim in self.output_dims))
        values = _align_block(first, self.output_dims, spans)
        return _quantise(values, self.arguments) if self.name == "quantise" else values

    def _compute_partial(self, block: InputBlock, spans: Mapping[str, Span]) -> Values:
        """Compute partial aggregates, with the dimensions `part` and `segment` first, followed by the other
        dimensions of the result.
        """
        parts = reduce_parts(self.arguments["of"], block.values, block.codes(spans), block.lengths(spans))
        dropped = tuple(axis + 1 for axis, each in enumerate(block.axes) if each.is_dropped)
        names = [each.outputs[0] for each in block.axes if not each.is_dropped]
        return np.moveaxis(np.squeeze(parts, axis=dropped), names.index(SEGMENT) + 1, 1)

    def _combine(self, block: InputBlock, spans: Mapping[str, Span]) -> Values:
        """Combine the stored partial aggregates of each group into results, in a fixed order."""
        how, dtype = self.arguments["of"], np.dtype(self.arguments["dtype"])
        codes, owners = block.codes(spans)[1], block.axes[1]
        if owners.is_dropped or codes is None:
            return finish(how, combine_parts(how, block.values), dtype)
        results = []
        for number in range(block.lengths(spans)[1]):
            members = block.values[:, codes == number]
            empty = np.full((len(members), *members.shape[2:]), identity(how, dtype), members.dtype)
            results.append(combine_parts(how, members) if members.shape[1] else empty)
        stacked = np.stack(results, axis=1)
        return np.moveaxis(finish(how, stacked, dtype), 0, self.output_dims.index(owners.outputs[0]))

    def _compute_quantile(self, block: InputBlock, spans: Mapping[str, Span]) -> Values:
        import xarray as xr

        q = self.arguments["q"]
        codes, lengths = block.codes(spans), block.lengths(spans)
        reduced = [axis for axis, each in enumerate(codes) if each is not None]
        kept = [axis for axis, each in enumerate(codes) if each is None]
        groups = np.ravel_multi_index(
            np.meshgrid(*(np.maximum(np.asarray(codes[axis]), 0) for axis in reduced), indexing="ij"),
            [lengths[axis] for axis in reduced],
        ).ravel()
        valid = np.ones((), np.bool_)
        for axis in reduced:
            valid = np.multiply.outer(valid, np.asarray(codes[axis]) >= 0)
        flat = np.ascontiguousarray(np.transpose(block.values, (*reduced, *kept)))
        flat = flat.reshape(len(groups), *flat.shape[len(reduced) :])
        results = []
        for number in range(int(np.prod([lengths[axis] for axis in reduced], dtype=int))):
            members = flat[(groups == number) & valid.ravel()]
            if not len(members):
                shape = (*np.shape(q), *members.shape[1:])
                results.append(np.full(shape, np.nan))
                continue
            names = ["cells", *(f"d{axis}" for axis in range(members.ndim - 1))]
            array = xr.DataArray(members, dims=names)
            results.append(np.asarray(array.quantile(q, dim="cells", method=self.arguments["method"])))
        stacked = np.stack(results) if results else np.zeros((0, *np.shape(q)))
        lead = np.ndim(q)
        stacked = stacked.reshape(*(lengths[axis] for axis in reduced), *stacked.shape[1:])
        # The axes are: reduced, quantile, kept. Reorder them to quantile first, then the input order.
        order = list(range(stacked.ndim))
        places = {axis: at for at, axis in enumerate(reduced)}
        places |= {axis: len(reduced) + lead + at for at, axis in enumerate(kept)}
        wanted = [*order[len(reduced) : len(reduced) + lead], *(places[axis] for axis in range(len(codes)))]
        moved = np.transpose(stacked, wanted)
        dropped = tuple(axis + lead for axis, each in enumerate(block.axes) if each.is_dropped)
        return np.squeeze(moved, axis=dropped)

    def _drop_missing(self, values: Values, spans: Mapping[str, Span]) -> Values:
        for dim, mask in self.missing.items():
            here = mask[spans[dim][0] : spans[dim][1]]
            if here.any():
                values = values.copy()
                at: list[Any] = [slice(None)] * values.ndim
                at[self.output_dims.index(dim)] = here
                values[tuple(at)] = np.array("NaT", values.dtype) if values.dtype.kind in "mM" else np.nan
        return values


@dataclass(frozen=True)
class UserFunction:
    """A user-defined function for a derived array, given as `module:function`."""

    code: UserCode
    arguments: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The name of the function in the recipe: `module:function`."""
        return self.code.text

    def compute(
        self, blocks: Sequence[InputBlock], spans: Mapping[str, Span], dims: tuple[str, ...]
    ) -> Values:
        """Call the user's function on input blocks. If a dimension is grouped, call it once per group."""
        function = self.code.load()
        grouped = [
            (block.dims[axis], each)
            for block in blocks
            for axis, each in enumerate(block.axes)
            if isinstance(each, GroupAxis)
        ]
        names = {dim for dim, _ in grouped}
        if len(names) > 1:
            raise _make_error(f"{self.text} cannot group by several dimensions: {', '.join(sorted(names))}")
        arrays = {block.name: _as_xarray(block) for block in blocks}
        if not grouped:
            return self._arrange_result(self._call(function, arrays, spans), blocks, spans, dims)
        dim, axis = grouped[0]
        results = []
        first, end = spans[axis.dim]
        for number in range(first, end):
            chosen = {
                name: _select_members(blocks, name, array, dim, number) for name, array in arrays.items()
            }
            one = {**spans, axis.dim: (number, number + 1)}
            if not all(each.size for each in chosen.values()):
                rest = tuple(spans[each][1] - spans[each][0] for each in dims if each != axis.dim)
                results.append(np.full(rest, np.nan))
                continue
            found = self._call(function, chosen, one)
            rest_dims = tuple(each for each in dims if each != axis.dim)
            results.append(self._arrange_result(found, blocks, one, rest_dims))
        return np.stack(results, axis=dims.index(axis.dim))

    def _call(
        self, function: Callable[..., Any], arrays: Mapping[str, Any], spans: Mapping[str, Span]
    ) -> Any:
        values, named = _bind_inputs(function, arrays, {"spans": dict(spans)}, self.arguments)
        try:
            return function(*values, **named)
        except (Exception, SystemExit) as error:
            raise _make_error(f"{self.text} raised {type(error).__name__}: {error}") from error

    def _arrange_result(
        self, found: Any, blocks: Sequence[InputBlock], spans: Mapping[str, Span], dims: tuple[str, ...]
    ) -> Values:
        """Trim the halo from the function's result, and transpose it to the dimension order of the output."""
        if hasattr(found, "dims"):
            names = [str(each) for each in found.dims]
            if set(names) != set(dims):
                raise _make_error(f"{self.text} returned the dimensions {tuple(names)}; expected {dims}")
            found = found.transpose(*dims).values
        values = np.asarray(found)
        expected = tuple(spans[dim][1] - spans[dim][0] for dim in dims)
        if values.ndim != len(dims):
            raise _make_error(f"{self.text} returned an array of shape {values.shape}; expected {expected}")
        at = tuple(
            _trim_halo(blocks, dim, spans[dim], values.shape[axis])
            if values.shape[axis] != expected[axis]
            else slice(None)
            for axis, dim in enumerate(dims)
        )
        values = values[at]
        if values.shape != expected:
            raise _make_error(
                f"{self.text} returned an array of shape {np.shape(found)}; expected {expected}"
            )
        return values


def _bind_inputs(
    function: Callable[..., Any],
    arrays: Mapping[str, Any],
    context: Mapping[str, Any],
    arguments: Mapping[str, Any],
) -> tuple[list[Any], dict[str, Any]]:
    """Bind inputs to the parameters of a user's function: by name, as a dictionary, or by position."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a ufunc or another function without a signature
        return list(arrays.values()), dict(arguments)
    names = [each.name for each in parameters]
    extra = {name: value for name, value in context.items() if name in names}
    extra["block"] = context["spans"]
    extra = {name: value for name, value in extra.items() if name in names}
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters) or set(arrays) <= set(names):
        return [], {**arrays, **arguments, **extra}
    if names and names[0] in _ALL_BLOCKS:
        return [dict(arrays)], {**arguments, **extra}
    return list(arrays.values()), {**arguments, **extra}


def _as_xarray(block: InputBlock) -> Any:
    import xarray as xr

    coordinates = {
        name: (dims, values, dict(attributes))
        for name, (dims, values, attributes) in block.coordinates.items()
    }
    return xr.DataArray(block.values, coordinates, block.dims, block.name, dict(block.attributes))


def _select_members(blocks: Sequence[InputBlock], name: str, array: Any, dim: str, number: int) -> Any:
    """Select the cells of an input array that belong to one group."""
    block = next(each for each in blocks if each.name == name)
    for axis, each in enumerate(block.axes):
        if isinstance(each, GroupAxis) and block.dims[axis] == dim:
            first, end = block.cells[axis]
            return array.isel({dim: np.flatnonzero(each.groups[first:end] == number)})
    return array


def _trim_halo(blocks: Sequence[InputBlock], dim: str, span: Span, length: int) -> slice:
    """Trim the halo from a result that is as large as the input block."""
    for block in blocks:
        for axis, each in enumerate(block.axes):
            first, end = block.cells[axis]
            if isinstance(each, SameAxis) and each.dim == dim and end - first == length:
                return slice(span[0] - first, span[1] - first)
    return slice(None)


def _align_block(block: InputBlock, dims: tuple[str, ...], spans: Mapping[str, Span]) -> Values:
    """Transpose a block to the dimension order of the output, with table lookups where an axis requires
    them.
    """
    values, names = block.values, []
    for number, (dim, axis) in enumerate(zip(block.dims, block.axes, strict=True)):
        if isinstance(axis, LookupAxis):
            table = np.asarray(axis.codes(block.cells[number], spans[axis.dim]))
            missing = table < 0
            if values.shape[number]:
                values = np.take(values, np.maximum(table, 0), axis=number)
            else:
                values = np.zeros((*values.shape[:number], len(table), *values.shape[number + 1 :]))
            if missing.any():
                values = values.astype(np.result_type(values.dtype, np.float32))
                at: list[Any] = [slice(None)] * values.ndim
                at[number] = missing
                values[tuple(at)] = np.nan
            names.append(axis.dim)
        else:
            if isinstance(axis, SameAxis):
                first = block.cells[number][0]
                own = slice(spans[axis.dim][0] - first, spans[axis.dim][1] - first)
                values = values[(*[slice(None)] * number, own)]
            names.append(dim)
    order = sorted(range(len(names)), key=lambda axis: dims.index(names[axis]))
    shape = [1] * len(dims)
    for at_axis in order:
        shape[dims.index(names[at_axis])] = values.shape[at_axis]
    return np.transpose(values, order).reshape(shape)


def _drop_axis(block: InputBlock, values: Values) -> Values:
    return np.squeeze(values, axis=tuple(at for at, axis in enumerate(block.axes) if axis.is_dropped))


def _quantise(values: Values, arguments: Mapping[str, Any]) -> Values:
    """Round values to a number of decimal digits, or to a number of mantissa bits."""
    if "digits" in arguments:
        return np.round(values, int(arguments["digits"]))
    bits = int(arguments["bits"])
    kinds: dict[int, tuple[Any, int]] = {2: (np.uint16, 10), 4: (np.uint32, 23), 8: (np.uint64, 52)}
    kind = kinds.get(values.dtype.itemsize)
    if kind is None or values.dtype.kind != "f":
        raise _make_error(f"quantise with bits requires floats, not {values.dtype}; use digits")
    integer, mantissa = kind
    drop = mantissa - bits
    if drop <= 0:
        return values
    words = np.ascontiguousarray(values).view(integer)
    half = integer((1 << (drop - 1)) - 1)
    rounded = (words + half + ((words >> integer(drop)) & integer(1))) & ~integer((1 << drop) - 1)
    return np.where(np.isfinite(values), rounded.view(values.dtype), values)


def _cast_result(values: Values, dtype: np.dtype[Any], name: str) -> Values:
    if dtype.kind in "iu" and values.dtype.kind in "iuf":
        finite = values[np.isfinite(values)]
        limits = np.iinfo(dtype)
        fits = not finite.size or (int(finite.min()) >= limits.min and int(finite.max()) <= limits.max)
        if len(finite) != values.size or not fits:
            raise _make_error(
                f"{name} returned {values.dtype} values that {dtype} cannot represent; choose another"
                " dtype, or set _FillValue in encoding"
            )
    lossy = values.dtype.kind == "c" and dtype.kind != "c"
    if lossy or dtype.kind not in "biufcmM" or values.dtype.kind not in "biufcmM":
        raise _make_error(f"{name} returned values of type {values.dtype}; expected {dtype}")
    return values.astype(dtype)


def _make_error(text: str) -> InvalidInputError:
    return InvalidInputError(text, ErrorKind.INVALID_COMMIT_CONFIGURATION)
