"""Why something is not virtualised: one fixed list of reasons, and the errors that say so."""

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
    """Why a variable of a file cannot be a set of references. Reasons are never renamed."""

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
    """A variable that is not virtualised."""

    variable: str
    reason: RefusalReason
    sentence: str
    """Which variable and why, for people."""


class RefusedVariable(Exception):  # noqa: N818 - it never leaves the parsers: it becomes a `Refused`
    """Raised inside a parser for one variable."""

    def __init__(self, reason: RefusalReason, why: str) -> None:
        super().__init__(why)
        self.reason = reason

    def named(self, variable: str) -> Refused:
        """What users get to see."""
        return Refused(variable, self.reason, f"{variable}: {self}")


class CannotVirtualizeError(InvalidInputError):
    """A file that cannot be virtualised at all, or a dataset with variables that were refused."""

    def __init__(self, message: str, refused: Sequence[Refused] = ()) -> None:
        super().__init__(message, kind=ErrorKind.INVALID_VIRTUAL_REF)
        self.refused = tuple(refused)
        """Each refused variable with its reason."""
        self.args = (message, self.refused)
