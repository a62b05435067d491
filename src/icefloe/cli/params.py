"""Arguments and options shared by several commands, and their parameter types."""

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
from icefloe.cli.output import CommandOutput
from icefloe.errors import IcechunkError, RepositoryNotFoundError
from icefloe.repository import Repository
from icefloe.storage.base import Storage
from icefloe.storage.disk_cache import DEFAULT_BYTES, DiskCache

F = TypeVar("F", bound=Callable[..., Any])
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

_NAME = re.compile(r"[a-z_]+")
_SIZED_FOLDER = re.compile(r"(.+):(\d+)([MGT])(?:i?B)?", re.IGNORECASE)
_SHIFTS = {"m": 20, "g": 30, "t": 40}
_CACHE = "icefloe.disk_cache"


# Parameter types


class Pair(click.ParamType[tuple[str, Any]]):
    """The parameter type for NAME=VALUE.

    `parse` converts the value, or raises ValueError.
    """

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
            # The value may be a secret, so the message does not contain it.
            is_name = _NAME.fullmatch(str(value)) is not None
            self.fail(f"{value!r} is not {self.name}" if is_name else f"expected {self.name}", param, ctx)
        try:
            return name, self._parse(text)
        except ValueError:
            self.fail(f"{value!r} is not {self.name}", param, ctx)


def pairs_option(
    *names: str, form: str = "NAME=VALUE", parse: Callable[[str], Any] = str, help: str
) -> Callable[[F], F]:
    """Create a repeatable NAME=VALUE option. The command receives a dictionary."""
    kind = Pair(form, parse)
    return click.option(
        *names, type=kind, multiple=True, callback=lambda _, __, pairs: dict(pairs), help=help
    )


class LabelsAt(click.ParamType[dict[str, Any]]):
    """The parameter type for labels along several dimensions, such as `time=2024-01-01,lat=45`."""

    name = "DIM=LABEL,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        # docstring inherited
        if isinstance(value, dict):
            return value
        pair = Pair("DIM=LABEL", _parse_labels)
        return dict(pair.convert(part, param, ctx) for part in str(value).split(","))


class Sizes(click.ParamType[dict[str, int]]):
    """The parameter type for sizes along several dimensions, such as `time=24,lat=180`."""

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


class CacheFolder(click.ParamType[DiskCache]):
    """The parameter type for a disk cache: a folder, optionally with a maximum size, such as
    `/scratch/me:50G`.
    """

    name = "FOLDER[:SIZE]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> DiskCache:
        # docstring inherited
        if isinstance(value, DiskCache):
            return value
        sized = _SIZED_FOLDER.fullmatch(str(value))
        if sized is None:
            return DiskCache(str(value))
        return DiskCache(sized[1], int(sized[2]) << _SHIFTS[sized[3].lower()])


def json_or_text(text: str) -> Any:
    """Parse a parameter value as JSON if possible, otherwise return the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def parse_index(text: str) -> slice | int:
    """Parse an index, or a range such as `2:10`. Raise ValueError for any other text."""
    if ":" not in text:
        return int(text)
    return slice(*(int(bound) if bound.strip() else None for bound in text.split(":", 2)))


def _parse_labels(text: str) -> Any:
    if not text:
        raise ValueError("no label")
    first, dots, last = text.partition("..")
    return slice(_parse_label(first), _parse_label(last)) if dots else _parse_label(text)


def _parse_label(text: str) -> str | int | float | None:
    """Parse a label as a number if possible, otherwise return it as text. Return None for an empty label."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text or None


class GroupWithDefault(click.Group):
    """A group of subcommands with a default, so that `icefloe branch REPO` means `icefloe branch list REPO`.

    A word that resembles the name of a subcommand is treated as a misspelling. Any other word is the first
    argument of the default subcommand.
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
    """Complete a folder in the shell."""
    return [CompletionItem(incomplete, type="dir")]


def complete_file(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a file in the shell."""
    return [CompletionItem(incomplete, type="file")]


