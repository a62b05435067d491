"""Branch operations beyond the official API: merge, cherry-pick, revert and squash."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from icefloe._internal.concurrency import async_twin
from icefloe._internal.executor import ThreadExecutor
from icefloe._internal.ids import SnapshotId
from icefloe.core.assets import AssetStore
from icefloe.core.refs.base import RefStore
from icefloe.errors import ErrorKind, RefNotFoundError
from icefloe.format.metadata import plain_metadata

if TYPE_CHECKING:
    from icefloe.core.merge.branches import Branching
    from icefloe.merging import MergeResult, MergeStrategy

_STRATEGIES = ("fail", "ours", "theirs")


class BranchOperations:
    """What a repository can do with whole branches; see docs/branching.md."""

    _refs: RefStore
    _assets: AssetStore
    _commit_metadata: Mapping[str, Any]

    def merge(
        self,
        source: str,
        into: str,
        *,
        message: str,
        metadata: dict[str, Any] | None = None,
        strategy: MergeStrategy = "fail",
        dry_run: bool = False,
    ) -> MergeResult:
        """Bring all that a branch, tag or snapshot has into a branch.

        Where only the source went on, the branch moves to it. Else both are compared with where they parted,
        chunk by chunk, and what the source changed becomes one commit. Where both changed the same in
        different ways, `strategy` decides: "ours" keeps what the branch has, "theirs" takes what the source
        has, "fail" raises MergeConflictError with a table of conflicts. `metadata` is that of the commit,
        where there is one. A dry run writes nothing and raises nothing: its result tells what would happen.
        """
        _check_strategy(strategy)
        plain = plain_metadata(metadata or {})
        return self._branching().merge(
            self._any_ref(source), into, message, strategy, dry_run=dry_run, metadata=plain
        )

    merge_async = async_twin(merge)

    def cherry_pick(
        self,
        snapshot: str,
        onto: str,
        *,
        message: str | None = None,
        strategy: MergeStrategy = "fail",
        dry_run: bool = False,
    ) -> MergeResult:
        """Make what one snapshot changed on a branch too, as a commit with its message or another.

        Conflicts are those of a merge.
        """
        _check_strategy(strategy)
        return self._branching().cherry_pick(
            self._any_ref(snapshot), onto, message, strategy, dry_run=dry_run
        )

    cherry_pick_async = async_twin(cherry_pick)

    def revert(
        self,
        snapshot: str,
        branch: str,
        *,
        message: str | None = None,
        strategy: MergeStrategy = "fail",
        dry_run: bool = False,
    ) -> MergeResult:
        """Undo on a branch what one snapshot of its history changed, as a new commit.

        What was changed again since is a conflict, as in a merge: "ours" leaves it, "theirs" undoes it too.
        """
        _check_strategy(strategy)
        undone = self._any_ref(snapshot)
        return self._branching().revert(undone, branch, message, strategy, dry_run=dry_run)

    revert_async = async_twin(revert)

    def squash(self, branch: str, since: str, *, message: str | None = None) -> str:
        """Put one snapshot in the place of all those that a branch has after `since`; its id.

        The old ones stay until they are collected, and tags and other branches still have them. Sessions that
        began at one of them cannot be rebased any more.
        """
        return str(self._branching().squash(branch, self._any_ref(since), message))

    squash_async = async_twin(squash)

    def _branching(self) -> Branching:
        from icefloe.core.merge.branches import Branching  # most who open a repository do without

        executor = ThreadExecutor(self._assets.config.max_concurrent_requests)
        return Branching(self._refs, self._assets, executor, self._commit_metadata)

    def _any_ref(self, name: str) -> SnapshotId:
        """A branch, else a tag, else the snapshot with this id."""
        for look in (self._refs.branch, self._refs.tag):
            try:
                return look(name)
            except RefNotFoundError:
                continue
        try:
            return self._refs.snapshot(SnapshotId.parse(name)).id
        except ValueError:
            raise RefNotFoundError(
                f"there is no branch, tag or snapshot {name!r}", kind=ErrorKind.REF_NOT_FOUND
            ) from None


def _check_strategy(strategy: str) -> None:
    if strategy not in _STRATEGIES:
        raise ValueError(f"a strategy is one of {', '.join(_STRATEGIES)}, not {strategy!r}")
