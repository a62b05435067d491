"""The `icefloe` command: its options, its errors, and where each subcommand is."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Sequence
from typing import Any

import click

from icefloe._version import __version__
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ErrorKind,
    IcechunkError,
    InvalidInputError,
    NotFoundError,
)

FAILED = 1
USAGE = 2
NOT_FOUND = 3
CONFLICT = 4
NOT_WELL = 5
"""A check found something wrong: `verify`, `doctor`."""

_COMMANDS = {
    "init": "places",
    "ingest": "ingest",
    "run": "ingest",
    "rechunk": "rechunk",
    "info": "places",
    "config": "places",
    "status": "places",
    "doctor": "places",
    "log": "history",
    "show": "history",
    "diff": "history",
    "refs": "history",
    "ops": "history",
    "branch": "refs",
    "tag": "refs",
    "merge": "branching",
    "cherry-pick": "branching",
    "revert": "branching",
    "squash": "branching",
    "tree": "contents",
    "head": "contents",
    "cat": "contents",
    "plot": "plot",
    "virtualize": "virtualize",
    "sql": "sql",
    "verify": "checks",
    "checksums": "checks",
    "repair": "checks",
    "gc": "upkeep",
    "expire": "upkeep",
    "stats": "upkeep",
    "rewrite-manifests": "upkeep",
    "migrate": "migrate",
    "clone": "copies",
    "export": "copies",
}
"""Each command and its module, which is loaded when the command is."""


def commands() -> tuple[str, ...]:
    """The names of all commands, in the order of the help."""
    return tuple(_COMMANDS)


def _docstrings(module: str) -> dict[str, str]:
    """What the commands of a module say they do, from its source: loading all of them takes far longer."""
    import ast
    from importlib.abc import InspectLoader

    spec = importlib.util.find_spec(f"icefloe.cli.{module}")
    loader = spec.loader if spec is not None else None
    source = loader.get_source(spec.name) if spec and isinstance(loader, InspectLoader) else None
    functions = [each for each in ast.parse(source or "").body if isinstance(each, ast.FunctionDef)]
    return {each.name: text for each in functions if (text := ast.get_docstring(each)) is not None}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        module = importlib.import_module(f"icefloe.cli.{_COMMANDS[name]}")
        command: click.Command = getattr(module, name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        told = {module: _docstrings(module) for module in set(_COMMANDS.values())}
        texts = {name: told[module].get(name.replace("-", "_")) for name, module in _COMMANDS.items()}
        if None in texts.values():  # no source to read
            super().format_commands(ctx, formatter)
            return
        room = formatter.width - 6 - max(map(len, texts))
        commands = [click.Command(name, help=text) for name, text in texts.items()]
        with formatter.section("Commands"):
            formatter.write_dl([(each.name or "", each.get_short_help_str(room)) for each in commands])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], _COMMANDS, n=1)
            hint = f"; did you mean {near[0]}?" if near else "; `icefloe --help` lists them"
            raise click.UsageError(f"no command {args[0]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)


@click.command(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 conflict, 5 a check found something.",
)
@click.version_option(__version__, prog_name="icefloe")
@click.option("--debug", is_flag=True, help="Show where in the program an error came from.")
@click.pass_context
def icefloe(ctx: click.Context, debug: bool) -> None:
    """Version-controlled Zarr arrays on folders and object stores.

    REPO is a path or URL: data/repo, s3://bucket/prefix, gs://..., az://..., https://...
    Options of the storage follow with -o, as in -o region=eu-west-1 or -o endpoint_url=http://localhost:9000.
    """
    ctx.obj = debug


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        result: Any = icefloe.main(words, prog_name="icefloe", standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("stopped", err=True)
        return FAILED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except Exception as error:
        if "--debug" in words:
            raise
        sentence, code = explained(error)
        click.echo(f"error: {sentence}", err=True)
        return code
    return result if isinstance(result, int) else 0


def explained(error: Exception) -> tuple[str, int]:
    """What people are told of an error, and the exit code."""
    if isinstance(error, IcechunkError):
        return _sentence(error), _exit_code(error)
    if isinstance(error, OSError):
        return f"{error.strerror or error}: {error.filename or ''}".rstrip(": "), FAILED
    if isinstance(error, ImportError):  # what is not installed says itself how to get it
        return str(error), FAILED
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text} (--debug shows where it came from)", FAILED


def _sentence(error: IcechunkError) -> str:
    text = str(error)
    return f"{text} ({error.kind})" if error.kind and not re.search(rf"\b{error.kind}\b", text) else text


def _exit_code(error: IcechunkError) -> int:
    if isinstance(error, NotFoundError):
        return NOT_FOUND
    if isinstance(error, ConflictError | AlreadyExistsError):
        return CONFLICT
    wrong = isinstance(error, InvalidInputError) or error.kind == ErrorKind.CANNOT_PARSE_URL
    return USAGE if wrong else FAILED


def run() -> None:
    """The entry point of the installed command."""
    sys.exit(main())
