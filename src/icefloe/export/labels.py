"""Labels of dimensions, such as times, to positions: as xarray decodes coordinates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import zarr

from icefloe._internal.extras import pip_install
from icefloe._internal.paths import join, name
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.snapshot import ArrayNodeData
from icefloe.session import Session

try:
    import xarray
except ImportError as cause:
    raise ImportError(f"labels need xarray: {pip_install('xarray')}") from cause


def positions(session: Session, group: str, sel: Mapping[str, Any]) -> dict[str, range]:
    """The elements that labels name; those of a slice include its end."""
    return {name: _position(_index(session, join(group, name)), name, label) for name, label in sel.items()}


def _index(session: Session, path: str) -> Any:
    """The coordinate at a path, decoded; None where there is none. Arrays beside it do not matter."""
    node = session.workspace.node(path)
    if node is None or not isinstance(node.node_data, ArrayNodeData) or len(node.node_data.shape) != 1:
        return None
    array: Any = zarr.open_array(session.store, path=path.strip("/"), mode="r")
    raw = xarray.Variable(name(path), array[...], dict(array.attrs))
    return xarray.conventions.decode_cf_variable(name(path), raw).to_index_variable().to_index()


def _position(index: Any, name: str, label: Any) -> range:
    if index is None or not len(index):
        raise InvalidInputError(
            f"dimension {name} has no coordinate to look labels up in; choose by index",
            kind=ErrorKind.INVALID_CHUNK_INDEX,
        )
    try:
        if isinstance(label, slice):
            found = index.slice_indexer(label.start, label.stop)
        else:
            found = index.get_loc(label)
    except (KeyError, TypeError, ValueError):
        raise InvalidInputError(
            f"{name}={label}: not found in a coordinate from {index[0]} to {index[-1]}{_near(index, label)}",
            kind=ErrorKind.INVALID_CHUNK_INDEX,
        ) from None
    if isinstance(found, slice) and found.step in (None, 1):
        return range(*found.indices(len(index)))
    if isinstance(found, int):
        return range(found, found + 1)
    raise InvalidInputError(
        f"{name}={label} names elements that do not stand in a row", kind=ErrorKind.INVALID_CHUNK_INDEX
    )


def _near(index: Any, label: Any) -> str:
    """The label that is nearest to one that is not there, where that can be told."""
    try:
        (found,) = index.get_indexer([label], method="nearest")
    except (KeyError, TypeError, ValueError):
        return ""
    return f"; the nearest is {index[found]}" if found >= 0 else ""
