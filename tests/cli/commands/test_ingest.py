"""The command ingest: repeated ingests, reports, and listings without the ledger."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import zarr

import icefloe
from icefloe.cli import main as app
from icefloe.cli.errors import FINDINGS
from tests.support.ingest.files import archive, days, write

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

NOWHERE = ("--executor", "spark:nowhere")
"""An invalid Spark master, so that starting Spark fails."""


@pytest.fixture(scope="module")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ingest an archive, and return its folder."""
    folder = tmp_path_factory.mktemp("again")
    archive(folder / "data", (2, 2))
    assert app.main(["ingest", str(folder / "data"), str(folder / "repo"), "--executor", "threads"]) == 0
    return folder


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """Run a command with --json, and return the parsed output."""
    capsys.readouterr()
    assert app.main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("sources", ["data", "data/*.nc", "list.txt"])
@pytest.mark.parametrize("more", [(), ("--dry-run",), ("--on-change", "ingest")])
def test_ingest_without_new_files_does_not_start_spark(
    ingested: Path, sources: str, more: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    (ingested / "list.txt").write_text("data/000.nc\ndata/001.nc\n")
    place = str(ingested / "repo")
    before = list(icefloe.open(place).ops_log())
    capsys.readouterr()

    assert app.main(["ingest", str(ingested / sources), place, *NOWHERE, *more]) == 0

    assert capsys.readouterr().out == "nothing new: 2 files ingested before\n"
    assert len(list(icefloe.open(place).ops_log())) == len(before)


def test_recipe_without_new_files_does_not_start_spark(
    ingested: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (ingested / "recipe.yaml").write_text("sources: data\nrepository: repo\nexecutor: spark:nowhere\n")
    report = printed(capsys, "ingest", "--recipe", str(ingested / "recipe.yaml"))

    assert [len(report["known"]), report["ingested"], report["published"]] == [2, [], None]


def test_changed_files_are_ingested_only_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files, place = archive(tmp_path / "data", (2, 2)), str(tmp_path / "repo")
    app.main(["ingest", str(tmp_path / "data"), place, "--executor", "threads"])
    write(Path(files[1]), days(2, 2).assign_attrs(title="corrected"))
    os.utime(files[1], ns=(10**18, 10**18))

    report = printed(capsys, "ingest", str(tmp_path / "data"), place, *NOWHERE)
    assert [report["changed"], report["ingested"]] == [[files[1]], []]

    taken = ["ingest", str(tmp_path / "data"), place, "--on-change", "ingest", "--executor", "threads"]
    assert app.main(taken) == 0
    assert "--on-change" not in capsys.readouterr().out


def test_mistakes_are_reported_before_spark_starts(
    ingested: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(ingested / "repo")
    for words, sentence in (
        (["rechunk", place, "t3m", "--chunks", "time=2", *NOWHERE], "t3m"),
        (["rechunk", place, "t2m", "--chunks", "tim=2", *NOWHERE], "tim"),
        (["ingest", str(ingested / "data"), place, "--branch", "man", *NOWHERE], "man"),
        (["ingest", str(ingested / "nothing*.nc"), place, *NOWHERE], "nothing"),
        (["ingest", str(ingested / "data"), str(ingested / "data/000.nc"), *NOWHERE], "pass REPO after the"),
        (["sql", f"r={ingested}", "SELECT 1", *NOWHERE], "icefloe init"),
    ):
        assert app.main(words) in (2, 3), words
        told = capsys.readouterr().err
        assert sentence in told
        assert "nowhere" not in told


def test_rechunk_to_existing_chunks_does_not_start_spark(
    ingested: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = printed(capsys, "rechunk", str(ingested / "repo"), "t2m", "--chunks", "time=4", *NOWHERE)

    assert report["unchanged"] == ["/t2m"]


@pytest.mark.parametrize(
    "words",
    [["tree", "REPO"], ["show", "REPO"], ["diff", "REPO", "main~1"], ["storage", "REPO", "--by", "array"]],
)
def test_ledger_is_listed_on_request(
    ingested: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(ingested / "repo") if word == "REPO" else word for word in words]

    some, every = printed(capsys, *given), printed(capsys, *given, "--all")

    assert "/t2m" in json.dumps(some)
    assert "/_icefloe/ledger" not in json.dumps(some)
    assert "/t2m" in json.dumps(every)
    assert "/_icefloe/ledger" in json.dumps(every)


@pytest.mark.parametrize("words", [["tree", "REPO"], ["show", "REPO"], ["diff", "REPO", "main~1"]])
def test_commit_keys_are_listed_on_request(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    session = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path))).writable_session(
        "main"
    )
    zarr.create_array(session.store, name="t2m", shape=(1,), dtype="i4")
    session.commit_once("a job", key=icefloe.CommitKey("nightly", "1"))
    given = [str(tmp_path) if word == "REPO" else word for word in words]

    some, every = printed(capsys, *given), printed(capsys, *given, "--all")

    assert "/t2m" in json.dumps(some)
    assert "/_icefloe" not in json.dumps(some)
    assert "/_icefloe/keys/nightly" in json.dumps(every)


@pytest.mark.parametrize("mode", ["--virtual", "--hybrid"])
def test_ingest_exits_with_code_5_if_referenced_files_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    files = archive(tmp_path / "data", (2, 2, 2))
    words = ["ingest", str(tmp_path / "data"), str(tmp_path / "repo"), "--executor", "threads", mode]
    assert app.main(words) == 0
    for number in (0, 2):
        write(Path(files[number]), days(2 * number, 2) * 2)

    for more in ([], ["--dry-run"]):
        assert app.main([*words, *more]) == FINDINGS
        out = capsys.readouterr().out
        for number in (0, 2):
            assert (
                f"{files[number]}: changed since it was ingested; virtual references to it cannot be read"
                in out
            )
        assert files[1] not in out
        assert "--on-change ingest updates the references to 2 changed files" in out
    write(tmp_path / "data" / "new.nc", days(6, 2))
    capsys.readouterr()
    assert app.main([*words, "--json"]) == FINDINGS
    report = json.loads(capsys.readouterr().out)
    assert report["broken"] == report["changed"] == [files[0], files[2]]
    assert report["published"] is not None

    assert app.main([*words, "--on-change", "ingest"]) == 0
    assert app.main(words) == 0


@pytest.mark.parametrize("more", [[], ["--compat", "override"], ["--dry-run"]])
def test_missing_files_of_virtual_references_give_exit_code_5(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    """A file that was deleted is not among the sources of the run, nor is one outside its pattern."""
    files = archive(tmp_path / "data", (2, 2, 2))
    words = [str(tmp_path / "repo"), "--executor", "threads", "--virtual", "--json"]
    assert app.main(["ingest", str(tmp_path / "data"), *words]) == 0
    Path(files[0]).unlink()
    write(Path(files[1]), days(2, 2) * 2)
    capsys.readouterr()

    assert app.main(["ingest", files[2], *words, *more]) == FINDINGS
    report = json.loads(capsys.readouterr().out)

    assert (report["broken"], report["missing"]) == ([files[1], files[0]], [files[0]])


def test_missing_files_that_were_renamed_or_copied_are_not_an_error(tmp_path: Path) -> None:
    files = archive(tmp_path / "data", (2, 2))
    words = ["ingest", str(tmp_path / "data"), str(tmp_path / "repo"), "--executor", "threads", "--virtual"]
    assert app.main(words) == 0
    Path(files[0]).rename(tmp_path / "data" / "renamed.nc")
    assert app.main(words) == 0
    assert (
        app.main(["rechunk", words[2], "t2m", "--chunks", "time=4", *words[3:5], "--authorize", "all"]) == 0
    )
    Path(files[1]).unlink()

    assert app.main(words) == 0


def test_changed_files_that_were_copied_are_not_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = archive(tmp_path / "data", (2, 2))
    words = ["ingest", str(tmp_path / "data"), str(tmp_path / "repo"), "--executor", "threads"]
    assert app.main(words) == 0
    write(Path(files[0]), days(0, 2) * 2)

    assert app.main(words) == 0

    assert "changed since the last ingest: 1 file" in capsys.readouterr().out


def test_changed_file_that_is_skipped_as_bad_is_still_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = archive(tmp_path / "data", (2, 2))
    words = ["ingest", str(tmp_path / "data"), str(tmp_path / "repo"), "--executor", "threads", "--virtual"]
    assert app.main(words) == 0
    Path(files[0]).write_bytes(b"no NetCDF")

    assert app.main([*words, "--on-change", "ingest", "--on-bad-file", "skip"]) == FINDINGS

    assert f"{files[0]}: changed since it was ingested" in capsys.readouterr().out


def test_reads_of_deflated_netcdf_print_no_warnings(tmp_path: Path) -> None:
    file = write(tmp_path / "a.nc", days(0, 2), {"t2m": {"zlib": True, "chunksizes": (1, 5, 4)}})
    place = str(tmp_path / "repo")
    assert app.main(["ingest", file, place, "--virtual", "--executor", "threads"]) == 0

    commands = [[name, place, "t2m", "--authorize", "all"] for name in ("head", "cat", "plot")]
    program = "import json, sys; from icefloe.cli.main import main\n"
    program += "sys.exit(any([main(words) for words in json.loads(sys.argv[1])]))"
    words = json.dumps([*commands, ["tree", place]])
    done = subprocess.run([sys.executable, "-c", program, words], capture_output=True, text=True, check=True)

    assert "t2m (time: 2, lat: 5, lon: 4) float32" in done.stdout
    assert "0.125" in done.stdout
    assert done.stderr == ""


def test_ingest_report_is_written_as_html(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive(tmp_path / "data", (2, 2))
    (tmp_path / "data" / "<script>.nc").write_bytes(b"not a file")
    file = tmp_path / "report.html"
    words = ["ingest", str(tmp_path / "data"), str(tmp_path / "repo"), "--executor", "threads"]

    assert app.main([*words, "--on-bad-file", "skip", "--report", str(file)]) == 0

    page = file.read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert "✓ 2 files ingested" in page
    assert "Skipped files<span>(1)</span>" in page
    assert "&lt;script&gt;.nc" in page
    assert "<script" not in page
    assert "http:" not in page
    assert "https:" not in page
