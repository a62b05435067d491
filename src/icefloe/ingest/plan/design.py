"""Design the arrays of a group, and assign their blocks to tasks."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import xarray as xr

from icefloe._internal.executor import Executor
from icefloe.core.commit.limits import Counts, check_changed_chunks, count_commits
from icefloe.errors import ErrorKind, Hint, InvalidInputError
from icefloe.ingest.combine.existing import ExistingArrays
from icefloe.ingest.combine.grid import Combined
from icefloe.ingest.combine.pieces import EXISTING, PieceArray
from icefloe.ingest.inspect.inspect_files import Inspected, split_batches
from icefloe.ingest.inspect.packing import make_signature
from icefloe.ingest.options import Mode, Options
from icefloe.ingest.plan.array_encoding import check_layout, design_array, design_coordinate
from icefloe.ingest.plan.references import (
    ReferencePlan,
    adopt_file_layout,
    can_keep_chunks,
    choose_references,
    find_bounds,
    refuse_misfits,
)
from icefloe.ingest.plan.tasks import SourceCut, TaskPlan, make_plan
from icefloe.ingest.records import (
    LOGGER,
    FileSchema,
    SchemaVariants,
    Target,
    VariableSchema,
    collect_variants,
)
from icefloe.virtual.zarr_metadata import GEO_TRANSFORM

R = TypeVar("R")

_OTHER_CHUNKS = 100_000
"""The number of changed chunks per commit that is reserved for coordinates and the ledger."""
_CHUNKS_PER_COMMIT = 5_000_000
"""The number of changed chunks above which several files are split into multiple commits. The driver needs
less than 300 MB to write a transaction log of this size, and readers of any release need less than 1 GB.
"""
_MIN_CHUNK_BYTES = 16 << 10
"""The chunk size in bytes below which files are copied instead of referenced."""


@dataclass(frozen=True, slots=True)
class Design:
    """The design of one group in an ingest commit: its arrays, the source of every cell, and the tasks."""

    combined: Combined
    targets: tuple[Target, ...]
    """The arrays that tasks write."""
    coordinates: tuple[tuple[Target, xr.Variable], ...]
    """Small arrays that the driver writes, with their encoded values."""
    copied: frozenset[tuple[int, str]]
    plan: TaskPlan
    attrs: Mapping[str, Any]
    referral: ReferencePlan
    kept: frozenset[str]
    """The names of arrays that gain dimensions, but whose existing chunks are not rewritten."""
    changed_chunks: Counts
    """For each array, its number of dimensions and the number of chunks that the commit changes."""

    @property
    def group(self) -> str:
        """The path of the group that is designed."""
        return self.combined.state.group


def design_arrays(combined: Combined, inspected: Inspected, options: Options, executor: Executor) -> Design:
    """Design the arrays of a group for one ingest commit, and assign their blocks to tasks.

    `inspected` contains all files of the job, including those of later batches.
    """
    existing, variants = combined.state.existing, inspected.variants.get(combined.state.below, {})
    dataset = combined.dataset
    if existing is None:
        check_layout(options.layout, dict.fromkeys([*map(str, dataset.sizes), *inspected.dims]))
    known = existing.targets if existing is not None else {}
    here = _describe_existing(existing, options.mode) if existing is not None else {}
    by_name = {name: (*variants.get(name, ()), *here.get(name, ())) for name in (*variants, *here)}
    attrs, group_attrs = _collect_attributes(dataset)
    bounds = find_bounds(dataset)
    targets, coordinates = [], []
    for name, variable in ((str(name), variable) for name, variable in dataset.variables.items()):
        found = known.get(name)
        if not isinstance(variable.data, PieceArray):
            coordinates.append(_design_coordinate(name, variable, by_name[name], attrs[name], existing))
        elif found is None or found.dims != tuple(map(str, variable.dims)):
            target = design_array(name, variable, by_name[name], options.layout, attrs[name])
            is_reference = options.mode == "virtual" or _is_compound(target)
            if is_reference or target.signature is not None:
                least = 0 if is_reference else _MIN_CHUNK_BYTES
                is_bounds = name in bounds
                target = adopt_file_layout(
                    target, by_name[name], variable.data, is_bounds=is_bounds, least_bytes=least
                )
            targets.append(target)
        else:
            targets.append(_extend_array(found, variable, options))
    arrays = {target.name: dataset.variables[target.name].data for target in targets}
    cuts = {name: SourceCut(found[0].chunks, in_parts=True) for name, found in by_name.items()}
    referral = ReferencePlan(frozenset(), ())
    if options.mode != "native":
        documents = {target.name: json.loads(target.document) for target in targets if target.document}
        referral = choose_references(targets, dataset, combined.files, documents)
        if options.mode == "virtual":
            refuse_misfits(referral)
    kept = frozenset(
        target.name
        for target in targets
        if target.is_new
        and target.name in known
        and can_keep_chunks(known[target.name], target, arrays[target.name])
    )
    settled = referral.chosen | {(EXISTING, name) for name in kept}
    plan = make_plan(targets, arrays, cuts, options.memory_bytes, executor.parallelism, settled)
    _refuse_compounds(targets, plan)
    copied = frozenset(_find_copied(targets, combined.files, existing))
    group_attrs = {**dataset.attrs, **group_attrs}
    counts = [
        (_count_changed_chunks(each, known.get(each.name), combined), len(each.shape)) for each in targets
    ]
    return Design(
        combined, tuple(targets), tuple(coordinates), copied, plan, group_attrs, referral, kept, counts
    )


def list_changed_chunks(designs: Sequence[Design]) -> Counts:
    """Return, for each array of a design, its number of dimensions and the number of chunks that change."""
    return [*(each for design in designs for each in design.changed_chunks), (_OTHER_CHUNKS, 1)]


class LargeBatchError(Exception):
    """Error raised when a batch changes more chunks than one commit allows."""

    def __init__(self, designs: Sequence[Design], commits: int) -> None:
        super().__init__(f"the batch needs {commits} commits")
        self.designs, self.commits = designs, commits


def check_batch(designs: Sequence[Design]) -> None:
    """Raise LargeBatchError if the design of a batch changes more chunks than one commit allows."""
    counts = list_changed_chunks(designs)
    commits = count_commits(counts)
    if len({file.source.url for design in designs for file in design.combined.files}) > 1:
        commits = max(commits, -(-sum(count for count, _ in counts) // _CHUNKS_PER_COMMIT))
    if commits > 1:
        raise LargeBatchError(designs, commits)


def map_batches(
    work: Callable[[Sequence[FileSchema]], R], batches: Iterable[Sequence[FileSchema]]
) -> Iterator[R]:
    """Design batches one after another, and split batches that are too large for one commit.

    A single file that is too large raises an error.
    """
    waiting = deque(batches)
    while waiting:
        batch = waiting.popleft()
        try:
            result = work(batch)
        except LargeBatchError as error:
            waiting.extendleft(reversed(_split_batch(batch, error)))
        else:
            yield result


def refuse_large_file(
    batch: Sequence[FileSchema],
    designs: Sequence[Design],
    design: Callable[[Sequence[FileSchema]], Sequence[Design]],
) -> None:
    """Raise an error if a single file of a batch is too large for one commit."""
    try:
        check_batch(designs)
    except LargeBatchError as error:
        for part in _split_batch(batch, error):
            refuse_large_file(part, design(part), design)


def _split_batch(batch: Sequence[FileSchema], error: LargeBatchError) -> list[Sequence[FileSchema]]:
    """Split a batch into parts that each fit into one commit. Raise an error if it consists of a
    single file.
    """
    count = len({file.source.url for file in batch})
    if count == 1:
        check_changed_chunks(
            list_changed_chunks(error.designs),
            f"{batch[0].source.url} alone has too many chunks: select fewer variables per run, or choose "
            "larger chunks or shards",
        )
    LOGGER.info("%d files change too many chunks for one commit: using %d commits", count, error.commits)
    return list(split_batches(batch, -(-count // error.commits) if error.commits < count else 1))


def _describe_existing(existing: ExistingArrays, mode: Mode) -> SchemaVariants:
    """Return the schemas of existing arrays, in the same form as the variables of a file.

    In virtual and hybrid mode, each schema includes the array's zarr.json.
    """
    found = collect_variants([existing.schema])
    if mode == "native":
        return found
    return {
        name: [replace(each, document=existing.targets[name].document) for each in variants]
        for name, variants in found.items()
    }


def _count_changed_chunks(target: Target, existing: Target | None, combined: Combined) -> int:
    """Count the chunks or shards that a commit changes in an array. If existing cells move, that is all of
    them.
    """
    is_moved = any(by for dim in target.dims for _, _, by in combined.moves.get(dim, ()))
    kept = 0 if existing is None or target.is_new or is_moved else existing.count_units()
    return max(0, target.count_units() - kept)


def _is_compound(target: Target) -> bool:
    """Return True if an array has a compound or opaque dtype, whose values can be referenced but
    not copied.
    """
    return target.dtype.startswith("|V")


def _refuse_compounds(targets: Sequence[Target], plan: TaskPlan) -> None:
    """Raise an error if an array with a compound or opaque dtype would have to be copied."""
    copied = {block.name for block in (*plan.blocks, *plan.readings)}
    for target in targets:
        if target.name in copied and _is_compound(target):
            raise InvalidInputError(
                f"{target.name} has a compound or opaque type, whose values cannot be copied",
                ErrorKind.INVALID_ARRAY_METADATA,
            ).with_hint(Hint("select the other variables, or reference it with {mode}", mode="virtual"))


def _collect_attributes(dataset: xr.Dataset) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Return the attributes of all variables. Those with non-dimension coordinates get a `coordinates`
    attribute.
    """
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


