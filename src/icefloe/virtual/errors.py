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
"""Exceptions that libraries and parsers raise for damaged files."""


class RefusalReason(StrEnum):
    """The reason why a variable cannot be virtualized. Reasons are never renamed."""

    UNSUPPORTED_FILTER = "unsupported-filter"
    """No Zarr codec can decode the compression or filter."""
    MIXED_FILTERS = "mixed-filters"
    """Some chunks are stored with different filters, and are too large to be stored inline."""
    UNSUPPORTED_TYPE = "unsupported-type"
    """Zarr has no such data type: for example compound or opaque types, references, unusual bit widths."""
    VARIABLE_LENGTH = "variable-length"
    """Values of variable length are not stored in the chunks, and are too large to be stored inline."""
    EXTERNAL_STORAGE = "external-storage"
    """The values are in other files."""
    UNSUPPORTED_GRID = "unsupported-grid"
    """The grid of a GRIB message has no points, for example spherical harmonics."""
    UNEVEN_CHUNKS = "uneven-chunks"
    """The stored chunks do not form a regular chunk grid."""
    UNSUPPORTED_LAYOUT = "unsupported-layout"
    """No Zarr codec describes the layout of the bytes."""
    MIXED_MESSAGES = "mixed-messages"
    """Messages of one variable differ in properties that are the same in one array."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A variable that cannot be virtualized, with the reason."""

    variable: str
    """Name of the variable, or its path below the group."""
    reason: RefusalReason
    """The reason, for programs."""
    sentence: str
    """The variable and the reason as text."""


class RefusedVariable(Exception):  # noqa: N818 - it never leaves the parsers: it becomes a `Refused`
    """Error raised when a parser cannot virtualize a variable."""

    def __init__(self, reason: RefusalReason, why: str) -> None:
        super().__init__(why)
        self.reason = reason

    def named(self, variable: str) -> Refused:
        """Return the entry for the list of refused variables, given the name of the variable."""
        return Refused(variable, self.reason, f"{variable}: {self}")


class CannotVirtualizeError(InvalidInputError):
    """Error raised when a file cannot be virtualized, or when a dataset has variables that cannot be
    referenced.

    Parameters
    ----------
    message
        The reason.
    refused
        The refused variables.
    """

    def __init__(self, message: str, refused: Sequence[Refused] = ()) -> None:
        super().__init__(message, kind=ErrorKind.INVALID_VIRTUAL_REF)
        self.refused = tuple(refused)
        """Each refused variable with its reason."""
        self.args = (message, self.refused)
