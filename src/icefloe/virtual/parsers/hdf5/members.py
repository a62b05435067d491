"""What is read of the datasets of a group, each thing once: in small files, asking is what parsing costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from icefloe.virtual.parsers.hdf5.dimensions import HIDDEN_ATTRIBUTES

if TYPE_CHECKING:
    import h5py

_UNREAD: Final = HIDDEN_ATTRIBUTES - {"CLASS", "NAME", "DIMENSION_LIST", "_Netcdf4Coordinates"}
"""Attributes of the netCDF library that are of no use here; some are as long as a file has variables."""


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """A dataset of an open file that became a variable."""

    dataset: h5py.Dataset
    dimensions: tuple[str, ...]
    shape: tuple[int, ...]
    """Longer than the dataset's own where another variable made an unlimited dimension longer."""
    attributes: Mapping[str, Any]
    """See `attributes_of`."""


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """A group of an open file."""

    variables: Mapping[str, Member]
    attributes: Mapping[str, Any]
    is_whole: bool
    """Whether everything in it became a variable or a group, under its own name."""


Witness: TypeAlias = Callable[[Members], None]
"""Is shown the group that was parsed, while the file is open."""


def attributes_of(thing: h5py.Group | h5py.Dataset) -> dict[str, Any]:
    """All attributes that numpy has a type for; None for those of the netCDF library that nobody reads."""
    found: dict[str, Any] = {}
    attributes = thing.attrs
    for name in attributes:
        try:
            found[name] = None if name in _UNREAD else attributes[name]
        except (OSError, TypeError, KeyError):
            if name in HIDDEN_ATTRIBUTES:
                raise
            continue  # of a type numpy has no idea of: opaque, say
    return found
