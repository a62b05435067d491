"""Arguments and options that several commands share."""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

import icefloe
from icefloe._internal.paths import LEDGERS, is_within
from icefloe.cli import revisions
from icefloe.cli.output import Output, shown
from icefloe.errors import IcechunkError, RepositoryNotFoundError
from icefloe.repository import Repository
from icefloe.storage.base import Storage

if TYPE_CHECKING:
    from icefloe.credentials import AnyCredential

F = TypeVar("F", bound=Callable[..., Any])
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

_NAME = re.compile(r"[a-z_]+")
_ALL = "all"
_ANONYMOUS = "=anonymous"


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
            # A word that does not look like a name may be a secret.
            is_name = _NAME.fullmatch(str(value)) is not None
            self.fail(f"{value!r} is not {self.name}" if is_name else f"expected {self.name}", param, ctx)
        try:
            return name, self._parse(text)
        except ValueError:
            self.fail(f"{value!r} is not {self.name}", param, ctx)


def pairs_option(
    *names: str, form: str = "NAME=VALUE", parse: Callable[[str], Any] = str, help: str
) -> Callable[[F], F]:
    """Add an option that can be repeated: the function gets a dictionary."""
    kind = Pair(form, parse)
    return click.option(
        *names, type=kind, multiple=True, callback=lambda _, __, pairs: dict(pairs), help=help
    )


class Sizes(click.ParamType[dict[str, int]]):
    """An argument with a size for each of several dimensions."""

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
    """Parse a value that may be JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _index(text: str) -> slice | int:
    if ":" not in text:
        return int(text)
    return slice(*(int(bound) if bound.strip() else None for bound in text.split(":", 2)))


def _labels(text: str) -> Any:
    if not text:
        raise ValueError("no label")
    first, dots, last = text.partition("..")
    return slice(_label(first), _label(last)) if dots else _label(text)


def _label(text: str) -> str | int | float | None:
    """Parse a label: a number if it looks like one, otherwise text, such as a time; None if it is empty."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text or None


class GroupWithDefault(click.Group):
    """A group whose default command may be left out: `icefloe branch REPO` is `icefloe branch list REPO`.

    A word that resembles a command is a mistyped command, and any other word an argument of the default one.
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


def _completing(names: Callable[[Repository, click.Context], Iterable[str]]) -> Complete:
    """Return a function that completes names of the repository that was typed before."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            found = sorted(names(_repository_before(ctx), ctx))
        except (IcechunkError, click.ClickException, OSError, ValueError, LookupError):
            return []  # a shell that waits for words cannot show what is wrong
        # Line breaks would separate words for the shell, and it would print control characters.
        return [CompletionItem(each) for each in found if each.isprintable() and each.startswith(incomplete)]

    return complete


def _repository_before(ctx: click.Context) -> Repository:
    location: Any = ctx.params["repo"]
    if location is None:  # click parses no arguments where the value of an option is about to be typed
        first = next(each.name for each in ctx.command.params if isinstance(each, click.Argument))
        location = ctx.args[0 if first == "repo" else -1]
    return Repository.open(icefloe.storage_from_url(location, **(ctx.params.get("options") or {})))


def _paths(repo: Repository, ctx: click.Context) -> Iterable[str]:
    snapshot = revisions.resolve(repo, ctx.params.get("revision") or revisions.DEFAULT)
    paths = repo.readonly_session(snapshot_id=snapshot)._workspace.below("/")
    return [each.strip("/") for each in paths if each != "/" and is_listed(each, with_ledgers=False)]


