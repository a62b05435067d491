"""Zarr stores in zip files, as xarray opens them."""

from __future__ import annotations

import os
import zipfile

from zarr.core.sync import sync
from zarr.storage import StorePath, ZipStore

from icefloe.virtual.parsers import ZIP_MAGIC
from icefloe.virtual.parsers.zarr.stores import root_of


def is_zip(path: str) -> bool:
    """Whether a file of this machine is a zip file."""
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read(4) in ZIP_MAGIC


def zipped_store(path: str) -> StorePath:
    """The store in a zip file, which may be below the folder that was zipped."""
    with zipfile.ZipFile(path) as opened:
        root = root_of(opened.namelist(), path)
    store = ZipStore(path, mode="r")
    sync(store._open())  # releases of zarr before 3.1 do not open it when they need it
    return StorePath(store, root.strip("/"))
