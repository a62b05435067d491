"""Reasons why variables cannot be virtualized, and the errors that report them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from icefloe.errors import ErrorKind, InvalidInputError

DAMAGE: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
)
"""Exceptions that parsers and libraries raise for damaged files."""


class RefusalReason(StrEnum):
    """The reason why a variable cannot be virtualized. These codes are stable across releases."""

    UNSUPPORTED_FILTER = "unsupported-filter"
    """No Zarr codec can decode the compression or filter."""
    MIXED_FILTERS = "mixed-filters"
    """Some chunks skipped filters, and these chunks are too large to be stored inline."""
    UNSUPPORTED_TYPE = "unsupported-type"
    """Zarr does not support the data type, such as compound types, opaque types, references or unusual bit
    widths.
    """
    VARIABLE_LENGTH = "variable-length"
    """Variable-length values are not stored in chunks, and are too large to be stored inline."""
    EXTERNAL_STORAGE = "external-storage"
    """The values are stored in other files."""
    UNSUPPORTED_GRID = "unsupported-grid"
    """The GRIB message has no grid points, for example because it contains spherical harmonics."""
    UNEVEN_CHUNKS = "uneven-chunks"
    """The stored chunks do not form a regular chunk grid."""
    UNSUPPORTED_LAYOUT = "unsupported-layout"
    """No Zarr codec describes the byte layout."""
    MIXED_MESSAGES = "mixed-messages"
    """GRIB messages of one variable differ in properties that must be the same throughout an array."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A variable that cannot be virtualized, with the reason."""

    variable: str
    """The variable name, or its path below the group."""
    reason: RefusalReason
    """The machine-readable reason."""
    sentence: str
    """A message with the variable and the reason."""


class RefusedVariable(Exception):  # noqa: N818 - it never leaves the parsers: it becomes a `Refused`
    """Error raised when a parser cannot virtualize a variable."""

    def __init__(self, reason: RefusalReason, why: str) -> None:
        super().__init__(why)
        self.reason = reason

    def named(self, variable: str) -> Refused:
        """Return the `Refused` entry for this error, given the variable name."""
        return Refused(variable, self.reason, f"{variable}: {self}")


class CannotVirtualizeError(InvalidInputError):
    """Error raised when a file cannot be virtualized, or when a dataset contains refused variables.

    Parameters
    ----------
    message
        The error message.
    refused
        The refused variables.
    """

    def __init__(self, message: str, refused: Sequence[Refused] = ()) -> None:
        super().__init__(message, kind=ErrorKind.INVALID_VIRTUAL_REF)
        self.refused = tuple(refused)
        """The refused variables, each with the reason."""
        self.args = (message, self.refused)
