"""The page of the command line, generated from the commands."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from icefloe.cli.main import SECTIONS, icefloe

PATH = "reference/cli.md"
"""Path of the page below `docs/`."""

_INTRODUCTION = """\
# Command line

`icefloe COMMAND --help` prints the same text as this page.

## Arguments that all commands share

The first argument is usually the repository. Commands that add data take the sources first, as in
`icefloe ingest SOURCES... REPO`.

| argument | meaning |
| --- | --- |
| `REPO` | A path or a URL: `data/repo`, `s3://bucket/prefix`, `gs://...`, `az://...`, `https://...`. |
| `-o NAME=VALUE` | An option of the storage, such as `-o region=eu-west-1`. See [storage](../how-to/storage.md). |
| `--branch NAME` | The branch that the command changes. |
| `-r REVISION` | The version that the command reads. |
| `--executor WHERE` | Where the work runs: `spark[:MASTER]`, `processes[:N]` or `threads`. |
| `--json` | Print one JSON document instead of text. |
| `--debug` | Print the Python traceback of an error. |

## Revisions

| revision | selects |
| --- | --- |
| `main`, `v1.0` | a branch or a tag |
| `1CECHNKREP0F1RSTCMT0`, `1CECH` | a snapshot id, or the beginning of one |
| `main@2024-05-01`, `main@7d` | a branch at a given time, or seven days ago |
| `main~2` | two commits before `main` |
| `branch:NAME`, `tag:NAME`, `snapshot:ID` | a branch, tag or snapshot, even if a name is ambiguous |

## Output

Results go to standard output. Progress and errors go to standard error. An operation that takes longer than two
seconds shows its progress, speed and remaining time: as a bar on a terminal, otherwise as lines. Colours are off if
`NO_COLOR` is set.

With `--json`, standard output contains exactly one JSON document, even after an error:
`{"error": "...", "kind": "...", "exit_code": 3}`. [Error kinds](errors.md) lists the values of `kind`. Times are ISO 8601
strings; numbers that JSON cannot represent are strings, as in Zarr (`"NaN"`, `"-Infinity"`).

## Exit codes

| code | meaning |
| --- | --- |
| 0 | success |
| 1 | failure: storage, a file, or an unexpected error |
| 2 | wrong usage: an option, a region or a name |
| 3 | not found: the repository, a branch or tag, a snapshot, an array |
| 4 | conflict: somebody else was first, or the name is taken |
| 5 | the command finished, but a check failed: `verify`, `doctor`, or a check of an ingest |
| 130 | stopped by Ctrl-C |
| 129, 143 | stopped by SIGHUP (the terminal was closed) or SIGTERM (a scheduler) |
| 141 | the reader of the output closed it, as `head` does |

## Shell completion

```sh
icefloe completion bash >> ~/.bashrc
icefloe completion zsh >> ~/.zshrc
icefloe completion fish > ~/.config/fish/completions/icefloe.fish
```

"""


def cli_page() -> str:
    """Return the page: shared arguments, then all commands with their options."""
    parts = [_INTRODUCTION]
    context = click.Context(icefloe, info_name="icefloe")
    for title, names in SECTIONS.items():
        parts.append(f"## {title}\n")
        for name in names:
            command = icefloe.get_command(context, name)
            assert command is not None
            parts += _describe(command, f"icefloe {name}", "###")
    return "\n".join(parts).rstrip() + "\n"


def _describe(command: click.Command, path: str, level: str) -> Iterator[str]:
    yield f"{level} {path}\n"
    context = click.Context(command, info_name=path)
    if not isinstance(command, click.Group):
        yield f"`{path} {' '.join(command.collect_usage_pieces(context))}`\n"
    yield _help(command)
    options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    if options:
        yield "| option | meaning |\n| --- | --- |"
        yield from (_option(each, context) for each in options)
        yield ""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None:
                yield from _describe(inner, f"{path} {name}", f"{level}#")


def _help(command: click.Command) -> str:
    """Return the help text with its examples as a block."""
    text = inspect.cleandoc(command.help or "")
    paragraphs = []
    for paragraph in text.split("\n\n"):
        if paragraph.startswith("\b\n"):
            paragraphs.append(f"```sh\n{paragraph.removeprefix(chr(8) + chr(10))}\n```")
        else:
            paragraphs.append(" ".join(paragraph.split()))
    return "\n\n".join(paragraphs) + "\n"


def _option(option: click.Option, context: click.Context) -> str:
    """Return a row of the table of options."""
    names = ", ".join([*option.opts, *option.secondary_opts])
    value = "" if option.is_flag or option.count else f" {option.make_metavar(context)}"
    default = option.get_help_extra(context).get("default", "")
    text = f"{option.help or ''}{f' Default: `{default}`.' if default else ''}".strip().replace("|", "\\|")
    return f"| `{names}{value}` | {text} |"
