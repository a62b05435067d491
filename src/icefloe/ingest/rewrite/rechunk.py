"""Other chunks for arrays of a repository: tasks read boxes of what was, and write whole new chunks.

Where that would read old chunks many times over, they are put aside in between: see `spill`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import zarr

from icefloe._internal.amounts import bytes_text, counted
from icefloe._internal.executor import Executor, Task
from icefloe._internal.paths import join, normalize
from icefloe._internal.warnings import quiet
from icefloe.conflicts import ConflictDetector
from icefloe.core.commit.limits import check_changed_chunks
from icefloe.core.workspace import Workspace
from icefloe.distributed import receipt
from icefloe.errors import ErrorKind, InvalidInputError, NodeNotFoundError, RebaseFailedError
from icefloe.format.snapshot import ArrayNodeData
from icefloe.ingest.combine.pieces import PieceArray, Pieces
from icefloe.ingest.options import DEFAULT_MEMORY_BYTES
from icefloe.ingest.plan.block_shapes import READ_COPIES, WRITE_COPIES, at_once, chunks_at_once
from icefloe.ingest.plan.spill import ArraySpill
from icefloe.ingest.plan.tasks import Plan, SourceCut, make_plan
from icefloe.ingest.records import LOGGER, Target
from icefloe.ingest.rewrite.layout import Relayout, StoredArray, new_layout, stored_array
from icefloe.ingest.write.spill import delete_spills, read_block, spill_block
from icefloe.repository import Repository
from icefloe.session import ForkSession, Session

METADATA = "icefloe_rechunk"
"""Where a commit's metadata has what was done."""
_SAMPLES = 8
"""How many new chunks are read again and compared."""


@dataclass(frozen=True, slots=True)
class Rechunked:
    """An array with its old and new chunks."""

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
    """The result or the plan of a rechunk."""

    arrays: tuple[Rechunked, ...]
    unchanged: tuple[str, ...]
    """Arrays that have the layout already."""
    tasks: int
    blocks: int
    nbytes: int
    memory_bytes: int
    """What a task holds at most, beside the interpreter and its modules."""
    read_factor: float
    """How often a chunk is read, on average."""
    spilled_bytes: int = 0
    """What is put aside in between, in the storage of the repository, and deleted at the end."""
    compared: int = 0
    """New chunks of which a part was read again, and had the values of before."""
    commit: str | None = None
    """The snapshot; None where nothing was done."""

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Box:
    """A part of an array."""

    path: str
    start: tuple[int, ...]
    stop: tuple[int, ...]

    @property
    def key(self) -> tuple[slice, ...]:
        """The box as slices."""
        return tuple(slice(start, stop) for start, stop in self.spans)

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Start and stop along each dimension."""
        return tuple(zip(self.start, self.stop, strict=True))


@dataclass(frozen=True, slots=True)
class RechunkTask:
    """A task: write boxes of whole new chunks."""

    fork: ForkSession
    base: Session
    """The arrays as they were."""
    boxes: tuple[Box, ...]
    samples: tuple[Box, ...]
    """Some parts of new chunks in them to be compared."""
    spills: Mapping[str, ArraySpill]
    """The arrays whose boxes are taken from what was put aside."""
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class SpillTask:
    """A task: spill blocks of an array."""

    base: Session
    spill: ArraySpill
    numbers: tuple[int, ...]
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The result of a task."""

    receipt: bytes
    different: tuple[Box, ...]
    """The samples that are not what they were."""


