"""Check staged data before it is published."""

from __future__ import annotations

import difflib
import importlib
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np
import xarray as xr

from icefloe._internal.amounts import counted
from icefloe._internal.executor import Executor, Task
from icefloe._internal.warnings import ignore_warnings
from icefloe.ingest.bad_files import explain
from icefloe.ingest.combine.pieces import EXISTING, Pieces
from icefloe.ingest.discover.sources import IngestSource
from icefloe.ingest.inspect.agreement import is_strictly_monotonic, is_text_index
from icefloe.ingest.inspect.open import decode, open_raw, open_stored
from icefloe.ingest.inspect.packing import decode_variable
from icefloe.ingest.ledger import LedgerRow, split_rows_by_group
from icefloe.ingest.options import DEFAULT_CHECKS, Check, Options, make_check_error
from icefloe.ingest.plan.task_blocks import compute_part_bytes
from icefloe.ingest.plan.tasks import Block
from icefloe.ingest.publish.known_counts import KnownCounts
from icefloe.ingest.read_options import ReadOptions
from icefloe.ingest.records import StoredGroup, join_path
from icefloe.ingest.report import CheckResult
from icefloe.ingest.write.batch import StagedFiles
from icefloe.ingest.write.chunks import get_source_chunks, read_piece
from icefloe.session import Session

Box = tuple[tuple[int, int], ...]
"""The start and the stop along each dimension."""

_SAMPLED_BLOCKS = 8
_SAMPLED_FILES = 4
"""The maximum number of files to compare per block."""
_SAMPLED_CELLS = 1 << 20
"""The maximum number of cells to compare per file."""
_DECODED_CELLS = 4 << 20
"""The maximum number of stored cells to decode for a sample, unless a single chunk has more."""
_SAMPLED_CHUNKS = 4096
"""The maximum number of chunks per comparison, because Zarr reads all chunks of a selection at once."""
_DECODED_BYTES = 8
"""The size in bytes of the largest decoded cell."""
_BOXES = 8
"""The number of boxes (ranges of cells in one array) that one task reads."""
_GAP = 1.5
_SCALED = 1e-6
"""The tolerance for rescaled values, relative to the largest value."""


def find_staged(
    session: Session, group: str, rows: Sequence[LedgerRow], found: Sequence[IngestSource]
) -> Iterator[StagedFiles]:
    """Find the staged files of an interrupted run that have not been audited, from their ledger rows.

    `group` is the target group, and `found` contains the sources of the current run.
    """
    for path, mine in split_rows_by_group(rows).items():
        yield _find_staged(StoredGroup(session, join_path(group, path)), mine, found)


def _find_staged(
    stored: StoredGroup, rows: Sequence[LedgerRow], found: Sequence[IngestSource]
) -> StagedFiles:
    by_url = {source.url: source for source in found}
    sources = [replace(by_url.get(row.source, row.to_source()), group=row.source_group) for row in rows]
    with ignore_warnings():
        dataset = decode(open_stored(stored.session, stored.group))
    blocks = [
        block
        for number, row in enumerate(rows)
        if row.mode != "virtual"
        for block in _make_region_blocks(row, row.names, dataset, number)
    ]
    return StagedFiles(stored, sources, [row.box for row in rows], blocks)


def _make_region_blocks(
    row: LedgerRow, names: Iterable[str], dataset: xr.Dataset, number: int = 0
) -> Iterator[Block]:
    """Yield one block per variable for the region that a file fills."""
    for name in names:
        if name in dataset.variables:
            box = _get_box(row, dataset.variables[name])
            shape = [stop - start for start, stop in box]
            if math.prod(shape):
                start, stop = (tuple(span[end] for span in box) for end in (0, 1))
                yield Block(name, start, stop, Pieces.whole(number, shape))


def _get_box(row: LedgerRow, variable: xr.Variable) -> Box:
    """Return the region of a variable that a file fills."""
    sizes = zip(map(str, variable.dims), variable.shape, strict=True)
    return tuple(row.box.get(dim, (0, size)) for dim, size in sizes)


