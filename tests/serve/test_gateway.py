"""Reading a repository over HTTP: the same values as a session, and never a fill value for a failure."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import httpx
import numpy as np
import pytest
import xarray
import zarr
import zstandard

from icefloe import (
    Repository,
    in_memory_storage,
    local_filesystem_storage,
)
from icefloe.serve import gateway
from icefloe.serve.documents import MAX_CONSOLIDATED
from icefloe.serve.settings import RequestLimits
from icefloe.session import Session
from icefloe.testing.storages import PassingStorage
from tests.support.serve import (
    VALUES,
    memory_repository,
    open_http,
    repack,
    sample_repository,
    serving,
    status_of_raw,
    with_rectilinear,
    write_python_only,
)
from tests.support.zarr_documents import GROUP, array_document, buffer

pytestmark = [
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
]
CHUNKS = ["native/c/0/0", "inline/c/0", "virtual/c/0/0", "decoded/shuffled/c/0/0"]
RAISED = (aiohttp.ClientError, OSError, ValueError, RuntimeError)
"""Errors of fsspec's HTTP file system other than FileNotFoundError, which zarr reads as a missing chunk."""


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return sample_repository(tmp_path_factory.mktemp("serve"))


@pytest.fixture(scope="module")
def client(repo: Repository) -> Iterator[httpx.Client]:
    with serving(repo) as found:
        yield found


def _paths(session: Session) -> list[str]:
    return [path.strip("/") for path in session._workspace.paths() if session._workspace.children(path) == []]


@pytest.mark.parametrize("version", ["v1", "tag:v1", "{id}", "snapshot:{id}"])
def test_every_served_array_equals_the_session(repo: Repository, client: httpx.Client, version: str) -> None:
    session = repo.readonly_session("main")
    paths = _paths(session)

    assert {"native", "inline", "virtual", "deep/sharded", "text", "scalar", "empty"} <= set(paths)
    with with_rectilinear():
        remote = open_http(client, version.format(id=session.snapshot_id))
        for path in paths:
            expected = zarr.open_array(session.store, path=path, mode="r")
            found = remote[path]
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found[...], expected[...], err_msg=path)


def test_xarray_opens_a_version_with_consolidated_metadata(repo: Repository, client: httpx.Client) -> None:
    url = f"{client.base_url}zarr/v1/deep"

    found = xarray.open_zarr(url, consolidated=True, chunks=None)

    expected = zarr.open_array(repo.readonly_session("main").store, path="deep/partly", mode="r")[...]
    np.testing.assert_array_equal(found["partly"].values, expected)


def test_consolidated_metadata_includes_all_descendants(client: httpx.Client) -> None:
    root = client.get("/zarr/v1/zarr.json").json()["consolidated_metadata"]["metadata"]
    deep = client.get("/zarr/v1/deep/zarr.json").json()["consolidated_metadata"]["metadata"]

    assert {"native", "deep", "deep/partly", "deep/sharded", "decoded", "decoded/shuffled"} <= set(root)
    assert set(deep) == {"partly", "sharded"}
    assert deep["partly"]["shape"] == [20, 100]


def test_implicit_groups_are_in_consolidated_metadata() -> None:
    repo = Repository.create(in_memory_storage())
    with repo.transaction("main", message="no group") as store:
        store.set_sync("zarr.json", buffer(GROUP))
        store.set_sync("a/b/zarr.json", buffer(array_document((2,), (2,))))
    with serving(repo) as client:
        found = open_http(client, repo.lookup_branch("main"))

        assert found["a/b"][...].tolist() == [0, 0]


def test_stored_consolidated_metadata_is_replaced() -> None:
    repo = Repository.create(in_memory_storage())
    stale = GROUP[:-1] + b',"consolidated_metadata":{"kind":"inline","must_understand":false,"metadata":{}}}'
    with repo.transaction("main", message="stale") as store:
        store.set_sync("zarr.json", buffer(stale))
        store.set_sync("a/zarr.json", buffer(array_document((2,), (2,))))
    with serving(repo) as client:
        assert list(client.get("/zarr/main/zarr.json").json()["consolidated_metadata"]["metadata"]) == ["a"]


