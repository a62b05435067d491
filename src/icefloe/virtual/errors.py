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
"""What libraries raise on files that are damaged, and what their bytes lead to in parsers."""


class RefusalReason(StrEnum):
    """The reason why a variable cannot be expressed as references. Reasons are never renamed."""

    UNSUPPORTED_FILTER = "unsupported-filter"
    """No Zarr codec undoes the compression or filter the bytes are stored with."""
    MIXED_FILTERS = "mixed-filters"
    """Some chunks are stored with other filters than the rest, and are too large to be taken along."""
    UNSUPPORTED_TYPE = "unsupported-type"
    """The values have no Zarr data type: compound, opaque, references, odd bit widths."""
    VARIABLE_LENGTH = "variable-length"
    """Values of different lengths are kept apart from the chunks, and are too large to be taken along."""
    EXTERNAL_STORAGE = "external-storage"
    """The bytes are in other files, which the file names."""
    UNSUPPORTED_GRID = "unsupported-grid"
    """The grid of a GRIB message has no rows and columns of points: spherical harmonics, for one."""
    UNEVEN_CHUNKS = "uneven-chunks"
    """The stored pieces do not make a regular chunk grid."""
    UNSUPPORTED_LAYOUT = "unsupported-layout"
    """The bytes are laid out in a way no Zarr codec describes."""
    MIXED_MESSAGES = "mixed-messages"
    """Messages of one variable differ in what must be the same in one array."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A variable that cannot be virtualized, with the reason."""

    variable: str
    reason: RefusalReason
    sentence: str
    """The variable and the reason, for people."""


class RefusedVariable(Exception):  # noqa: N818 - it never leaves the parsers: it becomes a `Refused`
    """Raised inside a parser for one variable."""

    def __init__(self, reason: RefusalReason, why: str) -> None:
        super().__init__(why)
        self.reason = reason

    def named(self, variable: str) -> Refused:
        """Describe the refusal of a variable to users."""
        return Refused(variable, self.reason, f"{variable}: {self}")


class CannotVirtualizeError(InvalidInputError):
    """A file cannot be virtualized, or a dataset has variables that were refused.

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