complete_branch = _completing(lambda repo, _: repo.list_branches())
complete_tag = _completing(lambda repo, _: repo.list_tags())
complete_revision = _completing(lambda repo, _: repo.list_branches() | repo.list_tags())
complete_path = _completing(_paths)


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
message_option = click.option("-m", "--message", help="The commit message.")
metadata_option = pairs_option(
    "--metadata", parse=json_or_text, help="More metadata of the commit; the value may be JSON."
)
isel_option = pairs_option(
    "--isel", form="DIM=START:STOP", parse=_index, help="Select a dimension by index: a range, or one index."
)
sel_option = pairs_option(
    "--sel", form="DIM=FIRST..LAST", parse=_labels, help="Select a dimension by label: a range, or one label."
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
_options = pairs_option("-o", "--option", "options", help="A storage option, such as region=eu-west-1.")
_target_options = pairs_option("--target-option", "target_options", help="A storage option of TARGET.")


def is_listed(path: str, *, with_ledgers: bool) -> bool:
    """Tell whether listings show a node. The ledger of ingests is shown on request."""
    return with_ledgers or not is_within(path, LEDGERS)


def output_option(function: F) -> F:
    """Add `--json`: the function gets `out`."""

    @click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
    @functools.wraps(function)
    def wrapped(*args: Any, as_json: bool, **kwargs: Any) -> Any:
        out = Output(as_json=as_json)
        click.get_current_context().call_on_close(out.progress.close)
        return function(*args, out=out, **kwargs)

    return wrapped  # type: ignore[return-value]


# The repository


def storage_argument(function: F) -> F:
    """Add REPO and its storage options: the function gets `storage`."""

    @click.argument("repo", metavar="REPO", shell_complete=complete_folder)
    @_options
    @functools.wraps(function)
    def wrapped(*args: Any, repo: str, options: dict[str, str], **kwargs: Any) -> Any:
        return function(*args, storage=icefloe.storage_from_url(repo, **options), **kwargs)

    return wrapped  # type: ignore[return-value]


def repo_argument(function: F) -> F:
    """Add REPO and its storage options: the function gets `repo`, opened."""

    @storage_argument
    @functools.wraps(function)
    def wrapped(*args: Any, storage: Storage, **kwargs: Any) -> Any:
        return function(*args, repo=open_repository(storage), **kwargs)

    return wrapped  # type: ignore[return-value]


def optional_repo_argument(function: F) -> F:
    """Add REPO, which may be left out, and its storage options: the function gets `repo` and `options`."""
    argument = click.argument("repo", metavar="REPO", required=False, shell_complete=complete_folder)
    return argument(_options(function))


def target_argument(function: F) -> F:
    """Add TARGET and its storage options: the function gets `target` and `target_options`."""
    return click.argument("target", metavar="TARGET", shell_complete=complete_folder)(
        _target_options(function)
    )


def open_repository(storage: Storage) -> Repository:
    """Open a repository; the error says so if there is a file instead."""
    try:
        return Repository.open(storage)
    except RepositoryNotFoundError as error:
        if not is_file(storage):
            raise
        path = storage.describe()["path"]
        raise RepositoryNotFoundError(f"{path} is a file, and a repository is a folder", error.kind) from None


def is_file(storage: Storage) -> bool:
    """Tell whether there is a file where a folder is expected."""
    return os.path.isfile(storage.describe().get("path", ""))


# Access to virtual chunks


authorize_prefixes = click.option(
    "--authorize",
    "prefixes",
    multiple=True,
    metavar="PREFIX[@ENDPOINT]",
    help="Read virtual chunks of this container, or of all, with credentials from the environment; "
    "PREFIX=anonymous without credentials. Repeat an endpoint that only the repository names.",
)


def authorize_option(function: F) -> F:
    """Add `--authorize PREFIX`: the function's `repo` may read there. Goes below `repo_argument`."""

    @authorize_prefixes
    @functools.wraps(function)
    def wrapped(*args: Any, repo: Repository, prefixes: tuple[str, ...], **kwargs: Any) -> Any:
        return function(*args, repo=authorize(repo, prefixes), **kwargs)

    return wrapped  # type: ignore[return-value]


def authorize(repo: Repository, prefixes: tuple[str, ...]) -> Repository:
    """Return the repository with access to the virtual chunks of some containers."""
    if not prefixes:
        return repo
    from icefloe.storage.external.endpoints import same_endpoint

    known = sorted((repo.config.virtual_chunk_containers or {}).keys())
    access: dict[str, AnyCredential | None] = {}
    endpoints: dict[str, str] = {}
    for text in prefixes:
        wanted = text.removesuffix(_ANONYMOUS)
        chosen, endpoint = _containers_named(wanted, known)
        access |= {each: _credential(each, anonymous=wanted != text) for each in chosen}
        endpoints |= dict.fromkeys(chosen, endpoint) if endpoint else {}
    opened = repo._reopen(None, access, frozenset())
    withheld = opened._assets.virtual.withheld
    for prefix, endpoint in withheld.items():
        given = next((endpoints[each] for each in endpoints if _is_same_prefix(each, prefix)), None)
        if given is None or not same_endpoint(given, endpoint):
            raise click.BadParameter(_ask_for_trust(prefix, endpoint), param_hint="--authorize")
    return repo._reopen(None, access, frozenset(withheld))


def _containers_named(text: str, known: list[str]) -> tuple[list[str], str]:
    """Find the containers that PREFIX or PREFIX@ENDPOINT names, and the endpoint."""
    names = [_ALL, *known]
    prefix, endpoint = text, ""
    if not any(_is_same_prefix(each, text) for each in names):
        for found in re.finditer("@", text):  # a prefix may have one, too
            if any(_is_same_prefix(each, text[: found.start()]) for each in names):
                prefix, endpoint = text[: found.start()], text[found.end() :]
    chosen = known if prefix == _ALL else [each for each in known if _is_same_prefix(each, prefix)]
    if not chosen:
        there = "there are " + ", ".join(map(shown, known)) if known else "there is none"
        raise click.BadParameter(
            f"{prefix} is no container of virtual chunks of this repository; {there}",
            param_hint="--authorize",
        )
    return chosen, endpoint


def _is_same_prefix(one: str, other: str) -> bool:
    return one.rstrip("/") == other.rstrip("/")


def _ask_for_trust(prefix: str, endpoint: str) -> str:
    here, there = shown(prefix), shown(endpoint)
    return (
        f"the repository names the endpoint {there} for {here}. It would receive your credentials. "
        f"If you trust it, say --authorize {shlex.quote(f'{here}@{there}')}"
    )


def _credential(prefix: str, *, anonymous: bool) -> AnyCredential | None:
    from icefloe.credentials import credential_from_env

    known = prefix.partition("://")[0] in ("file", "http", "https", "s3", "gs", "az")
    return credential_from_env(prefix, anonymous=anonymous) if known else None