def test_huge_groups_have_no_consolidated_metadata(
    monkeypatch: pytest.MonkeyPatch, client: httpx.Client, repo: Repository
) -> None:
    assert MAX_CONSOLIDATED == 50_000
    monkeypatch.setattr("icefloe.serve.documents.MAX_CONSOLIDATED", 3)
    with serving(repo) as other:
        assert "consolidated_metadata" not in other.get("/zarr/v1/zarr.json").json()
        assert "consolidated_metadata" in other.get("/zarr/v1/deep/zarr.json").json()


# Versions


@pytest.mark.parametrize("version", ["main", "branch:main", "main~0", "main@2999-01-01", "feature%2Fx"])
def test_branch_redirects_to_its_snapshot_and_serves_documents(
    repo: Repository, client: httpx.Client, version: str
) -> None:
    id = repo.lookup_branch("main")

    redirect = client.get(f"/zarr/{version}")
    document = client.get(f"/zarr/{version}/zarr.json")

    assert redirect.status_code == 307
    assert redirect.headers["location"] == f"/zarr/{id}/"
    assert document.status_code == 200
    assert document.headers["cache-control"] == "no-cache"
    assert document.headers["x-icefloe-snapshot"] == id


@pytest.mark.parametrize("version", ["main", "branch:main", "main~0", "main@2999-01-01", "feature%2Fx"])
def test_chunks_of_a_branch_are_rejected_with_the_snapshot_url(
    repo: Repository, client: httpx.Client, version: str
) -> None:
    found = client.get(f"/zarr/{version}/native/c/0/0")

    assert found.status_code == 409
    assert f"{client.base_url}zarr/{repo.lookup_branch('main')}" in found.text


@pytest.mark.parametrize("version", ["v1", "tag:v1", "{id}"])
def test_tags_and_ids_are_immutable(repo: Repository, client: httpx.Client, version: str) -> None:
    url = f"/zarr/{version.format(id=repo.lookup_branch('main'))}"

    for key in ("zarr.json", "native/c/0/0"):
        assert "immutable" in client.get(f"{url}/{key}").headers["cache-control"]


def test_exact_ref_name_takes_precedence_over_version_syntax(tmp_path: Path) -> None:
    repo = sample_repository(tmp_path)
    first = repo.lookup_tag("v1")
    repo.writable_session("main").commit("empty", allow_empty=True)
    for name in ("main~1", "main@2999-01-01", "branch:main", "tag:v1"):
        repo.create_branch(name, first)
    repo.create_tag("main~0", first)
    with serving(repo) as client:
        for name in ("main~1", "main@2999-01-01", "branch:main", "tag:v1", "main~0"):
            assert client.get(f"/zarr/{name}/zarr.json").headers["x-icefloe-snapshot"] == first
        assert client.get("/zarr/tag:v1/native/c/0/0").status_code == 409
        assert client.get("/zarr/main~0/native/c/0/0").status_code == 200
        assert client.get("/zarr/main/zarr.json").headers["x-icefloe-snapshot"] != first


def test_ambiguous_ref_name_needs_a_prefix(tmp_path: Path) -> None:
    repo = sample_repository(tmp_path)
    repo.create_branch("v1", repo.lookup_branch("main"))
    with serving(repo) as client:
        assert client.get("/zarr/v1/zarr.json").status_code == 409
        assert client.get("/zarr/tag:v1/zarr.json").status_code == 200
        assert client.get("/zarr/branch:v1/zarr.json").status_code == 200


@pytest.mark.parametrize(
    "version",
    ["nope", "main~99", "main@1999-01-01", "tag:nope", "branch:v1", "0" * 20, "snapshot:" + "0" * 20],
)
@pytest.mark.parametrize("key", ["zarr.json", "native/c/0/0", "native/zarr.json", ".zgroup", ""])
def test_unknown_version_returns_410(client: httpx.Client, version: str, key: str) -> None:
    assert client.get(f"/zarr/{version}/{key}").status_code == 410


# Statuses


