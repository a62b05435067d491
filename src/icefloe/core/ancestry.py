"""The way from one snapshot to a later one: which commits lie between, and the logs that tell of them."""

from __future__ import annotations

from dataclasses import dataclass

from icefloe._internal.ids import SnapshotId
from icefloe.core.assets import AssetStore
from icefloe.core.commit.flush import merged_logs
from icefloe.core.refs.base import RefStore
from icefloe.errors import ErrorKind, SessionStateError
from icefloe.format.transaction_log import TransactionLog
from icefloe.storage.base import ObjectNotFoundError


@dataclass(frozen=True, slots=True)
class Step:
    """A commit, and the logs to replay for it: those of expired snapshots before it, then its own."""

    snapshot: SnapshotId
    logs: tuple[SnapshotId, ...]


def steps_between(refs: RefStore, base: SnapshotId, tip: SnapshotId) -> list[Step] | None:
    """The commits after `base` up to `tip`, oldest first; None where `base` is not in the history of `tip`.

    A base that expired is still found by the log it left behind.
    """
    steps: list[Step] = []
    for info in refs.ancestry(tip):
        if info.id == base:
            return steps[::-1]
        pruned = info.pruned_ancestor_tx_logs
        if base in pruned:
            later = pruned[pruned.index(base) + 1 :]
            return [Step(info.id, (*later, info.id)), *steps[::-1]]
        steps.append(Step(info.id, (*pruned, info.id)))
    return None


def log_of(assets: AssetStore, step: Step) -> TransactionLog:
    """All that a step changed."""
    *pruned, own = step.logs
    logs = [_pruned_log(assets, id) for id in pruned] + [assets.transaction_log(own)]
    return logs[0] if len(logs) == 1 else merged_logs(own, logs)


def _pruned_log(assets: AssetStore, id: SnapshotId) -> TransactionLog:
    try:
        return assets.transaction_log(id)
    except ObjectNotFoundError:
        raise SessionStateError(
            f"the transaction log of the expired snapshot {id} is gone, so nobody can tell what it changed; "
            "make the changes again in a new session",
            kind=ErrorKind.REBASE_TX_LOG_PRUNED,
        ) from None
