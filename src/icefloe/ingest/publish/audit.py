"""Checks of what was staged, before anybody else sees it."""

from __future__ import annotations

import difflib
import importlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
import xarray as xr

from icefloe._internal.amounts import counted
from icefloe._internal.executor import Executor, Task
from icefloe._internal.warnings import ignore_warnings
from icefloe.ingest.combine.existing import inspect_group
from icefloe.ingest.combine.pieces import EXISTING, Pieces
from icefloe.ingest.discover.sources import Source
from icefloe.ingest.inspect.agreement import goes_one_way, is_of_names
from icefloe.ingest.inspect.open import decode, opened, stored_dataset
from icefloe.ingest.inspect.packing import decoded
from icefloe.ingest.ledger import LedgerRow, rows_by_group
from icefloe.ingest.options import DEFAULT_CHECKS, Check, Options, wrong_check
from icefloe.ingest.plan.block_shapes import part_bytes
from icefloe.ingest.plan.tasks import Block
from icefloe.ingest.records import Reading, Stored, join, reason
from icefloe.ingest.report import CheckResult
from icefloe.ingest.write.batch import StagedFiles
from icefloe.ingest.write.chunks import read_piece, unit_of
from icefloe.session import Session

Box = tuple[tuple[int, int], ...]
"""Start and stop along each dimension."""

_SAMPLED_BLOCKS = 8
_SAMPLED_FILES = 4
"""Of each of them."""
_SAMPLED_CELLS = 1 << 20
"""Of each of those."""
_DECODED_BYTES = 8
"""Of a cell, at most."""
_BOXES = 8
"""So many are counted by one task."""
_GAP = 1.5
_SCALED = 1e-6
"""So far values may be off, of the largest."""


def find_staged(
    session: Session, group: str, rows: Sequence[LedgerRow], found: Sequence[Source]
) -> Iterator[StagedFiles]:
    """Describe the files that an interrupted run has staged, by their ledger rows. Nobody has checked them.

    `group` is the target group, and `found` are the sources of this run, with what it takes to read them.
    """
    for path, mine in rows_by_group(rows).items():
        yield _find_staged(Stored(session, join(group, path)), mine, found)


def _find_staged(stored: Stored, rows: Sequence[LedgerRow], found: Sequence[Source]) -> StagedFiles:
    by_url = {source.url: source for source in found}
    sources = [replace(by_url.get(row.source, row.as_source()), group=row.source_group) for row in rows]
    existing = inspect_group(stored.session, stored.group)
    targets = existing.targets if existing is not None else {}
    blocks = []
    for number, row in enumerate(rows):
        for target in (targets[name] for name in row.names() if name in targets and row.mode != "virtual"):
            whole = dict(zip(target.dims, ((0, size) for size in target.shape), strict=True))
            spans = [row.box().get(dim, span) for dim, span in whole.items()]
            start, stop = (tuple(span[end] for span in spans) for end in (0, 1))
            shape = [last - first for first, last in spans]
            if math.prod(shape):
                blocks.append(Block(target.name, start, stop, Pieces.whole(number, shape)))
    return StagedFiles(stored, sources, [row.box() for row in rows], blocks)


@dataclass(frozen=True, slots=True)
class CompareTask:
    """A task: compare a block with its source files."""

    stored: Stored
    block: Block
    sources: Mapping[int, Any]
    reading: Reading
    cells: int
    """So many are compared of each file, or a chunk of it."""


@dataclass(frozen=True, slots=True)
class SampleTask:
    """A task: compare samples of a file's variables with its region of the group."""

    stored: Stored
    row: LedgerRow
    names: tuple[str, ...]
    source: Source
    reading: Reading
    cells: int
    """So many at most, of each."""


@dataclass(frozen=True, slots=True)
class CountTask:
    """A task: compute statistics of boxes of a variable."""

    stored: Stored
    name: str
    boxes: tuple[Box, ...]
    """They are read one after the other."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Statistics of the values of a box."""

    low: float
    high: float
    lowest: tuple[int, ...]
    """Where the least value is."""
    highest: tuple[int, ...]
    nulls: int
    cells: int
    null: tuple[int, ...]
    """Where the first missing value is, if one is."""