@pytest.mark.parametrize(
    ("key", "status"),
    [
        ("native/c/0/0", 200),
        ("deep/partly/c/2/3", 404),  # never written
        ("native/c/9/9", 404),  # outside of the grid
        ("nothing/zarr.json", 404),
        ("zarr.json", 200),
        (".zgroup", 404),
        (".zmetadata", 404),
        ("native/.zarray", 404),
        ("nothing/.zattrs", 404),
        ("nothing/c/0/0", 409),
        ("deep/c/0", 409),
        ("native/c/0", 400),
        ("native/c/0/0/0", 400),
        ("native/c", 400),
        ("native/c/00/0", 400),
        ("native/c/0/4294967296", 400),
        ("native/c/-1/0", 400),
        ("native/c/0/0/", 400),
        ("native/0.0", 400),
        ("native/", 400),
        ("native", 400),
        ("native//c/0/0", 400),
        ("../native/c/0/0", 400),
        ("%2e%2e/native/c/0/0", 400),
        ("native/c/0/%30", 200),
        ("native/c/0/%FF", 400),
        ("native%2Fc%2F0%2F0", 400),
    ],
)
def test_each_key_has_the_expected_response_status(client: httpx.Client, key: str, status: int) -> None:
    assert status_of_raw(client, f"/zarr/v1/{key}") == status


def test_missing_chunks_are_fill_values_for_clients(client: httpx.Client) -> None:
    assert np.isnan(open_http(client, "v1", "deep/partly")[8, 50])
    assert open_http(client, "v1", "deep/sharded")[15, 15] == 0


def test_reader_of_a_deleted_branch_gets_an_error(tmp_path: Path) -> None:
    repo = sample_repository(tmp_path)
    with serving(repo, moving=True) as client:
        array = open_http(client, "feature%2Fx", "native")
        repo.delete_branch("feature/x")

        assert client.get("/zarr/feature%2Fx/native/c/0/0").status_code == 410
        with pytest.raises(RAISED):
            array[...]


def test_reader_of_an_expired_snapshot_gets_an_error(tmp_path: Path) -> None:
    repo = Repository.create(local_filesystem_storage(str(tmp_path)))
    with repo.transaction("main", message="one") as store:
        zarr.create_array(store, name="a", shape=(4,), chunks=(2,), dtype="f4")[...] = 1
    old = repo.lookup_branch("main")
    with repo.transaction("main", message="two") as store:
        zarr.open_array(store, path="a", mode="r+")[...] = 2
    with serving(repo) as client:
        array = open_http(client, old, "a")
        repo.expire_snapshots(datetime.now(UTC) + timedelta(seconds=1))

        assert client.get(f"/zarr/{old}/a/c/0").status_code == 410
        with pytest.raises(RAISED):
            array[...]


def test_unauthorized_source_error_names_the_remedy(tmp_path: Path) -> None:
    sample_repository(tmp_path)
    repo = Repository.open(local_filesystem_storage(str(tmp_path / "repo")))
    with serving(repo) as client:
        array = open_http(client, "v1", "virtual")

        found = client.get("/zarr/v1/virtual/c/0/0")
        assert found.status_code == 502
        assert "authorize_virtual_chunk_access" in found.text
        with pytest.raises(RAISED):
            array[...]
        assert client.get("/zarr/v1/native/c/0/0").status_code == 200


def test_changed_source_raises_an_error(tmp_path: Path) -> None:
    repo = sample_repository(tmp_path)
    session = repo.writable_session("main")
    file = f"file://{tmp_path}/files/f.bin"
    session.store.set_virtual_ref(
        "virtual/c/0/0", file, offset=4, length=4000, checksum=datetime(1980, 1, 1, tzinfo=UTC)
    )
    id = session.commit("a checksum that the file no longer has")
    with serving(repo) as client:
        assert client.get(f"/zarr/{id}/virtual/c/0/0").status_code == 502
        with pytest.raises(RAISED):
            open_http(client, id, "virtual")[...]


def test_truncated_source_raises_an_error(tmp_path: Path) -> None:
    repo = sample_repository(tmp_path)
    (tmp_path / "files" / "f.bin").write_bytes(b"short")
    with serving(repo) as client:
        assert client.get("/zarr/v1/virtual/c/0/0").status_code == 502


