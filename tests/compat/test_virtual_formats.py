"""The official package reads values through references into files of every format."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.virtual import virtualize
from tests.support.compat.official import KNOWS_V2, open_repository
from tests.support.virtual.files import LONG_AGO
from tests.support.virtual.formats import FORMATS

pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in")]


@pytest.mark.parametrize("spec", [1, 2] if KNOWS_V2 else [1])
@pytest.mark.parametrize("name", FORMATS)
def test_official_package_reads_references_into_each_file_format(
    tmp_path: Path, name: str, spec: int
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    file, write = FORMATS[name]
    expected = write(folder)
    for path in folder.rglob("*"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    prefix = f"file://{folder}/"
    config = icefloe.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(folder)))
    )
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repo"))
    repo = icefloe.Repository.create(storage, config, spec_version=spec)
    session = repo.writable_session("main")
    dataset = virtualize(folder / file)
    dataset.to_icechunk(session.store)
    session.commit("references")

    store = open_repository(tmp_path / "repo", (prefix,)).readonly_session("main").store

    assert not dataset.refused
    for variable, values in expected.items():
        with warnings.catch_warnings():  # about data types that are not in the core specification
            warnings.simplefilter("ignore")
            found = np.asarray(zarr.open_array(store, path=variable, mode="r", zarr_format=3)[...])
        np.testing.assert_array_equal(found, values, err_msg=variable)
