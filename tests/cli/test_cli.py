"""The command line: output, effects and exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import zarr
from click.shell_completion import ShellComplete

import icefloe
from icefloe._internal.amounts import counted
from icefloe.cli import errors as faults
from icefloe.cli import main as app
from icefloe.cli.output import align_rows
from tests.support.terminal import Terminal


def test_help_lists_all_commands_without_loading_them(capsys: pytest.CaptureFixture[str]) -> None:
    context = click.Context(app.icefloe)
    commands = {name: app.icefloe.get_command(context, name) for name in app.icefloe.list_commands(context)}
    listing = (
        "from icefloe.cli.main import main; main(['--help']); import sys; assert 'numpy' not in sys.modules"
    )

    app.main(["--help"])

    lines = capsys.readouterr().out.splitlines()
    for name, command in commands.items():
        assert command is not None
        start = command.get_short_help_str(40).removesuffix("...")
        shared = any(name in names for names in app._SHARED_LINES)
        assert any(re.match(rf"  ([a-z-]+, )*{name}[, ]", line) for line in lines)
        assert shared or any(line.split()[:1] == [name] and start in line for line in lines)
    subprocess.run([sys.executable, "-c", listing], check=True, stdout=subprocess.DEVNULL)


def test_help_fits_on_one_screen_and_has_sections(capsys: pytest.CaptureFixture[str]) -> None:
    program = "from icefloe.cli.main import main; main(['--help'])"
    environment = {**os.environ, "COLUMNS": "80"}

    printed = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, capture_output=True
    )

    lines = printed.stdout.decode().splitlines()
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line.endswith(":") and not line.startswith(" ")] == [
        "Ingest:",
        "Inspect:",
        "History and branches:",
        "Tables:",
        "Maintenance:",
        "Administration:",
    ]
    assert [line for line in lines if line.endswith("...") and not line.startswith("Usage")] == []


def every_command(group: click.Group, path: str = "icefloe") -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its path, groups included."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from every_command(command, f"{path} {name}")


def test_every_command_and_option_has_help() -> None:
    for path, command in every_command(app.icefloe):
        assert (command.help or "").strip(), path
        for option in command.params:
            if isinstance(option, click.Option):
                text = option.help or ""
                assert text[:1].isupper() or text[:4] in ("zstd",), f"{path} {option.name}: {text!r}"
                assert text.endswith("."), f"{path} {option.name}: {text!r}"


def test_every_argument_is_documented() -> None:
    """The help of `icefloe` itself explains the arguments that all commands have."""
    common = {"REPO", "SHELL"}
    for path, command in every_command(app.icefloe):
        for argument in command.params:
            if isinstance(argument, click.Argument):
                name = (
                    (argument.metavar or argument.name or "")
                    .upper()
                    .removesuffix("...")
                    .strip("[]")
                    .partition("=")[0]
                )
                assert name in common or name in (command.help or ""), f"{path}: {name}"


def test_arguments_and_options_are_consistent() -> None:
    """The repository comes first, except in commands that bring data in. Options have one name."""
    for path, command in every_command(app.icefloe):
        names = [each.name for each in command.params if isinstance(each, click.Argument)]
        if "repo" in names and path not in ("icefloe ingest", "icefloe append"):
            assert names[0] == "repo", path
        assert not {"branch", "revision", "into", "onto"} & set(names), path
        for option in command.params:
            if option.name == "revision":
                assert option.opts == ["-r", "--revision"], path
            if option.name == "branch":
                assert (option.opts, option.default) == (["--branch"], "main"), path
            assert not {"--spark", "--master"} & set(option.opts), path


def test_log_imports_no_heavy_package(typed: Terminal) -> None:
    program = (
        "import sys; from icefloe.cli.main import main; code = main(['log', sys.argv[1]]); "
        "others = {'zarr', 'obstore', 'asyncio', 'importlib.resources', 'rich', 'icefloe.maintenance', "
        "'icefloe.session', 'icefloe.credentials', 'icefloe.legacy.codec', 'icefloe.core.workspace'}; "
        "print(code, others & set(sys.modules))"
    )

    done = subprocess.run(
        [sys.executable, "-c", program, typed.repo], check=True, capture_output=True, text=True
    )

    assert "correct t2m" in done.stdout
    assert done.stdout.splitlines()[-1] == "0 set()"


def test_init_creates_a_repository_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typed = Terminal(capsys, str(tmp_path / "new"))

    assert "created a repository" in typed("init")
    assert typed.json("info")["spec_version"] == 2
    typed("init", code=faults.CONFLICT)
    assert "exists at this location" in typed.errors


def test_init_creates_a_version_1_repository(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typed = Terminal(capsys, str(tmp_path / "new"))

    typed("init", "--spec-version", "1")

    assert typed.json("info")["spec_version"] == 1


def test_log_lists_commits_newest_first(typed: Terminal) -> None:
    lines = typed("log").splitlines()

    assert [line.strip().split("  ")[-1] for line in lines[1:]] == [
        "correct t2m",
        "add t2m",
        "Repository initialized",
    ]
    assert [each["message"] for each in typed.json("log", "-r", "v1")] == [
        "add t2m",
        "Repository initialized",
    ]
    assert len(typed.json("log", "-n", "1")) == 1
    assert typed.json("log", "-r", "v1")[0]["metadata"] == {"by": "me"}


def test_tables_in_files_are_aligned_and_not_folded() -> None:
    rows = [["name", "bytes"], ["温度", "5"], ["two\nlines", "1000"], ["x" * 300, "12"], ["e\u0301", "7"]]

    lines = list(align_rows(rows, [False, True]))

    assert lines[0] == f"name{' ' * 296}  bytes"
    assert lines[1] == f"温度{' ' * 296}      5"
    assert lines[2:4] == [f"two{' ' * 297}   1000", "lines"]
    assert lines[4] == f"{'x' * 300}     12"
    assert lines[5] == f"e\u0301{' ' * 299}      7"


def test_log_draws_a_graph(typed: Terminal) -> None:
    graph = typed("log", "--graph")

    assert "main" in graph
    assert "v1" in graph


def test_show_prints_the_changes_of_a_commit(typed: Terminal) -> None:
    text = typed("show", "-r", "v1")

    assert "add t2m" in text
    assert "by" in text
    assert "/air/t2m" in text
    assert typed.json("show", "-r", "v1")["changes"]["new_arrays"] == ["/air/t2m"]


def test_diff_compares_two_revisions(typed: Terminal) -> None:
    assert "[0, 0]" in typed("diff", "v1")
    assert typed.json("diff", "v1", "-r", "main")["updated_chunks"] == {"/air/t2m": [[0, 0]]}
    assert typed("diff", "main", "-r", "main").strip() == "no changes"


def test_diff_compares_versions_of_different_branches(typed: Terminal) -> None:
    assert typed.json("diff", "main", "v1")["updated_chunks"] == {"/air/t2m": [[0, 0]]}
    assert "[0, 0]" in typed("diff", "main", "-r", "v1")


def test_diff_compares_values(typed: Terminal) -> None:
    (found,) = typed.json("diff", "v1", "main", "--values")["values"].values()

    assert found["path"] == "/air/t2m"
    assert 0 < found["differing"] <= found["cells"]
    assert f"{found['differing']} of {found['cells']} cells differ by at most" in typed(
        "diff", "main", "v1", "--values"
    )


def test_refs_and_ops_are_listed(typed: Terminal) -> None:
    assert {(each["kind"], each["name"]) for each in typed.json("refs")} == {
        ("branch", "main"),
        ("tag", "v1"),
    }
    whats = [each["what"] for each in typed.json("ops")]
    assert whats[:3] == ["NewCommit", "TagCreated", "NewCommit"]
    assert typed.json("ops", "-n", "1")[0]["details"]["branch"] == "main"


def test_branches_are_created_reset_and_deleted(typed: Terminal) -> None:
    typed("branch create", "dev", "-r", "v1")
    assert [each["name"] for each in typed.json("branch list")] == ["dev", "main"]
    typed("branch reset", "--branch", "dev", "-r", "main")
    assert len(typed.json("log", "-r", "dev")) == 3
    typed("branch delete", "dev")
    assert [each["name"] for each in typed.json("branch list")] == ["main"]
    typed("branch delete", "main", code=faults.FAILED)
    assert "main" in typed.errors


def test_tags_are_created_and_deleted_forever(typed: Terminal) -> None:
    typed("tag create", "v2")
    assert [each["name"] for each in typed.json("tag list")] == ["v1", "v2"]
    typed("tag delete", "v2")
    typed("tag create", "v2", code=faults.CONFLICT)
    assert "cannot be used again" in typed.errors


def test_tree_shows_groups_and_arrays(typed: Terminal) -> None:
    assert typed("tree").splitlines() == [
        "/",
        "    air/",
        "        t2m (time: 3, x: 4) float32, chunks (1, 4)  K",
    ]
    assert [each["path"] for each in typed.json("tree", "/air")] == ["/air", "/air/t2m"]
    assert typed.json("tree")[2]["chunks"] == [1, 4]
    assert typed.json("tree")[2]["shards"] is None


def test_tree_shows_chunks_shards_and_irregular_grids(typed: Terminal, tmp_path: Path) -> None:
    repo = icefloe.Repository.open(icefloe.local_filesystem_storage(str(tmp_path / "repo")))
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="sharded", shape=(8, 8), chunks=(2, 4), shards=(4, 8), dtype="i2")
    zarr.create_array(session.store, name="scalar", shape=(), dtype="f8")
    grid = {
        "name": "rectilinear",
        "configuration": {"kind": "inline", "chunk_shapes": [[31, 28, [30, 2]], 4]},
    }
    document = json.loads(session._workspace.array("/sharded").user_data)
    document |= {"shape": [119, 8], "chunk_grid": grid, "codecs": [{"name": "bytes"}]}
    session._workspace.set_metadata("/months", json.dumps(document).encode())
    session.commit("grids")

    lines = [line.strip() for line in typed("tree").splitlines()]

    assert "sharded (8, 8) int16, chunks (2, 4), shards (4, 8)" in lines
    assert "scalar () float64" in lines
    assert "months (119, 8) int16, chunks (31+28+2x30, 4)" in lines
    (sharded,) = typed.json("tree", "sharded")
    assert (sharded["chunks"], sharded["shards"]) == ([2, 4], [4, 8])


def test_values_are_printed_at_a_revision(typed: Terminal) -> None:
    assert typed.json("cat", "/air/t2m", "0,1:3") == [-1, -1]
    assert typed.json("cat", "air/t2m", "0,1:3", "-r", "v1") == [1, 2]
    assert typed.json("head", "/air/t2m", "-n", "2")["values"] == [[-1, -1], [4, 5]]
    assert "[-1. -1. -1. -1.]" in typed("cat", "/air/t2m")


def test_revision_can_be_a_time_on_a_branch(typed: Terminal) -> None:
    first = typed.json("log")[1]

    assert typed.json("log", "-r", f"main@{first['written_at']}")[0]["id"] == first["id"]
    assert typed.json("log", "-r", f"snapshot:{first['id']}")[0]["id"] == first["id"]
    assert typed.json("log", "-r", "tag:v1")[0]["id"] == first["id"]
    assert len(typed.json("log", "-r", "branch:main")) == 3


def test_ambiguous_name_of_branch_and_tag_is_rejected(typed: Terminal) -> None:
    typed("branch create", "v1", "-r", "main")

    typed("log", "-r", "v1", code=faults.USAGE)

    assert "branch:v1 or tag:v1" in typed.errors


def test_default_revision_is_branch_main_even_if_a_tag_has_that_name(typed: Terminal, tmp_path: Path) -> None:
    tip = typed.json("log")[0]["id"]
    typed("tag create", "main", "-r", "main~1")

    assert typed.json("log")[0]["id"] == tip
    assert typed.json("show")["snapshot"]["id"] == tip
    assert "correct t2m" in typed("log", "--graph")
    assert typed.json("diff", "v1")["updated_chunks"]
    assert typed("tree")
    assert typed("head", "air/t2m")
    assert typed.json("cat", "air/t2m")[0][0] == -1
    assert typed("plot", "air/t2m")
    typed("branch create", "dev")
    typed("tag create", "v2")
    refs = {(each["kind"], each["name"]): each["snapshot"] for each in typed.json("refs")}
    assert refs["branch", "dev"] == refs["tag", "v2"] == refs["branch", "main"] == tip
    typed("export", str(tmp_path / "out.zarr"))
    assert zarr.open_array(tmp_path / "out.zarr", path="air/t2m", mode="r")[0, 0] == -1
    for command in ("info", "storage", "verify", "checksums record", "squash", "merge"):
        words = {"squash": ["v1"], "merge": ["dev"]}.get(command, [])
        typed(command, *words)


def test_array_names_are_completed_even_if_a_tag_is_called_main(typed: Terminal) -> None:
    typed("tag create", "main", "-r", "main~2")

    complete = ShellComplete(app.icefloe, {}, "icefloe", "_ICEFLOE_COMPLETE")
    found = [item.value for item in complete.get_completions(["cat", typed.repo], "air/")]

    assert found == ["air/t2m"]


def test_verify_exits_with_code_5_for_findings(typed: Terminal) -> None:
    assert typed("verify", "--level", "objects").startswith("ok: 3 snapshots")
    chunk = next(Path(typed.repo, "manifests").iterdir())
    chunk.unlink()

    assert "missing: manifests/" in typed("verify", code=faults.FINDINGS)
    assert typed.json("verify", code=faults.FINDINGS)["ok"] is False


def test_gc_after_expire_deletes_objects(typed: Terminal) -> None:
    typed("tag delete", "v1")
    assert len(typed.json("expire", "--older-than", "0s")["expired"]) == 1

    typed("gc", "--older-than", "0s", code=faults.USAGE)
    assert "--yes" in typed.errors
    counted = typed.json("gc", "--older-than", "0s", "--dry-run")
    assert (counted["dry_run"], counted["snapshots_deleted"]) == (True, 1)
    assert typed("gc", "--older-than", "0s", "--yes").startswith("deleted 1 snapshot, ")
    assert typed.json("verify", "--level", "objects")["ok"]


def test_storage_and_rewrite_manifests_commands_report_their_results(typed: Terminal) -> None:
    assert typed.json("storage")["inlined_bytes"] > 0
    assert "inlined" in typed("storage")
    assert typed.json("rewrite-manifests", "-m", "again")["manifests"] == 1
    assert typed.json("log")[0]["message"] == "again"


def test_status_config_and_info_are_printed(typed: Terminal) -> None:
    assert typed.json("status")["availability"] == "online"
    typed("status", "--set", "read-only", "--reason", "moving house")
    assert "moving house" in typed("status")
    typed("branch create", "dev", code=faults.FAILED)
    assert "moving house" in typed.errors
    typed("status", "--set", "online")
    assert typed.json("info")["tags"] == ["v1"]
    assert isinstance(typed.json("config"), dict)


def test_doctor_checks_a_storage_location(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typed = Terminal(capsys, str(tmp_path / "place"))

    assert typed.json("doctor storage")["safe"] is True


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["lgo", "x"], faults.USAGE, "did you mean log?"),
        (["log", "s4://bucket/x"], faults.USAGE, "s4://"),
        (["log", "x", "-o", "region"], faults.USAGE, "NAME=VALUE"),
        (["log", "x", "-o", "colour=red"], faults.USAGE, "colour"),
        (["expire", "x", "--older-than", "yesterday"], faults.USAGE, "yesterday"),
    ],
)
def test_invalid_arguments_are_reported(
    words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.main(words) == code
    assert said in capsys.readouterr().err


def test_missing_repository_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["log", str(tmp_path)]) == faults.NOT_FOUND
    assert "doesn't exist" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["log", "show", "tree"])
def test_unknown_revision_is_reported(typed: Terminal, command: str) -> None:
    typed(command, "-r", "v9", code=faults.NOT_FOUND)
    assert "v9" in typed.errors
    assert "Traceback" not in typed.errors


def test_unknown_array_is_reported(typed: Terminal) -> None:
    typed("cat", "/water", code=faults.NOT_FOUND)
    assert "/water" in typed.errors


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["lo"], {"log"}),
        (["log", "REPO", "-r", ""], {"main", "fix", "v1"}),
        (["diff", "REPO", "m"], {"main"}),
        (["branch", "delete", "REPO", ""], {"main", "fix"}),
        (["tag", "delete", "REPO", ""], {"v1"}),
        (["tree", "REPO", "-r", "f"], {"fix"}),
        (["cat", "REPO", "air"], {"air", "air/t2m"}),
        (["plot", "REPO", "-r", "no", "a"], set()),
        (["log", "nowhere", "-r", ""], set()),
        (["log", "REPO", "-o", "colour=red", "-r", ""], set()),
    ],
)
def test_shells_complete_names(typed: Terminal, words: list[str], found: set[str]) -> None:
    typed("branch create", "fix", "-r", "v1")
    *args, incomplete = [each.replace("REPO", typed.repo) for each in words]

    shell = ShellComplete(app.icefloe, {}, "icefloe", "_ICEFLOE_COMPLETE")

    assert {each.value for each in shell.get_completions(args, incomplete)} == found


def test_shells_complete_folders_for_repositories() -> None:
    shell = ShellComplete(app.icefloe, {}, "icefloe", "_ICEFLOE_COMPLETE")

    assert [each.type for each in shell.get_completions(["log"], "da")] == ["dir"]
    assert [each.type for each in shell.get_completions(["ingest"], "da")] == ["file"]


@pytest.mark.parametrize(
    ("number", "thing", "text"),
    [
        (1, "file", "1 file"),
        (0, "file", "0 files"),
        (2, "branch", "2 branches"),
        (3, "entry", "3 entries"),
        (2, "day", "2 days"),
    ],
)
def test_counts_use_singular_and_plural(number: int, thing: str, text: str) -> None:
    assert counted(number, thing) == text


def test_debug_prints_the_traceback(tmp_path: Path) -> None:
    with pytest.raises(icefloe.RepositoryNotFoundError):
        app.main(["--debug", "log", str(tmp_path)])
