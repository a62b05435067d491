"""Names of sources, and files that were ingested under other names."""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
import xarray as xr
import zarr

from icefloe import InvalidInputError, Repository
from icefloe.ingest.discover.sources import find_sources
from icefloe.ingest.inspect import schema as inspect_file
from icefloe.ingest.ledger import read_ledger
from tests.support.ingest.files import (
    archive,
    assert_same,
    days,
    expected,
    new_repo,
    read,
    read_all,
    run,
    write,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs"),
    pytest.mark.filterwarnings("ignore:Duplicate name"),
]
CHUNKED = {"t2m": {"zlib": True, "chunksizes": (1, 5, 4)}}


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"something")


def names(given: Any, folder: Path) -> list[str]:
    return [str(Path(each.url).relative_to(folder)) for each in find_sources(given)]


def test_patterns_find_local_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "a/1.nc", "a/b/2.nc", "a/b c/3.nc", "d/4.nc", "d/x.txt", "odd/{1,2}.nc")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    assert names("a/**/*.nc", tmp_path) == ["a/1.nc", "a/b c/3.nc", "a/b/2.nc"]
    assert names("a", tmp_path) == ["a/1.nc", "a/b/2.nc", "a/b c/3.nc"]
    assert names("{a,d}/?.nc", tmp_path) == ["a/1.nc", "d/4.nc"]
    assert sorted(names("{a/{1,b/2},d/4}.nc", tmp_path)) == ["a/1.nc", "a/b/2.nc", "d/4.nc"]
    assert names("odd/{1,2}.nc", tmp_path) == ["odd/{1,2}.nc"]
    assert names("~/d/4.nc", tmp_path) == ["d/4.nc"]
    assert names(f"file://{tmp_path}/a/b%20c/3.nc", tmp_path) == ["a/b c/3.nc"]
    assert names(f"file://localhost{tmp_path}/a/*.nc", tmp_path) == ["a/1.nc"]
    assert names(["a/1.nc", "a/../a/1.nc", Path("a/1.nc")], tmp_path) == ["a/1.nc"]


def test_lists_with_byte_order_mark_and_crlf_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, "1.nc", "a b/2.nc", "c/3.nc", "c/4.nc", "c/more.txt")
    monkeypatch.setenv("HOME", str(tmp_path))
    lines = ["\ufeff# files", "", "1.nc", "  a b/2.nc  ", f"file://{tmp_path}/c/3.nc", "c/more.txt", "~/1.nc"]
    (tmp_path / "c/more.txt").write_text("4.nc")
    (tmp_path / "all.txt").write_bytes("\r\n".join(lines).encode())
    (tmp_path / "no.txt").write_bytes(b"1.nc\n\xff\xfe")

    assert names(tmp_path / "all.txt", tmp_path) == ["1.nc", "a b/2.nc", "c/3.nc", "c/4.nc"]
    with pytest.raises(InvalidInputError, match=r"no\.txt is not a list of files: byte 5 is not UTF-8 text"):
        find_sources(tmp_path / "no.txt")


def test_patterns_without_matches_are_skipped_or_stop_the_job(tmp_path: Path) -> None:
    files = archive(tmp_path / "files", (2, 2))
    listed = tmp_path / "files" / "all.txt"
    listed.write_text("000.nc\nnothing.nc\n001.nc\n")
    repo = new_repo(tmp_path)

    with pytest.raises(InvalidInputError, match=r"no such file: .*nothing\.nc"):
        run(repo, listed)
    report = run(repo, listed, on_bad_file="skip")

    assert [(Path(each.source.url).name, each.reason[:12]) for each in report.bad] == [
        ("nothing.nc", "no such file")
    ]
    assert_same(read(repo), expected(files))
    with pytest.raises(InvalidInputError, match="nothing to ingest: no such file"):
        run(repo, tmp_path / "x.nc", on_bad_file="skip")


def test_zarr_store_that_grew_is_treated_as_changed(tmp_path: Path) -> None:
    """Only the metadata of an array shows it, not the metadata of the store."""
    place = tmp_path / "s.zarr"
    days(0, 2).to_zarr(place, zarr_format=3, consolidated=False)
    repo = new_repo(tmp_path)
    run(repo, place)
    days(2, 2).to_zarr(place, append_dim="time", consolidated=False)
    os.utime(place / "t2m/zarr.json", ns=(0, 2**62))

    report = run(repo, place, on_change="ingest")

    assert len(report.outcome.sources.changed) == 1
    assert_same(read(repo), days(0, 4))


def zipped(folder: Path, number: int, *, inside: str = "", compression: int = zipfile.ZIP_STORED) -> str:
    """A Zarr store in a zip file, as its own folder perhaps."""
    store = folder / f"{number}.zarr"
    counted = {"time": {"units": "days since 2024-01-01"}, "t2m": {"chunks": (2, 5, 4)}}
    days(4 * number, 4).to_zarr(store, zarr_format=2 + number % 2, consolidated=False, encoding=counted)
    with zipfile.ZipFile(folder / f"{number}.zarr.zip", "w", compression) as file:
        for path in sorted(store.rglob("*")):
            file.write(path, f"{inside}{path.relative_to(store)}")
    shutil.rmtree(store)
    return str(folder / f"{number}.zarr.zip")


