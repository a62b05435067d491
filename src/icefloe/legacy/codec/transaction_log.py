"""Decode transaction logs of old formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from icefloe._internal.ids import NodeId, SnapshotId
from icefloe.encoding.envelope import FileType
from icefloe.format.transaction_log import TransactionLog, UpdatedChunks
from icefloe.legacy.codec.files import open_file
from icefloe.legacy.codec.ids import make_node_id
from icefloe.legacy.codec.structures import (
    LegacyFindings,
    Structure,
    make_damage_error,
    to_items,
    to_number,
    to_pairs,
)

_LISTS: Final = (
    "new_groups",
    "new_arrays",
    "deleted_groups",
    "deleted_arrays",
    "updated_user_attributes",
    "updated_zarr_metadata",
)
TRANSACTION_LOG: Final = Structure(
    "a transaction log",
    (
        ("icechunk_transaction_log_format_version", *_LISTS, "updated_chunks"),
        (*_LISTS, "updated_chunks"),
    ),
    frozenset({"icechunk_transaction_log_format_version"}),
)

RankOf = Callable[[NodeId], int | None]
"""A function that returns the number of dimensions of an array, given its id; None for groups and missing
nodes.
"""


def read_transaction_log(
    data: bytes, id: SnapshotId, rank_of: RankOf, place: str, findings: LegacyFindings
) -> TransactionLog:
    """Decode a legacy transaction log file.

    The file does not record whether a node whose attributes changed is a group or an array, and early writers
    recorded chunks of other arrays under a node. Both ambiguities are resolved with the nodes of the
    snapshot.
    """
    fields = TRANSACTION_LOG.read(open_file(data, FileType.TRANSACTION_LOG, place), place, findings)
    lists = {name: _parse_ids(fields[name], f"{place}: {name}") for name in _LISTS}
    arrays = {*lists["new_arrays"], *lists["deleted_arrays"], *lists["updated_zarr_metadata"]}
    updated = dict.fromkeys([*lists["updated_user_attributes"], *lists["updated_zarr_metadata"]])
    is_array = {node: node in arrays or rank_of(node) is not None for node in updated}
    chunks = []
    for key, coords in to_pairs(fields["updated_chunks"], f"{place}: updated_chunks").items():
        node = make_node_id(key, f"{place}: updated_chunks")
        chunks.extend(_parse_chunks(node, coords, rank_of(node), place, findings))
    return TransactionLog.of(
        id,
        UpdatedChunks.of_lists(chunks),
        new_groups=lists["new_groups"],
        new_arrays=lists["new_arrays"],
        deleted_groups=lists["deleted_groups"],
        deleted_arrays=lists["deleted_arrays"],
        updated_groups=[node for node in updated if not is_array[node]],
        updated_arrays=[node for node in updated if is_array[node]],
    )


def _parse_ids(stored: Any, place: str) -> Sequence[NodeId]:
    return [make_node_id(value, place) for value in to_items(stored, place)]


def _parse_chunks(
    node: NodeId, stored: Any, rank: int | None, place: str, findings: LegacyFindings
) -> list[tuple[NodeId, Any]]:
    by_rank: dict[int, list[list[int]]] = {}
    where = f"{place}: updated_chunks of {node}"
    for entry in to_items(stored, where):
        coords = [to_number(n, where, 32) for n in to_items(entry, where)]
        by_rank.setdefault(len(coords), []).append(coords)
    if rank is not None and by_rank.keys() - {rank}:
        findings.note(f"{where}: ignored chunks of other arrays")
        by_rank = {rank: by_rank.get(rank, [])}
    if any(n > 255 for n in by_rank):
        raise make_damage_error(f"{where}: a chunk has {max(by_rank)} coordinates, which is too many")
    return [
        (node, np.array(coords, np.uint32).reshape(len(coords), n)) for n, coords in by_rank.items() if coords
    ]
