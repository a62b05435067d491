"""Arguments and options that several commands share, and their types."""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

import icefloe
from icefloe._internal.paths import LEDGERS, is_within
from icefloe.cli import revisions
from icefloe.cli.output import Output
from icefloe.errors import IcechunkError, RepositoryNotFoundError
from icefloe.repository import Repository
from icefloe.storage.base import Storage

F = TypeVar("F", bound=Callable[..., Any])
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

_NAME = re.compile(r"[a-z_]+")


# Types of arguments


class Pair(click.ParamType[tuple[str, Any]]):
    """An argument of the form NAME=VALUE. `parse` converts the value, or raises ValueError."""

    def __init__(self, form: str = "NAME=VALUE", parse: Callable[[str], Any] = str) -> None:
        self.name = form
        self._parse = parse

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, Any]:
        # docstring inherited
        if isinstance(value, tuple):
            return value
        name, equals, text = str(value).partition("=")
        if not equals or not name:
            # Do not quote a value that may be a secret.
            is_name = _NAME.fullmatch(str(value)) is not None
            self.fail(f"{value!r} is not {self.name}" if is_name else f"expected {self.name}", param, ctx)
        try:
            return name, self._parse(text)
        except ValueError:
            self.fail(f"{value!r} is not {self.name}", param, ctx)


def pairs_option(
    *names: str, form: str = "NAME=VALUE", parse: Callable[[str], Any] = str, help: str
) -> Callable[[F], F]:
    """Add an option that can be repeated: the command gets a dictionary."""
    kind = Pair(form, parse)
    return click.option(
        *names, type=kind, multiple=True, callback=lambda _, __, pairs: dict(pairs), help=help
    )


class LabelsAt(click.ParamType[dict[str, Any]]):
    """An argument with labels of several dimensions, such as `time=2024-01-01,lat=45`."""

    name = "DIM=LABEL,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        # docstring inherited
        if isinstance(value, dict):
            return value
        pair = Pair("DIM=LABEL", _parse_labels)
        return dict(pair.convert(part, param, ctx) for part in str(value).split(","))


class Sizes(click.ParamType[dict[str, int]]):
    """An argument with sizes of several dimensions, such as `time=24,lat=180`."""

    name = "DIM=SIZE,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, int]:
        # docstring inherited
        if isinstance(value, dict):
            return value
        pairs = [part.partition("=")[::2] for part in str(value).split(",")]
        names = [name.strip() for name, _ in pairs]
        try:
            sizes = [int(size) for _, size in pairs]
        except ValueError:
            sizes = []
        if not sizes or not all(names):
            self.fail(f"{value!r} is not DIM=SIZE,DIM=SIZE", param, ctx)
        if len(set(names)) < len(names):
            self.fail(f"{value!r} names a dimension twice", param, ctx)
        return dict(zip(names, sizes, strict=True))


def json_or_text(text: str) -> Any:
    """Return the value of a JSON document, or the text itself if it is not JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def parse_index(text: str) -> slice | int:
    """Parse an index, or a range such as `2:10`; ValueError for any other text."""
    if ":" not in text:
        return int(text)
    return slice(*(int(bound) if bound.strip() else None for bound in text.split(":", 2)))


def _parse_labels(text: str) -> Any:
    if not text:
        raise ValueError("no label")
    first, dots, last = text.partition("..")
    return slice(_parse_label(first), _parse_label(last)) if dots else _parse_label(text)


def _parse_label(text: str) -> str | int | float | None:
    """Parse a label: a number if possible, otherwise text, such as a time; None if it is empty."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text or None


