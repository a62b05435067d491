"""The reference pages of the docs, made of the code: `python -m tests.support.reference` writes them anew."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from icefloe.cli.main import SECTIONS, icefloe
from tests.support.source_tree import ROOT

CLI_PAGE = ROOT / "docs" / "reference" / "cli.md"
API_PAGE = ROOT / "docs" / "reference" / "api.md"

_MODULES = {
    "icefloe": "Everything that `icechunk` has under the same name, and what is ours alone.",
    "icefloe.xarray": "Writing datasets.",
    "icefloe.dask": "Writing arrays of dask.",
    "icefloe.distributed": "Writing from many processes.",
    "icefloe.ingest": "Files into a repository, with any fan-out.",
    "icefloe.spark": "The same and more on Spark; needs the extra `spark`.",
}
_WITH_METHODS = ("Repository", "Session", "ForkSession", "IcechunkStore", "Storage", "Scan")
_EXIT_CODES = """\
| code | meaning |
| --- | --- |
| 0 | done |
| 1 | failed: the storage, a file, something unforeseen |
| 2 | wrong usage: an option, a region, a name that cannot be |
| 3 | not found: the repository, a ref, a snapshot, an array |
| 4 | conflict: somebody else was first, or it is there already |
| 5 | done, and a check found something wrong: `verify`, `doctor`, a check of an ingest |
| 130 | stopped by Ctrl-C |
| 129, 143 | stopped by SIGHUP (the terminal went away), SIGTERM (a scheduler) |
| 141 | whoever read the output went away, as `head` does |
"""
_COMPLETION = """\
```sh
icefloe completion bash >> ~/.bashrc
icefloe completion zsh >> ~/.zshrc
icefloe completion fish > ~/.config/fish/completions/icefloe.fish
```
"""


_CLI_INTRODUCTION = """\
# The command line

Made by `python -m tests.support.reference`; a test compares. `icefloe COMMAND --help` prints the same.

`REPO` is a path or a URL: `data/repo`, `s3://bucket/prefix`, `gs://...`, `az://...`, `https://...`; options
of the storage follow with `-o NAME=VALUE`. With `--json` a command prints one JSON document on standard
output and nothing else there, also of an error: `{"error": "...", "kind": "...", "exit_code": 3}`. Progress,
and the sentence of an error, go to standard error. Numbers that JSON lacks are texts as in Zarr (`"NaN"`,
`"-Infinity"`), times are ISO texts. Without it errors are one sentence; `--debug` shows where in the program
it came from.

The repository is the first argument of every command; only `icefloe ingest SOURCES... REPO` names the
sources before it. `--branch` is the branch that a command changes, `-r REVISION` the version that it reads,
and `--executor` where it runs: `spark[:MASTER]`, `processes[:N]` or `threads`.

A `REVISION` is a branch, a tag, a snapshot id or its beginning, a branch at a time (`main@2024-05-01`,
`main@7d`), or one of them with `~N` for N commits before it; `branch:NAME`, `tag:NAME` and `snapshot:ID`
leave no doubt.

What takes more than two seconds tells how far it is, how fast it goes and how long it will take: a bar on a
terminal, lines elsewhere. `NO_COLOR` and terminals that lack letters are heeded.
"""
_API_INTRODUCTION = """\
# The Python interface

