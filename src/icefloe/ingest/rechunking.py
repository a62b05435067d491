"""Other chunks for arrays of a repository: tasks read boxes of what was, and write whole new chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import zarr

from icefloe.concurrency import FanOut
from icefloe.conflicts import ConflictDetector
from icefloe.core.workspace import Workspace
from icefloe.distributed import receipt
from icefloe.errors import ErrorKind, InvalidInputError, NodeNotFoundError
from icefloe.format.snapshot import ArrayNodeData
from icefloe.ingest.pieces import PieceArray, Pieces
from icefloe.ingest.plan import DEFAULT_MEMORY_BYTES, Block, Plan, make_plan
from icefloe.ingest.relayout import Relayout, StoredArray, new_layout, stored_array
from icefloe.ingest.survey import quiet
from icefloe.ingest.targets import Target
from icefloe.paths import join, normalize
from icefloe.repository import Repository
from icefloe.session import ForkSession, Session

METADATA = "icefloe_rechunk"
"""Where a commit's metadata has what was done."""
_SAMPLES = 8
"""How many new chunks are read again and compared."""


@dataclass(frozen=True, slots=True)
class Rechunked:
    """One array as it was cut, and as it will be."""

    path: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    chunks_before: tuple[int, ...]
    shards_before: tuple[int, ...] | None
    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None
    nbytes: int


@dataclass(frozen=True, slots=True)
class RechunkReport:
    """What a rechunk did, or would do."""

    arrays: tuple[Rechunked, ...]
    unchanged: tuple[str, ...]
    """Arrays that have the layout already."""
    tasks: int
    blocks: int
    nbytes: int
    memory_bytes: int
    """The largest block of a task; it needs up to twice that, and what codecs need."""
    read_factor: float
    """How often a chunk is read, on average."""
    compared: int = 0
    """New chunks that were read again, and had the values of before."""
    commit: str | None = None
    """The snapshot; None where nothing was done."""

    def to_dict(self) -> dict[str, Any]:
        """In terms of JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Box:
    """A part of an array."""

    path: str
    start: tuple[int, ...]
    stop: tuple[int, ...]

    @property
    def key(self) -> tuple[slice, ...]:
        """What zarr takes."""
        return tuple(slice(start, stop) for start, stop in zip(self.start, self.stop, strict=True))


@dataclass(frozen=True, slots=True)
class RechunkOrder:
    """Boxes of whole new chunks for a task to write, one after the other."""

    fork: ForkSession
    base: Session
    """The arrays as they were."""
    boxes: tuple[Box, ...]
    samples: tuple[Box, ...]
    """Some new chunks in them to be compared."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What a task did."""

    receipt: bytes
    different: tuple[Box, ...]
    """The samples that are not what they were."""


def rechunk(
    repo: Repository,
    path: str,
    fan_out: FanOut,
    *,
    chunks: Mapping[str, int] | None = None,
    shards: Mapping[str, int] | None = None,
    codec: str | None = None,
    branch: str = "main",
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    parallelism: int = 2,
    dry_run: bool = False,
    told: Callable[[str], None] = lambda _: None,
) -> RechunkReport:
    """Cut an array in another way, or all arrays of a group that have the dimensions, in one commit.

    `chunks` and `shards` are cells by dimension, by its number where it has no name, -1 for all of them.
    Dimensions without a size keep that of their chunks. Without `shards` there are none afterwards; without
    `codec` (`zstd:9`, `blosc:lz4:5`, `gzip:6`, `none`) the codecs stay. Values, attributes, fill value and
    names of dimensions are what they were. Tasks of `fan_out` read from the tip of the branch as it is now,
    and write blocks of at most `memory_bytes`. If somebody commits to the same arrays meanwhile,
    RebaseFailedError, and the branch has what they committed; other commits are built upon.
    """
    wanted = Relayout(dict(chunks or {}), dict(shards) if shards else None, codec)
    session = repo.writable_session(branch)
    base = repo.readonly_session(snapshot_id=session.snapshot_id)
    arrays = _found(base.workspace, normalize("/" + path), wanted)
    targets = [new_layout(array, wanted, memory_bytes) for array in arrays]
    changed = [
        (array, target)
        for array, target in zip(arrays, targets, strict=True)
        if (array.chunks, array.shards) != (target.chunks, target.shards) or codec is not None
    ]
    plan = _planned(changed, memory_bytes, parallelism)
    report = _report(changed, arrays, plan)
    told(
        f"{len(changed)} arrays: {plan.nbytes} bytes in {len(plan.blocks)} blocks of at most "
        f"{plan.memory_bytes}, {len(plan.tasks)} tasks"
    )
    if dry_run or not changed:
        return report
    compared = _written(session, base, changed, plan, fan_out)
    names = [array.path for array, _ in changed]
    about = {"arrays": names, "compared": compared}
    commit = session.commit(
        message or f"Rechunk {', '.join(names)}",
        {**(metadata or {}), METADATA: about},
        rebase_with=ConflictDetector(),
    )
    told(f"commit {commit}: {branch} has the new chunks")
    return replace(report, compared=compared, commit=commit)


