"""Reductions of blocks over groups of cells. Results do not depend on how work is divided into tasks.

Sums are accumulated in float64, block by block in a fixed order. A chunk is therefore bitwise identical
whether it is computed alone or together with other chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, InvalidInputError

REDUCTIONS: Final = ("mean", "sum", "min", "max", "std", "count")
SELECTIONS: Final = ("nearest", "mode")
"""The functions that choose one of several cells: the first cell, or the most frequent non-missing value."""
_MARGIN: Final = 1 - 1e-9
"""The fraction of an integer type's range above which a sum is treated as an overflow. The margin covers the
error of estimating sums as floats."""

Values = NDArray[Any]
Codes = NDArray[np.int64] | None
"""The output cell of each input cell along one axis; None if they correspond one to one."""


def result_dtype(function: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype that xarray would give the result of a reduction."""
    if function == "count":
        return np.dtype("i8")
    if dtype.kind not in "biuf":
        raise InvalidInputError(
            f"{function} requires numbers, not values of type {dtype}", ErrorKind.INVALID_COMMIT_CONFIGURATION
        )
    if dtype.kind == "f" or function in ("min", "max"):
        return dtype
    if function == "sum":
        return np.dtype("u8") if dtype.kind == "u" else np.dtype("i8")
    return np.dtype("f8")


def reduce_values(function: str, values: Values, codes: Sequence[Codes], lengths: Sequence[int]) -> Values:
    """Reduce the cells of each group to one value, skipping missing values.

    The order of the axes is preserved.
    """
    return finish(function, reduce_parts(function, values, codes, lengths), values.dtype)