def refuse_unrunnable(checks: Sequence[Check], *, on_spark: bool) -> None:
    """Refuse checks that cannot run: SQL without Spark, and functions that cannot be imported."""
    for check in checks:
        if check.name == "sql" and not on_spark:
            raise wrong_check("the check sql runs on Spark: give a master other than none")
        if check.name == "python":
            _function(check)


def refuse_unknown(checks: Sequence[Check], names: Collection[str]) -> None:
    """Refuse checks of variables that do not exist."""
    for check in checks:
        if check.variable and check.variable not in names:
            near = difflib.get_close_matches(check.variable, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(names))}"
            raise wrong_check(
                f"the check {check.name} is about {check.variable!r}, which is no variable; {hint}"
            )


def audit(
    session: Session,
    before: Session,
    rows: Sequence[LedgerRow],
    staged: Sequence[StagedFiles],
    options: Options,
    executor: Executor,
) -> list[CheckResult]:
    """Run all checks on the staged data, of each group.

    `session` sees all of it and `before` the target branch without it; `rows` are the ledger's rows for it.
    """
    audits = []
    for path, mine in rows_by_group(rows).items():
        of_group = replace(options, group=join(options.group, path))
        with ignore_warnings():
            dataset = decode(stored_dataset(session, of_group.group))
        files = [each for each in staged if each.stored.group == of_group.group]
        audits.append(
            _Audit(path, Arrivals(tuple(mine), dataset), session, before, files, of_group, executor)
        )
    return [_run_check(check, audits) for check in options.checks]


def _run_check(check: Check, audits: Sequence[_Audit]) -> CheckResult:
    """Run a check on all groups that it is about. SQL sees all groups at once."""
    about = [each for each in audits if not check.variable or check.variable in each.dataset.variables]
    for audit in (about or audits)[: 1 if check.name == "sql" else None]:
        wrong = _RUN[check.name](replace(audit, check=check))
        if wrong:
            return CheckResult(check.title, False, f"{audit.path}: {wrong}" if audit.path else wrong)
    return CheckResult(check.title, True, "no problems found")


@dataclass(frozen=True, slots=True)
class _Audit:
    path: str
    """The group, relative to the target group."""
    arrivals: Arrivals
    session: Session
    before: Session
    staged: Sequence[StagedFiles]
    options: Options
    executor: Executor
    check: Check = field(default_factory=lambda: Check(DEFAULT_CHECKS[0]))

    @property
    def dataset(self) -> xr.Dataset:
        return self.arrivals.dataset

    @property
    def stored(self) -> Stored:
        return Stored(self.session, self.options.group)

    def steps(self) -> Iterator[tuple[str, Any]]:
        """Yield the coordinates along which files are concatenated, and time coordinates."""
        dims = self.arrivals.dims
        dims |= {str(dim) for dim, index in self.dataset.indexes.items() if _is_of_times(index)}
        if self.options.combining.concat_dim is not None:
            dims.add(self.options.combining.concat_dim)
        for dim in sorted(dims):
            index = self.dataset.indexes.get(dim)
            if index is not None and len(index) > 1 and index.nunique() > 1:
                yield dim, index

    @property
    def cells(self) -> int:
        """The number of cells that a task may read at once."""
        return part_bytes(self.options.memory_bytes) // _DECODED_BYTES

    def blocks(self) -> Iterator[tuple[StagedFiles, Block]]:
        for each in self.staged:
            yield from ((each, block) for block in each.blocks)


def _is_of_times(index: Any) -> bool:
    return index.dtype.kind == "M" or isinstance(index, xr.CFTimeIndex)


def _monotone(audit: _Audit) -> str:
    """Check coordinates along which files follow each other; others may repeat values, as radar sweeps do."""
    for dim, index in audit.steps():
        if dim in audit.arrivals.dims and not goes_one_way(index):
            rises, falls = np.asarray(index[1:] > index[:-1]), np.asarray(index[1:] < index[:-1])
            at = int(np.flatnonzero(~rises if rises.sum() >= falls.sum() else ~falls)[0])
            return f"{dim} is not strictly increasing or decreasing: {index[at + 1]} follows {index[at]}"
    return ""


