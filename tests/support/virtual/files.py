"""Real files for the tests of parsers, and what is read back through references to them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from icefloe.virtual import VirtualDataset
from icefloe.virtual.values import open_store

LONG_AGO = 1_500_000_000
"""Files are given this time of last modification: of a file that changed just now, parsers wait a moment."""


def aged(path: Path) -> Path:
    """The same file, last modified long ago."""
    os.utime(path, (LONG_AGO, LONG_AGO))
    return path


def assert_all_read_back(dataset: VirtualDataset, expected: Mapping[str, Any]) -> None:
    """What zarr decodes from the references of variables has the values and the data types expected."""
    store = open_store(dataset)
    for name, wanted in expected.items():
        with warnings.catch_warnings():  # on data types that the core specification has not
            warnings.simplefilter("ignore")
            found = np.asarray(zarr.open_array(store, path=name, mode="r", zarr_format=3)[...])
        assert found.dtype == np.asarray(wanted).dtype.newbyteorder("="), name
        np.testing.assert_array_equal(found, wanted, err_msg=name)


def assert_reads_back(dataset: VirtualDataset, name: str, expected: Any) -> None:
    """The same of one variable."""
    assert_all_read_back(dataset, {name: expected})