@pytest.mark.parametrize("lost", ["chunks", "manifests"])
def test_missing_object_returns_an_error(tmp_path: Path, lost: str) -> None:
    repo = sample_repository(tmp_path)
    with serving(repo) as client:
        array = open_http(client, "v1", "native")
        shutil.rmtree(tmp_path / "repo" / lost)

        assert client.get("/zarr/v1/native/c/0/0").status_code == 502
        with pytest.raises(RAISED):
            array[...]


def test_missing_repository_is_not_reported_as_missing_version(tmp_path: Path) -> None:
    repo = sample_repository(tmp_path)
    with serving(repo) as client:
        array = open_http(client, "v1", "native")
        shutil.rmtree(tmp_path / "repo")

        assert client.get("/zarr/v1/native/c/0/0").status_code == 502
        assert client.get("/zarr/main/zarr.json").status_code == 502
        with pytest.raises(RAISED):
            array[...]


class _Failing(PassingStorage):
    """A storage whose reads raise what a test sets."""

    error: list[Exception] = []  # noqa: RUF012 - shared by the copies that settings make

    def reading(self) -> None:
        if self.error:
            raise self.error[0]


@pytest.mark.parametrize(
    ("error", "status"), [(TimeoutError(), 504), (MemoryError(), 500), (OSError(5, "x"), 500)]
)
def test_storage_failure_returns_an_error(error: Exception, status: int) -> None:
    storage = _Failing(in_memory_storage())
    repo = Repository.create(storage)
    with repo.transaction("main", message="one") as store:
        zarr.create_array(store, name="a", shape=(4096,), chunks=(4096,), dtype="f8", compressors=None)[
            ...
        ] = 1
    with serving(repo) as client:
        array = open_http(client, repo.lookup_branch("main"), "a")
        _Failing.error = [error]
        try:
            assert client.get(f"/zarr/{repo._refs.seen().branches['main']}/a/c/0").status_code == status  # type: ignore[attr-defined]
            with pytest.raises(RAISED):
                array[...]
        finally:
            _Failing.error = []


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("/zarr/main/native/c/0/0", "409: main can move"),
        ("/zarr/gone/native/c/0/0", "410: "),
        ("/zarr/v1/nothing/c/0/0", "409: "),
        ("/zarr/v1/native/c/0/0", "502: "),
    ],
)
def test_a_failed_chunk_breaks_off_for_gdal_which_reads_every_status_as_missing(
    tmp_path: Path, url: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "_PAUSE_S", 0)
    repo = sample_repository(tmp_path)
    shutil.rmtree(tmp_path / "repo" / "chunks")
    with serving(repo) as client:
        gdal = {"User-Agent": "GDAL/3.12.2"}
        parts: list[bytes] = []

        with (
            pytest.raises(httpx.RemoteProtocolError),
            client.stream("GET", url, headers=gdal) as response,
        ):
            parts.extend(response.iter_raw())

        assert response.headers["x-icefloe-error"].startswith(words)
        assert len(b"".join(parts)) == 1  # GDAL would read more of them as values
        assert client.get("/zarr/v1/deep/partly/c/2/3", headers=gdal).status_code == 404
        assert client.get("/zarr/gone/zarr.json", headers=gdal).status_code == 410
        assert client.head(url, headers=gdal).status_code in (200, 409, 410)


def test_gdal_gets_the_first_bytes_of_a_failed_chunk_before_the_response_breaks_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GDAL reads a transfer that fails before its first byte as a missing chunk."""
    monkeypatch.setattr(gateway, "_PAUSE_S", 3600)
    repo = sample_repository(tmp_path)
    shutil.rmtree(tmp_path / "repo" / "chunks")
    gdal = {"User-Agent": "GDAL/3.12.2"}
    with serving(repo) as client, client.stream("GET", "/zarr/v1/native/c/0/0", headers=gdal) as response:
        first = next(response.iter_raw())

    assert first == b"-"


def test_gateway_test_detects_a_404_instead_of_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests above rely on the fact that zarr reads 404, and no other status, as fill value."""
    monkeypatch.setattr("icefloe.serve.asgi.status_of", lambda error: 404)
    repo = sample_repository(tmp_path)
    with serving(repo) as client:
        array = open_http(client, "v1", "native")
        shutil.rmtree(tmp_path / "repo" / "chunks")

        assert array[...].tolist() == np.zeros((20, 100)).tolist()