def _gaps(audit: _Audit) -> str:
    for dim, index in audit.steps():
        if is_of_names(index):
            continue
        if index.dtype == object:
            values = xr.Variable(dim, index.values)
            steps = np.array([step.total_seconds() for step in np.diff(values.values)])
        else:
            steps = np.abs(np.diff(index.to_numpy()).astype(float))
        wide = np.flatnonzero(steps > _GAP * np.median(steps))
        if len(wide):
            found = counted(len(wide), "gap")
            return f"{dim} has {found}, the first between {index[wide[0]]} and {index[wide[0] + 1]}"
    return ""


def _source(audit: _Audit) -> str:
    """Compare samples of the files with the staged data."""
    tasks = _sample_tasks(audit)
    found = (
        [
            text
            for text in audit.executor.map(Task(compare_sample, "blocks compared", per_core=1), tasks)
            if text
        ]
        if tasks
        else []
    )
    return found[0] if found else _blocks_differ(audit)


def _sample_tasks(audit: _Audit) -> list[SampleTask]:
    """Create tasks for referenced files, which have no blocks."""
    sources = {source.url: source for each in audit.staged for source in each.sources}  # of one group
    rows = [row for row in audit.arrivals.rows if row.mode != "native" and row.source in sources]
    reading, left_out = audit.options.reading, _overridden(audit)
    return [
        SampleTask(
            audit.stored,
            row,
            tuple(name for name in row.names() if name not in left_out),
            sources[row.source],
            reading,
            audit.cells,
        )
        for row in sample(rows, _SAMPLED_FILES)
    ]


def _overridden(audit: _Audit) -> set[str]:
    """Return the variables that `compat="override"` took from one file without comparing."""
    dims = audit.arrivals.dims
    if audit.options.combining.compat != "override" or not dims:
        return set()
    variables = audit.dataset.variables.items()
    return {str(name) for name, each in variables if dims.isdisjoint(map(str, each.dims))}


def compare_sample(task: SampleTask) -> str:
    """Compare a file with its region; describe the first difference. Runs on executors."""
    source, region = task.source, task.row.box()
    try:
        with opened(task.stored, task.reading) as raw, opened(source, task.reading) as file:
            here, there = decode(raw), decode(file)
            if not same_labels(here.indexes, there.indexes, region):
                return ""  # its cells do not lie in a row, and are compared where they were copied
            for name in task.names:
                now, then = _of_its_dimensions(here.variables[name], there.variables[name], region)
                for mine, its in _some_cells(now, then, region, task.cells):
                    if not _alike(now[mine].load(), then[its].load()):
                        return f"{name} at {[each.start for each in mine]} is not what {source.url} has"
    except Exception as error:  # noqa: BLE001 - engines raise whatever they like
        return f"{source.url}: cannot be compared: {reason(error)}"
    return ""


def _of_its_dimensions(
    here: xr.Variable, there: xr.Variable, region: Mapping[str, tuple[int, int]]
) -> tuple[xr.Variable, xr.Variable]:
    """Select the first cell along dimensions that the file lacks."""
    first = {dim: region.get(str(dim), (0, 0))[0] for dim in here.dims if dim not in there.dims}
    return here.isel(first) if first else here, there


def _some_cells(
    here: xr.Variable, there: xr.Variable, region: Mapping[str, tuple[int, int]], cells: int
) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """The first and the last cells of a file along its first dimension, so many at most: where they are here,
    and there.
    """
    spans = [region.get(str(dim), (0, size)) for dim, size in zip(here.dims, here.shape, strict=True)]
    if here.dims != there.dims or tuple(stop - start for start, stop in spans) != there.shape:
        return
    counts: list[int] = []
    for size in reversed(there.shape[1:]):
        counts.insert(0, min(size, max(1, cells)))
        cells //= max(1, counts[0])
    for at in {0, *((there.shape[0] - 1,) if there.ndim and there.shape[0] else ())}:
        its = (slice(at, at + 1), *(slice(0, count) for count in counts))[: there.ndim]
        yield (
            tuple(slice(s.start + a, s.stop + a) for s, (a, _) in zip(its, spans, strict=True)),
            its,
        )