def rechunk(
    repo: Repository,
    path: str,
    executor: Executor,
    *,
    chunks: Mapping[str, int] | None = None,
    shards: Mapping[str, int] | None = None,
    codec: str | None = None,
    branch: str = "main",
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    dry_run: bool = False,
) -> RechunkReport:
    """Cut an array in another way, or all arrays of a group that have the dimensions, in one commit.

    `chunks` and `shards` are cells by dimension, by its number where it has no name, -1 for all of them.
    Dimensions without a size keep that of their chunks. Without `shards` there are none afterwards; without
    `codec` (`zstd:9`, `blosc:lz4:5`, `gzip:6`, `none`) the codecs stay. Values, attributes, fill value and
    names of dimensions are what they were. Tasks of `executor` read from the tip of the branch as it is now,
    and hold at most `memory_bytes` each. If somebody commits to the same arrays meanwhile,
    RebaseFailedError, and the branch has what they committed; other commits are built upon.
    """
    wanted = Relayout(dict(chunks or {}), dict(shards) if shards else None, codec)
    session = repo.writable_session(branch)
    base = repo.readonly_session(snapshot_id=session.snapshot_id)
    arrays = _found(base._workspace, normalize("/" + path), wanted)
    targets = [new_layout(array, wanted) for array in arrays]
    changed = [
        (array, target)
        for array, target in zip(arrays, targets, strict=True)
        if (array.chunks, array.shards) != (target.chunks, target.shards) or codec is not None
    ]
    check_changed_chunks(
        [(target.count_units(), len(target.shape)) for _, target in changed],
        "choose larger chunks, or shards of many chunks",
    )
    plan = _planned(changed, memory_bytes, executor.parallelism)
    report = _report(changed, arrays, plan)
    aside = f", {bytes_text(plan.spilled_bytes)} put aside in between" if plan.spilled_bytes else ""
    LOGGER.info(
        "%s: %s in %s, %s of at most %s%s",
        counted(len(changed), "array"),
        bytes_text(plan.nbytes),
        counted(len(plan.blocks), "block"),
        counted(len(plan.tasks), "task"),
        bytes_text(plan.memory_bytes),
        aside,
    )
    if dry_run or not changed:
        return report
    compared = _written(session, base, changed, plan, executor, memory_bytes)
    names = [array.path for array, _ in changed]
    about = {"arrays": names, "compared": compared}
    try:
        commit = session.commit(
            message or f"Rechunk {', '.join(names)}",
            {**(metadata or {}), METADATA: about},
            rebase_with=ConflictDetector(),
        )
    except RebaseFailedError as error:
        theirs = ", ".join(dict.fromkeys(conflict.path for conflict in error.conflicts))
        error.message = (
            f"conflict: {theirs} was changed on {branch} while it was rechunked (snapshot {error.snapshot}); "
            "the branch has that change and the chunks of before: rechunk again"
        )
        raise
    LOGGER.info("commit %s: %s has the new chunks", commit, branch)
    return replace(report, compared=compared, commit=commit)


def _found(workspace: Workspace, path: str, wanted: Relayout) -> list[StoredArray]:
    """Find the array at a path, or the arrays of a group that have all dimensions."""
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
        target.name: PieceArray(target.name, target.shape, np.dtype("u1"), Pieces.whole(0, target.shape), {})
        for _, target in changed
    }
    cuts = {array.path: SourceCut(array.chunks, partial=array.shards is not None) for array, _ in changed}
    return make_plan([target for _, target in changed], pieces, cuts, memory_bytes, parallelism)


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
        plan.spilled_bytes,
    )


def _written(
    session: Session,
    base: Session,
    changed: Sequence[tuple[StoredArray, Target]],
    plan: Plan,
    executor: Executor,
    memory_bytes: int,
) -> int:
    """Recreate the arrays in a session and run the tasks; return the number of compared chunks."""
    for array, target in changed:
        session._workspace.delete_node(array.path)  # with the references to its chunks
        session._workspace.set_metadata(array.path, (target.document or "").encode())
    samples = _samples(plan, {array.path: (array, target) for array, target in changed})
    tasks = list(_rechunk_tasks(session.fork(), base, plan, samples, memory_bytes)) if plan.blocks else []
    try:
        if plan.readings:
            list(
                executor.map(
                    Task(spill_blocks, "parts spilled"), list(_spill_tasks(base, plan, memory_bytes))
                )
            )
        done = list(executor.map(Task(rewrite, "tasks"), tasks))
    finally:
        delete_spills(plan.spills.values(), session._workspace.assets.storage)
    for box in (box for each in done for box in each.different):
        raise InvalidInputError(
            f"the values of {box.path} from {list(box.start)} to {list(box.stop)} are not the same after "
            "they were written: its codecs lose some; choose a codec that does not",
            ErrorKind.INVALID_ARRAY_METADATA,
        )
    session._merge_receipts([each.receipt for each in done])
    return len(samples)


