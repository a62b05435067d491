"""Write a batch of files and commit it: create or resize arrays, run the tasks, and update the ledger."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import zarr

from icefloe._internal.amounts import counted
from icefloe._internal.concurrency import release_freed_memory
from icefloe._internal.executor import Executor, Task
from icefloe._internal.warnings import ignore_warnings
from icefloe.format.manifest import ArrayManifest
from icefloe.ingest.bad_files import ProblemsError
from icefloe.ingest.combine.pieces import EXISTING, PieceArray
from icefloe.ingest.discover.sources import IngestSource
from icefloe.ingest.inspect.packing import to_zarr_attributes
from icefloe.ingest.ledger import Ledger, LedgerRow, encode_region, write_ledger
from icefloe.ingest.options import Options
from icefloe.ingest.plan.array_encoding import create_array
from icefloe.ingest.plan.design import Design
from icefloe.ingest.plan.references import Windows, configure_splitting, find_files_within, plan_windows
from icefloe.ingest.plan.tasks import Block
from icefloe.ingest.records import LOGGER, FileSchema, StoredGroup, Target, join_path
from icefloe.ingest.write.chunks import GroupBlocks, WriteResults, write_groups
from icefloe.ingest.write.references import ReferencedFile, ReferenceTask, write_references
from icefloe.maintenance.statistics.collect import Collected, record_statistics
from icefloe.repository import Repository
from icefloe.session import ForkSession, Session

_FILES_PER_TASK = 256
METADATA = "icefloe_ingest"
"""The commit metadata key for information about an ingest."""


Moves = Mapping[str, Sequence[tuple[int, int, int]]]
"""Moved ranges of existing cells. See `icefloe.ingest.combine.grid.find_moves`."""


def make_batch_id(group: str, sources: Sequence[IngestSource]) -> str:
    """Return the id of a batch: a hash of its sources and its target group."""
    identity = [group, *sorted([each.url, *each.version] for each in sources)]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """The files of one batch that were staged in a group, with their regions and blocks."""

    stored: StoredGroup
    """The group at the snapshot of the commit. Later commits may move its cells."""
    sources: Sequence[IngestSource]
    """The sources of pieces, by source number."""
    boxes: Sequence[Mapping[str, tuple[int, int]]]
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit on the staging branch that contains one batch."""

    staged: tuple[StagedFiles, ...]
    """The staged files, by group."""
    designs: tuple[Design, ...]
    ledger: Ledger


def commit_batch(
    repo: Repository,
    branch: str,
    designs: Sequence[Design],
    options: Options,
    executor: Executor,
) -> Commit | None:
    """Write a batch of files, and commit all of its groups together on the staging branch.

    Return None without writing anything if the branch tip is not the snapshot that the arrays were designed
    for. Raise ProblemsError if files turn out to be unreadable.
    """
    ledger = designs[0].combined.state.ledger
    windows = []
    splitting = repo
    for design in designs:
        referred = {name for _, name in design.referral.chosen}
        targets = [target for target in design.targets if target.name in referred]
        windows.append(plan_windows(targets, design.group, splitting.config, options.manifest_references))
        splitting = configure_splitting(splitting, windows[-1], design.group)
    session = splitting.writable_session(branch)
    if session.snapshot_id != ledger.snapshot_id:
        return None
    sources = {file.source.url: file.source for design in designs for file in design.combined.files}
    batch, rows = make_batch_id(options.group, list(sources.values())), ledger.rows
    statistics = write_designs(session, designs, options, executor, windows)
    for design in designs:
        _write_groups_without_data(session, options.group, design.combined.files)
        rows = _update_rows(rows, batch, design)
    write_ledger(session, options.group, rows, ledger.rows)
    files = counted(len(sources), "file")
    about = {"batch": batch, "files": len(sources), "mode": options.mode}
    commit = session.commit(options.message or f"Ingest {files}", {**options.metadata, METADATA: about})
    LOGGER.info("commit %s: %s", commit, files)
    release_freed_memory()
    record_statistics(session, statistics)
    written = repo.readonly_session(snapshot_id=commit)
    staged = tuple(_describe_staged(StoredGroup(written, design.group), design) for design in designs)
    return Commit(staged, tuple(designs), Ledger(commit, rows))


def _describe_staged(stored: StoredGroup, design: Design) -> StagedFiles:
    sources = [file.source for file in design.combined.files]
    return StagedFiles(stored, sources, [*design.combined.boxes.values()], design.plan.blocks)


