"""Names of other packages that are private and have no public replacement, each with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def manifest_columns(manifest: Any) -> tuple[Any, Any, Any, Mapping[tuple[int, ...], bytes]]:
    """Return the paths, offsets, lengths and inlined chunks of a VirtualiZarr `ChunkManifest`.

    Its public `iter_refs` and `dict` make a Python object of every chunk, and leave out the inlined bytes.
    """
    columns = (manifest._paths, manifest._offsets, manifest._lengths)
    paths, offsets, lengths = (np.asarray(each).reshape(-1) for each in columns)
    return paths, offsets, lengths, getattr(manifest, "_inlined", {})


def manifest_group(store: Any) -> Any:
    """Return the root group of a VirtualiZarr `ManifestStore`.

    Its public methods convert it to xarray objects, which keep fill values apart from the attributes.
    """
    return store._group