# Torn reads


def test_a_reader_of_a_branch_gets_an_error_when_metadata_and_chunks_could_differ() -> None:
    repo = Repository.create(in_memory_storage())
    with repo.transaction("main", message="root") as store:
        zarr.create_group(store)
    repack(repo, 1.0)
    with serving(repo) as client:
        pinned = xarray.open_zarr(f"{client.base_url}zarr/{repo.lookup_branch('main')}", chunks=None)
        opened = xarray.open_zarr(f"{client.base_url}zarr/main", chunks=None)
        repack(repo, 0.1)

        with pytest.raises(RAISED):
            opened["a"].load()
        assert pinned["a"].values.tolist() == [100, 200]


def test_branch_chunks_are_served_uncached_on_request(repo: Repository) -> None:
    with serving(repo, moving=True) as client:
        found = client.get("/zarr/main/native/c/0/0")

    assert found.status_code == 200
    assert found.headers["cache-control"] == "no-cache"


# HTTP


@pytest.mark.parametrize(
    ("asked", "status", "start", "stop"),
    [
        ("bytes=0-3", 206, 0, 4),
        ("bytes=10-", 206, 10, 2000),
        ("bytes=-7", 206, 1993, 2000),
        ("bytes=-9999", 206, 0, 2000),
        ("bytes=1990-9999", 206, 1990, 2000),
        ("bytes=5-4", 200, 0, 2000),
        ("bytes=0-1,4-5", 200, 0, 2000),
        ("rows=0-1", 200, 0, 2000),
    ],
)
def test_range_requests_of_a_chunk_are_served(
    client: httpx.Client, asked: str, status: int, start: int, stop: int
) -> None:
    whole = client.get("/zarr/v1/native/c/0/0")

    found = client.get("/zarr/v1/native/c/0/0", headers={"Range": asked})

    assert len(whole.content) == 2000
    assert found.status_code == status
    assert found.content == whole.content[start:stop]
    assert found.headers.get("content-range") == (f"bytes {start}-{stop - 1}/2000" if status == 206 else None)


@pytest.mark.parametrize("asked", ["bytes=2000-", "bytes=9999-10000", "bytes=-0"])
def test_range_outside_a_chunk_is_rejected(client: httpx.Client, asked: str) -> None:
    found = client.get("/zarr/v1/native/c/0/0", headers={"Range": asked})

    assert found.status_code == 416
    assert found.headers["content-range"] == "bytes */2000"


@pytest.mark.parametrize(
    "key", ["native/c/0/0", "inline/c/0", "virtual/c/0/0", "zarr.json", "decoded/shuffled/c/0/0"]
)
def test_unchanged_content_returns_304(client: httpx.Client, key: str) -> None:
    first = client.get(f"/zarr/v1/{key}")

    again = client.get(f"/zarr/v1/{key}", headers={"If-None-Match": f'"other", {first.headers["etag"]}'})
    other = client.get(f"/zarr/v1/{key}", headers={"If-None-Match": '"other"'})

    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert other.content == first.content


@pytest.mark.parametrize(
    "key", ["native/c/0/0", "inline/c/0", "zarr.json", "deep/partly/c/2/3", "decoded/shuffled/c/0/0"]
)
def test_head_returns_the_same_headers_as_get(client: httpx.Client, key: str) -> None:
    get, head = client.get(f"/zarr/v1/{key}"), client.head(f"/zarr/v1/{key}")

    assert head.content == b""
    assert head.status_code == get.status_code
    for name in ("content-length", "etag", "content-type", "cache-control"):
        assert head.headers.get(name) == get.headers.get(name)


def test_range_request_for_changed_content_returns_the_whole_chunk(client: httpx.Client) -> None:
    found = client.get("/zarr/v1/native/c/0/0", headers={"Range": "bytes=0-3", "If-Range": '"other"'})

    assert found.status_code == 200