@pytest.mark.parametrize("mode", ["native", "virtual", "hybrid"])
def test_zipped_zarr_stores_are_ingested(tmp_path: Path, mode: str) -> None:
    files = [zipped(tmp_path, 0), zipped(tmp_path, 2, inside="top.zarr/")]
    repo = new_repo(tmp_path)

    run(repo, tmp_path / "*.zip", mode=mode)

    xr.testing.assert_equal(read_all(repo), xr.concat([days(0, 4), days(8, 4)], "time"))
    modes = {row.mode for row in read_ledger(repo.readonly_session("main"), "")}
    assert modes == ({"native"} if mode == "native" else {"virtual"}), files


def test_compressed_zip_members_are_copied(tmp_path: Path) -> None:
    file = zipped(tmp_path, 1, compression=zipfile.ZIP_DEFLATED)
    repo = new_repo(tmp_path)

    report = run(repo, file, mode="hybrid")

    xr.testing.assert_equal(read_all(repo), days(4, 4))
    assert any("compressed or encrypted by zip" in finding.text for finding in report.findings)
    (tmp_path / "empty.zip").write_bytes(b"PK\x05\x06" + bytes(18))
    with pytest.raises(InvalidInputError, match="a zip file without a Zarr store"):
        run(new_repo(tmp_path), tmp_path / "empty.zip")


def moved(tmp_path: Path, mode: str) -> tuple[Any, list[str], list[str]]:
    """A repository, the names under which it got its files, and those that they have now."""
    old = [write(tmp_path / "old" / f"{n}.nc", days(2 * n, 2), CHUNKED) for n in range(3)]
    repo = new_repo(tmp_path)
    run(repo, old[:2], mode=mode)
    shutil.move(tmp_path / "old", tmp_path / "new")
    return repo, old, [file.replace("/old/", "/new/") for file in old]


def test_moved_archive_is_recognized(tmp_path: Path) -> None:
    repo, old, new = moved(tmp_path, "native")
    before = repo.lookup_branch("main")

    nothing = run(repo, new[:2])
    more = run(repo, tmp_path / "new")

    assert [(each.source.url, each.was) for each in nothing.outcome.renamed] == [
        (new[0], old[0]),
        (new[1], old[1]),
    ]
    assert nothing.published is None
    assert more.to_dict()["ingested"] == new[2:]
    assert_same(read(repo), expected(new))
    assert before in [each.id for each in repo.ancestry(branch="main")]
    rows = read_ledger(repo.readonly_session("main"), "")
    assert [row.source for row in rows] == [*old[:2], new[2]]


@pytest.mark.parametrize("mode", ["virtual", "hybrid"])
def test_references_follow_a_moved_archive(tmp_path: Path, mode: str) -> None:
    repo, old, new = moved(tmp_path, mode)

    report = run(repo, tmp_path / "new", mode=mode)
    again = run(repo, tmp_path / "new", mode=mode)

    assert [each.was for each in report.outcome.renamed] == old[:2]
    assert_same(read_all(repo), expected(new))
    assert {row.source for row in read_ledger(repo.readonly_session("main"), "")} == set(new)
    assert again.published is None
    assert not again.outcome.renamed


def test_copies_of_ingested_files_are_recognized(tmp_path: Path) -> None:
    old = [write(tmp_path / "old" / f"{n}.nc", days(2 * n, 2), CHUNKED) for n in range(2)]
    repo = new_repo(tmp_path)
    run(repo, old, mode="virtual")
    shutil.copytree(tmp_path / "old", tmp_path / "copy")

    report = run(repo, [tmp_path / "old", tmp_path / "copy"], mode="virtual")

    assert report.published is None
    assert len(report.outcome.renamed) == 2


def test_file_with_equal_metadata_and_other_labels_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size, modification time, and both ends are equal; the labels differ."""
    monkeypatch.setattr(inspect_file, "_SAMPLE_BYTES", 4)
    for first in (0, 2):
        dataset = xr.zeros_like(days(first, 2)).drop_vars(["lat", "lon"])
        dataset.to_netcdf(tmp_path / f"{first}.nc", format="NETCDF3_CLASSIC")
    shutil.copystat(tmp_path / "0.nc", tmp_path / "2.nc")
    repo = new_repo(tmp_path)
    run(repo, tmp_path / "0.nc")

    report = run(repo, tmp_path / "2.nc")

    assert not report.outcome.renamed
    assert read(repo).sizes["time"] == 4
    assert len({row.content_id for row in read_ledger(repo.readonly_session("main"), "")}) == 1


def test_many_small_chunks_are_reported(tmp_path: Path) -> None:
    store = zarr.create_group(tmp_path / "s.zarr")
    store.create_array("v", shape=1000, dtype="i8", chunks=(1,), dimension_names=["x"])[5] = 5
    repo = new_repo(tmp_path)

    report = run(repo, tmp_path / "s.zarr", mode="hybrid", checks=())

    assert [str(finding) for finding in report.findings] == [
        "v: is 1,000 chunks of 8 B, which are slow to read; icefloe.spark.rechunk creates larger chunks"
    ]


def test_sources_in_many_folders_share_one_container(tmp_path: Path) -> None:
    for number in range(9):
        write(tmp_path / "files" / f"{number:02}" / "a.nc", days(number, 1), CHUNKED)
    repo = new_repo(tmp_path)

    run(repo, tmp_path / "files/00", mode="virtual")
    run(repo, tmp_path / "files", mode="virtual")

    folder = (tmp_path / "files").resolve()
    config = Repository.open(repo.storage).config
    assert set(config.virtual_chunk_containers or {}) == {f"{folder.as_uri()}/00/", f"{folder.as_uri()}/"}
    assert read_all(repo).sizes["time"] == 9