def _samples(plan: Plan, arrays: Mapping[str, tuple[StoredArray, Target]]) -> dict[int, Box]:
    """Select samples: the overlap of a block's last new chunk with an old one."""
    found = {}
    for number in set(
        np.linspace(0, len(plan.blocks) - 1, _SAMPLES).astype(int).tolist() if plan.blocks else ()
    ):
        block = plan.blocks[number]
        array, target = arrays[block.name]
        cells = zip(block.start, block.stop, target.chunks, array.chunks, strict=True)
        start = tuple(
            max(first, *((last - 1) // size * size for size in sizes)) for first, last, *sizes in cells
        )
        found[number] = Box(block.name, start, block.stop)
    return found


def _spill_tasks(base: Session, plan: Plan, memory_bytes: int) -> Iterator[SpillTask]:
    """Yield spill tasks. Block numbers start at 0 for each array."""
    first = {name: index for index, name in reversed(list(enumerate(block.name for block in plan.readings)))}
    for task in plan.reading_tasks:
        numbers: dict[str, list[int]] = {}
        for index in task:
            name = plan.readings[index].name
            numbers.setdefault(name, []).append(index - first[name])
        for name, mine in numbers.items():
            yield SpillTask(base, plan.spills[name], tuple(mine), memory_bytes)


def _rechunk_tasks(
    fork: ForkSession, base: Session, plan: Plan, samples: Mapping[int, Box], memory_bytes: int
) -> Iterator[RechunkTask]:
    for task in plan.tasks:
        blocks = plan.blocks[task.start : task.stop]
        boxes = tuple(Box(block.name, block.start, block.stop) for block in blocks)
        compared = tuple(samples[number] for number in task if number in samples)
        names = {block.name for block in blocks}
        spills = {name: each for name, each in plan.spills.items() if name in names}
        yield RechunkTask(fork, base, boxes, compared, spills, memory_bytes)


def spill_blocks(task: SpillTask) -> int:
    """Read blocks and spill them; return their number. Idempotent."""
    array = _array(task.base, task.spill.name, "r")
    storage = task.base._workspace.assets.storage.for_a_while()
    with quiet(), chunks_at_once(_at_once(array, READ_COPIES, task.memory_bytes)):
        for number in task.numbers:
            key = tuple(slice(start, stop) for start, stop in task.spill.row(number).box)
            spill_block(task.spill, number, np.asarray(array[key]), storage)
    return len(task.numbers)


def rewrite(task: RechunkTask) -> Rewritten:
    """Write boxes through the fork. Idempotent."""
    paths = {box.path for box in task.boxes}
    with quiet():
        new = {path: _array(task.fork, path, "r+") for path in paths}
        old = {path: _array(task.base, path, "r") for path in paths}
        for box in task.boxes:
            spill = task.spills.get(box.path)
            if spill is not None:
                values = read_block(spill, box.spans, task.base._workspace.assets.storage)
            else:
                with chunks_at_once(_at_once(old[box.path], READ_COPIES, task.memory_bytes)):
                    values = old[box.path][box.key]
            with chunks_at_once(_at_once(new[box.path], WRITE_COPIES, task.memory_bytes)):
                new[box.path][box.key] = values
            del values  # before the next one is read
        different = tuple(
            box for box in task.samples if not _same(new[box.path][box.key], old[box.path][box.key])
        )
    return Rewritten(receipt(task.fork), different)


def _at_once(array: Any, copies: int, memory_bytes: int) -> int:
    size = math.prod(array.shards or array.chunks) * array.dtype.itemsize
    return at_once(size, copies, memory_bytes)


def _array(session: Session, path: str, mode: Any) -> Any:
    return zarr.open_array(session.store, path=path, mode=mode)


def _same(now: Any, before: Any) -> bool:
    one, other = np.asarray(now), np.asarray(before)
    if one.dtype.kind == "V":
        return one.tobytes() == other.tobytes()
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fcmM"))