def _found(workspace: Workspace, path: str, wanted: Relayout) -> list[StoredArray]:
    """The array at a path, or those of the group there that have all dimensions."""
    node = workspace.node(path)
    if node is None:
        raise NodeNotFoundError(f"there is no array or group at `{path}`", kind=ErrorKind.NODE_NOT_FOUND)
    alone = isinstance(node.node_data, ArrayNodeData)
    inside = [workspace.node(join(path, name)) for name in workspace.children(path)]
    members = [
        stored_array(each.path, each.user_data)
        for each in ([node] if alone else inside)
        if each is not None and isinstance(each.node_data, ArrayNodeData)
    ]
    fitting = [array for array in members if set(wanted.dims) <= set(array.dims)]
    if not fitting:
        there = dict.fromkeys(dim for array in members for dim in array.dims)
        who = f"the array {path} does not have" if alone else f"no array of the group {path} has"
        raise InvalidInputError(
            f"{who} the dimensions {', '.join(wanted.dims)}; there are {', '.join(there) or 'none'}",
            ErrorKind.INVALID_ARRAY_METADATA,
        )
    return fitting


def _planned(changed: Sequence[tuple[StoredArray, Target]], memory_bytes: int, parallelism: int) -> Plan:
    pieces = {
        target.name: PieceArray(target.name, target.shape, np.dtype("u1"), Pieces.whole(0, target.shape))
        for _, target in changed
    }
    cells = {array.path: array.chunks for array, _ in changed}
    return make_plan([target for _, target in changed], pieces, cells, memory_bytes, parallelism)


def _report(
    changed: Sequence[tuple[StoredArray, Target]], arrays: Sequence[StoredArray], plan: Plan
) -> RechunkReport:
    found = tuple(
        Rechunked(
            array.path,
            array.dims,
            array.shape,
            target.dtype,
            array.chunks,
            array.shards,
            target.chunks,
            target.shards,
            target.nbytes,
        )
        for array, target in changed
    )
    names = {each.path for each in found}
    unchanged = tuple(array.path for array in arrays if array.path not in names)
    return RechunkReport(
        found,
        unchanged,
        len(plan.tasks),
        len(plan.blocks),
        plan.nbytes,
        plan.memory_bytes,
        plan.read_factor,
    )


def _written(
    session: Session,
    base: Session,
    changed: Sequence[tuple[StoredArray, Target]],
    plan: Plan,
    fan_out: FanOut,
) -> int:
    """Make the arrays anew in a session and have them filled; how many chunks were compared."""
    targets = {target.name: target for _, target in changed}
    for path, target in targets.items():
        session.workspace.delete_node(path)  # with the references to its chunks
        session.workspace.set_metadata(path, (target.document or "").encode())
    orders = list(_orders(session.fork(), base, targets, plan)) if plan.blocks else []
    done = list(fan_out(rewrite, orders))
    for box in (box for each in done for box in each.different):
        raise InvalidInputError(
            f"the values of {box.path} from {list(box.start)} to {list(box.stop)} are not the same after "
            "they were written: its codecs lose some; choose a codec that does not",
            ErrorKind.INVALID_ARRAY_METADATA,
        )
    session.merge_receipts([each.receipt for each in done])
    return sum(len(order.samples) for order in orders)


def _orders(
    fork: ForkSession, base: Session, targets: Mapping[str, Target], plan: Plan
) -> Iterator[RechunkOrder]:
    sampled = set(np.linspace(0, len(plan.blocks) - 1, _SAMPLES).astype(int).tolist())
    for task in plan.tasks:
        boxes = tuple(Box(block.name, block.start, block.stop) for block in (plan.blocks[n] for n in task))
        samples = tuple(
            _last_chunk(plan.blocks[number], targets[plan.blocks[number].name])
            for number in task
            if number in sampled
        )
        yield RechunkOrder(fork, base, boxes, samples)


def _last_chunk(block: Block, target: Target) -> Box:
    cells = zip(block.stop, target.chunks, strict=True)
    return Box(block.name, tuple((stop - 1) // size * size for stop, size in cells), block.stop)


def rewrite(order: RechunkOrder) -> Rewritten:
    """Write the boxes through the fork, a task's part. It may run twice and does not mind."""
    paths = {box.path for box in order.boxes}
    with quiet():
        new = {path: _array(order.fork, path, "r+") for path in paths}
        old = {path: _array(order.base, path, "r") for path in paths}
        for box in order.boxes:
            new[box.path][box.key] = old[box.path][box.key]
        different = tuple(
            box for box in order.samples if not _same(new[box.path][box.key], old[box.path][box.key])
        )
    return Rewritten(receipt(order.fork), different)


def _array(session: Session, path: str, mode: Any) -> Any:
    return zarr.open_array(session.store, path=path, mode=mode)


def _same(now: Any, before: Any) -> bool:
    one, other = np.asarray(now), np.asarray(before)
    if one.dtype.kind == "V":
        return one.tobytes() == other.tobytes()
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fcmM"))
