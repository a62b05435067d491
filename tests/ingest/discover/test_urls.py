"""Sources on web servers and in buckets, with options, in all modes, without leaking secrets."""

from __future__ import annotations

import functools
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import xarray as xr

from icefloe import Credentials, InvalidInputError, Repository, StorageError
from icefloe.ingest.discover.sources import IngestSource, find_sources
from icefloe.ingest.ledger import read_ledger
from icefloe.storage.external.access import get_access
from icefloe.virtual import virtualize
from tests.support.ingest.files import (
    CHUNKED,
    archive,
    assert_same,
    chunked,
    days,
    expected,
    new_repo,
    read,
    run,
    write,
)
from tests.support.ingest.locations import BUCKET, SECRET, Place, azure_place, gcs_place, s3_place
from tests.support.servers.azurite import azurite_server
from tests.support.servers.files import file_server
from tests.support.servers.gcs import gcs_server
from tests.support.servers.loopback import LoopbackServer
from tests.support.servers.seaweedfs import seaweedfs_server

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs"),
]


def read_through(repo: Repository, credential: Any, group: str | None = None) -> xr.Dataset:
    """Read the repository with a credential for its containers."""
    config = Repository.fetch_config(repo.storage)  # who passes it trusts the endpoints in it
    prefixes = (config.virtual_chunk_containers if config else None) or {}
    opened = Repository.open(repo.storage, config, dict.fromkeys(prefixes, credential))
    return read(opened, group)


@pytest.mark.parametrize("mode", ["native", "virtual", "hybrid"])
def test_files_of_a_web_server_are_ingested(tmp_path: Path, mode: str) -> None:
    files = chunked(tmp_path / "files", 4, 2)
    repo = new_repo(tmp_path)

    with file_server(tmp_path / "files") as url:
        urls = [f"{url}/{Path(file).name}" for file in files]
        run(repo, urls[:1], mode=mode)
        report = run(repo, urls, mode=mode)

        assert_same(read_through(repo, Credentials.HttpAccess()), expected(files))
    assert [source.url for source in report.outcome.sources.known] == urls[:1]