@dataclass(frozen=True, slots=True)
class CompareTask:
    """An executor task that compares samples of staged blocks with their source files."""

    stored: StoredGroup
    blocks: tuple[Block, ...]
    sources: Mapping[int, Any]
    reading: ReadOptions
    cells: int
    """The number of cells per sample. At least one file chunk is compared, even if it is larger."""
    region: Mapping[str, tuple[int, int]] | None = None
    """The region of a referenced file; None if the blocks were copied from files."""


@dataclass(frozen=True, slots=True)
class CountTask:
    """An executor task that computes statistics for boxes of a staged variable."""

    stored: StoredGroup
    name: str
    boxes: tuple[Box, ...]
    """The boxes to read, one after another."""


@dataclass(frozen=True, slots=True)
class BoxStatistics:
    """The minimum, the maximum and the number of missing values in a box, with their positions."""

    low: float
    high: float
    lowest: tuple[int, ...]
    """The position of the minimum."""
    highest: tuple[int, ...]
    nulls: int
    cells: int
    null: tuple[int, ...]
    """The position of the first missing value; empty if there are none."""


def refuse_unrunnable(checks: Sequence[Check], *, on_spark: bool) -> None:
    """Raise an error for checks that cannot run: SQL without Spark, or functions that cannot be imported."""
    for check in checks:
        if check.name == "sql" and not on_spark:
            raise make_check_error("the check sql requires Spark")
        if check.name == "python":
            _load_function(check)