def _design_coordinate(
    name: str,
    variable: xr.Variable,
    schemas: Sequence[VariableSchema],
    attrs: Mapping[str, Any],
    existing: ExistingArrays | None,
) -> tuple[Target, xr.Variable]:
    schema = (existing.schema.variable(name) if existing is not None else None) or schemas[0]
    if len({str(each.attrs.get(GEO_TRANSFORM)) for each in schemas}) > 1:
        attrs = {key: value for key, value in attrs.items() if key != GEO_TRANSFORM}
    return design_coordinate(name, variable, schema, attrs)


def _extend_array(target: Target, variable: xr.Variable, options: Options) -> Target:
    if options.layout.chunks is not None:
        wanted = {
            dim: size for dim, size in options.layout.chunks.items() if dim in target.dims and size != -1
        }
        has = dict(zip(target.dims, target.chunks, strict=True))
        if any(has[dim] != size for dim, size in wanted.items()):
            raise InvalidInputError(
                f"{target.name} already exists with chunks of {has}; omit chunks, or rechunk it",
                ErrorKind.INVALID_ARRAY_METADATA,
            )
    return replace(target, shape=variable.shape)


def _find_copied(
    targets: Sequence[Target], files: Sequence[FileSchema], existing: ExistingArrays | None
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
            if id(variable) not in signatures:  # most files give the same result
                signatures[id(variable)] = make_signature(variable)
            if signatures[id(variable)] == target.signature:
                yield number, target.name