class GroupWithDefault(click.Group):
    """A group with a default command: `icefloe branch REPO` means `icefloe branch list REPO`.

    A word that resembles the name of a command counts as a misspelled command. Any other word is the first
    argument of the default command.
    """

    def __init__(self, *args: Any, default: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._default = default

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # docstring inherited
        import difflib

        known = args[0] in self.commands or args[0].startswith("-")
        if not known and not difflib.get_close_matches(args[0], self.commands):
            args = [self._default, *args]
        return super().resolve_command(ctx, args)


# Completion in shells


def complete_folder(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete a folder."""
    return [CompletionItem(incomplete, type="dir")]


def complete_file(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete a file."""
    return [CompletionItem(incomplete, type="file")]


def _make_completer(names: Callable[[Repository, click.Context], Iterable[str]]) -> Complete:
    """Return a function that completes names from the repository on the command line."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            found = sorted(names(_open_typed_repository(ctx), ctx))
        except (IcechunkError, click.ClickException, OSError, ValueError, LookupError):
            return []  # a shell cannot show an error while it completes a word
        # The shell would split names at line breaks, and print control characters.
        return [CompletionItem(each) for each in found if each.isprintable() and each.startswith(incomplete)]

    return complete


def _open_typed_repository(ctx: click.Context) -> Repository:
    location: Any = ctx.params["repo"]
    if location is None:  # click parses no arguments while it completes the value of an option
        first = next(each.name for each in ctx.command.params if isinstance(each, click.Argument))
        location = ctx.args[0 if first == "repo" else -1]
    return Repository.open(icefloe.storage_from_url(location, **(ctx.params.get("options") or {})))


def _list_paths(repo: Repository, ctx: click.Context) -> Iterable[str]:
    snapshot = revisions.resolve(repo, ctx.params.get("revision") or revisions.DEFAULT)
    paths = repo.readonly_session(snapshot_id=snapshot)._workspace.below("/")
    return [each.strip("/") for each in paths if each != "/" and is_listed(each, with_ledgers=False)]


complete_branch = _make_completer(lambda repo, _: repo.list_branches())
complete_tag = _make_completer(lambda repo, _: repo.list_tags())
complete_revision = _make_completer(lambda repo, _: repo.list_branches() | repo.list_tags())
complete_path = _make_completer(_list_paths)


# Options


revision_option = click.option(
    "-r",
    "--revision",
    default=revisions.DEFAULT,
    show_default="main",
    help=f"The version to read: {revisions.HELP}",
    shell_complete=complete_revision,
)
branch_option = click.option(
    "--branch",
    default="main",
    show_default=True,
    help="The branch to change.",
    shell_complete=complete_branch,
)
order_option = click.option(
    "--order",
    type=click.Choice(["commit", "sorted", "strict"]),
    default="commit",
    show_default=True,
    help="Where appended rows go: after earlier commits, by label (needs whole chunks), or only after the "
    "last label.",
)
message_option = click.option("-m", "--message", help="The commit message.")
metadata_option = pairs_option(
    "--metadata", parse=json_or_text, help="Metadata to add to the commit; the value may be JSON."
)
isel_option = pairs_option(
    "--isel",
    form="DIM=START:STOP",
    parse=parse_index,
    help="Select a dimension by index: a range, or one index.",
)
sel_option = pairs_option(
    "--sel",
    form="DIM=FIRST..LAST",
    parse=_parse_labels,
    help="Select a dimension by label: a range, or one label.",
)
memory_option = click.option(
    "--memory",
    default=256,
    show_default=True,
    type=click.IntRange(min=1),
    help="The memory that a task may use for data, in MiB.",
)
codec_help = "zstd:LEVEL, blosc:NAME:LEVEL, gzip:LEVEL or none"
dry_run_option = click.option("--dry-run", is_flag=True, help="Report what would happen, and write nothing.")
all_option = click.option(
    "--all", "with_ledgers", is_flag=True, help=f"Include the ledger of ingests, {LEDGERS.strip('/')}."
)
storage_options = pairs_option(
    "-o", "--option", "options", help="A storage option, such as region=eu-west-1."
)
_target_options = pairs_option("--target-option", "target_options", help="A storage option of TARGET.")


def is_listed(path: str, *, with_ledgers: bool) -> bool:
    """Return True if listings show a node. They show the ledger of ingests only on request."""
    return with_ledgers or not is_within(path, LEDGERS)


def adapt(convert: Callable[..., Mapping[str, Any]], *parameters: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return a decorator that adds parameters to a command and converts their values.

    `convert` receives the parameters that its signature names. The command receives its result instead, as
    keyword arguments.
    """
    names = list(inspect.signature(convert).parameters)

    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            found = convert(**{name: kwargs.pop(name) for name in names})
            return function(*args, **kwargs, **found)

        return functools.reduce(lambda command, add: add(command), reversed(parameters), wrapped)

    return decorate


def _output(as_json: bool) -> dict[str, Any]:
    out = Output(as_json=as_json)
    click.get_current_context().call_on_close(out.progress.close)
    return {"out": out}


output_option = adapt(
    _output, click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
)
"""Add `--json`: the command gets `out`."""

# The repository

_repo = click.argument("repo", metavar="REPO", shell_complete=complete_folder)
_target = click.argument("target", metavar="TARGET", shell_complete=complete_folder)
storage_argument = adapt(
    lambda repo, options: {"storage": icefloe.storage_from_url(repo, **options)}, _repo, storage_options
)
"""Add REPO and its storage options: the command gets `storage`."""
repo_argument = adapt(lambda storage: {"repo": open_repository(storage)}, storage_argument)
"""Add REPO and its storage options: the command gets `repo`, opened."""


def target_argument(function: F) -> F:
    """Add TARGET and its storage options: the command gets `target` and `target_options`."""
    return _target(_target_options(function))


def optional_repo_argument(function: F) -> F:
    """Add REPO, which may be omitted, and its storage options: the command gets `repo` and `options`."""
    argument = click.argument("repo", metavar="REPO", required=False, shell_complete=complete_folder)
    return argument(storage_options(function))


def open_repository(storage: Storage) -> Repository:
    """Open a repository. The error says so if the location is a file."""
    try:
        return Repository.open(storage)
    except RepositoryNotFoundError as error:
        if not is_file(storage):
            raise
        path = storage.describe()["path"]
        raise RepositoryNotFoundError(f"{path} is a file, and a repository is a folder", error.kind) from None


def is_file(storage: Storage) -> bool:
    """Return True if a storage points to a file instead of a folder."""
    return os.path.isfile(storage.describe().get("path", ""))
