"""A repository with hostile names: commands print no control characters and no forged lines."""

from __future__ import annotations

import io
import json
import re
import sys
import unicodedata
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import h5py
import numpy as np
import pytest
import zarr

import icefloe
from icefloe._internal.executor import ProcessExecutor, Task
from icefloe._internal.printable import escape_control, escape_control_in_json, escape_control_in_lines
from icefloe._internal.streams import SafeStream
from icefloe._internal.table import Table
from icefloe.ancestry_graph import GraphCommit
from icefloe.cli import main as app
from icefloe.cli.terminal import run_with_streams
from icefloe.conflicts import Conflict, ConflictType
from icefloe.ingest.ledger import LedgerRow, write_ledger
from icefloe.virtual import virtualize
from tests.support.cli_calls import CALLS, EVIL, NAME, commands

OUR_CODES = re.compile(r"\x1b\[(?:0|1|[34]8;[25];[0-9;]+|3[0-9]|4[0-9])m|\r\x1b\[2K")


class Screen(io.StringIO):
    """A terminal with colours that records its output."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        """Return True."""
        return True


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Create a hostile repository, hostile files and a recipe, and locations for results."""
    folder = tmp_path_factory.mktemp("hostile")
    file = folder / "f.h5"
    for number, path in enumerate((file, folder / "g.h5")):
        with h5py.File(path, "w") as written:
            time = written.create_dataset("time", data=np.arange(3.0) + number)
            time.make_scale("time")
            values = written.create_dataset(NAME.replace("/", ""), data=np.arange(3.0))
            values.dims[0].attach_scale(time)
            values.attrs["units"] = EVIL.replace("\0", "") + str(number)
    recipe = folder / "r.yaml"
    recipe.write_text(json.dumps({"sources": str(file), "repository": str(folder / "ran"), NAME: 1}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr about strings
        place = build(folder / "repo")
    new = str(folder / "new")
    return {
        "REPO": place,
        "FILE": str(file),
        "FILE2": str(folder / "g.h5"),
        "RECIPE": str(recipe),
        "NEW": new,
        "NEW.nc": f"{new}.nc",
        "PNG": str(folder / "p.png"),
    }


def build(folder: Path) -> str:
    """Write a repository in which every name and text is hostile."""
    config = icefloe.RepositoryConfig.default()
    store = icefloe.local_filesystem_store(str(folder))
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(f"file://{folder}/", store, name="evil"))
    storage = icefloe.storage_from_url(str(folder), sync=False)
    repo = icefloe.Repository.create(storage, config)
    repo.save_config()
    session = repo.writable_session("main")
    root = zarr.group(session.store, attributes={NAME: EVIL})
    root.create_array(
        NAME,
        data=np.arange(600.0).reshape(20, 30),
        chunks=(20, 30),
        dimension_names=[NAME, EVIL],
        attributes={"units": EVIL, "long_name": EVIL, "standard_name": EVIL, NAME: [EVIL]},
    )
    root.create_group(f"group{NAME}").create_array("inner", data=np.arange(3))
    root.create_array("strings", shape=2, chunks=(2,), dtype=str)[...] = np.array([EVIL, "b"], dtype=object)
    root.create_array("scalar", shape=(), dtype=str)[...] = EVIL
    root.create_array("virtual", shape=4, chunks=(4,), dtype="u1", compressors=None, filters=None)
    session.store.set_virtual_ref("virtual/c/0", f"file://{folder}/\x9b\u202e", offset=0, length=4)
    row = LedgerRow(
        f"/data/{EVIL}.nc", 3, 4, EVIL, json.dumps({NAME: [0, 1]}), json.dumps([NAME]), "b", "native"
    )
    write_ledger(session, "", [row], [])
    first = session.commit(EVIL, {NAME: EVIL, "more": [EVIL]})
    repo.create_branch(NAME, first)
    repo.create_tag(NAME, first)
    for number, branch in enumerate((NAME, "main", "main")):
        session = repo.writable_session(branch)
        zarr.open_array(session.store, path=NAME)[0] = 7 + number
        zarr.open_group(session.store).attrs[EVIL] = f"{number}{EVIL}"
        session.commit(f"{EVIL}{branch}")
    repo.set_metadata({NAME: EVIL})
    repo.set_status(icefloe.RepoStatus(icefloe.RepoAvailability.online, None, EVIL))
    large = max((folder / "chunks").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    large.unlink()  # so that verify and repair have something to say
    return str(folder)


def obeyed(text: str) -> list[str]:
    """Return the control characters in a text, except our own colours."""
    rest = OUR_CODES.sub("", text).replace("\n", "").replace("\t", "")
    return [each for each in rest if not each.isprintable() and unicodedata.category(each) != "Zs"]


def test_hostile_repository_tests_cover_all_commands() -> None:
    assert set(commands(app.icefloe)) == {*CALLS, "sql", "serve"}


@pytest.mark.parametrize("form", ["terminal", "pipe", "json"])
@pytest.mark.parametrize("command", CALLS)
@pytest.mark.filterwarnings("default")
def test_no_command_prints_control_characters(
    words: dict[str, str], command: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    for call in CALLS[command]:
        typed = [*command.split(), *(words.get(word, word) for word in call)]
        as_json = ["--json"] * (form == "json" and command != "completion")
        out, err = (Screen(), Screen()) if form == "terminal" else (io.StringIO(), io.StringIO())
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)

        app.main([*typed, *as_json])

        monkeypatch.undo()
        monkeypatch.setenv("TERM", "xterm-256color")
        for text in (out.getvalue(), err.getvalue()):
            assert obeyed(text) == [], (typed, text)
            assert not re.search(r"^FORGED", text, re.MULTILINE), (typed, text)
        assert out.getvalue() or err.getvalue()
        if as_json:
            json.loads(out.getvalue())


@pytest.mark.parametrize(
    "call",
    [
        *(["tree"], ["log"], ["show", "-r", "main~2"], ["refs"], ["ops"]),
        *(["cat", "strings"], ["cat", "scalar"], ["head", "strings"]),
    ],
    ids=" ".join,
)
def test_json_contains_the_original_text(
    words: dict[str, str], call: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.main([call[0], words["REPO"], *call[1:], "--json"]) == 0

    printed = capsys.readouterr().out
    assert obeyed(printed) == []
    assert any(EVIL in text or NAME in text for text in texts(json.loads(printed)))


def texts(value: Any) -> Iterator[str]:
    """Return all strings in a JSON document."""
    if isinstance(value, str):
        yield value
    for each in value if isinstance(value, list) else value.items() if isinstance(value, dict) else ():
        yield from texts(list(each) if isinstance(each, tuple) else each)


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_sql_prints_no_control_characters(words: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    for form in ([], ["--json"]):
        query = "SELECT * FROM r.snapshots"
        assert app.main(["sql", f"r={words['REPO']}", query, "--executor", "spark:local[1]", *form]) == 0
        printed = capsys.readouterr()
        assert obeyed(printed.out + printed.err) == []
        assert not re.search(r"^FORGED", printed.out, re.MULTILINE)


def test_output_of_libraries_is_escaped_in_commands(capsys: pytest.CaptureFixture[str]) -> None:
    def noisy() -> int:
        print(EVIL)  # noqa: T201 - as a library might
        sys.stdout.writelines([EVIL])
        sys.stderr.write(EVIL)
        click.secho(EVIL, fg="red", err=True)
        raise ValueError(EVIL)

    code = run_with_streams(noisy)

    printed = capsys.readouterr()
    assert code == 1
    assert "Traceback" in printed.err
    assert obeyed(printed.out + printed.err) == []


def _print_evil(_: int) -> bool:
    sys.stderr.write(EVIL)
    return isinstance(sys.stdout, SafeStream)


def test_output_of_worker_processes_is_escaped(capfd: pytest.CaptureFixture[str]) -> None:
    with ProcessExecutor(1) as executor:
        assert list(executor.map(Task(_print_evil, "lines"), [1, 2])) == [True, True]

    printed = capfd.readouterr().err
    assert "FORGED" in printed
    assert obeyed(printed) == []


def test_reprs_are_safe_for_terminals_and_notebooks(words: dict[str, str]) -> None:
    repo = icefloe.Repository.open(icefloe.storage_from_url(words["REPO"]))
    script = f"<script>{NAME}"
    session = repo.writable_session(NAME)
    values = [
        repo,
        repo.storage,
        repo.config,
        session,
        session.store,
        *repo.ancestry(branch="main"),
        *repo.ops_log(),
        repo.get_status(),
        repo.ancestry_graph(),
        repo.lookup_snapshot(session.snapshot_id),
        icefloe.Diff(new_arrays={script}, moved_nodes=[(script, script)], updated_chunks={script: [[0]]}),
        icefloe.SnapshotInfo("A" * 20, None, next(iter(repo.ancestry(branch="main"))).written_at, script, {}),
        icefloe.VirtualChunkContainer(
            f"s3://b/{script}/", icefloe.s3_store(endpoint_url=script), name=script
        ),
        icefloe.AncestryGraph.of([GraphCommit("A" * 20, None, 0, script, (script,), (script,))]),
        Conflict(ConflictType.ChunkDoubleUpdate, script, [[0]]),
        Table({script: [script]}),
        virtualize(words["FILE"]),
        repo.merge(NAME, "main", message="m", dry_run=True).conflicts,
        icefloe.InvalidInputError(f"{script} is wrong"),
        icefloe.storage_from_url(f"/tmp/{script}"),
    ]

    for value in values:
        shown = repr(value) + str(value)
        assert obeyed(shown) == [], value
        assert not re.search(r"^FORGED", shown, re.MULTILINE) or isinstance(value, Exception), shown
        for form in ("_repr_html_", "_repr_svg_"):
            rich = getattr(value, form, lambda: "")()
            assert obeyed(rich) == []
            assert "<script" not in rich


def test_escaping_keeps_ordinary_text() -> None:
    french, japanese, emoji = "10\u00a0000\u202fm", "気温\u3000全国", "❄ é ß ٣"

    for text in (french, japanese, emoji):
        assert escape_control(text) == escape_control_in_lines(text) == escape_control_in_json(text) == text
    assert escape_control("a\tb\nc\x07") == "a\\tb\\nc\\x07"
    assert escape_control_in_lines("a\tb\nc\x07\u2028") == "a\tb\nc\\x07\\u2028"
    assert escape_control_in_json('"\x7f\u202e\U000e0001\ud800"') == '"\\u007f\\u202e\\udb40\\udc01\\ud800"'
    assert json.loads(escape_control_in_json(json.dumps(EVIL, ensure_ascii=False))) == EVIL
