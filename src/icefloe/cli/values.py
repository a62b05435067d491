"""Read the values of an array for `head`, `cat` and `plot`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.session import Session

Region = tuple[slice | int, ...]


def read(session: Session, path: str, region: Region) -> Any:
    """Read a region of an array's values for `head`, `cat` or `plot`, given an index or slice per
    dimension.
    """
    _check_region(region, json.loads(session._workspace.array(path).user_data)["shape"])
    import zarr  # imported here, because commands that read no values start twice as fast without zarr

    return np.asarray(zarr.open_array(session.store, path=path.strip("/"), mode="r")[region])


def _check_region(region: Region, shape: Sequence[int]) -> None:
    for axis, (wanted, size) in enumerate(zip(region, shape, strict=True)):
        if isinstance(wanted, int) and not -size <= wanted < size:
            raise _make_error(f"index {wanted} is out of bounds for dimension {axis} with size {size}")
        if isinstance(wanted, slice) and wanted.step is not None and wanted.step < 1:
            raise _make_error(f"the step {wanted.step} of dimension {axis} must be at least 1")


def _make_error(message: str) -> InvalidInputError:
    return InvalidInputError(message, kind=ErrorKind.INVALID_CHUNK_INDEX)


def json_values(values: Any) -> Any:
    """Convert values to JSON types: times to ISO 8601, durations to numbers in their unit."""
    if values.dtype.kind == "M":
        return np.datetime_as_string(values).tolist()
    if values.dtype.kind == "m":
        return np.where(np.isnat(values), "NaT", values.astype("i8").astype(object)).tolist()
    return values.tolist()
