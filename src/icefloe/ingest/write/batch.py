"""One commit: arrays are made or made longer, tasks write them, and the ledger says what came from where."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import zarr

from icefloe._internal.amounts import counted
from icefloe._internal.executor import Executor, Task
from icefloe._internal.warnings import quiet
from icefloe.ingest.combine.existing import Existing, TargetState
from icefloe.ingest.combine.pieces import EXISTING
from icefloe.ingest.discover.sources import Source
from icefloe.ingest.inspect.packing import zarr_attributes
from icefloe.ingest.ledger.table import Ledger, LedgerRow, region_text, write_ledger
from icefloe.ingest.options import Options
from icefloe.ingest.plan.arrays import create
from icefloe.ingest.plan.design import Design
from icefloe.ingest.plan.manifest_windows import Windows, files_within, windows_of, with_splitting
from icefloe.ingest.plan.tasks import Block
from icefloe.ingest.records import LOGGER, BadFile, FileSchema, Stored, UnreadableError, unreadable
from icefloe.ingest.write.chunks import WriteTask, spill_blocks, write
from icefloe.ingest.write.references import ReferenceTask, Referred, write_references
from icefloe.ingest.write.spill import delete_spills
from icefloe.repository import Repository
from icefloe.session import Session

_FILES_PER_TASK = 256
METADATA = "icefloe_ingest"
"""Where a commit's metadata has what the ingest says about it."""


Moves = Mapping[str, Sequence[tuple[int, int, int]]]
"""See `combining.moves`."""


