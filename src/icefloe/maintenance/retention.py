"""Which snapshots of a history stay: the last ones, one per hour, day, week, month or year, tagged ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.ids import encode_column
from icefloe._internal.report import Report
from icefloe._internal.table import Table
from icefloe._internal.times import column_from_microseconds
from icefloe.core.assets import AssetStore
from icefloe.core.refs.base import RefStore
from icefloe.core.refs.v2 import RefStoreV2
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.files import TRANSACTIONS
from icefloe.format.pruning import shortened
from icefloe.format.repo_changes import Changed
from icefloe.format.repo_info import MAIN, NO_PARENT, RepoInfo, SnapshotInfos
from icefloe.maintenance.expire import expire, expired
from icefloe.maintenance.history import History, history_of
from icefloe.ops import UpdateType

_PERIODS: Final[Mapping[str, Callable[[datetime], object]]] = {
    "hourly": lambda time: (time.date(), time.hour),
    "daily": lambda time: time.date(),
    "weekly": lambda time: time.isocalendar()[:2],
    "monthly": lambda time: (time.year, time.month),
    "yearly": lambda time: time.year,
}
"""In which hour, day, ... of UTC a time lies."""


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Which snapshots stay; one that any of the rules keeps does.

    The tips of branches and the first snapshot of a history stay in any case.
    """

    last: int = 1
    """So many of the newest."""
    within: timedelta | None = None
    """All that are not older than this."""
    hourly: int = 0
    """The newest of each of the last so many hours that have one; likewise days, weeks, months, years."""
    daily: int = 0
    weekly: int = 0
    monthly: int = 0
    yearly: int = 0
    tagged: bool = True
    """Those that a tag names. Else tags whose snapshot goes are deleted."""
    branches: Mapping[str, RetentionPolicy] = field(default_factory=dict)
    """Other rules for some branches, by name. `tagged` counts for the whole repository."""

    def __post_init__(self) -> None:
        for name in ("last", *_PERIODS):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, and must not be negative")
        if self.within is not None and self.within < timedelta(0):
            raise ValueError(f"within is {self.within}, and must not be negative")
        nested = next((name for name, rules in self.branches.items() if rules.branches), None)
        if nested is not None:
            raise ValueError(f"the rules for branch {nested} have rules for branches themselves")

    def reasons(self, times: list[datetime], now: datetime) -> Iterator[tuple[int, str]]:
        """Why some of a line of snapshots stay, given their times, newest first: positions and words."""
        for at in range(min(self.last, len(times))):
            yield at, f"last {self.last}"
        if self.within is not None:
            for at, time in enumerate(times):
                if now - time <= self.within:
                    yield at, f"within {self.within}"
        for rule, period in _PERIODS.items():
            left, seen = getattr(self, rule), object()
            for at, time in enumerate(times):
                if left and period(time) != seen:
                    seen = period(time)
                    left -= 1
                    yield at, rule


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """What a policy says of a history."""

    keep: NDArray[np.bool_]
    reasons: tuple[tuple[str, ...], ...]
    """Per snapshot why it stays."""
    gone_tags: frozenset[str]


def apply_policy(policy: RetentionPolicy, history: History, now: datetime) -> Kept:
    """Which snapshots of a history stay; those that no ref leads to are left to garbage collection."""
    snapshots = history.snapshots
    reasons: list[set[str]] = [set() for _ in range(len(snapshots))]
    times = list(column_from_microseconds(np.asarray(snapshots.columns["flushed_at"]).astype(np.int64)))
    unknown = sorted(set(policy.branches) - set(history.branches))
    if unknown:
        raise InvalidInputError(
            f"there are rules for branch {unknown[0]}, which does not exist", kind=ErrorKind.REF_NOT_FOUND
        )
    for name, tip in history.branches.items():
        line = snapshots.ancestry(tip)
        reasons[line[0]].add(f"tip of {name}")
        for at, why in policy.branches.get(name, policy).reasons([times[row] for row in line], now):
            reasons[line[at]].add(f"{name}: {why}")
    for first in np.flatnonzero(snapshots.parents == NO_PARENT).tolist():
        reasons[first].add("first")
    if policy.tagged:
        for tag, target in history.tags.items():
            row = snapshots.row(target)
            if row is not None:
                reasons[row].add(f"tag {tag}")
    keep = np.array([bool(each) for each in reasons], np.bool_) | ~history.reached()
    gone = {tag for tag, target in history.tags.items() if not _stays(snapshots, keep, target)}
    return Kept(keep, tuple(tuple(sorted(each)) for each in reasons), frozenset(gone))


def _stays(snapshots: SnapshotInfos, keep: NDArray[np.bool_], id: object) -> bool:
    row = snapshots.row(id)  # type: ignore[arg-type]
    return row is not None and bool(keep[row])


def _kept_by_time(history: History, older_than_us: int, *, delete_branches: bool, delete_tags: bool) -> Kept:
    """Decide which snapshots of a history an expiration keeps, and why."""
    snapshots = history.snapshots
    times = np.asarray(snapshots.columns["flushed_at"]).astype(np.int64)
    reasons: list[set[str]] = [set() if time < older_than_us else {"young"} for time in times.tolist()]
    for first in np.flatnonzero(snapshots.parents == NO_PARENT).tolist():
        reasons[first].add("first")
    gone: set[str] = set()
    for name, tip in history.branches.items():
        row = snapshots.row(tip)
        if row is not None and (name == MAIN or not delete_branches):
            reasons[row].add(f"tip of {name}")
    for name, target in history.tags.items():
        row = snapshots.row(target)
        if row is not None and not delete_tags:
            reasons[row].add(f"tag {name}")
        elif row is not None and times[row] < older_than_us:
            gone.add(name)
    keep = np.array([bool(each) for each in reasons], np.bool_)
    return Kept(keep, tuple(tuple(sorted(each)) for each in reasons), frozenset(gone))