def _make_completer(names: Callable[[Repository, click.Context], Iterable[str]]) -> Complete:
    """Return a completion function for names in the repository given on the command line."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            found = sorted(names(_open_typed_repository(ctx), ctx))
        except (IcechunkError, click.ClickException, OSError, ValueError, LookupError):
            return []  # shells cannot show errors during completion
        # The shell would split names at line breaks, and print control characters.
        return [CompletionItem(each) for each in found if each.isprintable() and each.startswith(incomplete)]

    return complete


def _open_typed_repository(ctx: click.Context) -> Repository:
    location: Any = ctx.params["repo"]
    if location is None:  # click does not parse arguments while completing the value of an option
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


class DescribedDefault(click.Option):
    """An option with a computed default. The help shows `show_default` like a plain default."""

    def get_help_extra(self, ctx: click.Context) -> click.types.OptionHelpExtra:
        # docstring inherited
        extra = super().get_help_extra(ctx)
        if isinstance(self.show_default, str):
            extra["default"] = self.show_default  # without the parentheses that click adds
        return extra


def make_revision_option(use: str) -> Callable[[F], F]:
    """Create the `--revision` option with a help text that explains what the version is used for."""
    return click.option(
        "-r",
        "--revision",
        default=revisions.DEFAULT,
        cls=DescribedDefault,
        show_default="main",
        help=f"The version {use}: {revisions.HELP}",
        shell_complete=complete_revision,
    )


def make_branch_option(use: str) -> Callable[[F], F]:
    """Create the `--branch` option with a help text that explains what the branch is used for."""
    return click.option(
        "--branch",
        default="main",
        show_default=True,
        help=f"The branch {use}.",
        shell_complete=complete_branch,
    )


revision_option = make_revision_option("to read")
branch_option = make_branch_option("to change")
order_option = click.option(
    "--order",
    type=click.Choice(["commit", "sorted", "strict"]),
    default="commit",
    show_default=True,
    help="Where to put appended rows: in the order of commits, sorted by label (requires whole chunks), or "
    "strictly after the last label.",
)
message_option = click.option("-m", "--message", help="The commit message; generated by default.")
metadata_option = pairs_option(
    "--metadata",
    parse=json_or_text,
    help="Metadata of the commit. The value can be JSON; the option can be repeated.",
)
isel_option = pairs_option(
    "--isel",
    form="DIM=START:STOP",
    parse=parse_index,
    help="Select a range or a single index along a dimension.",
)
sel_option = pairs_option(
    "--sel",
    form="DIM=FIRST..LAST",
    parse=_parse_labels,
    help="Select a range of labels or a single label along a dimension.",
)
memory_option = click.option(
    "--memory",
    default=256,
    show_default=True,
    type=click.IntRange(min=1),
    help="The memory for data in each task, in MiB.",
)
codec_help = "zstd:LEVEL, blosc:NAME:LEVEL, gzip:LEVEL or none"
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Report what would be done, without writing anything."
)
all_option = click.option(
    "--all", "with_ledgers", is_flag=True, help=f"Include the ingest ledger, {LEDGERS.strip('/')}."
)
cache_option = click.option(
    "--cache",
    type=CacheFolder(),
    envvar="ICEFLOE_CACHE",
    show_envvar=True,
    expose_value=False,
    callback=lambda ctx, _, cache: ctx.meta.__setitem__(_CACHE, cache),
    help=f"Keep remote data in this folder, by default up to {DEFAULT_BYTES >> 30}G.",
)
"""Add `--cache`, whose value `open_repository` and executors use."""
storage_options = pairs_option(
    "-o", "--option", "options", help="A storage option, such as region=eu-west-1; can be repeated."
)
_target_options = pairs_option(
    "--target-option",
    "target_options",
    help="A storage option of TARGET, such as region=eu-west-1; can be repeated.",
)


def is_listed(path: str, *, with_ledgers: bool) -> bool:
    """Return True if commands should list a node. The ingest ledger is listed only on request."""
    return with_ledgers or not is_within(path, LEDGERS)


def adapt(convert: Callable[..., Mapping[str, Any]], *parameters: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return a decorator that adds shared parameters to a command and converts their values.

    `convert` receives the parameters in its signature. The command receives the returned mapping instead, as
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
    out = CommandOutput(as_json=as_json)
    click.get_current_context().call_on_close(out.progress.close)
    return {"out": out}


output_option = adapt(
    _output, click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON document.")
)
"""Add `--json` to a command. The command receives the argument `out`."""

# The repository

_repo = click.argument("repo", metavar="REPO", shell_complete=complete_folder)
_target = click.argument("target", metavar="TARGET", shell_complete=complete_folder)
storage_argument = adapt(
    lambda repo, options: {"storage": icefloe.storage_from_url(repo, **options)}, _repo, storage_options
)
"""Add the argument REPO and its storage options to a command, which receives `storage`."""
repo_argument = adapt(lambda storage: {"repo": open_repository(storage)}, storage_argument, cache_option)
"""Add the argument REPO and its storage options to a command, which receives the opened repository as
`repo`.
"""


def target_argument(function: F) -> F:
    """Add the argument TARGET and its storage options to a command, which receives `target` and
    `target_options`.
    """
    return _target(_target_options(function))


def optional_repo_argument(function: F) -> F:
    """Add an optional argument REPO and its storage options to a command, which receives `repo` and
    `options`.
    """
    argument = click.argument("repo", metavar="REPO", required=False, shell_complete=complete_folder)
    return argument(storage_options(function))


def open_repository(storage: Storage) -> Repository:
    """Open the repository at REPO. Raise a specific error if the location is a file."""
    try:
        return Repository.open(storage, disk_cache=get_cache())
    except RepositoryNotFoundError as error:
        if not is_file(storage):
            raise
        path = storage.describe()["path"]
        raise RepositoryNotFoundError(f"{path} is a file, but a repository is a folder", error.kind) from None


def get_cache() -> DiskCache | None:
    """Return the disk cache given by the current command's `--cache` option."""
    cache: DiskCache | None = click.get_current_context().meta.get(_CACHE)
    return cache


def is_file(storage: Storage) -> bool:
    """Return True if REPO is a file instead of a folder."""
    return os.path.isfile(storage.describe().get("path", ""))