def test_chunk_has_the_same_etag_in_every_version(tmp_path: Path) -> None:
    repo = sample_repository(tmp_path)
    with repo.transaction("main", message="change one") as store:
        zarr.open_array(store, path="native", mode="r+")[0, 0] = -1
    new = repo.lookup_branch("main")
    with serving(repo) as client:

        def tags(key: str) -> set[str]:
            return {client.head(f"/zarr/{version}/{key}").headers["etag"] for version in ("v1", new)}

        assert len(tags("native/c/1/1")) == 1
        assert len(tags("inline/c/0")) == 1
        assert len(tags("virtual/c/0/0")) == 1
        assert len(tags("native/c/0/0")) == 2


def test_etags_do_not_reveal_source_locations(client: httpx.Client) -> None:
    assert "f.bin" not in client.get("/zarr/v1/virtual/c/0/0").headers["etag"]


# Codecs that only Python has


def test_python_only_codecs_are_transcoded(client: httpx.Client) -> None:
    document = client.get("/zarr/v1/decoded/shuffled/zarr.json").json()
    consolidated = client.get("/zarr/v1/zarr.json").json()["consolidated_metadata"]["metadata"]

    assert [codec["name"] for codec in document["codecs"]] == ["bytes", "zstd"]
    assert consolidated["decoded/shuffled"] == document
    found = open_http(client, "v1", "decoded/shuffled")[...]
    assert found.tolist() == [*np.arange(8).reshape(2, 4).tolist(), [7] * 4, [7] * 4, [16, 17, 18, 19]]


def test_arrays_are_transcoded_to_codecs_that_gdal_supports(client: httpx.Client) -> None:
    gdal = {"User-Agent": "GDAL/3.12.2"}

    document = client.get("/zarr/v1/deep/sharded/zarr.json", headers=gdal)
    chunk = client.get("/zarr/v1/deep/sharded/c/0/0", headers=gdal)
    usual = client.get("/zarr/v1/deep/sharded/zarr.json").json()

    assert [codec["name"] for codec in document.json()["codecs"]] == ["bytes", "zstd"]
    assert [codec["name"] for codec in usual["codecs"]] == ["sharding_indexed"]
    values = np.frombuffer(zstandard.ZstdDecompressor().decompress(chunk.content), "<i4").reshape(8, 8)
    assert values[1].tolist() == [16, 17, 18, 19, 20, 21, 22, 23]
    assert "User-Agent" in document.headers["vary"]


def test_transposed_arrays_are_transcoded_for_gdal_which_inverts_their_order() -> None:
    values = np.arange(24, dtype="i4").reshape(2, 3, 4)
    order = zarr.codecs.TransposeCodec(order=(1, 2, 0))
    repo = memory_repository(values, (2, 3, 4), filters=[order])
    with serving(repo) as client:
        base, gdal = f"/zarr/{repo.lookup_branch('main')}/a", {"User-Agent": "GDAL/3.12.2"}

        document = client.get(f"{base}/zarr.json", headers=gdal).json()
        usual = client.get(f"{base}/zarr.json").json()
        chunk = client.get(f"{base}/c/0/0/0", headers=gdal).content

    assert [codec["name"] for codec in document["codecs"]] == ["bytes", "zstd"]
    assert next(codec["name"] for codec in usual["codecs"]) == "transpose"
    assert zstandard.ZstdDecompressor().decompress(chunk) == values.tobytes()


def test_transcoded_chunk_has_a_different_etag(client: httpx.Client, repo: Repository) -> None:
    assert client.get("/zarr/v1/decoded/shuffled/c/0/0").headers["etag"].endswith('-z"')


def test_oversized_chunks_are_not_transcoded(tmp_path: Path) -> None:
    repo = sample_repository(tmp_path)
    with serving(repo, limits=RequestLimits(decoded_bytes=31)) as client:
        assert client.get("/zarr/v1/decoded/shuffled/c/0/0").status_code == 413
        with pytest.raises(RAISED):
            open_http(client, "v1", "decoded/shuffled")[...]


