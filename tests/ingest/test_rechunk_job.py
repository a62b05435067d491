"""Rechunking changes only the chunks of the selected arrays, in one commit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import IcechunkError, RebaseFailedError, Repository
from icefloe.cli.main import main
from icefloe.ingest import rechunk
from icefloe.ingest.rechunk_job import RechunkReport
from tests.support.ingest.files import Travelling, new_repo

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
]

DIMS = ("time", "lat", "lon")
VALUES = np.arange(10 * 7 * 9, dtype="f4").reshape(10, 7, 9)


def repo_with(folder: Path, **arrays: Any) -> Repository:
    """A repository with arrays: the arguments of `create_array`, and values."""
    repo = new_repo(folder)
    session = repo.writable_session("main")
    root = zarr.create_group(session.store, overwrite=True)
    for name, given in arrays.items():
        options = dict(given)
        values = options.pop("values")
        array = root.create_array(
            name, **{"shape": np.shape(values), "dtype": np.asarray(values).dtype, **options}
        )
        array[...] = values
    session.commit("arrays")
    return repo


def maps(**more: Any) -> dict[str, Any]:
    """One chunk per time."""
    return {
        "values": VALUES,
        "chunks": (1, 7, 9),
        "dimension_names": DIMS,
        "attributes": {"units": "K"},
        "fill_value": 3.5,
        **more,
    }


def array_of(repo: Repository, path: str = "t") -> Any:
    return zarr.open_array(repo.readonly_session("main").store, path=path, mode="r")


def document(repo: Repository, path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(array_of(repo, path).metadata.to_dict(), default=str))
    return found


def run(repo: Repository, path: str = "t", **options: Any) -> RechunkReport:
    return rechunk(repo, path, Travelling(), **options)


def refused(repo: Repository, path: str = "t", **options: Any) -> str:
    """The sentence; nothing was committed."""
    before = repo.lookup_branch("main")
    with pytest.raises(IcechunkError) as caught:
        run(repo, path, **options)
    assert repo.lookup_branch("main") == before
    return str(caught.value)


def test_rechunk_changes_only_chunks_in_one_commit(tmp_path: Path) -> None:
    repo = repo_with(tmp_path, t=maps(), other=maps())
    before = {name: document(repo, name) for name in ("t", "other")}
    tip = repo.lookup_branch("main")

    report = run(repo, chunks={"time": -1, "lat": 2}, message="series", metadata={"run": 7})

    (new, old, *_) = repo.ancestry(branch="main")
    assert (new.id, old.id, new.message, new.metadata["run"]) == (report.commit, tip, "series", 7)
    assert array_of(repo).chunks == (10, 2, 9)
    np.testing.assert_array_equal(array_of(repo)[...], VALUES)
    after = document(repo, "t")
    assert {**after, "chunk_grid": None} == {**before["t"], "chunk_grid": None}
    assert document(repo, "other") == before["other"]
    changed = repo.diff(from_snapshot_id=tip, to_snapshot_id=new.id)
    assert not [path for path in changed.updated_chunks if path != "/t"]
    assert report.compared > 0


def test_arrays_of_a_group_with_the_dimensions_are_rechunked(tmp_path: Path) -> None:
    time = {"values": np.arange(10), "chunks": (10,), "dimension_names": ("time",)}
    repo = repo_with(tmp_path, a=maps(), b=maps(), time=time)

    report = run(repo, "/", chunks={"time": 5, "lat": 7})

    assert [each.path for each in report.arrays] == ["/a", "/b"]
    assert [array_of(repo, name).chunks for name in ("a", "b", "time")] == [(5, 7, 9), (5, 7, 9), (10,)]
    assert run(repo, "/", chunks={"time": 5, "lat": 7}).unchanged == ("/a", "/b")


def test_shards_and_codecs_can_be_added_and_removed(tmp_path: Path) -> None:
    repo = repo_with(tmp_path, t=maps())

    run(repo, chunks={"time": 2, "lat": 3}, shards={"time": 4, "lat": -1}, codec="gzip:1")

    array = array_of(repo)
    assert (array.chunks, array.shards) == ((2, 3, 9), (4, 9, 9))
    assert [type(codec).__name__ for codec in array.compressors] == ["GzipCodec"]
    np.testing.assert_array_equal(array[...], VALUES)

    run(repo, chunks={"time": 3})

    array = array_of(repo)
    assert (array.chunks, array.shards) == ((3, 3, 9), None)
    assert [type(codec).__name__ for codec in array.compressors] == ["GzipCodec"]
    np.testing.assert_array_equal(array[...], VALUES)


@pytest.mark.parametrize(
    ("given", "options", "chunks"),
    [
        ({"values": np.float64(4.5)}, {"codec": "none"}, ()),
        (maps(values=VALUES[:0], chunks=(1, 7, 9)), {"chunks": {"time": -1, "lat": 2}}, (1, 2, 9)),
        (maps(), {"chunks": {"time": 24, "lat": 100}}, (24, 100, 9)),
        (maps(dimension_names=None), {"chunks": {"0": 4}}, (4, 7, 9)),
        (maps(dimension_names=("time", None, "lon")), {"chunks": {"1": 4, "time": 2}}, (2, 4, 9)),
        (maps(values=np.full_like(VALUES, np.nan), fill_value=np.nan), {"chunks": {"time": 4}}, (4, 7, 9)),
        (
            maps(values=VALUES.astype(">i2"), fill_value=0),
            {"chunks": {"time": 4}, "codec": "zstd"},
            (4, 7, 9),
        ),
        (maps(values=VALUES > 5, fill_value=True), {"chunks": {"time": 4}, "codec": "blosc"}, (4, 7, 9)),
        (maps(values=VALUES.astype("M8[s]"), fill_value=0), {"chunks": {"lat": 2}}, (1, 2, 9)),
    ],
    ids=["0-d", "empty", "larger", "numbers", "part-named", "all fill", "big-endian", "bool", "times"],
)
def test_all_kinds_of_arrays_are_rechunked(
    given: Any, options: Any, chunks: tuple[int, ...], tmp_path: Path
) -> None:
    repo = repo_with(tmp_path, t=given)

    report = run(repo, **options)

    array = array_of(repo)
    assert report.commit == repo.lookup_branch("main")
    assert (array.chunks, array.shape) == (chunks, np.shape(given["values"]))
    np.testing.assert_array_equal(array[...], given["values"])


@pytest.mark.parametrize("dtype", [str, "U8"])
@pytest.mark.parametrize("codec", [None, "zstd"])
def test_text_is_rechunked(dtype: Any, codec: str | None, tmp_path: Path) -> None:
    values = np.array(["", "snow", "ice", "floe é", "", "x"], object)
    repo = repo_with(
        tmp_path,
        t={
            "values": values.astype(dtype),
            "dtype": dtype,
            "shape": 6,
            "chunks": 4,
            "dimension_names": ("n",),
        },
    )

    run(repo, chunks={"n": 5}, codec=codec)

    assert array_of(repo)[...].tolist() == values.tolist()
    assert array_of(repo).chunks == (5,)


def test_root_array_is_rechunked(tmp_path: Path) -> None:
    repo = new_repo(tmp_path)
    session = repo.writable_session("main")
    zarr.create_array(session.store, data=VALUES, chunks=(1, 7, 9), dimension_names=DIMS)
    session.commit("root")

    run(repo, "/", chunks={"time": 5})

    assert array_of(repo, "").chunks == (5, 7, 9)
    np.testing.assert_array_equal(array_of(repo, "")[...], VALUES)


def test_virtual_chunks_become_native(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(VALUES.tobytes())
    url = f"file://{tmp_path}/"
    config = icefloe.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(url, icefloe.local_filesystem_store(str(tmp_path)))
    )
    allowed = {url: icefloe.Credentials.LocalFileSystemAccess()}
    repo = Repository.create(
        icefloe.storage_from_url(str(tmp_path / "repo"), sync=False),
        config,
        authorize_virtual_chunk_access=allowed,
    )
    session = repo.writable_session("main")
    zarr.create_array(
        session.store, name="t", shape=VALUES.shape, dtype="f4", chunks=(1, 7, 9), compressors=None,
        dimension_names=DIMS,
    )  # fmt: skip
    for time in range(10):
        session.store.set_virtual_ref(f"t/c/{time}/0/0", f"{url}data", offset=time * 252, length=252)
    session.commit("virtual")

    run(repo, chunks={"time": 4})

    (tmp_path / "data").unlink()
    np.testing.assert_array_equal(array_of(repo)[...], VALUES)
    assert not list(repo.readonly_session("main").all_virtual_chunk_locations())


def test_concurrent_commit_to_the_array_is_a_conflict(tmp_path: Path) -> None:
    repo = repo_with(tmp_path, t=maps(), other=maps())
    seen = []

    class Meanwhile(Travelling):
        def __init__(self, path: str) -> None:
            super().__init__()
            self.path = path

        def map(self, task: Any, items: Any, /) -> Any:
            session = repo.writable_session("main")
            array: Any = zarr.open_array(session.store, path=self.path)
            array[0] = 1
            seen.append(session.commit("meanwhile"))
            return super().map(task, items)

    with pytest.raises(RebaseFailedError, match="conflict: /t was changed on main while it was rechunked"):
        rechunk(repo, "t", Meanwhile("t"), chunks={"time": 5})
    assert repo.lookup_branch("main") == seen[-1]
    assert array_of(repo).chunks == (1, 7, 9)

    report = rechunk(repo, "t", Meanwhile("other"), chunks={"time": 5})
    (new, old, *_) = repo.ancestry(branch="main")
    assert (new.id, old.id) == (report.commit, seen[-1])
    assert (array_of(repo)[0] == 1).all()
    assert (array_of(repo, "other")[0] == 1).all()


def test_invalid_rechunks_are_refused(tmp_path: Path) -> None:
    repo = repo_with(tmp_path, t=maps(), point={"values": np.float64(1)})

    assert "dimensions tme; dimensions are time, lat, lon" in refused(repo, chunks={"tme": 2})
    assert "no array of the group / has the dimensions x" in refused(repo, "/", chunks={"x": 2})
    assert "there are none" in refused(repo, "point", chunks={"time": 2})
    assert "no array or group at `/nope`" in refused(repo, "nope", chunks={"time": 2})
    assert "chunks along time must be positive" in refused(repo, chunks={"time": 0})
    assert "must consist of whole chunks" in refused(repo, chunks={"time": 2}, shards={"time": 3})
    assert "unknown codec 'zip'" in refused(repo, chunks={"time": 2}, codec="zip")
    assert "nothing to change" in refused(repo)
    assert "a task may use 1000" in refused(repo, chunks={"time": 10}, memory_bytes=1000)
    assert "a task may use" in refused(repo, chunks={"time": 1_250_000})
    assert "more than codecs accept" in refused(repo, chunks={"time": 10**8})


def test_rectilinear_grid_is_refused(tmp_path: Path) -> None:
    repo = repo_with(tmp_path, t=maps())
    session = repo.writable_session("main")
    edges = [[4, 6], [7], [9]]
    found = document(repo, "t")
    found["chunk_grid"] = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": edges}}
    found["codecs"] = [{"name": "bytes", "configuration": {"endian": "little"}}]
    session._workspace.set_metadata("/t", json.dumps(found).encode())
    session.commit("uneven")

    assert "/t has a rectilinear chunk grid" in refused(repo, chunks={"time": 5})


def with_codecs(repo: Repository, *codecs: dict[str, Any]) -> None:
    """Another way to read the bytes of an array."""
    session = repo.writable_session("main")
    session._workspace.set_metadata("/t", json.dumps({**document(repo, "t"), "codecs": codecs}).encode())
    session.commit("codecs")


BYTES = {"name": "bytes", "configuration": {"endian": "little"}}


def test_values_changed_by_lossy_codecs_are_not_committed(tmp_path: Path) -> None:
    repo = repo_with(tmp_path, t=maps(compressors=None))
    with_codecs(repo, {"name": "numcodecs.bitround", "configuration": {"keepbits": 2}}, BYTES)

    assert "changed when they were written" in refused(repo, chunks={"time": 5})


def test_codecs_that_cannot_encode_are_refused(tmp_path: Path) -> None:
    repo = repo_with(tmp_path, t=maps(compressors=None))
    with_codecs(repo, BYTES, {"name": "numcodecs.zlib", "configuration": {"level": 77}})

    assert "cannot encode chunks" in refused(repo, chunks={"time": 5})


def test_rechunk_command_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = str(tmp_path / "repo")
    repo = Repository.create(icefloe.storage_from_url(place, sync=False))
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="t", data=VALUES, chunks=(1, 7, 9), dimension_names=DIMS)
    session.commit("maps")
    words = ["rechunk", place, "t", "--chunks", "time=5,lat=-1", "--executor", "threads"]

    assert main([*words, "--dry-run"]) == 0
    assert "time: 10 by 5, was 1" in capsys.readouterr().out
    assert array_of(repo).chunks == (1, 7, 9)
    assert main([*words, "--json", "--metadata", "run=7"]) == 0
    assert json.loads(capsys.readouterr().out)["commit"] == repo.lookup_branch("main")
    assert main(words) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert main(["rechunk", place, "t", "--chunks", "x=5", "--executor", "threads"]) != 0
    assert "dimensions are time, lat, lon" in capsys.readouterr().err
