"""Invalid arguments: one helpful sentence, the right exit code, and never a traceback."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

import icefloe
from icefloe.cli import main as app
from icefloe.cli.errors import FAILED, FINDINGS, STOPPED, explain
from tests.support.ingest.files import archive

NONE = ("--executor", "threads")
EVERY = (
    *(
        f"{name} REPO"
        for name in ("info", "config", "status", "log", "show", "refs", "ops", "tree", "storage")
    ),
    "log REPO --graph",
    "diff REPO main~1 -r main",
    "diff REPO main main~1 --values",
    "blame REPO temperature",
    "bisect REPO temperature --when max>0",
    "append FILE FEED",
    "window FEED --keep 1d",
    "derive DERIVED --executor threads",
    "lineage REPO double",
    "branch REPO",
    "tag REPO",
    "branch create REPO new",
    "branch reset REPO --branch new -r main~1",
    "merge REPO main --branch new --dry-run",
    "merge REPO main --branch new",
    "revert REPO new --branch new",
    "cherry-pick REPO main --branch new",
    "squash REPO main~1 --branch new --dry-run",
    "tag create REPO v1",
    "tag delete REPO v1",
    "protect REPO --branch new",
    "protect REPO --branch new --remove",
    "branch delete REPO new",
    "statistics REPO --executor threads",
    "describe REPO temperature",
    "extract REPO temperature --points POINTS",
    "head REPO temperature",
    "cat REPO temperature 0",
    "plot REPO temperature",
    "verify REPO",
    "verify REPO --dry-run",
    "checksums record REPO",
    "repair REPO --dry-run",
    "gc REPO --older-than 7d",
    "gc REPO --older-than 7d --dry-run --table",
    "expire REPO --older-than 7d",
    "expire REPO --keep-last 5 --dry-run",
    "storage REPO --by snapshot",
    "storage REPO --if-older-than 7d",
    "rewrite-manifests REPO --dry-run",
    "migrate OLD --dry-run",
    "migrate OLD",
    "clone REPO COPY",
    "export REPO PLAIN",
    "init NEW",
    "doctor",
    "doctor NEW",
    "inspect-file FILE",
    "ingest DATA NEW --executor threads --dry-run",
    "ingest DATA NEW --executor threads",
    "rechunk NEW t2m --chunks time=2 --executor threads",
    "ingest --recipe RECIPE --dry-run",
)
"""Every command with valid arguments."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a file, a folder and an archive, none of which invalid commands change."""
    folder = tmp_path_factory.mktemp("typed")
    (folder / "FILE").write_text("no folder")
    (folder / "FILES").mkdir()
    (folder / "FILES" / "something").write_text("else")
    (folder / "empty").mkdir()
    archive(folder / "data", (2, 2))
    return folder


