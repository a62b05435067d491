"""How a command names a state of a repository, and a time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice

import click

from icefloe._internal.printable import printable
from icefloe.errors import ErrorKind, InvalidInputError, RefNotFoundError
from icefloe.repository import Repository

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d|w)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}

HELP = (
    "A branch, a tag, a snapshot id or its beginning, BRANCH@TIME, or one with ~N, N commits before; "
    "branch:NAME, tag:NAME and snapshot:ID leave no doubt."
)
DEFAULT = "branch:main"
"""The revision of commands that name none. A tag may be called main, too."""
_BEFORE = re.compile(r"(.+)~(\d*)")
_SHORTEST_ID = 4


def resolve(repo: Repository, revision: str) -> str:
    """The id of the snapshot that a revision names."""
    branches, tags = repo.list_branches(), repo.list_tags()
    name, at, time = revision.rpartition("@")
    if at and name in branches:
        return repo.readonly_session(name, as_of=parse_time(time)).snapshot_id
    kind, colon, rest = revision.partition(":")
    if colon and kind == "branch":
        return repo.lookup_branch(rest)
    if colon and kind == "tag":
        return repo.lookup_tag(rest)
    if colon and kind == "snapshot":
        return repo.lookup_snapshot(rest).id
    if revision in branches and revision in tags:
        raise InvalidInputError(
            f"{revision} is both a branch and a tag; say branch:{revision} or tag:{revision}",
            kind=ErrorKind.INVALID_REF_NAME,
        )
    if revision in branches:
        return repo.lookup_branch(revision)
    if revision in tags:
        return repo.lookup_tag(revision)
    before = _BEFORE.fullmatch(revision)
    if before is not None:
        return _ancestor(repo, before[1], int(before[2] or 1))
    return _snapshot(repo, revision, [*branches, *tags])


def _ancestor(repo: Repository, revision: str, back: int) -> str:
    history = repo.ancestry(snapshot_id=resolve(repo, revision))
    found = next(islice(history, back, None), None)
    if found is None:
        raise RefNotFoundError(
            f"{revision} has fewer than {back} commits before it; `icefloe log` lists them",
            kind=ErrorKind.REF_NOT_FOUND,
        )
    return found.id


def _snapshot(repo: Repository, text: str, names: Sequence[str]) -> str:
    """A snapshot by its id, or by the beginning of one, which is what the graph shows."""
    try:
        return repo.lookup_snapshot(text).id
    except InvalidInputError:
        pass  # it is no whole id
    start = text.upper()
    ids = [each.id for each in repo.ancestry_graph().commits] if len(start) >= _SHORTEST_ID else []
    found = [id for id in ids if id.startswith(start)]
    if len(found) == 1:
        return found[0]
    if found:
        hint = f"{len(found)} snapshots begin like that: {', '.join(found[:3])}"
    else:
        import difflib

        near = difflib.get_close_matches(text, names, n=1)
        hint = f"did you mean {printable(near[0])}?" if near else "`icefloe refs` lists what there is"
    raise RefNotFoundError(f"no branch, tag or snapshot {text}; {hint}", kind=ErrorKind.REF_NOT_FOUND)


def parse_time(text: str) -> datetime:
    """A time such as 2024-05-01, 2024-05-01T12:00Z, or an age such as 7d; without a zone it is UTC."""
    span = _SPAN.fullmatch(text.strip())
    if span:
        return datetime.now(UTC) - timedelta(seconds=float(span[1]) * _SECONDS[span[2]])
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is no time; write 2024-05-01, 2024-05-01T12:00Z, or an age such as 12h, 7d or 4w"
        ) from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


class Time(click.ParamType[datetime]):
    """An argument that is a time."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        # docstring inherited
        return value if isinstance(value, datetime) else parse_time(str(value))
