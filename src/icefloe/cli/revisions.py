"""How a command names a state of a repository, and a time."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import click

from icefloe.errors import ErrorKind, InvalidInputError, RefNotFoundError
from icefloe.repository import Repository

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d|w)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}

HELP = "A branch, a tag, a snapshot id, or BRANCH@TIME; branch:NAME, tag:NAME and snapshot:ID leave no doubt."


def resolve(repo: Repository, revision: str) -> str:
    """The id of the snapshot that a revision names."""
    name, at, time = revision.rpartition("@")
    if at and name in repo.list_branches():
        return repo.readonly_session(name, as_of=parse_time(time)).snapshot_id
    kind, colon, rest = revision.partition(":")
    if colon and kind == "branch":
        return repo.lookup_branch(rest)
    if colon and kind == "tag":
        return repo.lookup_tag(rest)
    if colon and kind == "snapshot":
        return repo.lookup_snapshot(rest).id
    is_branch, is_tag = revision in repo.list_branches(), revision in repo.list_tags()
    if is_branch and is_tag:
        raise InvalidInputError(
            f"{revision} is both a branch and a tag; say branch:{revision} or tag:{revision}",
            kind=ErrorKind.INVALID_REF_NAME,
        )
    if is_branch:
        return repo.lookup_branch(revision)
    if is_tag:
        return repo.lookup_tag(revision)
    try:
        return repo.lookup_snapshot(revision).id
    except InvalidInputError:
        import difflib

        near = difflib.get_close_matches(revision, [*repo.list_branches(), *repo.list_tags()], n=1)
        hint = f"did you mean {near[0]}?" if near else "`icefloe refs` lists what there is"
        raise RefNotFoundError(
            f"no branch, tag or snapshot {revision}; {hint}", kind=ErrorKind.REF_NOT_FOUND
        ) from None


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