@pytest.fixture(scope="module")
def place(folder: Path) -> str:
    """Create a repository with one array."""
    place = str(folder / "repo")
    repo = icefloe.Repository.create(icefloe.storage_from_url(place, sync=False))
    with repo.transaction("main", message="array") as store:
        zarr.create_array(store, name="temperature", data=np.arange(12).reshape(3, 4))
    return place


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["cat", "REPO", "temperatur"], 3, "there is no array /temperatur; did you mean /temperature?"),
        (["head", "REPO", "xyz"], 3, "there is no array /xyz; `icefloe tree` lists all groups and arrays"),
        (["head", "REPO", "/"], 2, "not an array: / is a group"),
        (["cat", "REPO", "temperature", "9"], 2, "index 9 is out of bounds for dimension 0 with size 3"),
        (["cat", "REPO", "temperature", "1:x"], 2, "'1:x' is not a region"),
        (["cat", "REPO", "temperature", "-9"], 2, "index -9 is out of bounds for dimension 0"),
        (["cat", "REPO", "temperature", "0:2:0"], 2, "the step 0 of dimension 0 must be at least 1"),
        (["cat", "REPO", "temperature", "0,0,0"], 2, "has 3 dimensions, but the array has 2"),
        (["branch", "create", "REPO", "a b/.."], 2, "'a b/..' is not a valid name for a branch or tag"),
        (["branch", "create", "REPO", ""], 2, "'' is not a valid name"),
        (["tag", "create", "REPO", "main@7d"], 2, "'main@7d' is not a valid name"),
        (["branch", "crate", "REPO", "x"], 2, "Did you mean 'create'?"),
        (["branch", "delete", "REPO", "x"], 3, "there is no branch `x`"),
        (["log", "REPO", "-r", "main~9"], 3, "main has fewer than 9 commits before it"),
        (["log", "REPO", "-r", "main@soon"], 2, "'soon' is not a time: expected 2024-05-01"),
        (["log", "REPO", "-n", "none"], 2, "'none' is not a valid integer"),
        (["diff", "REPO", "main", "nothing"], 3, "no branch, tag or snapshot nothing"),
        (["status", "REPO", "--reason", "why"], 2, "--reason requires --set"),
        (["doctor", "storag", "REPO"], 2, "Did you mean 'storage'?"),
        (["plot", "REPO", "temperature", "--isel", "x=0"], 2, "has no dimension 'x'; it has 0, 1"),
        (
            ["export", "REPO", "map.tiff"],
            2,
            "unsupported format; export to Zarr, NetCDF (.nc), Parquet (.parquet) or Iceberg",
        ),
        (["export", "REPO", "FILE.zarr/x", "--group", "no"], 3, "there is no group /no"),
        (["sql", "REPO", "SELECT 1"], 2, "expected NAME=REPO"),
        (["sql", "SELECT 1"], 2, "NAME=REPO"),
        (["inspect-file", "FILE.nc"], 3, "the file does not exist"),
        (
            ["rechunk", "REPO", "temperature", "--chunks", "0=0", *NONE],
            2,
            "chunks along 0 must be positive, or -1 for all cells, not 0",
        ),
        (["rechunk", "REPO", "temperature", *NONE], 2, "give --chunks, --shards or --codec"),
        (["rechunk", "REPO", "nothing", "--chunks", "0=2", *NONE], 3, "no array or group at `/nothing`"),
        (["log", "REPO", "-o", "sync"], 2, "'sync' is not NAME=VALUE"),
        (["log", "REPO", "-o", "colour=red"], 2, "unknown storage option 'colour'"),
        (["init", "FILES"], 2, "a repository requires an empty location"),
        (["log", "FILES"], 3, "`icefloe init` creates one"),
        (["tree", "REPO", "-r", "mian"], 3, "no branch, tag or snapshot mian; did you mean main?"),
        (
            ["log", "REPO", "-r", "zzz"],
            3,
            "no branch, tag or snapshot zzz; `icefloe refs` lists all branches and tags",
        ),
        (["log", "REPO", "--grpah"], 2, "--grpah"),
        (["lgo", "REPO"], 2, "did you mean log?"),
        (["log", "FILE"], 3, "FILE is a file, but a repository is a folder"),
        (["log", "ftp://host/path"], 2, "unsupported URL scheme ftp://"),
        (["log", "s3://"], 2, "has no bucket"),
        (["log", "s3://bucket/a#b"], 2, "write # as %23 in a URL, as in a%23b"),
        (["export", "REPO", "", "--overwrite"], 2, "the location is empty; use . for this folder"),
        (["ingest", "", "REPO", *NONE], 2, "a source has an empty name"),
        (["tree", "REPO", "temperatur"], 3, "there is no group or array /temperatur; did you mean /temper"),
        (["storage", "REPO", "-r", "main"], 2, "-r requires --by array"),
        (["expire", "REPO", "--keep-on", "dev:last=3"], 2, "rules for branch dev, which does not exist"),
        (
            ["rechunk", "REPO", "temperature", "--codec", "none", "--metadata", "x"],
            2,
            "for '--metadata': 'x'",
        ),
        (["log", "REPO/nothing"], 3, "the repository doesn't exist"),
        (["init", "REPO"], 4, "a repository already exists at this location"),
        (["init", "FILE/repo"], 1, "FILE"),
        (["init", "/proc/no/such"], 1, "/proc/no"),
    ],
)
def test_invalid_arguments_are_reported(
    words: list[str], code: int, sentence: str, place: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = app.main([each.replace("REPO", place).replace("FILE", str(folder / "FILE")) for each in words])

    printed = capsys.readouterr()
    assert sentence in printed.err
    assert "Traceback" not in printed.err
    assert found == code


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["--chunks", "time=0"], 2, "chunks along time must be positive, or -1 for all cells, not 0"),
        (["--chunks", "time=abc"], 2, "'time=abc' is not DIM=SIZE,DIM=SIZE"),
        (["--chunks", "time"], 2, "'time' is not DIM=SIZE,DIM=SIZE"),
        (["--chunks", "time=1,time=2"], 2, "names a dimension twice"),
        (["--chunks", "foo=3"], 2, "'foo', which is not a dimension; dimensions are time, lat, lon"),
        (["--chunks", "time=999999999999"], 2, "more than codecs accept; choose smaller chunks"),
        (["--chunks", "time=4", "--shards", "time=6"], 2, "must consist of whole chunks"),
        (["--codec", "zstd:best"], 2, "codec 'zstd:best': the level must be a number"),
        (["--codec", "lzma"], 2, "unknown codec 'lzma'; choose zstd, zstd:LEVEL"),
        (["--variables", "t3m"], 2, "no file has the variable 't3m'; did you mean t2m?"),
        (["--group", "../x"], 2, "contains . or .."),
        (["--group", "_icefloe/x"], 2, "is reserved for the ledger"),
        (["--branch", "side"], 3, "there is no branch `side`"),
        (["--virtual", "--chunks", "time=2"], 2, "--virtual keeps the chunks and codecs of the files"),
        (["--virtual", "--codec", "zstd:3"], 2, "--virtual keeps the chunks and codecs of the files"),
        (["--virtual", "--native"], 2, "--native and --virtual cannot be combined"),
        (["--hybrid", "--virtual"], 2, "--virtual and --hybrid cannot be combined"),
        (["--combine", "nested"], 2, "--combine nested requires --concat-dim"),
        (["--checks", "monoton"], 2, "'monoton' is not one of monotone, source, gaps or none"),
        (["--metadata", "x"], 2, "'x' is not NAME=VALUE"),
        (["--memory", "0"], 2, "0 is not in the range"),
        (["--manifest-references", "0"], 2, "0 is not in the range"),
        (["--chnks", "time=1"], 2, "'--chunks'?"),
        (
            ["--engine", "nosuch"],
            2,
            ".nc and 1 more: xarray has no engine 'nosuch': installed engines are cfgrib",
        ),
    ],
)
def test_invalid_ingest_writes_nothing(
    words: list[str], code: int, sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An existing repository does not change, and a new one is not created."""
    there, new = folder / "there", folder / "new"
    if not there.exists():
        icefloe.Repository.create(icefloe.storage_from_url(str(there), sync=False))

    for place in (there, new):
        assert app.main(["ingest", str(folder / "data"), str(place), *NONE, *words]) == code
        assert sentence in capsys.readouterr().err
    repo = icefloe.Repository.open(icefloe.storage_from_url(str(there)))
    assert repo.list_branches() == {"main"}
    assert len(list(repo.ancestry(branch="main"))) == 1
    assert not new.exists()


@pytest.mark.parametrize(
    ("words", "checks"), [([], ["monotone", "source"]), (["--checks", "source"], ["source"])]
)
def test_repeated_times_in_one_file_are_ingested(
    words: list[str], checks: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A radar sends several rays per second."""
    file, place = tmp_path / "rays.nc", str(tmp_path / "repo")
    times = np.array([8, 8, 9], "M8[s]").astype("M8[ns]")
    xr.Dataset({"a": ("time", [1.0, 2.0, 3.0])}, {"time": times}).to_netcdf(file)

    assert app.main(["ingest", str(file), place, *NONE, *words]) == 0

    assert re.findall(r"^check (\w+): passed", "\n".join(capsys.readouterr()), re.MULTILINE) == checks
    repo = icefloe.Repository.open(icefloe.storage_from_url(place))
    assert xr.open_zarr(repo.readonly_session("main").store, consolidated=False)["a"].size == 3


@pytest.mark.parametrize("sources", ["none/*.nc", "nosuch.nc", "empty", "FILE"])
def test_no_repository_is_created_for_missing_sources(
    sources: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "repo"

    for words in ([], ["--virtual"], ["--on-bad-file", "skip"], ["--dry-run"]):
        code = app.main(["ingest", str(folder / sources), str(place), *NONE, *words])

        printed = capsys.readouterr()
        assert sources in printed.out + printed.err
        assert code == (1 if "nothing was ingested: none of the new files can be read" in printed.out else 2)
        assert not place.exists()


@pytest.mark.parametrize(
    ("words", "document"),
    [
        (
            ["cat", "REPO", "temperatur"],
            {
                "error": "there is no array /temperatur; did you mean /temperature?",
                "kind": "node-not-found",
                "exit_code": 3,
            },
        ),
        (["cat", "REPO"], {"error": "Missing argument 'PATH'.", "kind": None, "exit_code": 2}),
    ],
)
def test_errors_are_printed_as_json(
    words: list[str], document: dict[str, Any], place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """JSON errors go to stdout, and the message still goes to stderr."""
    code = app.main([each.replace("REPO", place) for each in (*words, "--json")])

    printed = capsys.readouterr()
    assert json.loads(printed.out) == document
    assert code == document["exit_code"]
    assert document["error"] in printed.err


def test_every_command_prints_one_json_document(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stdout contains one JSON document and nothing else."""
    words = {
        name: str(tmp_path / name)
        for name in ("REPO", "OLD", "COPY", "PLAIN", "NEW", "RECIPE", "DERIVED", "FEED", "POINTS")
    }
    words |= {"DATA": str(folder / "data"), "FILE": str(next((folder / "data").iterdir()))}
    for name, version in (("REPO", 2), ("OLD", 1)):
        storage = icefloe.storage_from_url(words[name], sync=False)
        repo = icefloe.Repository.create(storage, spec_version=version)
        with repo.transaction("main", message="array") as store:
            zarr.create_array(store, name="temperature", data=np.arange(12.0).reshape(3, 4))
    icefloe.Repository.create(icefloe.storage_from_url(words["FEED"], sync=False))
    recipe = f"sources: {words['DATA']}\nrepository: {words['NEW']}\nexecutor: threads\n"
    Path(words["RECIPE"]).write_text(recipe)
    Path(words["POINTS"]).write_text("dim_0,dim_1\n0,1\n")
    double = "{function: {expression: 't * 2'}, inputs: {t: temperature}}"
    Path(words["DERIVED"]).write_text(f"repository: {words['REPO']}\noutputs:\n  double: {double}\n")

    for line in EVERY:
        code = app.main([*(words.get(word, word) for word in line.split()), "--json"])

        printed = capsys.readouterr()
        assert code == 0, (line, printed.err)
        json.loads(printed.out)
    assert {line.split()[0] for line in EVERY} == set(app.commands()) - {
        "sql",
        "completion",
        "serve",
        "watch",
    }


def test_error_about_damage_suggests_verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repo = icefloe.Repository.create(icefloe.storage_from_url(str(tmp_path), sync=False))
    with repo.transaction("main", message="array") as store:
        zarr.create_array(store, name="temperature", data=np.arange(12))
    (manifest,) = (tmp_path / "manifests").iterdir()
    manifest.write_bytes(manifest.read_bytes()[:-8])

    assert app.main(["gc", str(tmp_path), "--older-than", "7d"]) == FAILED

    assert capsys.readouterr().err.endswith("; `icefloe verify` lists all damaged objects\n")
    assert app.main(["verify", str(tmp_path)]) == FINDINGS
    assert capsys.readouterr().out.startswith(
        "1 finding in 2 snapshots, 2 transaction logs, 1 manifest, 0 ref"
    )


def test_missing_packages_are_named(
    place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain(ModuleNotFoundError("No module named 'h5py.h5d'", name="h5py.h5d"))[0] == (
        "this needs h5py: pip install 'h5py>=3.13'"
    )
    monkeypatch.setitem(sys.modules, "icefloe.spark.session", None)  # as where it cannot be loaded

    assert app.main(["sql", f"w={place}", "SELECT 1"]) == FAILED

    assert capsys.readouterr().err == "error: this command requires Spark: pip install 'pyspark>=4.0'\n"


def test_ctrl_c_prints_no_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    def in_vain(*_: object, **__: object) -> None:
        try:
            interrupted()
        finally:
            raise OSError("the connection is closed")

    for attempt in (interrupted, in_vain):
        monkeypatch.setattr(icefloe.Repository, "open", attempt)

        assert app.main(["log", "anywhere"]) == STOPPED
        assert capsys.readouterr().err.split() == ["stopped"]


@pytest.mark.parametrize("where", [0, 1, 2])
def test_debug_option_is_accepted_at_any_position(where: int, tmp_path: Path) -> None:
    words = ["log", str(tmp_path)]

    with pytest.raises(icefloe.RepositoryNotFoundError):
        app.main([*words[:where], "--debug", *words[where:]])
