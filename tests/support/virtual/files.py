"""Create files for tests of parsers, and read them back through references."""

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
"""Time of last modification of test files. Parsers wait if a file was modified in the current second."""


def aged(path: Path) -> Path:
    """Set an early time of last modification."""
    os.utime(path, (LONG_AGO, LONG_AGO))
    return path


def assert_all_read_back(dataset: VirtualDataset, expected: Mapping[str, Any]) -> None:
    """Check that variables, decoded by zarr through references, have the expected values and data types."""
    store = open_store(dataset)
    for name, wanted in expected.items():
        with warnings.catch_warnings():  # about data types that are not in the core specification
            warnings.simplefilter("ignore")
            found = np.asarray(zarr.open_array(store, path=name, mode="r", zarr_format=3)[...])
        assert found.dtype == np.asarray(wanted).dtype.newbyteorder("="), name
        np.testing.assert_array_equal(found, wanted, err_msg=name)


def assert_reads_back(dataset: VirtualDataset, name: str, expected: Any) -> None:
    """Check one variable in the same way."""
    assert_all_read_back(dataset, {name: expected})
