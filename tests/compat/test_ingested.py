"""The official package reads and extends native, virtual and hybrid ingests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

from icefloe import Repository
from tests.support.compat.official import icechunk, needs_v2
from tests.support.ingest.files import days, expected, new_repo, run, write

pytestmark = [
    pytest.mark.compat,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs"),
]


def official(repo: Repository, folder: Path) -> Any:
    """Open a repository with the official package and the stored containers."""
    prefixes = Repository.open(repo.storage).config.virtual_chunk_containers or {}
    allowed = {prefix: icechunk.Credentials.LocalFileSystemAccess() for prefix in prefixes}
    place = next(folder.glob("repo-*/repo"))
    storage = icechunk.local_filesystem_storage(str(place))
    return icechunk.Repository.open(storage, authorize_virtual_chunk_access=allowed)


def archive(folder: Path, *counts: int, shuffles: bool = True) -> list[str]:
    files = []
    for number, count in enumerate(counts):
        begin = sum(counts[:number])
        packed = {"zlib": True, "shuffle": shuffles or number != 1, "chunksizes": (2, 5, 4)}
        files.append(write(folder / f"{begin:03}.nc", days(begin, count), {"t2m": packed}))
    return files


def read(session: Any) -> xr.Dataset:
    found: xr.Dataset = xr.open_zarr(session.store, consolidated=False, chunks=None)
    return found.load()


@needs_v2
@pytest.mark.parametrize(
    "options",
    [
        {"mode": "native", "chunks": {"time": 3, "lat": 2}},
        {"mode": "virtual"},
        {"mode": "virtual", "manifest_references": 3},
        {"mode": "hybrid", "manifest_references": 2},
    ],
)
def test_official_package_reads_and_extends_an_ingest(tmp_path: Path, options: dict[str, Any]) -> None:
    """Manifests that tasks wrote are read as well, and the official package appends to them."""
    files = archive(tmp_path, 4, 2, 6, 4, shuffles=options["mode"] != "hybrid")
    repo = new_repo(tmp_path)
    run(repo, files[:3], **options)
    run(Repository.open(repo.storage), files, **options)
    wanted = expected(files)

    theirs = official(repo, tmp_path)
    xr.testing.assert_identical(read(theirs.readonly_session("main")), wanted)

    session = theirs.writable_session("main")
    array: Any = zarr.open_group(session.store)["t2m"]
    array.resize((18, 5, 4))
    array[16:] = np.ones((2, 5, 4), "f4")
    session.commit("two days more")
    found: Any = zarr.open_group(Repository.open(repo.storage).readonly_session("main").store, mode="r")[
        "t2m"
    ]
    assert found.shape == (18, 5, 4)
    assert found[16:].all()
    there: Any = zarr.open_group(theirs.readonly_session("main").store, mode="r")["t2m"]
    np.testing.assert_array_equal(there[:16], wanted["t2m"].values)