def test_undecodable_array_is_rejected_by_name() -> None:
    repo = Repository.create(in_memory_storage())
    with repo.transaction("main", message="unknown codec") as store:
        store.set_sync("zarr.json", buffer(GROUP))
        codecs = [{"name": "bytes"}, {"name": "someone.secret", "configuration": {}}]
        store.set_sync("odd/zarr.json", buffer(array_document((2,), (2,), codecs=codecs)))
        store.set_sync("odd/c/0", buffer(b"ab"))
        write_python_only(store, "fine")
    with serving(repo) as client:
        id = repo.lookup_branch("main")
        for key in ("odd/zarr.json", "odd/c/0"):
            found = client.get(f"/zarr/{id}/{key}")
            assert found.status_code == 501
            assert "/odd" in found.text
            assert "someone.secret" in found.text
        assert list(open_http(client, id)) == ["fine"]


# The repository's own files


def test_repository_can_be_opened_over_http(repo: Repository, client: httpx.Client) -> None:
    from icefloe import http_storage

    other = Repository.open(http_storage(f"{client.base_url}icechunk"))

    array = zarr.open_array(other.readonly_session(tag="v1").store, path="native", mode="r")
    np.testing.assert_array_equal(array[...], VALUES)


def test_only_immutable_files_are_cached_forever(repo: Repository, client: httpx.Client) -> None:
    snapshot = client.get(f"/icechunk/snapshots/{repo.lookup_branch('main')}")

    assert "immutable" in snapshot.headers["cache-control"]
    assert client.get("/icechunk/repo").headers["cache-control"] == "no-cache"
    suffix = client.get(f"/icechunk/snapshots/{repo.lookup_branch('main')}", headers={"Range": "bytes=-5"})
    assert suffix.content == snapshot.content[-5:]


def test_version_1_refs_and_configuration_are_not_cached_forever(tmp_path: Path) -> None:
    repo = sample_repository(tmp_path, spec_version=1)
    with serving(repo) as client:
        for file in ("config.yaml", "refs/branch.main/ref.json"):
            found = client.get(f"/icechunk/{file}")
            assert (found.status_code, found.headers["cache-control"]) == (200, "no-cache")
        np.testing.assert_array_equal(open_http(client, "v1", "native")[...], VALUES)


@pytest.mark.parametrize(
    "file",
    ["../repo", "%2e%2e/x", "chunks/../repo", "chunks/nope", "etc/passwd", "", "chunks/", "_icefloe/x"],
)
def test_files_outside_the_repository_are_not_served(client: httpx.Client, file: str) -> None:
    assert status_of_raw(client, f"/icechunk/{file}") == 404


# Resources


def test_large_chunks_are_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "_PART_BYTES", 1000)
    values = np.random.default_rng(0).integers(0, 255, 12_345, dtype="u1")
    repo = memory_repository(values, (12_345,), compressors=None)
    with serving(repo) as client:
        url = f"/zarr/{repo.lookup_branch('main')}/a/c/0"

        assert client.get(url).content == values.tobytes()
        assert client.get(url, headers={"Range": "bytes=999-3001"}).content == values[999:3002].tobytes()


def test_truncated_response_raises_an_error_in_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "_PART_BYTES", 1000)
    storage = _Failing(in_memory_storage())
    repo = Repository.create(storage)
    with repo.transaction("main", message="one") as store:
        zarr.create_array(store, name="a", shape=(5000,), chunks=(5000,), dtype="u1", compressors=None)[
            ...
        ] = 1
    reads = []

    def read(start: int, stop: int) -> bytes:
        reads.append(start)
        if start:
            raise TimeoutError
        return b"x" * (stop - start)

    with serving(repo) as client:
        id = repo.lookup_branch("main")
        client.get(f"/zarr/{id}/a/c/0")
        monkeypatch.setattr(
            "icefloe.core.workspace.Workspace.read",
            lambda self, ref, start, stop, chunk="": read(start, stop),
        )
        with pytest.raises(httpx.RemoteProtocolError):
            client.get(f"/zarr/{id}/a/c/0")

    assert reads == [0, 1000]
