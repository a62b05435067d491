"""What a shell completes: places, and the branches, tags and arrays of the repository that was named."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click
from click.shell_completion import CompletionItem

from icefloe._internal.paths import LEDGERS, is_within
from icefloe.errors import IcechunkError
from icefloe.repository import Repository

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def complete_place(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """A folder of this machine."""
    return [CompletionItem(incomplete, type="dir")]


def complete_file(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """A file of this machine."""
    return [CompletionItem(incomplete, type="file")]


def _completing(names: Callable[[Repository, click.Context], Iterable[str]]) -> Complete:
    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            found = sorted(names(_named(ctx), ctx))
        except (IcechunkError, click.ClickException, OSError, ValueError, LookupError):
            return []  # a shell that waits for words cannot show what is wrong
        # Line breaks would separate words for the shell, and it would print control characters.
        return [CompletionItem(each) for each in found if each.isprintable() and each.startswith(incomplete)]

    return complete


def _named(ctx: click.Context) -> Repository:
    """The repository that the words before name."""
    from icefloe import storage_from_url
    from icefloe.cli.pairs import storage_options

    place: Any = ctx.params["repo"]
    if place is None:  # click parses no arguments where the value of an option is about to be typed
        first = next(each.name for each in ctx.command.params if isinstance(each, click.Argument))
        place = ctx.args[0 if first == "repo" else -1]
    return Repository.open(storage_from_url(place, **storage_options(ctx.params.get("options") or ())))


def _arrays(repo: Repository, ctx: click.Context) -> Iterable[str]:
    from icefloe.cli.revisions import DEFAULT, resolve

    snapshot = resolve(repo, ctx.params.get("revision") or DEFAULT)
    paths = repo.readonly_session(snapshot_id=snapshot)._workspace.below("/")
    return [each.strip("/") for each in paths if each != "/" and not is_within(each, LEDGERS)]


complete_branch = _completing(lambda repo, _: repo.list_branches())
complete_tag = _completing(lambda repo, _: repo.list_tags())
complete_revision = _completing(lambda repo, _: repo.list_branches() | repo.list_tags())
complete_array = _completing(_arrays)
