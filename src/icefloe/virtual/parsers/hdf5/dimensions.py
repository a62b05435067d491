"""Determine the dimensions of HDF5 datasets from dimension scales and netCDF's internal attributes."""

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
"""Internal attributes of the netCDF library."""
_BARE: Final = b"This is a netCDF dimension but not a netCDF variable"
_NOT_A_COORDINATE: Final = "_nc4_non_coord_"
_LIST: Final = "DIMENSION_LIST"


def get_shown_name(name: str) -> str:
    """Return the name of an HDF5 variable without netCDF's prefix for names that are also dimension names."""
    return name.removeprefix(_NOT_A_COORDINATE)


def is_bare_dimension(attributes: Mapping[str, Any]) -> bool:
    """Return True if an HDF5 dataset only declares a netCDF dimension and has no values."""
    name = attributes.get("NAME") if "CLASS" in attributes else None
    return isinstance(name, bytes) and name.startswith(_BARE)


class UnlimitedDimensions:
    """The lengths of all unlimited dimensions in an HDF5 file.

    netCDF extends a variable only when it is written, and shows the fill value beyond its end. A dimension is
    as long as its longest variable.
    """

    def __init__(self) -> None:
        self._lengths: dict[int, int] | None = None

    def shape_of(self, dataset: h5py.Dataset, attributes: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the shape of an HDF5 dataset, extended to the lengths of its unlimited dimensions."""
        shape: tuple[int, ...] = tuple(dataset.shape)
        scales = _find_unlimited_scales(dataset, attributes)
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
            for axis, scale in _find_unlimited_scales(member, member.attrs).items():
                self._lengths[scale] = max(self._lengths.get(scale, 0), member.shape[axis])


def _find_unlimited_scales(dataset: h5py.Dataset, attributes: Mapping[str, Any]) -> dict[int, int]:
    """Return the addresses of the dimension scales of unlimited axes. A one-dimensional scale is its own
    scale.
    """
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
    """Dimension names for the HDF5 datasets in one group.

    Unnamed dimensions of the same size share a name such as `phony_dim_0`, as in the netCDF library.
    """

    def __init__(self) -> None:
        self._made_up: dict[tuple[int, int], str] = {}

    def name_axes(
        self, dataset: h5py.Dataset, shape: tuple[int, ...], attributes: Mapping[str, Any]
    ) -> tuple[str, ...]:
        """Return a unique dimension name for each axis of an HDF5 dataset, including the axes of array
        elements.
        """
        own = self._find_own_names(dataset, attributes)
        names: list[str] = []
        for axis, size in enumerate(shape):
            name = own[axis] if axis < len(own) else None
            if name is None or name in names:
                # A dimension may appear twice, for example in a covariance, but names must be unique.
                name = self._make_name(size, names, name)
            names.append(name)
        return tuple(names)

    def _find_own_names(self, dataset: h5py.Dataset, attributes: Mapping[str, Any]) -> list[str | None]:
        import h5py

        if _LIST in attributes:
            file = dataset.file.id
            paths = [
                h5py.h5r.get_name(scales[0], file) if len(scales) else None for scales in attributes[_LIST]
            ]
            return [
                None if path is None else get_shown_name(path.decode().rpartition("/")[2]) for path in paths
            ]
        if "CLASS" in attributes and attributes["CLASS"] == b"DIMENSION_SCALE":
            if len(dataset.shape) == 1:
                return [get_shown_name(dataset.name.rpartition("/")[2])]
            if "_Netcdf4Coordinates" in attributes:
                return self._find_by_number(dataset, attributes["_Netcdf4Coordinates"])
        return []

    def _find_by_number(self, dataset: h5py.Dataset, numbers: Any) -> list[str | None]:
        """Find the dimensions of a multidimensional netCDF coordinate by their dimension ids."""
        group = dataset.parent
        known: dict[int, str] = {}
        while True:
            for name, member in group.items():
                if "_Netcdf4Dimid" in getattr(member, "attrs", ()):
                    known.setdefault(int(member.attrs["_Netcdf4Dimid"]), get_shown_name(name))
            if group.name == "/":
                break
            group = group.parent
        return [known.get(int(number)) for number in np.atleast_1d(numbers)]

    def _make_name(self, size: int, taken: list[str], base: str | None) -> str:
        if base is not None:
            return next(name for n in range(2, 100) if (name := f"{base}_{n}") not in taken)
        for again in range(100):
            name = self._made_up.setdefault((size, again), f"phony_dim_{len(self._made_up)}")
            if name not in taken:
                return name
        raise ValueError("the dataset has more dimensions than HDF5 allows")
