"""The `icefloe` command: global options, the list of commands, and error handling."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from icefloe._internal.streams import escape_streams
from icefloe._version import __version__
from icefloe.cli.errors import Stopped, find_interruption, report_error
from icefloe.cli.terminal import exit_now, exit_on_signals, run_with_streams

SECTIONS: Mapping[str, Mapping[str, str]] = {
    "Ingest": {
        "ingest": "ingest",
        "append": "feeds",
        "window": "feeds",
        "rechunk": "rechunk",
        "derive": "derive",
    },
    "Inspect": {
        "info": "repository",
        "tree": "contents",
        "head": "contents",
        "cat": "contents",
        "plot": "plot",
        "serve": "serve",
        "inspect-file": "inspect_file",
        "lineage": "derive",
    },
    "History and branches": {
        "log": "history",
        "show": "history",
        "diff": "history",
        "blame": "blame",
        "bisect": "blame",
        "refs": "refs",
        "ops": "history",
        "watch": "feeds",
        "branch": "refs",
        "tag": "refs",
        "protect": "refs",
        "merge": "merge",
        "cherry-pick": "merge",
        "revert": "merge",
        "squash": "merge",
    },
    "Tables": {
        "sql": "sql",
        "extract": "extract",
        "describe": "statistics",
        "statistics": "statistics",
    },
    "Maintenance": {
        "verify": "integrity",
        "checksums": "integrity",
        "repair": "integrity",
        "gc": "maintenance",
        "expire": "maintenance",
        "storage": "maintenance",
        "rewrite-manifests": "maintenance",
    },
    "Administration": {
        "init": "repository",
        "clone": "copies",
        "export": "copies",
        "migrate": "migrate",
        "config": "repository",
        "status": "repository",
        "doctor": "doctor",
        "completion": "completion",
    },
}
"""The commands in each help section, with their modules, which are imported on demand."""
_SHARED_LINES: Mapping[tuple[str, ...], str] = {
    ("append", "window"): "Append files to arrays, or drop the oldest rows.",
    ("head", "cat"): "Print values of an array: the first ones, or a region.",
    ("log", "show"): "List commits, newest first, or show one of them.",
    ("blame", "bisect"): "Find the commit that wrote a chunk or changed a value.",
    ("ops", "watch"): "List operations on the repository, or report new ones.",
    ("branch", "tag"): "List, create, delete and reset branches or tags.",
    ("cherry-pick", "revert"): "Apply or undo the changes of one commit on a branch.",
    ("verify", "repair"): "Check that all data is readable, or restore lost data.",
    ("gc", "expire"): "Delete unused objects, or expire old snapshots.",
    ("config", "status"): "Show the configuration, or whether REPO is writable.",
}
"""Commands that share a line in the help, so that it fits on one screen."""
_COMMANDS = {name: module for section in SECTIONS.values() for name, module in section.items()}


def commands() -> tuple[str, ...]:
    """Return the names of all commands, in help order."""
    return tuple(_COMMANDS)


def _docstrings(module: str) -> dict[str, str]:
    """Read the docstrings of a module's functions from its source, which is faster than importing it."""
    import ast
    from importlib.abc import InspectLoader

    spec = importlib.util.find_spec(f"icefloe.cli.commands.{module}")
    loader = spec.loader if spec is not None else None
    source = loader.get_source(spec.name) if spec and isinstance(loader, InspectLoader) else None
    functions = [each for each in ast.parse(source or "").body if isinstance(each, ast.FunctionDef)]
    return {each.name: text for each in functions if (text := ast.get_docstring(each)) is not None}


def _read_help_texts() -> dict[str, str | None]:
    """Map each command to its docstring, or to None if the source is not available."""
    found = {module: _docstrings(module) for module in set(_COMMANDS.values())}
    return {name: found[module].get(name.replace("-", "_")) for name, module in _COMMANDS.items()}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        module = importlib.import_module(f"icefloe.cli.commands.{_COMMANDS[name]}")
        command: click.Command = getattr(module, name.replace("-", "_"))
        return command

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by section without blank lines, so that the help fits on one screen."""
        texts = _read_help_texts()
        leaders = {names[0]: (", ".join(names), text) for names, text in _SHARED_LINES.items()}
        followers = {name for names in _SHARED_LINES for name in names[1:]}
        width = max(map(len, [*_COMMANDS, *(label for label, _ in leaders.values())]))
        for title, names in SECTIONS.items():
            formatter.write(f"{title}:\n" if title != next(iter(SECTIONS)) else f"\n{title}:\n")
            for name in names:
                if name in followers:
                    continue
                label, text = leaders.get(name, (name, texts[name]))
                short = click.Command(name, help=text).get_short_help_str(formatter.width - width - 4)
                formatter.write(f"  {label:<{width}}  {short}\n")

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        commands = [click.Command(name, help=text) for name, text in _read_help_texts().items()]
        return [
            CompletionItem(each.name, help=each.get_short_help_str())
            for each in commands
            if (each.name or "").startswith(incomplete)
        ]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], _COMMANDS, n=1)
            hint = f"; did you mean {near[0]}?" if near else "; `icefloe --help` lists the commands"
            raise click.UsageError(f"unknown command {args[0]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)


@click.command(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    options_metavar="[--debug] [--allow-module M] [-h]",
    subcommand_metavar="COMMAND REPO [ARGUMENTS]...",
    epilog="Exit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 conflict, 5 findings.",
)
@click.version_option(__version__, prog_name="icefloe")
@click.option("--debug", is_flag=True, help="Print the traceback of errors.")
@click.option(
    "--allow-module", multiple=True, help="Allow this module to be imported for checks of protected branches."
)
@click.pass_context
def icefloe(ctx: click.Context, debug: bool, allow_module: tuple[str, ...]) -> None:
    """Versioned Zarr arrays. REPO is a path or URL; set storage options with -o NAME=VALUE."""
    if allow_module:
        from icefloe.branch_checks import modules_allowed

        ctx.with_resource(modules_allowed(allow_module))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the `icefloe` command line and return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    with escape_streams():
        return _run(words)


def _run(words: list[str]) -> int:
    debug = "--debug" in words
    rest = [word for word in words if word != "--debug"]  # also allow the option after the command
    try:
        with warnings.catch_warnings():
            # zarr warns about codecs and data types that are not in its specification.
            warnings.filterwarnings("ignore", module=r"zarr\.")
            result: Any = icefloe.main(rest, prog_name="icefloe", standalone_mode=False)
    except click.exceptions.Abort as error:
        return report_error(Stopped(error.__cause__), as_json="--json" in words)
    except Exception as error:
        if (stopped := find_interruption(error)) is not None:
            return report_error(Stopped(stopped), as_json="--json" in words)
        if debug and not isinstance(error, click.ClickException):
            raise
        return report_error(error, as_json="--json" in words)
    return result if isinstance(result, int) else 0


def run() -> None:
    """Entry point of the installed `icefloe` command."""
    exit_on_signals()
    if "--debug" in sys.argv:
        sys.exit(run_with_streams(main))
    from icefloe._internal.concurrency import silence_asyncio

    silence_asyncio()
    exit_now(run_with_streams(main))
