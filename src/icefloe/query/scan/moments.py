"""Moments of cell groups, such as counts, sums, minima, maxima and sums of squares. Aggregates are computed
from moments."""

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
"""The moments that are needed to compute each aggregate function."""
CELLS: Final = ".cells"
"""The name of the column that holds the number of cells per group, including cells with missing values."""
EXTREMES: Final = ("min", "max")
ROUNDING: Final = 2e-15
"""The relative threshold below which a difference of sums of squares is treated as a rounding error, that is,
as zero.
"""


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment of one variable per group, such as its sum or count, or the number of cells."""

    variable: str
    name: str
    """The name of the moment: `count`, `sum`, `min`, `max`, `shifted`, `squares` or `cells`."""
    arrow: pa.DataType

    @property
    def column(self) -> str:
        """The name of the result column that holds the moment."""
        return f"{self.variable}.{self.name}"


def make_moment(name: str, column: Column | None) -> Moment:
    """Create a moment of a variable, such as its sum, with the same type as Spark's aggregate."""
    if column is None or name == "count":
        return Moment("" if column is None else column.name, name, pa.int64())
    if name in EXTREMES:
        return Moment(column.name, name, column.arrow)
    if name == "sum" and is_wide(column.arrow):
        return Moment(column.name, name, WIDE_SUM)
    whole = name == "sum" and pa.types.is_integer(column.arrow)
    return Moment(column.name, name, pa.int64() if whole else pa.float64())


WIDE_SUM: Final = pa.decimal128(38, 0)
"""The type of sums of 64-bit integers, which may exceed 64 bits."""


def is_wide(arrow: pa.DataType) -> bool:
    """Return True if sums of values of this Arrow type may exceed 64 bits."""
    return bool(pa.types.is_integer(arrow) and arrow.bit_width == 64)


def get_neutral(dtype: np.dtype[Any], moment: str) -> Any:
    """Return the neutral element of a min or max reduction, which any other value replaces."""
    if dtype.kind == "f":
        return dtype.type(np.inf if moment == "min" else -np.inf)
    if dtype.kind == "M":  # the smallest integer is NaT
        return np.datetime64(np.iinfo(np.int64).max if moment == "min" else np.iinfo(np.int64).min + 1, "us")
    limits = np.iinfo(dtype)
    return dtype.type(limits.max if moment == "min" else limits.min)
