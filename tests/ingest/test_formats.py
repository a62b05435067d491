"""Files of other formats as sources: through xarray's engines, and through references where it has none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from icefloe import Credentials, Repository
from tests.ingest.files import days, expected, new_repo, run, write
from tests.virtual import formats

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs"),
]


def read(repo: Repository, **options: Any) -> xr.Dataset:
    prefixes = Repository.open(repo.storage).config.virtual_chunk_containers or {}
    allowed = {prefix: Credentials.LocalFileSystemAccess() for prefix in prefixes}
    opened = Repository.open(repo.storage, authorize_virtual_chunk_access=allowed)
    store = opened.readonly_session("main").store
    found: xr.Dataset = xr.open_zarr(store, consolidated=False, chunks=None, **options)
    return found.load()


@pytest.mark.parametrize("mode", ["native", "hybrid"])
@pytest.mark.parametrize(
    "make",
    [
        formats.netcdf3,
        formats.tiff(tile=(16, 16), compression="zlib"),
        formats.zarr_store(2, attributes={"_ARRAY_DIMENSIONS": ["y", "x"]}),
        formats.zarr_store(3, dimension_names=["y", "x"]),
        formats.kerchunk,
    ],
    ids=["netcdf3", "tiff", "zarr2", "zarr3", "kerchunk"],
)
def test_values_are_those_of_the_file(
    tmp_path: Path, make: Callable[[Path], formats.Written], mode: str
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    wanted = make(folder)
    (file,) = [path for path in folder.iterdir() if path.name.startswith("f.")]
    repo = new_repo(tmp_path)

    run(repo, file, mode=mode)

    found = read(repo, decode_cf=False)
    for name, values in wanted.items():
        np.testing.assert_array_equal(found[name].values, values, name)


def test_spans_of_time_as_a_coordinate(tmp_path: Path) -> None:
    """As the steps of a forecast are, which cfgrib gives decoded."""
    step = np.timedelta64(6, "h").astype("m8[ns]")
    files = [write(tmp_path / f"{n}.nc", days(3 * n, 3).assign_coords(step=step)) for n in range(2)]
    repo = new_repo(tmp_path)

    run(repo, files)

    assert read(repo)["step"].values == step


def test_static_variables_of_virtual_files(tmp_path: Path) -> None:
    """They get the dimension along which files follow each other, and are copied then."""
    packed = {"t2m": {"chunksizes": (2, 5, 4), "zlib": True}, "area": {"chunksizes": (5,), "zlib": True}}
    parts = [days(2 * n, 2).assign(area=("lat", np.arange(5.0) + n)) for n in range(2)]
    files = [write(tmp_path / f"{n}.nc", part, packed) for n, part in enumerate(parts)]
    repo = new_repo(tmp_path)

    run(repo, files, mode="hybrid")

    xr.testing.assert_equal(read(repo), expected(files))
