"""One commit: arrays are made or made longer, tasks write them, and the ledger says what came from where."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr
import zarr

from icefloe._internal.executor import Executor, Task
from icefloe.core.commit.limits import check_changed_chunks
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.ingest.combine.existing import Existing
from icefloe.ingest.combine.intake import Combined, unreadable
from icefloe.ingest.combine.pieces import EXISTING, PieceArray
from icefloe.ingest.discover.sources import Source
from icefloe.ingest.inspect.packing import signature, zarr_attributes
from icefloe.ingest.inspect.schema import BadFile, FileSchema, VariableSchema, quiet
from icefloe.ingest.ledger.table import LedgerRow, region_text, write_ledger
from icefloe.ingest.options import Options
from icefloe.ingest.plan.arrays import Target, check_layout, coordinate_target, create, new_target
from icefloe.ingest.plan.manifest_windows import Windows, files_within
from icefloe.ingest.plan.tasks import Block, Plan, SourceCut, make_plan
from icefloe.ingest.write.chunks import WriteOrder, set_aside, write
from icefloe.ingest.write.references import (
    ReferOrder,
    Referral,
    Referred,
    as_document,
    bounds_in,
    refer,
    refuse_misfits,
    write_references,
)
from icefloe.ingest.write.spill import clear
from icefloe.session import Session
from icefloe.virtual.zarr_metadata import GEO_TRANSFORM

_FILES_PER_TASK = 256
_LEAST_CHUNK_BYTES = 16 << 10
"""Files are copied rather than cut into smaller chunks than this to be referred to."""
METADATA = "icefloe_ingest"
"""Where a commit's metadata has what the ingest says about it."""


Moves = Mapping[str, Sequence[tuple[int, int, int]]]
"""See `combining.moves`."""
Ways = Mapping[str, Sequence[VariableSchema]]
"""The ways in which files have each variable."""


class UnreadableError(Exception):
    """Files turned out to be unreadable while their data was read."""

    def __init__(self, bad: Sequence[BadFile]) -> None:
        super().__init__(bad)
        self.bad = tuple(bad)


@dataclass(frozen=True, slots=True)
class Design:
    """The arrays as they will be, what their cells come from, and who writes them."""

    targets: tuple[Target, ...]
    """Those that tasks write."""
    coordinates: tuple[tuple[Target, xr.Variable], ...]
    """Those that are small and written here, with their stored values."""
    copied: frozenset[tuple[int, str]]
    plan: Plan
    attrs: Mapping[str, Any]
    referral: Referral


def design(combined: Combined, ways: Ways, existing: Existing | None, options: Options) -> Design:
    """Decide how each variable is stored, and plan who writes it.

    `ways` are those of all files of the job, also of those that come in a later batch.
    """
    dataset = combined.dataset
    if existing is None:
        check_layout(options.layout, {str(dim): size for dim, size in dataset.sizes.items()})
    known = existing.targets if existing is not None else {}
    here = ways_of([existing.schema]) if existing is not None else {}
    by_name = {name: (*ways.get(name, ()), *here.get(name, ())) for name in (*ways, *here)}
    attrs, group_attrs = _coordinate_attributes(dataset)
    bounds = bounds_in(dataset)
    targets, coordinates = [], []
    for name, variable in ((str(name), variable) for name, variable in dataset.variables.items()):
        found = known.get(name)
        if not isinstance(variable.data, PieceArray):
            coordinates.append(_coordinate(name, variable, by_name[name], attrs[name], existing))
        elif found is None or found.dims != tuple(map(str, variable.dims)):
            target = new_target(name, variable, by_name[name], options.layout, attrs[name])
            if options.mode == "virtual" or target.signature is not None:
                least = 0 if options.mode == "virtual" else _LEAST_CHUNK_BYTES
                is_bounds = name in bounds
                target = as_document(
                    target, by_name[name], variable.data, is_bounds=is_bounds, least_bytes=least
                )
            targets.append(target)
        else:
            targets.append(_longer(found, variable, options))
    check_changed_chunks(
        [(_new_chunks(target, known.get(target.name)), len(target.shape)) for target in targets],
        "commit the files in parts with commit_every, or choose larger chunks or shards",
    )
    arrays = {target.name: dataset.variables[target.name].data for target in targets}
    cuts = {name: SourceCut(found[0].chunks, in_parts=True) for name, found in by_name.items()}
    referral = Referral(frozenset(), ())
    if options.mode != "native":
        documents = {target.name: json.loads(target.document) for target in targets if target.document}
        referral = refer(targets, dataset, combined.files, documents)
        if options.mode == "virtual":
            refuse_misfits(referral)
    plan = make_plan(targets, arrays, cuts, options.memory_bytes, options.parallelism, referral.chosen)
    _refuse_compounds(targets, plan)
    copied = frozenset(_copied(targets, combined.files, existing))
    group_attrs = {**dataset.attrs, **group_attrs}
    return Design(tuple(targets), tuple(coordinates), copied, plan, group_attrs, referral)