def batch_id(group: str, sources: Sequence[Source]) -> str:
    """The same for the same sources in the same target, whoever runs it and when."""
    identity = [group, *sorted([each.url, *each.seen] for each in sources)]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """Files on the staging branch, where they lie, and the blocks that were made of them."""

    stored: Stored
    """The group as the commit left it: later ones may have put others before its blocks."""
    sources: Sequence[Source]
    """A piece's source is a number in this."""
    boxes: Sequence[Mapping[str, tuple[int, int]]]
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit on the branch that an ingest writes to."""

    staged: StagedFiles
    design: Design
    ledger: Ledger


def commit_batch(
    repo: Repository, branch: str, design: Design, state: TargetState, options: Options, executor: Executor
) -> Commit | None:
    """Write a batch of files and commit it on a branch.

    Nothing is written, and None returned, if the branch is not at the snapshot of `state`. UnreadableError if
    files turn out to be unreadable.
    """
    referred = {name for _, name in design.referral.chosen}
    targets = [target for target in design.targets if target.name in referred]
    windows = windows_of(targets, options.group, repo.config, options.manifest_references)
    session = with_splitting(repo, windows, options.group).writable_session(branch)
    if session.snapshot_id != state.ledger.snapshot_id:
        return None
    batch, rows = write_batch(session, design, state, options, executor, windows)
    files = counted(len(design.combined.files), "file")
    about = {"batch": batch, "files": len(design.combined.files), "mode": options.mode}
    commit = session.commit(options.message or f"Ingest {files}", {**options.metadata, METADATA: about})
    LOGGER.info("commit %s: %s", commit, files)
    stored = Stored(repo.readonly_session(snapshot_id=commit), options.group)
    combined = design.combined
    sources = [file.source for file in combined.files]
    staged = StagedFiles(stored, sources, [*combined.boxes.values()], design.plan.blocks)
    return Commit(staged, design, Ledger(commit, rows))


def write_batch(
    session: Session,
    designed: Design,
    state: TargetState,
    options: Options,
    executor: Executor,
    windows: Windows | None = None,
) -> tuple[str, list[LedgerRow]]:
    """Write what was designed into a session, without committing it; the batch's id, and the ledger then.

    With windows, tasks write the manifests of large arrays.
    """
    combined, existing, rows = designed.combined, state.existing, state.ledger.rows
    _make_room(session, designed, options)
    receipts = []
    bad: dict[int, str] = {}
    # Manifests that tasks wrote come first: what is written after them may lie over them.
    if designed.referral.chosen:
        referrals = list(_referrals(session, designed, options, windows, executor.parallelism))
        for written in executor.map(Task(write_references, "tasks"), referrals):
            receipts.append(written.receipt)
            bad.update(written.bad)
    tasks = _Tasks(session, designed, existing, options)
    try:
        if designed.plan.readings:
            for unreadable_sources in executor.map(
                Task(spill_blocks, "parts spilled"), list(tasks.spilling())
            ):
                bad.update(unreadable_sources)
        if designed.plan.blocks and not bad:
            for written in executor.map(Task(write, "tasks"), list(tasks.writing())):
                receipts.append(written.receipt)
                bad.update(written.bad)
    finally:
        delete_spills(designed.plan.spills.values(), session._workspace.assets.storage)
    if bad:
        found = [BadFile(combined.files[number].source, text) for number, text in sorted(bad.items())]
        if options.on_bad_file == "stop":
            raise unreadable(found)
        raise UnreadableError(found)
    session._merge_receipts(receipts)
    _write_coordinates(session, designed, existing, options)
    batch = batch_id(options.group, [file.source for file in combined.files])
    now = _ledger(rows, batch, designed)
    write_ledger(session, options.group, now, rows)
    return batch, now


def _make_room(session: Session, designed: Design, options: Options) -> None:
    with quiet():
        group = zarr.open_group(session.store, path=options.group, mode="a")
        for target in designed.targets:
            if target.is_new:
                if target.name in group:
                    del group[target.name]
                create(group, target, options.layout.codec)
            else:
                array: Any = group[target.name]
                if array.shape != target.shape:
                    array.resize(target.shape)


class _Tasks:
    """The tasks of a plan for the tasks that put aside and for those that write."""

    def __init__(
        self,
        session: Session,
        designed: Design,
        existing: Existing | None,
        options: Options,
    ) -> None:
        self._fork = session.fork()
        self._designed = designed
        self._existing = existing
        self._options = options
        self._targets = {target.name: target for target in designed.targets}
        self._copied: dict[int, list[str]] = {}
        for number, name in designed.copied:
            self._copied.setdefault(number, []).append(name)

    def writing(self) -> Iterator[WriteTask]:
        """A task has blocks of several arrays; those that were put aside need no sources."""
        plan = self._designed.plan
        for task in plan.tasks:
            blocks = [
                replace(block, pieces=block.pieces.taken(slice(0, 0))) if block.name in plan.spills else block
                for block in plan.blocks[task.start : task.stop]
            ]
            yield self._task(blocks, range(0))

    def spilling(self) -> Iterator[WriteTask]:
        """A task has blocks of one array, by their numbers among its own."""
        plan = self._designed.plan
        first: dict[str, int] = {}
        for index, block in enumerate(plan.readings):
            first.setdefault(block.name, index)
        for task in plan.reading_tasks:
            for name in dict.fromkeys(plan.readings[index].name for index in task):
                mine = [index for index in task if plan.readings[index].name == name]
                numbers = range(mine[0] - first[name], mine[-1] + 1 - first[name])
                yield self._task([plan.readings[index] for index in mine], numbers)

    def _task(self, blocks: Sequence[Block], numbers: range) -> WriteTask:
        names = {block.name for block in blocks}
        used = {int(number) for block in blocks for number in np.unique(block.pieces.source)}
        sources: dict[int, Any] = {
            number: self._designed.combined.files[number].source for number in used - {EXISTING}
        }
        if EXISTING in used and self._existing is not None:
            sources[EXISTING] = self._existing.stored
        spills = self._designed.plan.spills
        copied = ((number, name) for number in used for name in self._copied.get(number, ()))
        return WriteTask(
            self._fork.fork(),
            self._options.group,
            tuple(blocks),
            {name: self._targets[name] for name in names},
            sources,
            self._options.reading,
            frozenset(pair for pair in copied if pair[1] in names),
            {name: spills[name] for name in names if name in spills},
            numbers,
            self._options.memory_bytes,
        )


def _referrals(
    session: Session, designed: Design, options: Options, windows: Windows | None, parallelism: int
) -> Iterator[ReferenceTask]:
    combined = designed.combined
    fork = session.fork()
    dims = {target.name: target.dims for target in designed.targets}
    chunks = {target.name: target.chunks for target in designed.targets}
    names: dict[int, list[str]] = {}
    for number, name in sorted(designed.referral.chosen):
        names.setdefault(number, []).append(name)

    def task(numbers: Sequence[int], extents: Mapping[str, tuple[range, ...]]) -> ReferenceTask:
        files = []
        for number in numbers:
            file, box = combined.files[number], combined.boxes[number]
            mine = tuple(names[number])
            files.append(Referred(number, file.source, mine, box, _lacking(file, mine, dims), file.spilled))
        return ReferenceTask(fork.fork(), options.group, tuple(files), options.reading, dims, chunks, extents)

    if windows is not None:
        boxes = {number: combined.boxes[number] for number in names}
        for span in windows.spans():
            if numbers := list(files_within(boxes, windows.dim, span)):
                yield task(numbers, windows.extents(span))
        return
    whole = list(names)
    # Their references wait in few objects: a task that had less to do would take longer to start.
    each = -(-len(whole) // parallelism)
    share = max(1, -(-each // 4), min(_FILES_PER_TASK, each))
    for start in range(0, len(whole), share):
        yield task(whole[start : start + share], {})


def _lacking(
    file: FileSchema, names: Sequence[str], dims: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[int, ...]]:
    """The dimensions of arrays, by number, that variables of a file lack."""
    own = {each.name: each.dims for each in file.variables if each.dims != dims.get(each.name)}
    return {
        name: tuple(axis for axis, dim in enumerate(dims[name]) if dim not in own[name])
        for name in names
        if name in own
    }


def _write_coordinates(
    session: Session, designed: Design, existing: Existing | None, options: Options
) -> None:
    """Coordinates are small: each is written whole, unless it is what it was."""
    known = existing.targets if existing is not None else {}
    with quiet():
        group = zarr.open_group(session.store, path=options.group, mode="a")
        if existing is None:
            group.attrs.update(zarr_attributes(designed.attrs, np.dtype("f8")))
        for target, values in designed.coordinates:
            found = known.get(target.name)
            if found is not None and (found.dtype, found.dims) == (target.dtype, target.dims):
                array: Any = group[target.name]
                now = np.asarray(array[...])
                same_attrs = dict(array.attrs) == target.attrs
                if same_attrs and now.shape == values.shape and _equal(now, values.values):
                    continue
                if array.shape != target.shape:
                    array.resize(target.shape)
                if not same_attrs:
                    array.attrs.put(dict(target.attrs))
            else:
                if found is not None:
                    del group[target.name]
                array = create(group, target, options.layout.codec)
            array[...] = values.values


def _equal(one: Any, other: Any) -> bool:
    if one.dtype.kind == "f" and other.dtype.kind == "f":
        return bool(np.array_equal(one, other, equal_nan=True))
    return bool(np.array_equal(one, other))


def _ledger(rows: Sequence[LedgerRow], batch: str, designed: Design) -> list[LedgerRow]:
    """The rows as they are now: old ones where they have moved to, and those of this batch."""
    combined = designed.combined
    mine = {file.source.url for file in combined.files}
    moves = {dim: spans for dim, spans in combined.moves.items() if any(by for _, _, by in spans)}
    old = [_moved(row, moves) if moves else row for row in rows if row.source not in mine]
    referred: dict[int, set[str]] = {}
    for source, name in designed.referral.chosen:
        referred.setdefault(source, set()).add(name)
    for number, file in enumerate(combined.files):
        names = sorted(each.name for each in file.variables if not each.is_coordinate)
        old.append(
            LedgerRow(
                file.source.url,
                file.source.size_bytes,
                file.source.modified_us,
                file.content_id,
                region_text(combined.boxes.get(number, {})),
                json.dumps(names),
                batch,
                _mode_of(referred.get(number, set()), designed),
                file.source.etag,
            )
        )
    return old


def _mode_of(referred: set[str], designed: Design) -> str:
    """Whether a file is copied, referred to, or both."""
    if not referred:
        return "native"
    return "virtual" if all(target.name in referred for target in designed.targets) else "hybrid"


def _moved(row: LedgerRow, moves: Moves) -> LedgerRow:
    """A row whose cells now lie further along, because others were put before them, or between them."""
    where = {}
    for dim, (start, stop) in row.box().items():
        first, last = (_moved_by(at, moves.get(dim, ())) for at in (start, max(start, stop - 1)))
        where[dim] = (start + first, stop + last)
    return row if where == row.box() else replace(row, region=region_text(where))


def _moved_by(at: int, moves: Sequence[tuple[int, int, int]]) -> int:
    return next((by for low, high, by in moves if low <= at < high), 0)