@contextmanager
def plain_server(folder: Path) -> Iterator[str]:
    """The web server of Python, which knows no ranges."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    server = LoopbackServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_signed_urls_are_stored_without_signature(tmp_path: Path) -> None:
    """Signed URLs are read with the signature, and printed and stored without it."""
    files = archive(tmp_path / "files", (2, 3))
    repo = new_repo(tmp_path)

    with plain_server(tmp_path / "files") as url:
        listed = tmp_path / "files.urls"
        lines = [f"{url}/{Path(file).name}?version=1&X-Amz-Signature=hunter2" for file in files]
        listed.write_text("# two files\n" + "\n".join(lines))
        report = run(repo, listed)
        with pytest.raises(InvalidInputError, match="cannot contain the query of a URL"):
            run(repo, listed, mode="virtual", group="virtual")
        with pytest.raises(InvalidInputError, match="files on a web server cannot be listed"):
            run(repo, f"{url}/*.nc")
        with pytest.raises(InvalidInputError, match=r"no such object: 'http://.*/nothing\.nc'"):
            run(repo, f"{url}/nothing.nc")

    assert_same(read(repo), expected(files))
    kept = [row.source for row in read_ledger(repo.readonly_session("main"), "")]
    assert kept == [f"{url}/{Path(file).name}?version=1" for file in files]
    assert "hunter2" not in repr(report) + str(report.to_dict())


@pytest.fixture(scope="module")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with seaweedfs_server(tmp_path_factory.mktemp("seaweedfs"), BUCKET, SECRET) as url:
        yield s3_place(url)


@pytest.fixture(scope="module")
def azure() -> Iterator[Place]:
    with azurite_server(BUCKET) as url:
        yield azure_place(url)


@pytest.fixture(scope="module")
def gcs() -> Iterator[Place]:
    with gcs_server(BUCKET) as url:
        yield gcs_place(url)


@pytest.fixture(
    params=[
        pytest.param("seaweedfs", marks=pytest.mark.servers),
        pytest.param("azure", marks=pytest.mark.servers),
        "gcs",
    ]
)
def place(request: pytest.FixtureRequest) -> Place:
    """A bucket where keys are needed and looked at."""
    found: Place = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize("mode", ["native", "virtual", "hybrid"])
def test_files_of_a_bucket_are_ingested(place: Place, tmp_path: Path, mode: str) -> None:
    """From a bucket into the same bucket: tasks know only what they receive."""
    files = chunked(tmp_path, 4, 2, 3)
    for file in files:
        place.put(f"{mode}/in put/{Path(file).name}", Path(file))
    repo = Repository.create(place.storage(f"{mode}/repo"))

    run(repo, f"{place.url}/{mode}/in put/00*.nc", mode=mode, storage_options=place.options)
    again = run(repo, f"{place.url}/{mode}/in put/", mode=mode, storage_options=place.options)

    assert_same(read_through(repo, place.credential()), expected(files))
    assert len(again.outcome.sources.known) == 3
    said = repr(Repository.open(repo.storage).config) + repr(again) + str(again.to_dict())
    stored = b"".join(repo.storage.get(info.key)[0] for info in repo.storage.list_prefix())
    for name in ("secret_access_key", "access_key", "bearer_token"):
        secret = str(place.options.get(name, SECRET))
        assert secret not in said
        assert secret.encode() not in stored


@pytest.mark.parametrize("mode", ["native", "virtual"])
def test_version_of_a_repository_in_a_bucket_is_ingested(place: Place, tmp_path: Path, mode: str) -> None:
    url = f"{place.url}/{mode}/source"
    source = Repository.create(place.storage(f"{mode}/source"))
    session = source.writable_session("main")
    days(0, 2).to_zarr(session.store, group="air", consolidated=False)
    source.create_tag("v1", session.commit("one"))
    session = source.writable_session("main")
    days(2, 3).to_zarr(session.store, group="air", consolidated=False, append_dim="time")
    session.commit("two")
    now, then = new_repo(tmp_path), new_repo(tmp_path)

    run(now, url, mode=mode, storage_options=place.options)
    run(then, f"{url}@v1", mode=mode, storage_options=place.options)
    again = run(now, url, mode=mode, storage_options=place.options)

    assert again.outcome.wanted == ()
    for repo, count in ((now, 5), (then, 2)):
        assert_same(read_through(repo, place.credential(), "air"), days(0, count))


@pytest.mark.servers
def test_patterns_find_files_in_a_bucket(seaweedfs: Place, tmp_path: Path) -> None:
    for name in ("a/1.nc", "a/b/2.nc", "a/b/c/3.nc", "a/x.txt", "a/s.zarr/zarr.json", "a/s.zarr/v/zarr.json"):
        (tmp_path / "file").write_bytes(b"something")
        seaweedfs.put(f"names/{name}", tmp_path / "file")
    (tmp_path / "file").write_text("1.nc\nb/2.nc\n")
    seaweedfs.put("names/a/files.txt", tmp_path / "file")

    def names(pattern: str) -> list[str]:
        found: list[IngestSource] = find_sources(f"{seaweedfs.url}/names/{pattern}", seaweedfs.options)
        return [source.url.removeprefix(f"{seaweedfs.url}/names/") for source in found]

    assert names("a/") == ["a/1.nc", "a/b/2.nc", "a/b/c/3.nc", "a/s.zarr"]
    assert names("a/*.nc") == ["a/1.nc"]
    assert names("a/**/*.nc") == ["a/1.nc", "a/b/2.nc", "a/b/c/3.nc"]
    assert names("a/*/?.nc") == ["a/b/2.nc"]
    assert names("a/*.zarr") == names("a/s.zarr") == ["a/s.zarr"]
    assert names("a/files.txt") == ["a/1.nc", "a/b/2.nc"]
    assert names("a/[12].nc?region=us-east-1") == ["a/1.nc?region=us-east-1"]


@pytest.mark.servers
@pytest.mark.parametrize(
    ("changed", "name", "said"),
    [
        ({"secret_access_key": "wrong-secret"}, "*.nc", "the server rejected the credentials"),
        (
            {"access_key_id": "nobody"},
            "1.nc",
            "rejected the credentials|permission denied",
        ),
        ({}, "nothing.nc", "no such object: 's3://archive/nothing.nc'"),
        ({}, "nothing-*.nc", "nothing matches 's3://archive/nothing-"),
        ({"endpoint_url": "http://127.0.0.1:1"}, "1.nc", "cannot be reached; check the endpoint"),
        ({"allow_http": "false"}, "1.nc", "allow_http=True"),
        ({"colour": "red"}, "1.nc", "unknown storage option 'colour'"),
    ],
)
def test_unreadable_locations_are_refused(
    seaweedfs: Place, tmp_path: Path, changed: dict[str, str], name: str, said: str
) -> None:
    repo = new_repo(tmp_path)
    options = {**seaweedfs.options, **changed}

    with pytest.raises((StorageError, InvalidInputError), match=said) as caught:
        run(repo, f"{seaweedfs.url}/{name}", storage_options=options)

    assert SECRET not in str(caught.value)
    assert "wrong-secret" not in str(caught.value)
    assert repo.list_branches() == {"main"}


@pytest.mark.servers
def test_missing_bucket_is_reported(seaweedfs: Place, tmp_path: Path) -> None:
    for name in ("1.nc", "*.nc"):
        with pytest.raises(StorageError, match="does not exist; create it"):
            run(new_repo(tmp_path), f"s3://no-such-bucket/{name}", storage_options=seaweedfs.options)


@pytest.mark.servers
@pytest.mark.parametrize("mode", ["native", "virtual"])
def test_zarr_store_in_a_bucket_is_ingested(seaweedfs: Place, tmp_path: Path, mode: str) -> None:
    days(0, 4).to_zarr(tmp_path / "s.zarr", zarr_format=3, consolidated=False)
    for file in sorted((tmp_path / "s.zarr").rglob("*")):
        if file.is_file():
            seaweedfs.put(f"stores/{mode}/{file.relative_to(tmp_path)}", file)
    repo = new_repo(tmp_path)

    run(repo, f"{seaweedfs.url}/stores/{mode}/s.zarr", mode=mode, storage_options=seaweedfs.options)

    assert_same(read_through(repo, seaweedfs.credential()), days(0, 4))


@pytest.mark.servers
def test_bucket_file_changed_within_a_second_is_detected(place: Place, tmp_path: Path) -> None:
    """Size and time are equal; the etag differs, in a listing and in a single request."""
    (file,) = (Path(each) for each in chunked(tmp_path, 2))
    url = place.put("etags/a.nc", file)
    repo = new_repo(tmp_path)
    run(repo, url, storage_options=place.options)
    (row,) = read_ledger(repo.readonly_session("main"), "")
    known = run(repo, f"{place.url}/etags/*.nc", storage_options=place.options)
    write(file, days(0, 2) + 1, CHUNKED)
    place.put("etags/a.nc", file)
    (now,) = find_sources(url, place.options)

    same_second = replace(row, modified_us=now.modified_us, size_bytes=now.size_bytes)

    assert row.etag
    assert len(known.outcome.sources.known) == 1
    assert not same_second.matches(now)
    assert replace(same_second, etag=now.etag).matches(now)


@pytest.mark.servers
@pytest.mark.parametrize("mode", ["native", "virtual"])
def test_local_file_of_references_to_a_bucket_is_ingested(
    seaweedfs: Place, tmp_path: Path, mode: str
) -> None:
    """The options are those of the bucket, whose container is added to the repository."""
    (file,) = chunked(tmp_path, 4)
    url = seaweedfs.put(f"referred/{mode}.nc", Path(file))
    reach = get_access(url, seaweedfs.options)
    dataset = virtualize(url, store=reach.store, credential=reach.credential)
    variable = dataset.variables["t2m"]
    refs: dict[str, Any] = {
        ".zgroup": '{"zarr_format": 2}',
        "t2m/.zarray": json.dumps(
            {
                "zarr_format": 2,
                "shape": variable.shape,
                "chunks": variable.chunk_shape,
                "dtype": "<f4",
                "fill_value": "NaN",
                "order": "C",
                "filters": [{"id": "shuffle", "elementsize": 4}],
                "compressor": {"id": "zlib", "level": 4},
            }
        ),
        "t2m/.zattrs": '{"_ARRAY_DIMENSIONS": ["time", "lat", "lon"]}',
    }
    for coords, offset, length in zip(
        variable.references.coords.tolist(),
        variable.references.offsets.tolist(),
        variable.references.lengths.tolist(),
        strict=True,
    ):
        refs[f"t2m/{'.'.join(map(str, coords))}"] = ["{{u}}", offset, length]
    (tmp_path / "refs.json").write_text(json.dumps({"version": 1, "templates": {"u": url}, "refs": refs}))
    repo = new_repo(tmp_path)

    run(repo, tmp_path / "refs.json", mode=mode, storage_options=seaweedfs.options)

    config = Repository.open(repo.storage).config  # who passes it trusts the endpoints in it
    prefixes = config.virtual_chunk_containers or {}
    access = {each: seaweedfs.credential() for each in prefixes if each.startswith("s3:")}
    opened = Repository.open(repo.storage, config, authorize_virtual_chunk_access=access)
    assert (read(opened)["t2m"].values == expected([file])["t2m"].values).all()
    assert bool(access) == (mode == "virtual")