def _new_chunks(target: Target, existing: Target | None) -> int:
    """How many chunks or shards an array will have that it has not yet."""
    before = existing.count_units() if existing is not None and not target.is_new else 0
    return max(0, target.count_units() - before)


def _refuse_compounds(targets: Sequence[Target], plan: Plan) -> None:
    """Values of several parts can be referred to, and are not copied."""
    copied = {block.name for block in (*plan.blocks, *plan.readings)}
    for target in targets:
        if target.name in copied and target.dtype.startswith("|V"):
            raise InvalidInputError(
                f"{target.name} has values of several parts (a compound or opaque type), which are not "
                "copied: name the other variables, or refer to it with --virtual",
                ErrorKind.INVALID_ARRAY_METADATA,
            )


def ways_of(schemas: Sequence[FileSchema]) -> Ways:
    """The ways in which files have each variable; one that many have is there once."""
    found: dict[str, dict[int, VariableSchema]] = {}
    for schema in schemas:
        for variable in schema.variables:
            found.setdefault(variable.name, {}).setdefault(id(variable), variable)
    return {name: tuple(each.values()) for name, each in found.items()}


def _coordinate_attributes(dataset: xr.Dataset) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Attributes of all variables, with the names of those that are coordinates without being dimensions."""
    others = [str(name) for name in dataset.coords if name not in dataset.dims]
    attrs, named = {}, set()
    for name, variable in dataset.variables.items():
        attrs[str(name)] = {str(key): value for key, value in variable.attrs.items()}
        mine = [each for each in others if set(dataset[each].dims) <= set(variable.dims) and " " not in each]
        if mine and name not in dataset.coords:
            attrs[str(name)]["coordinates"] = " ".join(mine)
            named.update(mine)
    left = [each for each in others if each not in named and " " not in each]
    return attrs, {"coordinates": " ".join(left)} if left else {}


def _coordinate(
    name: str,
    variable: xr.Variable,
    schemas: Sequence[VariableSchema],
    attrs: Mapping[str, Any],
    existing: Existing | None,
) -> tuple[Target, xr.Variable]:
    schema = (existing.schema.variable(name) if existing is not None else None) or schemas[0]
    if len({str(each.attrs.get(GEO_TRANSFORM)) for each in schemas}) > 1:
        attrs = {key: value for key, value in attrs.items() if key != GEO_TRANSFORM}
    return coordinate_target(name, variable, schema, attrs)


def _longer(target: Target, variable: xr.Variable, options: Options) -> Target:
    if options.layout.chunks is not None:
        wanted = {
            dim: size for dim, size in options.layout.chunks.items() if dim in target.dims and size != -1
        }
        has = dict(zip(target.dims, target.chunks, strict=True))
        if any(has[dim] != size for dim, size in wanted.items()):
            raise InvalidInputError(
                f"{target.name} is in the repository with chunks of {has}: leave them out, or rechunk it",
                ErrorKind.INVALID_ARRAY_METADATA,
            )
    return replace(target, shape=variable.shape)


def _copied(
    targets: Sequence[Target], files: Sequence[FileSchema], existing: Existing | None
) -> Iterator[tuple[int, str]]:
    sources = list(enumerate(files))
    if existing is not None:
        sources.append((EXISTING, existing.schema))
    signatures: dict[int, str | None] = {}
    for target in targets:
        if not target.is_new:
            yield EXISTING, target.name
        if target.signature is None:
            continue
        for number, file in sources:
            variable = file.variable(target.name)
            if variable is None:
                continue
            if id(variable) not in signatures:  # most files have the same one
                signatures[id(variable)] = signature(variable)
            if signatures[id(variable)] == target.signature:
                yield number, target.name


def batch_id(group: str, sources: Sequence[Source]) -> str:
    """The same for the same sources in the same target, whoever runs it and when."""
    identity = [group, *sorted([each.url, *each.seen] for each in sources)]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]


def write_batch(
    session: Session,
    combined: Combined,
    designed: Design,
    existing: Existing | None,
    rows: Sequence[LedgerRow],
    options: Options,
    executor: Executor,
    windows: Windows | None = None,
) -> tuple[str, list[LedgerRow]]:
    """Write what was designed into a session, without committing it; the batch's id, and the ledger then.

    With windows, tasks write the manifests of large arrays.
    """
    _make_room(session, designed, options)
    receipts = []
    bad: dict[int, str] = {}
    # Manifests that tasks wrote come first: what is written after them may lie over them.
    if designed.referral.chosen:
        referrals = list(_referrals(session, combined, designed, options, windows))
        for written in executor.map(Task(write_references, "tasks"), referrals):
            receipts.append(written.receipt)
            bad.update(written.bad)
    orders = _Orders(session, combined, designed, existing, options)
    try:
        if designed.plan.readings:
            for aside in executor.map(Task(set_aside, "parts put aside"), list(orders.aside())):
                bad.update(aside)
        if designed.plan.blocks and not bad:
            for written in executor.map(Task(write, "tasks"), list(orders.writing())):
                receipts.append(written.receipt)
                bad.update(written.bad)
    finally:
        clear(designed.plan.exchanges.values(), session._workspace.assets.storage)
    if bad:
        found = [BadFile(combined.files[number].source, text) for number, text in sorted(bad.items())]
        if options.on_bad_file == "stop":
            raise unreadable(found)
        raise UnreadableError(found)
    session._merge_receipts(receipts)
    _write_coordinates(session, designed, existing, options)
    batch = batch_id(options.group, [file.source for file in combined.files])
    now = _ledger(combined, rows, batch, designed)
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


class _Orders:
    """The orders of a plan for the tasks that put aside and for those that write."""

    def __init__(
        self,
        session: Session,
        combined: Combined,
        designed: Design,
        existing: Existing | None,
        options: Options,
    ) -> None:
        self._fork = session.fork()
        self._combined = combined
        self._designed = designed
        self._existing = existing
        self._options = options
        self._targets = {target.name: target for target in designed.targets}
        self._copied: dict[int, list[str]] = {}
        for number, name in designed.copied:
            self._copied.setdefault(number, []).append(name)

    def writing(self) -> Iterator[WriteOrder]:
        """A task has blocks of several arrays; those that were put aside need no sources."""
        plan = self._designed.plan
        for task in plan.tasks:
            blocks = [
                replace(block, pieces=block.pieces.taken(slice(0, 0)))
                if block.name in plan.exchanges
                else block
                for block in plan.blocks[task.start : task.stop]
            ]
            yield self._order(blocks, range(0))

    def aside(self) -> Iterator[WriteOrder]:
        """A task has blocks of one array, by their numbers among its own."""
        plan = self._designed.plan
        first: dict[str, int] = {}
        for index, block in enumerate(plan.readings):
            first.setdefault(block.name, index)
        for task in plan.reading_tasks:
            for name in dict.fromkeys(plan.readings[index].name for index in task):
                mine = [index for index in task if plan.readings[index].name == name]
                numbers = range(mine[0] - first[name], mine[-1] + 1 - first[name])
                yield self._order([plan.readings[index] for index in mine], numbers)

    def _order(self, blocks: Sequence[Block], numbers: range) -> WriteOrder:
        names = {block.name for block in blocks}
        used = {int(number) for block in blocks for number in np.unique(block.pieces.source)}
        sources: dict[int, Any] = {
            number: self._combined.files[number].source for number in used - {EXISTING}
        }
        if EXISTING in used and self._existing is not None:
            sources[EXISTING] = self._existing.stored
        exchanges = self._designed.plan.exchanges
        copied = ((number, name) for number in used for name in self._copied.get(number, ()))
        return WriteOrder(
            self._fork.fork(),
            self._options.group,
            tuple(blocks),
            {name: self._targets[name] for name in names},
            sources,
            self._options.reading,
            frozenset(pair for pair in copied if pair[1] in names),
            {name: exchanges[name] for name in names if name in exchanges},
            numbers,
            self._options.memory_bytes,
        )


def _referrals(
    session: Session, combined: Combined, designed: Design, options: Options, windows: Windows | None
) -> Iterator[ReferOrder]:
    fork = session.fork()
    dims = {target.name: target.dims for target in designed.targets}
    chunks = {target.name: target.chunks for target in designed.targets}
    names: dict[int, list[str]] = {}
    for number, name in sorted(designed.referral.chosen):
        names.setdefault(number, []).append(name)

    def order(numbers: Sequence[int], extents: Mapping[str, tuple[range, ...]]) -> ReferOrder:
        files = []
        for number in numbers:
            file, box = combined.files[number], combined.boxes[number]
            mine = tuple(names[number])
            files.append(Referred(number, file.source, mine, box, _lacking(file, mine, dims), file.aside))
        return ReferOrder(fork.fork(), options.group, tuple(files), options.reading, dims, chunks, extents)

    if windows is not None:
        boxes = {number: combined.boxes[number] for number in names}
        for span in windows.spans():
            if numbers := list(files_within(boxes, windows.dim, span)):
                yield order(numbers, windows.extents(span))
        return
    whole = list(names)
    # Their references wait in few objects: a task that had less to do would take longer to start.
    each = -(-len(whole) // options.parallelism)
    share = max(1, -(-each // 4), min(_FILES_PER_TASK, each))
    for start in range(0, len(whole), share):
        yield order(whole[start : start + share], {})


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


def _ledger(combined: Combined, rows: Sequence[LedgerRow], batch: str, designed: Design) -> list[LedgerRow]:
    """The rows as they are now: old ones where they have moved to, and those of this batch."""
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