@dataclass(frozen=True, slots=True)
class Expiration:
    """An expiration by time, with the arguments of `Repository.expire_snapshots`."""

    older_than_us: int
    delete_branches: bool = False
    delete_tags: bool = False


def select_kept(policy: RetentionPolicy | Expiration, history: History, now: datetime) -> Kept:
    """Decide which snapshots of a history stay."""
    if isinstance(policy, RetentionPolicy):
        return apply_policy(policy, history, now)
    return _kept_by_time(
        history,
        policy.older_than_us,
        delete_branches=policy.delete_branches,
        delete_tags=policy.delete_tags,
    )


def kept_snapshots(history: History, rules: RetentionPolicy | Expiration | set[str]) -> NDArray[np.bool_]:
    """Mark the snapshots of a history that stay by a policy, by an expiration, or by their ids."""
    if not isinstance(rules, set):
        return select_kept(rules, history, datetime.now(UTC)).keep
    names = [str(history.snapshots.id_at(row)) for row in range(len(history.snapshots))]
    return np.array([name in rules for name in names], np.bool_)


@dataclass(frozen=True, slots=True, repr=False)
class RetentionReport(Report):
    """The snapshots that a retention policy keeps and removes, or with `dry_run` would."""

    table: Table
    """One row per snapshot on a branch or tag, newest first: snapshot, written_at, message, kept, reason."""
    dry_run: bool

    @property
    def kept(self) -> int:
        """Number of snapshots that stay."""
        return int(self.table["kept"].sum())

    @property
    def removed(self) -> int:
        """Number of snapshots that leave the history."""
        return len(self.table) - self.kept

    def __repr__(self) -> str:
        verb = "would be removed" if self.dry_run else "removed"
        return f"<RetentionReport: {self.kept} snapshots kept, {self.removed} {verb}>\n{self.table!r}"


def retain(
    refs: RefStore, assets: AssetStore, policy: RetentionPolicy | Expiration, *, dry_run: bool
) -> RetentionReport:
    """Remove the snapshots from the history that a policy does not keep; see `Repository.retain`."""
    now = datetime.now(UTC)
    if dry_run:
        history = history_of(refs)
        return RetentionReport(_retention_table(history, select_kept(policy, history, now)), True)
    if not isinstance(refs, RefStoreV2):
        return RetentionReport(_retain_v1(refs, assets, policy, now), False)
    done: list[Table] = []

    def change(info: RepoInfo) -> Changed:
        history = History(info.snapshots, info.branches, info.tags, info.deleted_tags)
        kept = select_kept(policy, history, now)
        done[:] = [_retention_table(history, kept).take(history.reached()[_newest_first(history)])]
        if isinstance(policy, Expiration):
            options = (policy.older_than_us, policy.delete_branches, policy.delete_tags)
            return expired(info, *options)[0], UpdateType.ExpirationRan()
        changed = replace(
            info,
            snapshots=info.snapshots if kept.keep.all() else shortened(info.snapshots, kept.keep),
            tags={tag: id for tag, id in info.tags.items() if tag not in kept.gone_tags},
            deleted_tags=info.deleted_tags | kept.gone_tags,
        )
        return changed, UpdateType.ExpirationRan()

    with assets.storage.making_room(refs.old_backups):
        refs.update(change)
    return RetentionReport(done[0], False)


def _retain_v1(
    refs: RefStore, assets: AssetStore, policy: RetentionPolicy | Expiration, now: datetime
) -> Table:
    """Delete tags first. Then write snapshots whose parent is removed again, with the one before it."""
    history = history_of(refs)
    kept = select_kept(policy, history, now)
    if isinstance(policy, Expiration):
        options = {"delete_branches": policy.delete_branches, "delete_tags": policy.delete_tags}
        expire(refs, assets, policy.older_than_us, **options)
        return _retention_table(history, kept)
    for tag in sorted(kept.gone_tags):
        refs.delete_tag(tag)
    gone = [f"{TRANSACTIONS}/{name}" for name in encode_column(history.snapshots.ids[~kept.keep])]
    with assets.storage.making_room(lambda: iter(gone)):
        for info in () if kept.keep.all() else shortened(history.snapshots, kept.keep):
            snapshot = assets.snapshot(info.id)
            if snapshot.parent_id != info.parent_id:
                assets.write_snapshot(replace(snapshot, parent_id=info.parent_id))
    return _retention_table(history, kept)


def _retention_table(history: History, kept: Kept) -> Table:
    """One row per snapshot, newest first."""
    order = _newest_first(history)
    infos = [history.snapshots[row] for row in order.tolist()]
    return Table(
        {
            "snapshot": [str(info.id) for info in infos],
            "written_at": np.array([info.flushed_at_us for info in infos], "M8[us]"),
            "message": [info.message for info in infos],
            "kept": kept.keep[order],
            "reason": ["; ".join(kept.reasons[row]) for row in order.tolist()],
        }
    )


def _newest_first(history: History) -> NDArray[np.int64]:
    times = np.asarray(history.snapshots.columns["flushed_at"]).astype(np.int64)
    return np.argsort(-times, kind="stable")