def refuse_unknown(checks: Sequence[Check], names: Collection[str]) -> None:
    """Raise an error if a check names a variable that does not exist."""
    for check in checks:
        if check.variable and check.variable not in names:
            near = difflib.get_close_matches(check.variable, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"variables are {', '.join(sorted(names))}"
            raise make_check_error(
                f"the check {check.name} requires {check.variable!r}, which is not a variable; {hint}"
            )


def audit(
    session: Session,
    before: Session,
    rows: Sequence[LedgerRow],
    staged: Sequence[StagedFiles],
    options: Options,
    executor: Executor,
) -> list[CheckResult]:
    """Run all checks on the staged data, and return their results.

    `session` reads the staged data, `before` reads the target branch without it, and `rows` are the staged
    ledger rows.
    """
    audits = []
    for path, mine in split_rows_by_group(rows).items():
        of_group = replace(options, group=join_path(options.group, path))
        with ignore_warnings():
            dataset = decode(open_stored(session, of_group.group))
        files = [each for each in staged if each.stored.group == of_group.group]
        audits.append(_Audit(path, NewData(tuple(mine), dataset), session, before, files, of_group, executor))
    return [_run_check(check, audits) for check in options.checks]


def _run_check(check: Check, audits: Sequence[_Audit]) -> CheckResult:
    """Run a check on each group that contains its variable. A SQL check runs once for all groups."""
    about = [each for each in audits if not check.variable or check.variable in each.dataset.variables]
    for audit in (about or audits)[: 1 if check.name == "sql" else None]:
        wrong = _RUN[check.name](replace(audit, check=check))
        if wrong:
            return CheckResult(check.title, False, f"{audit.path}: {wrong}" if audit.path else wrong)
    return CheckResult(check.title, True, "no problems found")


@dataclass(frozen=True, slots=True)
class _Audit:
    path: str
    """The path of the group relative to the target group."""
    arrivals: NewData
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
    def stored(self) -> StoredGroup:
        return StoredGroup(self.session, self.options.group)

    def list_steps(self) -> Iterator[tuple[str, Any]]:
        """Yield the coordinates along which files are concatenated, and all time coordinates."""
        dims = self.arrivals.dims
        dims |= {str(dim) for dim, index in self.dataset.indexes.items() if _is_time_index(index)}
        if self.options.combining.concat_dim is not None:
            dims.add(self.options.combining.concat_dim)
        for dim in sorted(dims):
            index = self.dataset.indexes.get(dim)
            if index is not None and len(index) > 1 and index.nunique() > 1:
                yield dim, index

    @property
    def cells(self) -> int:
        """The number of cells that a task may read at once."""
        return compute_part_bytes(self.options.memory_bytes) // _DECODED_BYTES

    @property
    def sample_cells(self) -> int:
        """The number of cells per sample."""
        return min(self.cells, _SAMPLED_CELLS)

    def list_blocks(self) -> Iterator[tuple[StagedFiles, Block]]:
        for each in self.staged:
            yield from ((each, block) for block in each.blocks)


def _is_time_index(index: Any) -> bool:
    return index.dtype.kind == "M" or isinstance(index, xr.CFTimeIndex)


def _check_monotone(audit: _Audit) -> str:
    """Check that concatenated coordinates are strictly monotonic. Other coordinates may repeat values, as in
    radar sweeps.
    """
    for dim, index in audit.list_steps():
        if dim in audit.arrivals.dims and not is_strictly_monotonic(index):
            rises, falls = np.asarray(index[1:] > index[:-1]), np.asarray(index[1:] < index[:-1])
            at = int(np.flatnonzero(~rises if rises.sum() >= falls.sum() else ~falls)[0])
            return f"{dim} is not strictly increasing or decreasing: {index[at + 1]} follows {index[at]}"
    return ""


def _check_gaps(audit: _Audit) -> str:
    for dim, index in audit.list_steps():
        if is_text_index(index):
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


def _check_source(audit: _Audit) -> str:
    """Compare samples of the staged data with the source files."""
    tasks = [*_sample_referenced(audit), *_sample_copied(audit)]
    results = audit.executor.map(Task(compare_blocks, "blocks compared", thread_safe=False), tasks)
    return next((text for text in results if text), "")


def _sample_referenced(audit: _Audit) -> Iterator[CompareTask]:
    """Yield tasks that compare a sample of the referenced files. Each file's region of an array
    is one block.
    """
    sources = {
        source.url: source for each in audit.staged for source in each.sources
    }  # the blocks of one group
    rows = [row for row in audit.arrivals.rows if row.mode != "native" and row.source in sources]
    left_out = _find_overridden(audit)
    for row in select_sample(rows, _SAMPLED_FILES):
        names = [name for name in row.names if name not in left_out]
        blocks = tuple(_make_region_blocks(row, names, audit.dataset))
        source, region = {0: sources[row.source]}, dict(row.box)
        yield CompareTask(audit.stored, blocks, source, audit.options.reading, audit.sample_cells, region)


def _sample_copied(audit: _Audit) -> Iterator[CompareTask]:
    """Yield tasks that compare a sample of the copied blocks, with a few pieces each."""
    blocks = [
        (staged, block) for staged, block in audit.list_blocks() if (block.pieces.source != EXISTING).any()
    ]
    for staged, whole in blocks[:: max(1, len(blocks) // _SAMPLED_BLOCKS)][:_SAMPLED_BLOCKS]:
        block = _thin_block(whole)
        sources = {number: staged.sources[number] for number in map(int, block.pieces.source)}
        yield CompareTask(staged.stored, (block,), sources, audit.options.reading, audit.sample_cells)


def _find_overridden(audit: _Audit) -> set[str]:
    """Return the variables that `compat="override"` took from the first file without comparing
    other files.
    """
    dims = audit.arrivals.dims
    if audit.options.combining.compat != "override" or not dims:
        return set()
    variables = audit.dataset.variables.items()
    return {str(name) for name, each in variables if dims.isdisjoint(map(str, each.dims))}


def _thin_block(block: Block) -> Block:
    """Return a block with only a few of its pieces. A block of time series has pieces of every file."""
    rows = np.flatnonzero(block.pieces.source != EXISTING)
    some = np.unique(np.linspace(0, len(rows) - 1, _SAMPLED_FILES).round().astype(int))
    return replace(block, pieces=block.pieces.select(rows[some]))


def compare_blocks(task: CompareTask) -> str:
    """Compare staged blocks with their source files.

    Return a description of the first difference, or "" if there is none.
    """
    pieces = [
        (number, block, row)
        for block in task.blocks
        for row, number in enumerate(block.pieces.source.tolist())
    ]
    with open_raw(task.stored, task.reading) as stored:
        here = decode(stored)
        for number, mine in groupby(sorted(pieces, key=lambda each: each[0]), key=lambda each: each[0]):
            source = task.sources[number]
            try:
                with open_raw(source, task.reading, avoid_copy=True) as file:
                    there = decode(file)
                    if task.region is not None and not has_same_labels(
                        here.indexes, there.indexes, task.region
                    ):
                        continue  # the cells are not contiguous; copied data is compared by block
                    for _, block, row in mine:
                        piece = block.pieces.select(slice(row, row + 1))
                        start = _find_difference(task, block, piece, here, there, file)
                        if start is not None:
                            return f"{block.name} at {start} differs from {source.url}"
            except Exception as error:  # noqa: BLE001 - engines raise whatever they like
                return f"{source.url}: cannot be compared: {explain(error)}"
    return ""


def _find_difference(
    task: CompareTask, block: Block, piece: Pieces, here: xr.Dataset, there: xr.Dataset, file: xr.Dataset
) -> list[int] | None:
    """Compare a sample of one piece with its file: the middle, or both ends if the file is referenced.

    Return the position of a sample that differs, or None.
    """
    mine, variable = here.variables[block.name], there.variables[block.name]
    # The ledger does not record which axis of the file corresponds to each dimension.
    axes = [variable.dims.index(dim) if dim in variable.dims else -1 for dim in mine.dims]
    piece = replace(piece, axes=np.array([axes], np.int64).reshape(1, len(axes)))
    chunks = get_source_chunks(piece, file.variables[block.name])
    parts = list(piece.split(chunks, min(task.cells, _SAMPLED_CHUNKS * math.prod(chunks))))
    is_referenced = task.region is not None
    for part in [parts[0], parts[-1]] if is_referenced else [parts[len(parts) // 2]]:
        part = _limit_decoding(part, block, mine)
        start = (part.starts[0] + np.array(block.start, np.int64)).tolist()
        box = zip(start, part.shape[0].tolist(), strict=True)
        now: Any = mine[tuple(slice(at, at + size) for at, size in box)].load()
        then = xr.Variable(now.dims, np.broadcast_to(read_piece(part, variable), now.shape))
        if not (_is_close(now, then) if is_referenced else now.equals(then)):
            return list(start)
    return None


def _limit_decoding(part: Pieces, block: Block, stored: xr.Variable) -> Pieces:
    """Shrink a sample if decoding the stored chunks that it overlaps would take much longer than the
    comparison.

    For example, a map in a file overlaps many time series chunks. The remaining part depends on the block, so
    that the samples of an ingest cover different parts of the array.
    """
    chunks = stored.encoding.get("chunks")
    if not chunks or not stored.ndim:
        return part
    first = part.starts[0] + np.array(block.start, np.int64)
    before, after = first // chunks * chunks, -(-(first + part.shape[0]) // chunks) * chunks
    decoded, cells = math.prod((after - before).tolist()), math.prod(part.shape[0].tolist())
    if decoded <= _DECODED_CELLS:
        return part
    aligned = replace(part, source_starts=first[None], axes=np.arange(len(chunks), dtype=np.int64)[None])
    boxes = list(aligned.split(chunks, max(1, cells * _DECODED_CELLS // decoded)))
    box = boxes[sum(at // size for at, size in zip(block.start, chunks, strict=True)) % len(boxes)]
    for axis in range(len(chunks)):
        part = part.clip(axis, int(box.starts[0, axis]), int(box.shape[0, axis]))
    return part


def _is_close(one: Any, other: Any) -> bool:
    """Return True if values are equal within rounding. 32-bit scale factors are stored with 64 bits, which
    changes the last digits.
    """
    if one.equals(other):
        return True
    if one.dtype.kind != "f" or other.dtype.kind != "f" or one.shape != other.shape:
        return False
    span = float(np.nanmax(np.abs(other.values), initial=0))
    return np.allclose(one.values, other.values, rtol=0, atol=_SCALED * span, equal_nan=True)


def _check_range(audit: _Audit) -> str:
    check = audit.check
    known = _load_counts(audit)
    boxes = [box for box in _list_boxes(audit) if not known.is_within(box, check.low, check.high)]
    for counts in _count_values(audit, boxes):
        low = counts.low < check.low
        if low or counts.high > check.high:
            value, place = (counts.low, counts.lowest) if low else (counts.high, counts.highest)
            where = audit.arrivals.describe_cell(check.variable, place)
            return f"{check.variable} is {value:g} at {where}, outside of {check.low:g} to {check.high:g}"
    return ""


def _check_nulls(audit: _Audit) -> str:
    boxes, known = _list_boxes(audit), _load_counts(audit)
    found = [known.count_nulls(box) for box in boxes]
    read = _count_values(audit, [box for box, nulls in zip(boxes, found, strict=True) if nulls is None])
    nulls = sum(each or 0 for each in found) + sum(each.nulls for each in read)
    cells = sum(math.prod(stop - start for start, stop in box) for box in boxes)
    share = nulls / cells if cells else 0.0
    if share <= audit.check.most:
        return ""
    counts = list(_count_values(audit, boxes))  # read the values to report a cell
    worst = max(counts, key=lambda each: each.nulls / max(each.cells, 1))
    where = audit.arrivals.describe_cell(audit.check.variable, worst.null)
    problem = f"{share:.2%} of {audit.check.variable} are missing, more than {audit.check.most:.2%}"
    return f"{problem}, for example at {where}"


def _load_counts(audit: _Audit) -> KnownCounts:
    """Load the chunk statistics of the checked variable."""
    path = join_path(audit.options.group, audit.check.variable)
    return KnownCounts(audit.session, "/" + path.strip("/"))


def _list_boxes(audit: _Audit) -> list[Box]:
    """List boxes that cover the new part of the checked variable, each small enough to be read at once."""
    name = audit.check.variable
    refuse_unknown([audit.check], [str(each) for each in audit.dataset.variables])
    if audit.dataset.variables[name].dtype.kind not in "biuf" and audit.check.name == "range":
        raise make_check_error(f"the check range requires numbers, but {name!r} has another type")
    return list(audit.arrivals.list_boxes(name, audit.cells))


def _count_values(audit: _Audit, boxes: Sequence[Box]) -> Iterator[BoxStatistics]:
    name = audit.check.variable
    tasks = [
        CountTask(audit.stored, name, tuple(boxes[at : at + _BOXES])) for at in range(0, len(boxes), _BOXES)
    ]
    for counts in audit.executor.map(Task(count_boxes, "parts checked"), tasks):
        yield from counts


def count_boxes(task: CountTask) -> list[BoxStatistics]:
    """Compute the minimum, the maximum and the number of missing values of staged boxes."""
    with open_raw(task.stored, ReadOptions()) as raw:
        variable = raw.variables[task.name]
        return [_count_box(variable, box) for box in task.boxes]


def _count_box(variable: xr.Variable, box: Box) -> BoxStatistics:
    values = decode_variable(variable[tuple(slice(*span) for span in box)].load())
    missing = np.asarray(values.isnull().values)
    start = np.array([first for first, _ in box], np.int64)

    def place(flat: int) -> tuple[int, ...]:
        return tuple((np.array(np.unravel_index(flat, missing.shape), np.int64) + start).tolist())

    nulls = int(missing.sum())
    null = place(int(missing.argmax())) if nulls else ()
    if nulls == missing.size or values.dtype.kind not in "biuf":
        return BoxStatistics(math.nan, math.nan, (), (), nulls, missing.size, null)
    low = np.where(missing, np.inf, values.values)
    high = np.where(missing, -np.inf, values.values)
    least, most = int(low.argmin()), int(high.argmax())
    return BoxStatistics(
        float(low.flat[least]), float(high.flat[most]), place(least), place(most), nulls, missing.size, null
    )


def _check_python(audit: _Audit) -> str:
    call = audit.check.call
    try:
        said = _load_function(audit.check)(audit.dataset)
    except Exception as error:
        raise make_check_error(f"the check {call} cannot be run: {explain(error)}") from error
    return "" if said is None or said is True else str(said) if said else f"{call} returned a false value"


def _load_function(check: Check) -> Callable[[xr.Dataset], Any]:
    module, _, name = check.call.partition(":")
    try:
        function: Callable[[xr.Dataset], Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise make_check_error(f"the check {check.call} cannot be loaded: {error}") from error
    return function


def _check_sql(audit: _Audit) -> str:
    """Run a SQL check. Each result row is a problem, except a single value, which must be true or 0."""
    if not audit.executor.has_sql:
        raise make_check_error("the check sql requires Spark")
    rows = audit.executor.query(audit.check.query, {"staged": audit.session, "published": audit.before})
    if not rows:
        return ""
    (value, *more) = rows[0]
    if len(rows) > 1 or more:
        return f"the query returned rows, the first one is {_format_row(rows[0])}"
    if isinstance(value, bool | np.bool_):
        return "" if value else "the query returned false"
    return (
        ""
        if isinstance(value, int) and value == 0
        else f"the query returned {_format_row(rows[0])}, not 0 or true"
    )


def _format_row(row: tuple[Any, ...]) -> str:
    return ", ".join(str(value) for value in row)


_RUN: dict[str, Callable[[_Audit], str]] = {
    "monotone": _check_monotone,
    "gaps": _check_gaps,
    "source": _check_source,
    "range": _check_range,
    "nulls": _check_nulls,
    "python": _check_python,
    "sql": _check_sql,
}


@dataclass(frozen=True, slots=True)
class NewData:
    """The staged data of a group: the ledger rows of new sources, and the dataset."""

    rows: tuple[LedgerRow, ...]
    dataset: xr.Dataset
    """The staged group, decoded but not loaded."""

    @property
    def dims(self) -> set[str]:
        """The dimensions along which at least one new source covers only a part of the arrays."""
        sizes = self.dataset.sizes
        spans = {span for row in self.rows for span in row.box.items()}
        return {dim for dim, span in spans if span != (0, sizes.get(dim))}

    def list_boxes(self, name: str, cells: int) -> Iterator[Box]:
        """Yield boxes that cover all staged data of a variable, each with at most `cells` cells
        or one chunk.
        """
        variable = self.dataset.variables[name]
        boxes = {_get_box(row, variable) for row in self.rows if name in row.names}
        if not boxes and name in self.dataset.coords:
            boxes = {tuple((0, size) for size in variable.shape)}
        chunks = variable.encoding.get("shards") or variable.encoding.get("chunks") or variable.shape
        for box in _join_boxes(sorted(boxes)):
            yield from _split_box(box, chunks, cells)

    def find_source(self, name: str, place: Sequence[int]) -> str | None:
        """Return the source of a staged cell. Return None if it is unknown."""
        variable = self.dataset.variables[name]
        for row in self.rows:
            spans = _get_box(row, variable)
            inside = (start <= at < stop for at, (start, stop) in zip(place, spans, strict=True))
            if name in row.names and all(inside):
                return row.source
        return None

    def describe_cell(self, name: str, place: Sequence[int]) -> str:
        """Describe a staged cell by its coordinates and its source, for error messages."""
        at = ", ".join(
            f"{dim}={self._get_label(str(dim), index)}"
            for dim, index in zip(self.dataset.variables[name].dims, place, strict=True)
        )
        source = self.find_source(name, place)
        return f"{at or 'its one cell'} ({source})" if source else at or "its one cell"

    def _get_label(self, dim: str, index: int) -> str:
        labels = self.dataset.indexes.get(dim)
        return str(index if labels is None else labels[index])


def _join_boxes(boxes: Sequence[Box]) -> list[Box]:
    """Merge boxes that are adjacent along one dimension and equal along all other dimensions."""
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


def _split_box(box: Box, chunks: Sequence[int], cells: int) -> Iterator[Box]:
    """Split a box at chunk boundaries into parts of about `cells` cells, or one chunk."""
    shape = [stop - start for start, stop in box]
    if math.prod(shape):
        for part in Pieces.whole(0, shape, [start for start, _ in box]).split(chunks, cells):
            ends = part.source_starts + part.shape
            yield tuple(zip(part.source_starts[0].tolist(), ends[0].tolist(), strict=True))


def select_sample(rows: Sequence[LedgerRow], most: int) -> list[LedgerRow]:
    """Select up to `most` evenly distributed ledger rows as a sample."""
    if not rows:
        return []
    return [rows[at] for at in np.unique(np.linspace(0, len(rows) - 1, most).round().astype(int)).tolist()]


def has_same_labels(
    one: Mapping[Any, Any], other: Mapping[Any, Any], region: Mapping[str, tuple[int, int]]
) -> bool:
    """Return True if a file has the same labels as its region of the staged group."""
    for dim, labels in other.items():
        start, stop = region.get(str(dim), (0, None))
        if dim in one and not one[dim][start:stop].equals(labels):
            return False
    return True
