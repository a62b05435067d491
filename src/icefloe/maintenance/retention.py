"""Retention policies: keep the newest snapshots, one per hour, day, week, month or year, and tagged ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.ids import SnapshotId, encode_column
from icefloe._internal.report import Report
from icefloe._internal.table import Table
from icefloe._internal.times import to_datetimes
from icefloe.core.assets import AssetStore
from icefloe.core.refs.base import RefStore
from icefloe.core.refs.v2 import RefStoreV2
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.files import TRANSACTIONS
from icefloe.format.pruning import shorten_history
from icefloe.format.repo_changes import Changed, list_protected
from icefloe.format.repo_info import MAIN, NO_PARENT, RepoInfo
from icefloe.maintenance.commit_graph import History, load_history
from icefloe.maintenance.expire import Expiration, drop_expired, expire
from icefloe.maintenance.ops_log import OpsLogTrim
from icefloe.ops import UpdateType

_PERIODS: Final[Mapping[str, Callable[[datetime], object]]] = {
    "hourly": lambda time: (time.date(), time.hour),
    "daily": lambda time: time.date(),
    "weekly": lambda time: time.isocalendar()[:2],
    "monthly": lambda time: (time.year, time.month),
    "yearly": lambda time: time.year,
}
"""For each rule, the function that maps a time to its UTC period."""


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """A retention policy: rules that decide which snapshots to keep.

    A snapshot is kept if any rule keeps it. The tips of branches and the first snapshot of a history are
    always kept.

    Parameters
    ----------
    last
        Keep this many of the newest snapshots of each branch.
    within
        Keep all snapshots up to this age.
    hourly, daily, weekly, monthly, yearly
        Keep the newest snapshot of each of the latest N hours, days, weeks, months or years with snapshots.
    tagged
        Keep tagged snapshots. If False, tags whose snapshot is removed are deleted.
    branches
        Different rules for some branches, by name. Their `tagged` and `operations` are ignored.
    operations
        Delete backups of the repo info file that contain only operations older than this, as
        `Repository.trim_ops_log` does. By default, all of them are kept.

    Examples
    --------
    >>> from icefloe import RetentionPolicy
    >>> policy = RetentionPolicy(last=5, daily=14, monthly=12)
    """

    last: int = 1
    within: timedelta | None = None
    hourly: int = 0
    daily: int = 0
    weekly: int = 0
    monthly: int = 0
    yearly: int = 0
    tagged: bool = True
    branches: Mapping[str, RetentionPolicy] = field(default_factory=dict)
    operations: timedelta | None = None

    def __post_init__(self) -> None:
        for name in ("last", *_PERIODS):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative: {getattr(self, name)}")
        for name in ("within", "operations"):
            age = getattr(self, name)
            if age is not None and age < timedelta(0):
                raise ValueError(f"{name} must not be negative: {age}")
        nested = next((name for name, rules in self.branches.items() if rules.branches), None)
        if nested is not None:
            raise ValueError(f"the policy of branch {nested} must not have policies for branches")

    def reasons(self, times: list[datetime], now: datetime) -> Iterator[tuple[int, str]]:
        """Yield the position of each snapshot that the retention policy keeps, with the reason.

        Parameters
        ----------
        times
            The times of the snapshots of one branch, newest first.
        now
            The current time.

        Returns
        -------
        iterator of tuple of int and str
        """
        for at in range(min(self.last, len(times))):
            yield at, f"last {self.last}"
        if self.within is not None:
            for at, time in enumerate(times):
                if now - time <= self.within:
                    yield at, f"within {self.within}"
        for rule, period in _PERIODS.items():
            # The first snapshot of each period is its newest, because times descend.
            left, seen = getattr(self, rule), object()
            for at, time in enumerate(times):
                if left and period(time) != seen:
                    seen = period(time)
                    left -= 1
                    yield at, rule


class _Reasons:
    """The reasons for keeping each snapshot of a history."""

    def __init__(self, history: History) -> None:
        self._snapshots = history.snapshots
        self._texts: list[set[str]] = [set() for _ in range(len(history.snapshots))]
        for row in np.flatnonzero(history.snapshots.parents == NO_PARENT).tolist():
            self.add(row, "first")

    def add(self, snapshot: int | SnapshotId, text: str) -> None:
        """Add a reason for keeping a snapshot, given by row or id."""
        row = snapshot if isinstance(snapshot, int) else self._snapshots.row(snapshot)
        if row is not None:
            self._texts[row].add(text)

    def keep(self) -> NDArray[np.bool_]:
        """Return a mask of the snapshots that there is a reason to keep."""
        return np.array([bool(each) for each in self._texts], np.bool_)

    def texts(self) -> tuple[str, ...]:
        """Return the reasons for keeping each snapshot as one string."""
        return tuple("; ".join(sorted(each)) for each in self._texts)


@dataclass(frozen=True, slots=True, eq=False)
class KeptSnapshots:
    """The snapshots of a history that a retention policy keeps."""

    keep: NDArray[np.bool_]
    reasons: tuple[str, ...]
    """The reason for keeping each snapshot."""
    gone_tags: frozenset[str]
    """The tags to delete."""


def select_kept(rules: RetentionPolicy | Expiration, history: History, now: datetime) -> KeptSnapshots:
    """Select the snapshots of a history that a retention policy keeps."""
    if isinstance(rules, RetentionPolicy):
        return _keep_by_policy(rules, history, now)
    return _keep_by_time(rules, history)


def _keep_by_policy(policy: RetentionPolicy, history: History, now: datetime) -> KeptSnapshots:
    unknown = sorted(set(policy.branches) - set(history.branches))
    if unknown:
        raise InvalidInputError(
            f"the policy has rules for branch {unknown[0]}, which does not exist",
            kind=ErrorKind.REF_NOT_FOUND,
        )
    snapshots, reasons = history.snapshots, _Reasons(history)
    times = list(to_datetimes(_get_times(history)))
    for name, tip in history.branches.items():
        line = snapshots.ancestry(tip)
        reasons.add(line[0], f"tip of {name}")
        for at, why in policy.branches.get(name, policy).reasons([times[row] for row in line], now):
            reasons.add(line[at], f"{name}: {why}")
    if policy.tagged:
        for tag, target in history.tags.items():
            reasons.add(target, f"tag {tag}")
    # Unreachable snapshots are left to garbage collection.
    keep = reasons.keep() | ~history.reached()
    rows = {tag: snapshots.row(target) for tag, target in history.tags.items()}
    gone = frozenset(tag for tag, row in rows.items() if row is None or not keep[row])
    return KeptSnapshots(keep, reasons.texts(), gone)


def _keep_by_time(rules: Expiration, history: History) -> KeptSnapshots:
    snapshots, reasons, times = history.snapshots, _Reasons(history), _get_times(history)
    for young in np.flatnonzero(times >= rules.older_than_us).tolist():
        reasons.add(young, "young")
    for name, tip in history.branches.items():
        if name == MAIN or name in history.protected or not rules.delete_branches:
            reasons.add(tip, f"tip of {name}")
    gone: set[str] = set()
    for name, target in history.tags.items():
        row = snapshots.row(target)
        if not rules.delete_tags:
            reasons.add(target, f"tag {name}")
        elif row is not None and times[row] < rules.older_than_us:
            gone.add(name)
    return KeptSnapshots(reasons.keep(), reasons.texts(), frozenset(gone))


def mark_kept_snapshots(
    history: History, rules: RetentionPolicy | Expiration | set[str]
) -> NDArray[np.bool_]:
    """Return a mask of the snapshots in a history that a retention policy keeps, or that have the given
    ids.
    """
    if not isinstance(rules, set):
        return select_kept(rules, history, datetime.now(UTC)).keep
    names = [str(history.snapshots.id_at(row)) for row in range(len(history.snapshots))]
    return np.array([name in rules for name in names], np.bool_)


@dataclass(frozen=True, slots=True, repr=False)
class RetentionReport(Report):
    """The result of applying a retention policy: the snapshots that were, or with `dry_run` would be, kept
    and removed.
    """

    table: Table
    """One row per snapshot on a branch or tag, newest first: snapshot, written_at, message, kept, reason."""
    dry_run: bool
    """True if nothing was removed."""
    ops_log: OpsLogTrim | None = None
    """The backups that were deleted, if the policy limits the age of operations."""

    @property
    def kept(self) -> int:
        """The number of snapshots that the retention policy keeps."""
        return int(self.table["kept"].sum())

    @property
    def removed(self) -> int:
        """The number of snapshots that the retention policy removes."""
        return len(self.table) - self.kept

    def __repr__(self) -> str:
        verb = "would be removed" if self.dry_run else "removed"
        return f"<RetentionReport: {self.kept} snapshots kept, {self.removed} {verb}>\n{self.table!r}"


def retain(
    refs: RefStore, assets: AssetStore, rules: RetentionPolicy | Expiration, *, dry_run: bool
) -> RetentionReport:
    """Remove all snapshots that a retention policy does not keep from the history; see
    `Repository.retain`.
    """
    now = datetime.now(UTC)
    if dry_run:
        history = load_history(refs)
        return RetentionReport(_make_table(history, select_kept(rules, history, now)), True)
    if not isinstance(refs, RefStoreV2):
        return RetentionReport(_retain_v1(refs, assets, rules, now), False)
    done: list[Table] = []

    def change(info: RepoInfo) -> Changed:
        # Called again after a conflict with another writer, so the decision is based on the newest state.
        protected = frozenset(list_protected(info))
        history = History(info.snapshots, info.branches, info.tags, info.deleted_tags, protected)
        kept = select_kept(rules, history, now)
        done[:] = [_make_table(history, kept).take(history.reached()[_sort_newest_first(history)])]
        if isinstance(rules, Expiration):
            return drop_expired(info, rules)[0], UpdateType.ExpirationRan()
        changed = replace(
            info,
            snapshots=info.snapshots if kept.keep.all() else shorten_history(info.snapshots, kept.keep),
            tags={tag: id for tag, id in info.tags.items() if tag not in kept.gone_tags},
            deleted_tags=info.deleted_tags | kept.gone_tags,
        )
        return changed, UpdateType.ExpirationRan()

    with assets.storage.make_room(refs.old_backups):
        refs.update(change)
    return RetentionReport(done[0], False)


def _retain_v1(
    refs: RefStore, assets: AssetStore, rules: RetentionPolicy | Expiration, now: datetime
) -> Table:
    """Delete tags, then rewrite each snapshot whose parent is removed with its nearest kept ancestor as its
    parent.
    """
    history = load_history(refs)
    kept = select_kept(rules, history, now)
    if isinstance(rules, Expiration):
        expire(refs, assets, rules)
        return _make_table(history, kept)
    for tag in sorted(kept.gone_tags):
        refs.delete_tag(tag)
    gone = [f"{TRANSACTIONS}/{name}" for name in encode_column(history.snapshots.ids[~kept.keep])]
    with assets.storage.make_room(lambda: iter(gone)):
        for info in () if kept.keep.all() else shorten_history(history.snapshots, kept.keep):
            snapshot = assets.snapshot(info.id)
            if snapshot.parent_id != info.parent_id:
                assets.write_snapshot(replace(snapshot, parent_id=info.parent_id))
    return _make_table(history, kept)


def _make_table(history: History, kept: KeptSnapshots) -> Table:
    """Return a table with one row per snapshot, newest first."""
    order = _sort_newest_first(history)
    infos = [history.snapshots[row] for row in order.tolist()]
    return Table(
        {
            "snapshot": [str(info.id) for info in infos],
            "written_at": np.array([info.flushed_at_us for info in infos], "M8[us]"),
            "message": [info.message for info in infos],
            "kept": kept.keep[order],
            "reason": [kept.reasons[row] for row in order.tolist()],
        }
    )


def _get_times(history: History) -> NDArray[np.int64]:
    return np.asarray(history.snapshots.columns["flushed_at"]).astype(np.int64)


def _sort_newest_first(history: History) -> NDArray[np.int64]:
    return np.argsort(-_get_times(history), kind="stable")