def write_designs(
    session: Session,
    designs: Sequence[Design],
    options: Options,
    executor: Executor,
    windows: Sequence[Windows | None],
) -> list[Collected]:
    """Write the arrays of a batch into a session without committing. Groups are written one after another.

    With windows, tasks write the manifests of large arrays. Return the statistics of the written chunks.
    """
    for design in designs:
        _create_or_resize_arrays(session, design, options.layout.codec)
    fork = session.fork()
    results = WriteResults()
    # Receipts of reference tasks are merged first, because later writes may overwrite some references.
    referrals = [
        task
        for design, parted in zip(designs, windows, strict=True)
        if design.referral.chosen
        for task in _make_reference_tasks(fork, design, options, parted, executor.parallelism)
    ]
    results.run(executor, Task(write_references, "tasks", thread_safe=False), referrals)
    write_groups([_collect_blocks(fork, design, options) for design in designs], executor, results)
    if results.bad:
        raise ProblemsError([each for _, each in sorted(results.bad.items())])
    session._merge_receipts(results.receipts)
    for design in designs:
        _write_coordinates(session, design, options.layout.codec)
    return results.statistics


def _collect_blocks(fork: ForkSession, design: Design, options: Options) -> GroupBlocks:
    sources: dict[int, IngestSource | StoredGroup] = {
        number: file.source for number, file in enumerate(design.combined.files)
    }
    if design.combined.state.existing is not None:
        sources[EXISTING] = design.combined.state.existing.stored
    targets = {target.name: target for target in design.targets}
    return GroupBlocks(
        fork,
        design.group,
        design.plan,
        targets,
        sources,
        design.copied,
        options.reading,
        options.memory_bytes,
    )


def _create_or_resize_arrays(session: Session, designed: Design, codec: str) -> None:
    with ignore_warnings():
        group = zarr.open_group(session.store, path=designed.group, mode="a")
        for target in designed.targets:
            if target.is_new:
                path = f"/{join_path(designed.group, target.name)}"
                refs = None
                if target.name in designed.kept:
                    refs = session._workspace.refs(session._workspace.array(path))
                if target.name in group:
                    del group[target.name]
                create_array(group, target, codec)
                if refs is not None:
                    _move_chunks(session, path, refs, target, designed)
            else:
                array: Any = group[target.name]
                if array.shape != target.shape:
                    array.resize(target.shape)


