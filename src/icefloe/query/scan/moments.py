"""Moments of variables: counts, sums, extremes and squares of groups of cells, from which results follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from icefloe.query.schema import Column

FUNCTIONS: Final = ("count", "sum", "mean", "min", "max", "std", "var")
MOMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "count": ("count",),
    "sum": ("count", "sum"),
    "mean": ("count", "sum"),
    "min": ("count", "min"),
    "max": ("count", "max"),
    "std": ("count", "shifted", "squares"),
    "var": ("count", "shifted", "squares"),
}
"""Moments that each function needs."""
CELLS: Final = ".cells"
"""Name of the column with the number of cells of a group, including missing values."""
EXTREMES: Final = ("min", "max")


@dataclass(frozen=True, slots=True)
class Moment:
    """A sum, count or extreme of one variable per group; without a variable, the number of cells."""

    variable: str
    name: str
    """count, sum, min, max, shifted, squares or cells"""
    arrow: pa.DataType

    @property
    def column(self) -> str:
        """Name of the column that contains the moment."""
        return f"{self.variable}.{self.name}"


def make_moment(name: str, column: Column | None) -> Moment:
    """Create a moment of a variable, with the type of Spark's own aggregate."""
    if column is None or name == "count":
        return Moment("" if column is None else column.name, name, pa.int64())
    if name in EXTREMES:
        return Moment(column.name, name, column.arrow)
    if name == "sum" and is_wide(column.arrow):
        return Moment(column.name, name, WIDE_SUM)
    whole = name == "sum" and pa.types.is_integer(column.arrow)
    return Moment(column.name, name, pa.int64() if whole else pa.float64())


WIDE_SUM: Final = pa.decimal128(38, 0)
"""Type of sums of 64-bit integers, which may exceed 64 bits."""


def is_wide(arrow: pa.DataType) -> bool:
    """Check whether sums of a type may exceed 64 bits."""
    return bool(pa.types.is_integer(arrow) and arrow.bit_width == 64)


def get_neutral(dtype: np.dtype[Any], moment: str) -> Any:
    """Return the neutral element of a moment, which any other value replaces."""
    if dtype.kind == "f":
        return dtype.type(np.inf if moment == "min" else -np.inf)
    if dtype.kind == "M":  # the smallest integer means that a time is missing
        return np.datetime64(np.iinfo(np.int64).max if moment == "min" else np.iinfo(np.int64).min + 1, "us")
    limits = np.iinfo(dtype)
    return dtype.type(limits.max if moment == "min" else limits.min)