def _blocks_differ(audit: _Audit) -> str:
    blocks = [(staged, block) for staged, block in audit.blocks() if (block.pieces.source != EXISTING).any()]
    step = max(1, len(blocks) // _SAMPLED_BLOCKS)
    tasks = []
    for staged, whole in blocks[::step][:_SAMPLED_BLOCKS]:
        block = _thinned(whole)
        numbers = {int(number) for number in block.pieces.source}
        sources = {number: staged.sources[number] for number in numbers}
        cells = min(audit.cells, _SAMPLED_CELLS)
        tasks.append(CompareTask(staged.stored, block, sources, audit.options.reading, cells))
    found = [text for text in audit.executor.map(Task(compare_block, "blocks compared"), tasks) if text]
    return found[0] if found else ""


def _thinned(block: Block) -> Block:
    """Keep some of a block's pieces: a block of time series has pieces of every file."""
    rows = np.flatnonzero(block.pieces.source != EXISTING)
    some = np.unique(np.linspace(0, len(rows) - 1, _SAMPLED_FILES).round().astype(int))
    return replace(block, pieces=block.pieces.taken(rows[some]))


def compare_block(task: CompareTask) -> str:
    """Compare a block with its files; describe the first difference. Runs on executors."""
    block = task.block
    with opened(task.stored, task.reading) as raw:
        here = decode(raw).variables[block.name]
        for row in range(len(block.pieces)):
            number = int(block.pieces.source[row])
            try:
                with opened(task.sources[number], task.reading, glance=True) as source:
                    variable = decode(source).variables[block.name]
                    piece = _with_axes(block.pieces.taken(slice(row, row + 1)), variable.dims, here.dims)
                    piece = _sampled(piece, source.variables[block.name], task.cells)
                    there = read_piece(piece, variable)
            except Exception as error:  # noqa: BLE001 - engines raise whatever they like
                return f"{task.sources[number].url}: {block.name} cannot be read: {reason(error)}"
            start = piece.starts[0] + np.array(block.start, np.int64)
            ends = zip(start.tolist(), (start + piece.shape[0]).tolist(), strict=True)
            now = here[tuple(slice(a, b) for a, b in ends)].load()
            if not bool(_equal(now, xr.Variable(now.dims, np.broadcast_to(there, now.shape)))):
                return f"{block.name} at {start.tolist()} is not what {task.sources[number].url} has"
    return ""


def _with_axes(piece: Pieces, dims: Sequence[Any], of_array: Sequence[Any]) -> Pieces:
    """Find the axes of a piece's source by name, which the ledger does not record."""
    axes = [dims.index(dim) if dim in dims else -1 for dim in of_array]
    return replace(piece, axes=np.array([axes], np.int64).reshape(1, len(of_array)))


def _sampled(piece: Pieces, variable: xr.Variable, cells: int) -> Pieces:
    """Select a part in the middle of a piece, at least one chunk of the file."""
    parts = list(piece.parted(unit_of(piece, variable), cells))
    return parts[len(parts) // 2]


def _equal(one: Any, other: Any) -> Any:
    return one.equals(other)


def _alike(one: xr.Variable, other: xr.Variable) -> bool:
    """Return whether values are equal up to rounding: 32-bit scale factors are stored with 64 bits."""
    if _equal(one, other):
        return True
    if one.dtype.kind != "f" or other.dtype.kind != "f" or one.shape != other.shape:
        return False
    span = float(np.nanmax(np.abs(other.values), initial=0))
    return np.allclose(one.values, other.values, rtol=0, atol=_SCALED * span, equal_nan=True)


def _range(audit: _Audit) -> str:
    check = audit.check
    for counts in _counted(audit):
        low = counts.low < check.low
        if low or counts.high > check.high:
            value, place = (counts.low, counts.lowest) if low else (counts.high, counts.highest)
            where = audit.arrivals.place(check.variable, place)
            return f"{check.variable} is {value:g} at {where}, allowed is {check.low:g} to {check.high:g}"
    return ""


def _nulls(audit: _Audit) -> str:
    counts = list(_counted(audit))
    cells = sum(each.cells for each in counts)
    share = sum(each.nulls for each in counts) / cells if cells else 0.0
    if share <= audit.check.most:
        return ""
    worst = max(counts, key=lambda each: each.nulls / max(each.cells, 1))
    where = audit.arrivals.place(audit.check.variable, worst.null)
    told = f"{share:.2%} of {audit.check.variable} are missing, more than {audit.check.most:.2%}"
    return f"{told}; such as at {where}"


def _counted(audit: _Audit) -> Iterator[Counts]:
    name = audit.check.variable
    refuse_unknown([audit.check], [str(each) for each in audit.dataset.variables])
    if audit.dataset.variables[name].dtype.kind not in "biuf" and audit.check.name == "range":
        raise wrong_check(f"the check range is about numbers, and {name!r} has none")
    boxes = list(audit.arrivals.blocks(name, audit.cells))
    tasks = [
        CountTask(audit.stored, name, tuple(boxes[at : at + _BOXES])) for at in range(0, len(boxes), _BOXES)
    ]
    for counts in audit.executor.map(Task(count_boxes, "parts checked"), tasks):
        yield from counts


def count_boxes(task: CountTask) -> list[Counts]:
    """Find minimum, maximum and number of missing values of each box. Runs on executors."""
    with opened(task.stored, Reading()) as raw:
        variable = raw.variables[task.name]
        return [_counts(variable, box) for box in task.boxes]


def _counts(variable: xr.Variable, box: Box) -> Counts:
    values = decoded(variable[tuple(slice(*span) for span in box)].load())
    missing = np.asarray(values.isnull().values)
    start = np.array([first for first, _ in box], np.int64)

    def place(flat: int) -> tuple[int, ...]:
        return tuple((np.array(np.unravel_index(flat, missing.shape), np.int64) + start).tolist())

    nulls = int(missing.sum())
    null = place(int(missing.argmax())) if nulls else ()
    if nulls == missing.size or values.dtype.kind not in "biuf":
        return Counts(math.nan, math.nan, (), (), nulls, missing.size, null)
    low = np.where(missing, np.inf, values.values)
    high = np.where(missing, -np.inf, values.values)
    least, most = int(low.argmin()), int(high.argmax())
    return Counts(
        float(low.flat[least]), float(high.flat[most]), place(least), place(most), nulls, missing.size, null
    )


def _python(audit: _Audit) -> str:
    call = audit.check.call
    try:
        said = _function(audit.check)(audit.dataset)
    except Exception as error:
        raise wrong_check(f"the check {call} cannot be run: {reason(error)}") from error
    return "" if said is None or said is True else str(said) if said else f"{call} says no"


def _function(check: Check) -> Callable[[xr.Dataset], Any]:
    module, _, name = check.call.partition(":")
    try:
        function: Callable[[xr.Dataset], Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise wrong_check(f"the check {check.call} cannot be loaded: {error}") from error
    return function


def _sql(audit: _Audit) -> str:
    """Run a SQL check: rows are problems; a single value must be true or 0."""
    if not audit.executor.has_sql:
        raise wrong_check("the check sql runs on Spark")
    rows = audit.executor.query(audit.check.query, {"staged": audit.session, "published": audit.before})
    if not rows:
        return ""
    (value, *more) = rows[0]
    if len(rows) > 1 or more:
        return f"the answer has rows, the first one {_told(rows[0])}"
    if isinstance(value, bool | np.bool_):
        return "" if value else "the answer is false"
    return "" if isinstance(value, int) and value == 0 else f"the answer is {_told(rows[0])}, not 0 or true"


def _told(row: tuple[Any, ...]) -> str:
    return ", ".join(str(value) for value in row)


_RUN: dict[str, Callable[[_Audit], str]] = {
    "monotone": _monotone,
    "gaps": _gaps,
    "source": _source,
    "range": _range,
    "nulls": _nulls,
    "python": _python,
    "sql": _sql,
}


@dataclass(frozen=True, slots=True)
class Arrivals:
    """New sources and their regions in the arrays."""

    rows: tuple[LedgerRow, ...]
    dataset: xr.Dataset
    """The staged group, decoded and not loaded."""

    @property
    def dims(self) -> set[str]:
        """The dimensions along which some source covers only a part."""
        sizes = self.dataset.sizes
        spans = {span for row in self.rows for span in row.box().items()}
        return {dim for dim, span in spans if span != (0, sizes.get(dim))}

    def blocks(self, name: str, cells: int) -> Iterator[Box]:
        """Yield boxes that cover all new data of a variable, of at most `cells` cells or one chunk."""
        variable = self.dataset.variables[name]
        boxes = {self._box(row, variable) for row in self.rows if name in row.names()}
        if not boxes and name in self.dataset.coords:
            boxes = {tuple((0, size) for size in variable.shape)}
        chunks = variable.encoding.get("shards") or variable.encoding.get("chunks") or variable.shape
        for box in _joined(sorted(boxes)):
            yield from _cut(box, chunks, cells)

    def source_at(self, name: str, place: Sequence[int]) -> str | None:
        """Find the source of a cell."""
        variable = self.dataset.variables[name]
        for row in self.rows:
            spans = self._box(row, variable)
            inside = (start <= at < stop for at, (start, stop) in zip(place, spans, strict=True))
            if name in row.names() and all(inside):
                return row.source
        return None

    def place(self, name: str, place: Sequence[int]) -> str:
        """Describe a cell by its coordinates and its source."""
        at = ", ".join(
            f"{dim}={self._label(str(dim), index)}"
            for dim, index in zip(self.dataset.variables[name].dims, place, strict=True)
        )
        source = self.source_at(name, place)
        return f"{at or 'its one cell'} ({source})" if source else at or "its one cell"

    def _label(self, dim: str, index: int) -> str:
        labels = self.dataset.indexes.get(dim)
        return str(index if labels is None else labels[index])

    def _box(self, row: LedgerRow, variable: xr.Variable) -> Box:
        region = row.box()
        sizes = zip(map(str, variable.dims), variable.shape, strict=True)
        return tuple(region.get(dim, (0, size)) for dim, size in sizes)


def _joined(boxes: Sequence[Box]) -> list[Box]:
    """Join boxes that are adjacent along one dimension and equal in the others."""
    found: list[Box] = []
    for box in boxes:
        last = found[-1] if found else ()
        differ = [axis for axis, (one, other) in enumerate(zip(last, box, strict=False)) if one != other]
        if len(differ) == 1 and last[differ[0]][1] >= box[differ[0]][0]:
            (axis,) = differ
            whole = (last[axis][0], max(last[axis][1], box[axis][1]))
            found[-1] = (*last[:axis], whole, *last[axis + 1 :])
        else:
            found.append(box)
    return found


def _cut(box: Box, chunks: Sequence[int], cells: int) -> Iterator[Box]:
    """Split a box at chunk borders into the largest parts allowed."""
    steps = [min(chunk, max(stop - start, 1)) for (start, stop), chunk in zip(box, chunks, strict=True)]
    for axis in reversed(range(len(steps))):
        room = cells // max(1, math.prod(steps))
        start, stop = box[axis]
        steps[axis] = min(stop - start, max(1, room) * chunks[axis]) if stop > start else 1
    edges = [_edges(*span, step, chunk) for span, step, chunk in zip(box, steps, chunks, strict=True)]
    yield from product(*edges)


def _edges(start: int, stop: int, step: int, chunk: int) -> list[tuple[int, int]]:
    first = start // chunk * chunk
    step = max(chunk, -(-step // chunk) * chunk)
    return [(max(at, start), min(at + step, stop)) for at in range(first, stop, step)]


def sample(rows: Sequence[LedgerRow], most: int) -> list[LedgerRow]:
    """Select evenly distributed rows."""
    if not rows:
        return []
    return [rows[at] for at in np.unique(np.linspace(0, len(rows) - 1, most).round().astype(int)).tolist()]


def same_labels(
    one: Mapping[Any, Any], other: Mapping[Any, Any], region: Mapping[str, tuple[int, int]]
) -> bool:
    """Return whether a file has the labels of its region of the staged group, in order."""
    for dim, labels in other.items():
        start, stop = region.get(str(dim), (0, None))
        if dim in one and not one[dim][start:stop].equals(labels):
            return False
    return True