def _move_chunks(session: Session, path: str, refs: ArrayManifest, target: Target, designed: Design) -> None:
    """Move the chunks of an array that gained dimensions to their new coordinates."""
    array: Any = designed.combined.dataset.variables[target.name].data
    pieces = array.pieces.select(array.pieces.source == EXISTING)
    chunks = np.array(target.chunks, np.int64)
    node = session._workspace.array(path)
    for starts, first, shape, axes in zip(
        pieces.starts // chunks,
        pieces.source_starts // chunks,
        -(-pieces.shape // chunks),
        pieces.axes,
        strict=True,
    ):
        own = axes >= 0
        begin = np.zeros(refs.rank, np.int64)
        count = np.zeros(refs.rank, np.int64)
        begin[axes[own]], count[axes[own]] = first[own], shape[own]
        mine = refs.within([range(at, at + n) for at, n in zip(begin.tolist(), count.tolist(), strict=True)])
        coords = np.tile(starts, (len(mine.coords), 1))
        coords[:, own] += mine.coords[:, axes[own]] - first[own]
        session._workspace.put_refs(node, replace(mine, coords=coords.astype(np.uint32)))


def _make_reference_tasks(
    fork: ForkSession, designed: Design, options: Options, windows: Windows | None, parallelism: int
) -> Iterator[ReferenceTask]:
    combined = designed.combined
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
            files.append(
                ReferencedFile(
                    number, file.source, mine, box, _find_missing_axes(file, mine, dims), file.spilled
                )
            )
        return ReferenceTask(
            fork.fork(), designed.group, tuple(files), options.reading, dims, chunks, extents
        )

    if windows is not None:
        boxes = {number: combined.boxes[number] for number in names}
        for span in windows.list_spans():
            if numbers := list(find_files_within(boxes, windows.dim, span)):
                yield task(numbers, windows.compute_extents(span))
        return
    whole = list(names)
    # References are spilled to a few objects, and smaller tasks would take longer to start than to run.
    each = -(-len(whole) // parallelism)
    share = max(1, -(-each // 4), min(_FILES_PER_TASK, each))
    for start in range(0, len(whole), share):
        yield task(whole[start : start + share], {})


def _find_missing_axes(
    file: FileSchema, names: Sequence[str], dims: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[int, ...]]:
    """Return the axes of the target arrays that the variables of a file lack, by variable name."""
    own = {each.name: each.own_dims for each in file.variables if each.own_dims != dims.get(each.name)}
    return {
        name: tuple(axis for axis, dim in enumerate(dims[name]) if dim not in own[name])
        for name in names
        if name in own
    }


def _write_coordinates(session: Session, designed: Design, codec: str) -> None:
    """Write whole coordinate arrays, except those that have not changed."""
    existing = designed.combined.state.existing
    known = existing.targets if existing is not None else {}
    with ignore_warnings():
        group = zarr.open_group(session.store, path=designed.group, mode="a")
        if existing is None:
            group.attrs.update(to_zarr_attributes(designed.attrs, np.dtype("f8")))
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
                array = create_array(group, target, codec)
            array[...] = values.values


def _write_groups_without_data(session: Session, group: str, files: Sequence[FileSchema]) -> None:
    """Create the groups without arrays, with the attributes from the first file that has each group."""
    done: set[str] = set()
    with ignore_warnings():
        for path, attrs in (each for file in files for each in file.groups_without_data.items()):
            if path not in done:
                done.add(path)
                found = zarr.open_group(session.store, path=join_path(group, path), mode="a")
                if attrs and not found.attrs:
                    found.attrs.update(to_zarr_attributes(attrs, np.dtype("f8")))


def _equal(one: Any, other: Any) -> bool:
    if one.dtype.kind == "f" and other.dtype.kind == "f":
        return bool(np.array_equal(one, other, equal_nan=True))
    return bool(np.array_equal(one, other))


def _update_rows(rows: Sequence[LedgerRow], batch: str, designed: Design) -> list[LedgerRow]:
    """Return the ledger rows after a batch: existing rows, which may have moved, and rows for the
    new files.
    """
    combined, group = designed.combined, designed.combined.state.below
    mine = {file.source.url for file in combined.files}
    moves = {dim: spans for dim, spans in combined.moves.items() if any(by for _, _, by in spans)}
    added = _find_added_dimensions(designed)
    old = [
        _move_row(row, moves, added) if (moves or added) and row.target_group == group else row
        for row in rows
        if row.target_group != group or row.source not in mine
    ]
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
                encode_region(combined.boxes.get(number, {})),
                json.dumps(names),
                batch,
                _get_mode(referred.get(number, set()), designed),
                file.source.etag,
                group,
                file.source.group,
            )
        )
    return old


def _get_mode(referred: set[str], designed: Design) -> str:
    """Return the mode of a file for its ledger row: `native`, `virtual` or `hybrid`."""
    if not referred:
        return "native"
    return "virtual" if all(target.name in referred for target in designed.targets) else "hybrid"


def _find_added_dimensions(designed: Design) -> dict[str, tuple[int, int]]:
    """Return the position of the existing data along each dimension that the batch adds."""
    combined = designed.combined
    existing = combined.state.existing
    found: dict[str, tuple[int, int]] = {}
    if existing is None:
        return found
    for variable in combined.dataset.variables.values():
        if not isinstance(variable.data, PieceArray):
            continue
        mine = variable.data.pieces.select(variable.data.pieces.source == EXISTING)
        for axis, dim in enumerate(map(str, variable.dims)):
            if len(mine) and (mine.axes[:, axis] < 0).all() and dim not in existing.schema.sizes:
                found[dim] = int(mine.starts[:, axis].min()), int(mine.stops[:, axis].max())
    return found


def _move_row(row: LedgerRow, moves: Moves, added: Mapping[str, tuple[int, int]]) -> LedgerRow:
    """Return a ledger row with its new region. The region changes if cells were inserted before it."""
    where = {dim: span for dim, span in added.items() if dim not in row.box}
    for dim, (start, stop) in row.box.items():
        first, last = (_get_offset(at, moves.get(dim, ())) for at in (start, max(start, stop - 1)))
        where[dim] = (start + first, stop + last)
    return row if where == row.box else replace(row, region=encode_region(where))


def _get_offset(at: int, moves: Sequence[tuple[int, int, int]]) -> int:
    return next((by for low, high, by in moves if low <= at < high), 0)
