"""The commits between a snapshot and one of its descendants, and their transaction logs."""

from __future__ import annotations

from dataclasses import dataclass

from icefloe._internal.ids import SnapshotId
from icefloe.core.assets import AssetStore
from icefloe.core.commit.flush import merge_logs
from icefloe.core.refs.base import RefStore
from icefloe.errors import ErrorKind, SessionStateError
from icefloe.format.transaction_log import TransactionLog
from icefloe.storage.base import ObjectNotFoundError


@dataclass(frozen=True, slots=True)
class Step:
    """A commit in the ancestry of a snapshot, with its transaction log and the logs it inherits from expired
    snapshots before it.
    """

    snapshot: SnapshotId
    logs: tuple[SnapshotId, ...]


def list_steps_between(refs: RefStore, base: SnapshotId, tip: SnapshotId) -> list[Step] | None:
    """Return the commits after `base` up to `tip`, oldest first; None if `base` is not an ancestor of `tip`.

    An expired base is recognized by the transaction log that it left behind.
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


def read_step_log(assets: AssetStore, step: Step) -> TransactionLog:
    """Read all changes of a commit, including those of expired snapshots before it."""
    *pruned, own = step.logs
    logs = [_read_pruned_log(assets, id) for id in pruned] + [assets.transaction_log(own)]
    return logs[0] if len(logs) == 1 else merge_logs(own, logs)


def _read_pruned_log(assets: AssetStore, id: SnapshotId) -> TransactionLog:
    try:
        return assets.transaction_log(id)
    except ObjectNotFoundError:
        raise SessionStateError(
            f"the transaction log of the expired snapshot {id} was deleted, so its changes are unknown; "
            "repeat your changes in a new session",
            kind=ErrorKind.REBASE_TX_LOG_PRUNED,
        ) from None