def part_dtype(function: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the partial aggregates of a reduction."""
    if dtype.kind in "biu" and function in ("sum", "count"):
        return np.dtype("u8") if dtype.kind == "u" and function == "sum" else np.dtype("i8")
    if function in ("min", "max") and dtype.kind != "f":
        return dtype
    return np.dtype("f8")


def part_count(function: str) -> int:
    """Return the number of values in a partial aggregate of a reduction."""
    return {"std": 3, "mean": 2}.get(function, 1)


def identity(function: str, dtype: np.dtype[Any]) -> Any:
    """Return the partial aggregate of a reduction over no values, given the input dtype."""
    if function not in ("min", "max"):
        return 0
    if dtype.kind == "f":
        return float("nan")
    if dtype.kind == "b":
        return function == "min"
    limits = np.iinfo(dtype)
    return limits.max if function == "min" else limits.min


def reduce_parts(function: str, values: Values, codes: Sequence[Codes], lengths: Sequence[int]) -> Values:
    """Reduce the cells of each group to a partial aggregate, whose values lie along a new first axis.

    `mean` has a count and a sum. `std` has a count, a sum and the sum of squared deviations (M2). Other
    functions have one value.
    """
    if function in ("min", "max"):
        return _find_extremes(function, values, codes, lengths)[None]
    present = ~np.isnan(values) if values.dtype.kind == "f" else None
    if function == "count":
        ones = np.ones(values.shape, np.int64) if present is None else present.astype(np.int64)
        return _add(ones, codes, lengths, part_dtype("count", values.dtype))[None]
    dtype = part_dtype(function, values.dtype)
    clean = values if present is None or present.all() else np.where(present, values, 0)
    total = _add(clean, codes, lengths, dtype)
    if dtype.kind in "iu":
        _refuse_overflow(_add(clean, codes, lengths, np.dtype("f8")), dtype)
    if function == "sum":
        return total[None]
    ones = np.ones(values.shape, np.int64) if present is None else present.astype(np.int64)
    count = _add(ones, codes, lengths, np.dtype("f8"))
    if function == "mean":
        return np.stack([count, total])
    means = _spread(_divide(total, count), codes)
    deviations = np.square(values.astype(np.float64) - means)
    if present is not None and not present.all():
        deviations = np.where(present, deviations, 0.0)
    return np.stack([count, total, _add(deviations, codes, lengths, np.dtype("f8"))])


def select_values(function: str, values: Values, codes: Sequence[Codes], lengths: Sequence[int]) -> Values:
    """Select one cell of each group, such as the first cell.

    The order of the axes is preserved.
    """
    if not values.size:
        sizes = [
            size if each is None else length
            for size, each, length in zip(values.shape, codes, lengths, strict=True)
        ]
        return np.zeros(sizes, values.dtype)
    valid = np.ones((1,) * values.ndim, np.bool_)
    for axis, (each, length) in enumerate(zip(codes, lengths, strict=True)):
        if each is not None:  # the cells of a group are arranged along a new last axis
            table = _list_members(each, length)
            values = np.moveaxis(np.take(values, np.maximum(table, 0), axis=axis), axis + 1, -1)
            place = [1] * values.ndim
            place[axis], place[-1] = table.shape
            valid = np.logical_and(valid[..., None], (table >= 0).reshape(place))
    shape = values.shape[: len(codes)]
    valid = np.broadcast_to(valid, values.shape).reshape(*shape, -1)
    values = values.reshape(*shape, -1)
    if function == "nearest":
        chosen = valid.argmax(axis=-1)
    else:
        present = valid & ~_is_missing(values)
        # If all values are missing, the result is one of the missing values of the group.
        chosen = np.where(present.any(axis=-1), _find_most_frequent(values, present), valid.argmax(axis=-1))
    return np.asarray(np.take_along_axis(values, chosen[..., None], axis=-1)[..., 0])


def _list_members(codes: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """Return the cells of each group, one row per group, padded with -1."""
    cells = np.flatnonzero(codes >= 0)
    order = cells[np.argsort(codes[cells], kind="stable")]
    counts = np.bincount(codes[cells], minlength=length)
    table = np.full((length, max(int(counts.max(initial=0)), 1)), -1, np.int64)
    starts = np.cumsum(counts) - counts
    table[codes[order], np.arange(len(order)) - starts[codes[order]]] = order
    return table


def _find_most_frequent(values: Values, valid: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return the position of the most frequent valid value along the last axis. If several are equally
    frequent, choose the smallest value."""
    order = np.argsort(values, axis=-1, kind="stable")
    ordered, counted = (np.take_along_axis(each, order, axis=-1) for each in (values, valid))
    counts = np.zeros(values.shape, np.int64)
    for at in range(values.shape[-1]):
        counts += (ordered == ordered[..., at : at + 1]) & counted[..., at : at + 1]
    best = np.where(counted, counts, -1).argmax(axis=-1)
    return np.take_along_axis(order, best[..., None], axis=-1)[..., 0]


def _is_missing(values: Values) -> NDArray[np.bool_]:
    kinds = {"f": np.isnan, "c": np.isnan, "m": np.isnat, "M": np.isnat}
    find = kinds.get(values.dtype.kind)
    return np.zeros(values.shape, np.bool_) if find is None else np.asarray(find(values))


def combine_parts(function: str, parts: Values) -> Values:
    """Combine partial aggregates of a reduction along the second axis, in order."""
    many = np.moveaxis(parts, 1, 0)
    result = many[0] if len(many) else np.zeros(many.shape[1:], parts.dtype)
    for each in many[1:]:
        result = _merge(function, result, each)
    return result


def finish(function: str, parts: Values, dtype: np.dtype[Any]) -> Values:
    """Compute the final result of a reduction from its partial aggregates."""
    target = result_dtype(function, dtype)
    if function == "mean":
        return _divide(parts[1], parts[0]).astype(target)
    if function == "std":
        return np.sqrt(_divide(parts[2], parts[0])).astype(target)
    return np.asarray(parts[0].astype(target))


def _merge(function: str, one: Values, other: Values) -> Values:
    if function == "min":
        return np.fmin(one, other)
    if function == "max":
        return np.fmax(one, other)
    if function == "sum" and one.dtype.kind in "iu":
        _refuse_overflow(one.astype(np.float64) + other.astype(np.float64), one.dtype)
    if function != "std":
        return one + other
    # Chan, Golub and LeVeque (1983): update M2 by the difference of the means.
    count, total = one[0] + other[0], one[1] + other[1]
    distance = _divide(other[1], other[0]) - _divide(one[1], one[0])
    both = (one[0] > 0) & (other[0] > 0)
    between = np.where(both, np.square(distance) * _divide(one[0] * other[0], count), 0.0)
    return np.stack([count, total, one[2] + other[2] + between])


def _divide(total: Values, count: Values) -> Values:
    with np.errstate(invalid="ignore", divide="ignore"):
        # Zero divided by zero is a NaN with a sign bit, unlike the NaN of missing chunks.
        return np.asarray(np.where(count > 0, total / count, np.nan))


def _add(values: Values, codes: Sequence[Codes], lengths: Sequence[int], dtype: np.dtype[Any]) -> Values:
    for axis, (each, length) in enumerate(zip(codes, lengths, strict=True)):
        if each is not None:
            values = _reduce_segments(np.add, values, axis, each, length, 0, dtype)
    return values.astype(dtype, copy=False)


def _find_extremes(function: str, values: Values, codes: Sequence[Codes], lengths: Sequence[int]) -> Values:
    ufunc = np.fmin if function == "min" else np.fmax
    none = identity(function, values.dtype)
    for axis, (each, length) in enumerate(zip(codes, lengths, strict=True)):
        if each is not None:
            values = _reduce_segments(ufunc, values, axis, each, length, none, values.dtype)
    return values.astype(part_dtype(function, values.dtype), copy=False)


def _reduce_segments(
    ufunc: np.ufunc, values: Values, axis: int, codes: NDArray[np.int64], length: int, none: Any, dtype: Any
) -> Values:
    """Reduce all cells with the same code along one axis."""
    members = np.flatnonzero(codes >= 0)
    if length == 1 and len(members) == values.shape[axis] and len(members):
        return np.asarray(ufunc.reduce(values, axis=axis, dtype=dtype, keepdims=True))
    result = np.full((*values.shape[:axis], length, *values.shape[axis + 1 :]), none, dtype)
    if not len(members) or not values.size:
        return result
    order = members[np.argsort(codes[members], kind="stable")]
    if len(order) != len(codes) or (order[1:] < order[:-1]).any():
        values = np.take(values, order, axis=axis)
    ordered = codes[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    at: list[Any] = [slice(None)] * values.ndim
    at[axis] = ordered[starts]
    result[tuple(at)] = ufunc.reduceat(values, starts, axis=axis, dtype=dtype)
    return result


def _spread(means: Values, codes: Sequence[Codes]) -> Values:
    """Broadcast the mean of each group to the cells of the group."""
    for axis, each in enumerate(codes):
        if each is not None:
            means = np.take(means, np.maximum(each, 0), axis=axis)
    return means


def _refuse_overflow(totals: Values, dtype: np.dtype[Any]) -> None:
    if totals.size and float(np.abs(totals).max()) >= np.iinfo(dtype).max * _MARGIN:
        raise InvalidInputError(
            f"a sum of integers does not fit into {dtype}; sum an array of floats instead, such as an output "
            "with the function {expression: 'x * 1.0'}",
            ErrorKind.INVALID_COMMIT_CONFIGURATION,
        )
