"""References to files of a bucket, read by the official package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import xarray as xr

from tests.support.ingest.files import assert_same, chunked, expected, new_repo, run
from tests.support.ingest.locations import BUCKET, SECRET, s3_place
from tests.support.servers.moto import make_bucket, moto_server

official: Any = pytest.importorskip("icechunk")

pytestmark = [
    pytest.mark.compat,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs"),
]


def test_official_package_reads_references_to_a_bucket(tmp_path: Path) -> None:
    """The bucket is found in the configuration, and a changed file is detected."""
    if official.__version__ != "2.3.0":
        pytest.skip("earlier releases cannot read version 2")
    files = chunked(tmp_path / "files", 4, 2)
    repo = new_repo(tmp_path)
    keys = official.s3_credentials(access_key_id="access", secret_access_key=SECRET)

    with moto_server() as url:
        make_bucket(url, BUCKET)
        bucket = s3_place(url)
        for file in files:
            bucket.put(f"official/{Path(file).name}", Path(file))
        run(repo, f"{bucket.url}/official/", mode="virtual", storage_options=bucket.options)

        def read() -> xr.Dataset:
            opened = official.Repository.open(
                official.local_filesystem_storage(str(repo.storage.describe()["path"])),
                authorize_virtual_chunk_access=official.containers_credentials({f"{bucket.url}/": keys}),
            )
            store = opened.readonly_session("main").store
            found: xr.Dataset = xr.open_zarr(store, consolidated=False, chunks=None).load()
            return found

        assert_same(read(), expected(files))
        bucket.put("official/000.nc", Path(files[1]))
        with pytest.raises(official.IcechunkError, match=r"(?i)changed|modified|checksum|precondition"):
            read()
