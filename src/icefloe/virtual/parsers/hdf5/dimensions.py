"""The names of dimensions in HDF5 files, as netCDF writes them: dimension scales and a few odd attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    import h5py

HIDDEN_ATTRIBUTES: Final = frozenset(
    {
        "CLASS",
        "DIMENSION_LABELS",
        "DIMENSION_LIST",
        "NAME",
        "REFERENCE_LIST",
        "_NCCOPY",
        "_NCProperties",
        "_Netcdf4Coordinates",
        "_Netcdf4Dimid",
        "_nc3_strict",
    }
)
"""What the netCDF library keeps for itself."""
_BARE: Final = b"This is a netCDF dimension but not a netCDF variable"
_NOT_A_COORDINATE: Final = "_nc4_non_coord_"
_LIST: Final = "DIMENSION_LIST"


def shown_name(name: str) -> str:
    """The name of a variable: one that is called like a dimension, and is none, is stored under another."""
    return name.removeprefix(_NOT_A_COORDINATE)


def is_bare_dimension(attributes: Mapping[str, Any]) -> bool:
    """Whether a dataset is there to be a dimension, and holds no values."""
    name = attributes.get("NAME") if "CLASS" in attributes else None
    return isinstance(name, bytes) and name.startswith(_BARE)


class UnlimitedDimensions:
    """How long the unlimited dimensions of a file are.

    netCDF makes a variable longer only when it is written; what is missing is its fill value. A dimension is
    as long as the longest variable that has it.
    """

    def __init__(self) -> None:
        self._lengths: dict[int, int] | None = None

    def shape_of(self, dataset: h5py.Dataset, attributes: Mapping[str, Any]) -> tuple[int, ...]:
        """The shape of a dataset, as long along unlimited dimensions as these are."""
        shape: tuple[int, ...] = tuple(dataset.shape)
        scales = _unlimited_scales(dataset, attributes)
        if not scales:
            return shape
        if self._lengths is None:
            self._lengths = {}
            dataset.file.visititems(self._measure)
        lengths = {axis: self._lengths.get(scale, 0) for axis, scale in scales.items()}
        return tuple(max(size, lengths.get(axis, 0)) for axis, size in enumerate(shape))

    def _measure(self, _: str, member: Any) -> None:
        import h5py

        if isinstance(member, h5py.Dataset) and member.shape and self._lengths is not None:
            for axis, scale in _unlimited_scales(member, member.attrs).items():
                self._lengths[scale] = max(self._lengths.get(scale, 0), member.shape[axis])


def _unlimited_scales(dataset: h5py.Dataset, attributes: Mapping[str, Any]) -> dict[int, int]:
    """The addresses of the scales of unlimited axes; a scale of one axis is its own."""
    import h5py

    limits = dataset.maxshape
    if not limits or None not in limits:
        return {}
    if _LIST not in attributes:
        own = len(limits) == 1 and attributes.get("CLASS") == b"DIMENSION_SCALE"
        return {0: h5py.h5o.get_info(dataset.id).addr} if own else {}
    return {
        axis: h5py.h5o.get_info(dataset.file[scales[0]].id).addr
        for axis, scales in enumerate(attributes[_LIST])
        if axis < len(limits) and limits[axis] is None and len(scales)
    }


class Dimensions:
    """Names the dimensions of the datasets of one group.

    Where a file names none, dimensions of the same size share a made-up name, as in the netCDF library.
    """

    def __init__(self) -> None:
        self._made_up: dict[tuple[int, int], str] = {}

    def name_axes(
        self, dataset: h5py.Dataset, shape: tuple[int, ...], attributes: Mapping[str, Any]
    ) -> tuple[str, ...]:
        """Return a different name for each axis of a dataset, and of the arrays that are its values."""
        own = self._own_names(dataset, attributes)
        names: list[str] = []
        for axis, size in enumerate(shape):
            name = own[axis] if axis < len(own) else None
            if name is None or name in names:
                # The same dimension twice, as in a covariance, cannot be told apart by its name.
                name = self._name_for(size, names, name)
            names.append(name)
        return tuple(names)

    def _own_names(self, dataset: h5py.Dataset, attributes: Mapping[str, Any]) -> list[str | None]:
        import h5py

        if _LIST in attributes:
            file = dataset.file.id
            paths = [
                h5py.h5r.get_name(scales[0], file) if len(scales) else None for scales in attributes[_LIST]
            ]
            return [None if path is None else shown_name(path.decode().rpartition("/")[2]) for path in paths]
        if "CLASS" in attributes and attributes["CLASS"] == b"DIMENSION_SCALE":
            if len(dataset.shape) == 1:
                return [shown_name(dataset.name.rpartition("/")[2])]
            if "_Netcdf4Coordinates" in attributes:
                return self._by_number(dataset, attributes["_Netcdf4Coordinates"])
        return []

    def _by_number(self, dataset: h5py.Dataset, numbers: Any) -> list[str | None]:
        """A coordinate of several dimensions: they are given by the numbers that their scales have."""
        group = dataset.parent
        known: dict[int, str] = {}
        while True:
            for name, member in group.items():
                if "_Netcdf4Dimid" in getattr(member, "attrs", ()):
                    known.setdefault(int(member.attrs["_Netcdf4Dimid"]), shown_name(name))
            if group.name == "/":
                break
            group = group.parent
        return [known.get(int(number)) for number in np.atleast_1d(numbers)]

    def _name_for(self, size: int, taken: list[str], base: str | None) -> str:
        if base is not None:
            return next(name for n in range(2, 100) if (name := f"{base}_{n}") not in taken)
        for again in range(100):
            name = self._made_up.setdefault((size, again), f"phony_dim_{len(self._made_up)}")
            if name not in taken:
                return name
        raise ValueError("more dimensions than HDF5 has")
