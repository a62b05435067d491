"""Stream positions in the history of a branch: where a stream starts, and where its next batch ends.

A position is just a snapshot id. After a restart, the id alone is enough to continue, even if `amend`,
`reset`, `merge` or `expire` have changed which snapshots precede the tip of the branch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from icefloe.errors import ErrorKind, InvalidInputError, SnapshotNotFoundError
from icefloe.history.versions import parse_time, resolve_version
from icefloe.query.options import QueryOptions
from icefloe.query.schema import make_unknown_name_error
from icefloe.repository import Repository
from icefloe.session import Session
from icefloe.snapshots import SnapshotInfo

START: Final = ""
"""The stream position before the first commit."""
GRAINS: Final = ("rows", "chunks", "commits")
_ON_LOST_BASE: Final = ("fail", "diff", "reload")
_NOT_FOR_STREAMS: Final = ("tag", "snapshot", "versionAsOf", "timestampAsOf", "sel", "isel", "table")
_BOOKMARK: Final = "icefloe.stream."


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """The settings of a streaming read, parsed from the data source options."""

    branch: str
    grain: str
    start: str
    """The starting point of a new stream: `earliest`, `latest`, a version or a time."""
    most_commits: int | None
    most_bytes: int | None
    bookmark: str | None
    on_lost_base: str

    @staticmethod
    def from_options(options: QueryOptions) -> StreamSettings:
        """Parse the settings of a streaming read from the data source options."""
        for name in _NOT_FOR_STREAMS:
            if options.text(name):
                raise InvalidInputError(
                    f"the option {name} does not apply to a stream, which follows a branch;"
                    " filter the data frame, or use spark.read",
                    kind=ErrorKind.NOT_ALLOWED,
                )
        if not options.text("grain"):
            raise InvalidInputError(
                "spark.readStream needs the option grain: rows, chunks or commits", kind=ErrorKind.NOT_ALLOWED
            )
        return StreamSettings(
            options.text("branch") or "main",
            _choose(options, "grain", GRAINS),
            options.text("startingVersion") or "earliest",
            options.count("maxCommitsPerTrigger", 0) or None,
            options.count("maxBytesPerTrigger", 0) or None,
            options.text("bookmark"),
            _choose(options, "onLostBase", _ON_LOST_BASE),
        )


def _choose(options: QueryOptions, name: str, choices: tuple[str, ...]) -> str:
    """Return the value of an option that must be one of the given choices. The first choice is the
    default.
    """
    given = (options.text(name) or choices[0]).lower()
    if given not in choices:
        raise make_unknown_name_error(f"value of {name}", given, choices, kind=ErrorKind.NOT_ALLOWED)
    return given


def find_start(repo: Repository, settings: StreamSettings) -> str:
    """Return the position at which a new stream starts. The stream emits all changes after it."""
    if settings.start == "earliest":
        return START
    if settings.start == "latest":
        return repo.lookup_branch(settings.branch)
    try:
        moment = parse_time(settings.start)
    except InvalidInputError:
        return resolve_version(repo, settings.start)
    return repo.readonly_session(settings.branch, as_of=moment).snapshot_id


def advance(
    repo: Repository,
    settings: StreamSettings,
    start: str,
    tip: str,
    measure: Callable[[str, str], int],
    *,
    limited: bool = True,
) -> str:
    """Return the position at which the next batch of a stream ends.

    Parameters
    ----------
    repo
        The repository.
    settings
        The settings of the stream.
    start
        The position after the previous batch.
    tip
        The latest position that the batch may reach.
    measure
        A function that returns the number of bytes in the chunks that differ between two snapshots.
    limited
        If False, ignore the batch size limits in the settings.

    Returns
    -------
    str
        The end of the batch; equal to `start` if there is nothing new.
    """
    if start == tip:
        return start
    if start == START and settings.grain != "commits":
        return tip  # emit the whole table at the latest version
    new = [each.id for each in list_commits(repo, settings, start, tip)]
    if not limited or not new:
        return tip
    new = new[: settings.most_commits]
    if settings.most_bytes is not None:
        sizes = accumulate(measure(*pair) for pair in zip([start, *new], new, strict=False))
        fitting = sum(1 for size in sizes if size <= settings.most_bytes)
        new = new[: max(fitting, 1)]
    return new[-1]


def list_commits(repo: Repository, settings: StreamSettings, start: str, tip: str) -> list[SnapshotInfo]:
    """List the commits between a stream position and the tip, oldest first.

    If `start` is no longer in the history of the tip, because the branch was amended or reset, list the
    commits after the newest common ancestor.
    """
    newer: list[SnapshotInfo] = []
    for commit in repo.ancestry(snapshot_id=tip):
        if commit.id == start:
            return newer[::-1]
        newer.append(commit)
    if start == START:
        return newer[::-1]
    try:
        seen = {commit.id for commit in repo.ancestry(snapshot_id=start)}
    except SnapshotNotFoundError:
        if settings.on_lost_base == "reload":
            return newer[::-1]
        raise make_lost_base_error(settings, start) from None
    unseen = [commit for commit in newer if commit.id not in seen]
    only_root_is_shared = len(unseen) >= len(newer) - 1
    if settings.grain == "commits" and only_root_is_shared and settings.on_lost_base == "fail":
        # Commits in between may have expired, and the stream cannot know whether it would miss any.
        raise make_lost_base_error(settings, start)
    return unseen[::-1]


def open_position(repo: Repository, position: str) -> Session | None:
    """Open a read-only session at a stream position.

    Return None for `START`, or if the snapshot has expired.
    """
    if position == START:
        return None
    try:
        return repo.readonly_session(snapshot_id=position)
    except SnapshotNotFoundError:
        return None


def make_lost_base_error(settings: StreamSettings, position: str) -> SnapshotNotFoundError:
    """Create the error for a stream position that has expired or is no longer in the branch's history."""
    return SnapshotNotFoundError(
        f"the stream has read {settings.branch} up to snapshot {position}, which is no longer in the history"
        " of the branch or has expired, so changes since then cannot be found. Set the option onLostBase to"
        " reload to read everything again, or start with a new checkpoint; the option bookmark keeps the last"
        " position from expiring",
        kind=ErrorKind.SNAPSHOT_NOT_FOUND,
    )


def move_bookmark(repo: Repository, settings: StreamSettings, position: str, *, suffix: str = "") -> None:
    """Move a stream's bookmark branch to a position, to protect that snapshot from expiration."""
    if settings.bookmark is None or position == START:
        return
    name = f"{_BOOKMARK}{settings.bookmark}{suffix}"
    if name not in repo.list_branches():
        repo.create_branch(name, position)
    elif repo.lookup_branch(name) != position:
        repo.reset_branch(name, position)