Made by `python -m tests.support.reference`; a test compares. Each `..._async` method does the same as the
method of its name, for `await`. Arguments in brackets may be left out. Docstrings say more:
`help(icefloe.Repository.merge)`.
"""


def cli_page() -> str:
    """All commands, with their arguments and options."""
    parts = [
        _CLI_INTRODUCTION,
        "## Exit codes\n",
        _EXIT_CODES,
        "## Completion in shells\n",
        _COMPLETION,
    ]
    context = click.Context(icefloe, info_name="icefloe")
    for title, names in SECTIONS.items():
        parts.append(f"## {title}\n")
        for name in names:
            command = icefloe.get_command(context, name)
            assert command is not None
            parts += _described(command, f"icefloe {name}", "###")
    return "\n".join(parts).rstrip() + "\n"


def _described(command: click.Command, path: str, level: str) -> Iterator[str]:
    yield f"{level} {path}\n"
    context = click.Context(command, info_name=path)
    if not isinstance(command, click.Group):
        yield f"`{path} {' '.join(command.collect_usage_pieces(context))}`\n"
    yield _help(command)
    options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    if options:
        yield "| option | |\n| --- | --- |"
        yield from (_option(each) for each in options)
        yield ""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None:
                yield from _described(inner, f"{path} {name}", f"{level}#")


def _help(command: click.Command) -> str:
    """The text, with its examples as a block."""
    text = inspect.cleandoc(command.help or "")
    paragraphs = []
    for paragraph in text.split("\n\n"):
        if paragraph.startswith("\b\n"):
            paragraphs.append(f"```sh\n{paragraph.removeprefix(chr(8) + chr(10))}\n```")
        else:
            paragraphs.append(" ".join(paragraph.split()))
    return "\n\n".join(paragraphs) + "\n"


def _option(option: click.Option) -> str:
    names = ", ".join([*option.opts, *option.secondary_opts])
    value = "" if option.is_flag else f" {option.metavar or option.type.name.upper()}"
    if isinstance(option.type, click.Choice):
        value = f" {' or '.join(map(str, option.type.choices))}"
    shown = option.show_default if isinstance(option.show_default, str) else option.default
    default = f" Default: {shown}." if option.show_default and shown is not None else ""
    text = f"{option.help or ''}{default}".strip().replace("|", "\\|")
    return f"| `{names}{value}` | {text} |"


def api_page() -> str:
    """All public names with their arguments and first sentences."""
    parts = [_API_INTRODUCTION]
    for module_name, about in _MODULES.items():
        module = importlib.import_module(module_name)
        parts += [f"## {module_name}\n", f"{about}\n"]
        names = sorted(module.__all__, key=str.lower)
        found = {name: getattr(module, name) for name in names}
        rows = [_row(name, value) for name, value in found.items() if not name.startswith("__")]
        parts += ["| name | |\n| --- | --- |", *rows, ""]
        for name, value in found.items():
            if name in _WITH_METHODS and inspect.isclass(value) and value.__module__.startswith("icefloe"):
                parts += [f"### {module_name}.{name}\n", "| name | |\n| --- | --- |", *_methods(value), ""]
    return "\n".join(parts).rstrip() + "\n"


def _methods(kind: type) -> Iterator[str]:
    for name in sorted(dir(kind)):
        owner = next(each for each in kind.__mro__ if name in vars(each))
        if name.startswith("_") or name.endswith("_async") or not owner.__module__.startswith("icefloe"):
            continue  # what zarr's stores have differs by its version
        value = inspect.getattr_static(kind, name)
        if isinstance(value, property):
            yield f"| `{name}` | {_first_sentence(value)} |"
        elif callable(value) or isinstance(value, classmethod | staticmethod):
            yield _row(name, getattr(kind, name))


def _row(name: str, value: Any) -> str:
    return f"| `{name}{_arguments(value)}` | {_first_sentence(value)} |"


def _arguments(value: Any) -> str:
    """Names of arguments, with those that may be left out in brackets; nothing for what is no function."""
    if not (inspect.isfunction(value) or inspect.ismethod(value)):
        return ""
    names = []
    for each in inspect.signature(value).parameters.values():
        if each.name == "self":
            continue
        mark = "*" * ((each.kind is each.VAR_POSITIONAL) + 2 * (each.kind is each.VAR_KEYWORD))
        optional = each.default is not each.empty
        names.append(f"[{each.name}]" if optional else f"{mark}{each.name}")
    return f"({', '.join(names)})"


def _first_sentence(value: Any) -> str:
    own = value.__doc__ if isinstance(value, property) or callable(value) else ""
    text = inspect.cleandoc(own or "").split("\n\n")[0]
    sentence = " ".join(text.split())
    if sentence.startswith(("dict(", "int(", "str(", "Represent a", "partial(")):
        return ""
    return sentence.replace("|", "\\|")


def write(page: Path, text: str) -> None:
    """Put a page where it belongs."""
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(CLI_PAGE, cli_page())
    write(API_PAGE, api_page())
