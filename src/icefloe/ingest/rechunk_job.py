"""Change the chunks, shards or codecs of arrays. Tasks read boxes of old chunks and write new chunks.

If old chunks would be read many times, they are spilled first. See `icefloe.ingest.array_spill`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import zarr
from zarr.buffer import cpu
from zarr.storage import MemoryStore

from icefloe._internal.amounts import counted, format_bytes
from icefloe._internal.concurrency import get_pool
from icefloe._internal.executor import Executor
from icefloe._internal.paths import join, normalize
from icefloe._internal.report import Report
from icefloe._internal.warnings import ignore_warnings
from icefloe.conflicts import ConflictDetector
from icefloe.core.commit.limits import check_changed_chunks
from icefloe.core.workspace import Workspace
from icefloe.errors import ErrorKind, Hint, InvalidInputError, NodeNotFoundError, RebaseFailedError
from icefloe.format.snapshot import ArrayNodeData
from icefloe.ingest.bad_files import explain
from icefloe.ingest.combine.pieces import PieceArray, Pieces
from icefloe.ingest.options import DEFAULT_MEMORY_BYTES, make_compressors
from icefloe.ingest.plan.array_encoding import check_chunk_bytes, choose_shards
from icefloe.ingest.plan.tasks import SourceCut, TaskPlan, make_plan
from icefloe.ingest.read_options import ReadOptions
from icefloe.ingest.records import LOGGER, StoredGroup, Target
from icefloe.ingest.write.chunks import GroupBlocks, WriteResults, write_groups
from icefloe.maintenance.statistics.collect import Collected, record_statistics
from icefloe.repository import Repository
from icefloe.session import Session

METADATA = "icefloe_rechunk"
"""The commit metadata key for information about a rechunk."""
_SAMPLES = 8
"""The number of blocks to sample when comparing new values with old values."""
_SHARDING = "sharding_indexed"
_INDEX: dict[str, Any] = {
    "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
    "index_location": "end",
}
Box = tuple[tuple[int, int], ...]
"""The start and the stop along each dimension."""
Sample = tuple[str, Box]
"""The path of an array, and a box of cells to compare."""


@dataclass(frozen=True, slots=True)
class Rechunked:
    """The result of a rechunk for one array: its old and new chunk shapes."""

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
class RechunkReport(Report):
    """The report of a rechunk, or of a dry run."""

    arrays: tuple[Rechunked, ...]
    """The arrays that got new chunks, shards or codecs."""
    unchanged: tuple[str, ...]
    """The arrays that already have the requested layout."""
    tasks: int
    """The number of tasks."""
    blocks: int
    """The number of blocks that the tasks write. A block consists of whole new chunks."""
    nbytes: int
    """The size of the arrays without compression."""
    memory_bytes: int
    """The peak memory of a task in bytes, excluding the interpreter and its modules."""
    read_factor: float
    """The average number of times that an old chunk is read."""
    spilled_bytes: int = 0
    """The number of bytes that are temporarily spilled to the repository's storage, and deleted
    at the end.
    """
    compared: int = 0
    """The number of new chunks that were compared with the old values, each by a sample."""
    commit: str | None = None
    """The new snapshot; None if nothing was written."""


@dataclass(frozen=True, slots=True)
class TargetLayout:
    """The requested chunks, shards and codec. Without shards, existing shards are removed."""

    chunks: Mapping[str, int]
    """The chunk size in cells by dimension name, or by number for unnamed dimensions; -1 means the whole
    dimension.
    """
    shards: Mapping[str, int] | None = None
    """The shard size in cells by dimension. None means no shards."""
    codec: str | None = None
    """The codec that replaces all existing codecs. None keeps them."""

    def __post_init__(self) -> None:
        for what, given in (("chunks", self.chunks), ("shards", self.shards or {})):
            for dim, size in given.items():
                if size < 1 and size != -1:
                    raise _make_error(f"{what} along {dim} must be positive, or -1 for all cells, not {size}")
        if self.codec is not None:
            make_compressors(self.codec)
        elif not self.chunks and not self.shards:
            options = dict.fromkeys(("chunks", "shards", "codec"))
            hint = Hint("give {chunks}, {shards} or {codec}", **options)
            raise _make_error("nothing to change; pass chunks, shards or a codec").with_hint(hint)

    @property
    def dims(self) -> tuple[str, ...]:
        """The dimensions for which a chunk or shard size is requested."""
        return tuple(dict.fromkeys([*self.chunks, *(self.shards or {})]))


@dataclass(frozen=True, slots=True)
class ArrayToRechunk:
    """An array to rechunk, as described by its zarr.json."""

    path: str
    document: Mapping[str, Any]
    dims: tuple[str, ...]
    """The dimension names, with a number for each unnamed dimension."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return tuple(self.document["shape"])

    @property
    def chunks(self) -> tuple[int, ...]:
        """The current chunk shape of the array. With shards, this is the shape of inner chunks."""
        found, codecs = self._cells, self.document["codecs"]
        while (inside := _get_sharding(codecs)) is not None:
            found, codecs = tuple(inside["chunk_shape"]), inside["codecs"]
        return found

    @property
    def shards(self) -> tuple[int, ...] | None:
        """The current shard shape of the array; None if it has no shards."""
        return self._cells if _get_sharding(self.document["codecs"]) is not None else None

    @property
    def _cells(self) -> tuple[int, ...]:
        return tuple(self.document["chunk_grid"]["configuration"]["chunk_shape"])


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
    """Rechunk an array, or all arrays of a group: change chunks, shards or codecs in one commit.

    For a group, only arrays that have all named dimensions are rechunked. Values, attributes, fill value and
    dimension names do not change. Concurrent commits to other arrays are kept.

    Parameters
    ----------
    repo
        The repository.
    path
        Path of an array, or of a group.
    executor
        The executor that runs the tasks. They read the current tip of the branch.
    chunks
        The chunk size by dimension name, or by number for an unnamed dimension; -1 means all cells.
        Other dimensions keep their chunk size.
    shards
        The shard size by dimension. By default, the result has no shards.
    codec
        The codec, such as `zstd:9`, `blosc:lz4:5`, `gzip:6` or `none`. By default, codecs do not change.
    branch
        The branch to commit to.
    message
        The commit message.
    metadata
        Metadata of the commit.
    memory_bytes
        The memory that a task may use, excluding the interpreter and its modules.
    dry_run
        Only report what would be done.

    Returns
    -------
    RechunkReport
        The arrays that were rechunked, and the commit.

    Raises
    ------
    RebaseFailedError
        If another writer committed to the same arrays in the meantime. The branch keeps that commit.
    """
    wanted = TargetLayout(dict(chunks or {}), dict(shards) if shards else None, codec)
    session = repo.writable_session(branch)
    base = repo.readonly_session(snapshot_id=session.snapshot_id)
    arrays = _find_arrays(base._workspace, normalize("/" + path), wanted)
    targets = [design_layout(array, wanted) for array in arrays]
    changed = [
        (array, target)
        for array, target in zip(arrays, targets, strict=True)
        if (array.chunks, array.shards) != (target.chunks, target.shards) or codec is not None
    ]
    check_changed_chunks(
        [(target.count_units(), len(target.shape)) for _, target in changed],
        "choose larger chunks, or shards of many chunks",
    )
    plan = _make_plan(changed, memory_bytes, executor.parallelism)
    report = _make_report(changed, arrays, plan)
    aside = f", {format_bytes(plan.spilled_bytes)} spilled" if plan.spilled_bytes else ""
    LOGGER.info(
        "%s: %s in %s, %s of at most %s%s",
        counted(len(changed), "array"),
        format_bytes(plan.nbytes),
        counted(len(plan.blocks), "block"),
        counted(len(plan.tasks), "task"),
        format_bytes(plan.memory_bytes),
        aside,
    )
    if dry_run or not changed:
        return report
    compared, statistics = _write(session, base, changed, plan, executor, memory_bytes)
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
            "the branch has that change and the old chunks: rechunk again"
        )
        raise
    record_statistics(session, statistics)
    LOGGER.info("commit %s: %s has the new chunks", commit, branch)
    return replace(report, compared=compared, commit=commit)


def _find_arrays(workspace: Workspace, path: str, wanted: TargetLayout) -> list[ArrayToRechunk]:
    """Return the array at a path, or the arrays of a group that have all requested dimensions."""
    node = workspace.node(path)
    if node is None:
        raise NodeNotFoundError(f"there is no array or group at `{path}`", kind=ErrorKind.NODE_NOT_FOUND)
    alone = isinstance(node.node_data, ArrayNodeData)
    inside = [workspace.node(join(path, name)) for name in workspace.children(path)]
    members = [
        parse_array(each.path, each.user_data)
        for each in ([node] if alone else inside)
        if each is not None and isinstance(each.node_data, ArrayNodeData)
    ]
    fitting = [array for array in members if set(wanted.dims) <= set(array.dims)]
    if not fitting:
        there = dict.fromkeys(dim for array in members for dim in array.dims)
        who = f"the array {path} does not have" if alone else f"no array of the group {path} has"
        listed = f"dimensions are {', '.join(there)}" if there else "there are none"
        raise InvalidInputError(
            f"{who} the dimensions {', '.join(wanted.dims)}; {listed}",
            ErrorKind.INVALID_ARRAY_METADATA,
        )
    return fitting


def _make_plan(
    changed: Sequence[tuple[ArrayToRechunk, Target]], memory_bytes: int, parallelism: int
) -> TaskPlan:
    pieces = {
        target.name: PieceArray(target.name, target.shape, np.dtype("u1"), Pieces.whole(0, target.shape), {})
        for _, target in changed
    }
    cuts = {array.path: SourceCut(array.chunks, partial=array.shards is not None) for array, _ in changed}
    return make_plan([target for _, target in changed], pieces, cuts, memory_bytes, parallelism)


def _make_report(
    changed: Sequence[tuple[ArrayToRechunk, Target]], arrays: Sequence[ArrayToRechunk], plan: TaskPlan
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


def _write(
    session: Session,
    base: Session,
    changed: Sequence[tuple[ArrayToRechunk, Target]],
    plan: TaskPlan,
    executor: Executor,
    memory_bytes: int,
) -> tuple[int, list[Collected]]:
    """Recreate the arrays in a session with the new layout, and write their chunks.

    Return the number of compared samples, and the statistics of the new chunks.
    """
    for array, target in changed:
        session._workspace.delete_node(array.path)  # including the references to its chunks
        session._workspace.set_metadata(array.path, (target.document or "").encode())
    targets = {target.name: target for _, target in changed}
    copied = frozenset((0, name) for name in targets)
    sources = {0: StoredGroup(base, "")}
    results = WriteResults()
    group = GroupBlocks(session.fork(), "", plan, targets, sources, copied, ReadOptions(), memory_bytes)
    write_groups([group], executor, results)
    session._merge_receipts(results.receipts)
    samples = list(_select_samples(plan, {array.path: (array, target) for array, target in changed}))
    for name, box, is_same in get_pool("comparing", _SAMPLES).map(partial(_compare, session, base), samples):
        if not is_same:
            raise InvalidInputError(
                f"the values of {name} from {[start for start, _ in box]} to {[stop for _, stop in box]} "
                "changed when they were written, because its codecs are lossy: choose a lossless codec",
                ErrorKind.INVALID_ARRAY_METADATA,
            )
    return len(samples), results.statistics


def _select_samples(plan: TaskPlan, arrays: Mapping[str, tuple[ArrayToRechunk, Target]]) -> Iterator[Sample]:
    """Yield samples to compare: for some blocks, the overlap of the block's last new chunk with
    an old chunk.
    """
    count = len(plan.blocks)
    for number in np.unique(np.linspace(0, count - 1, min(count, _SAMPLES)).astype(int)).tolist():
        block = plan.blocks[number]
        array, target = arrays[block.name]
        cells = zip(block.start, block.stop, target.chunks, array.chunks, strict=True)
        yield (
            block.name,
            tuple(
                (max(first, *((last - 1) // size * size for size in sizes)), last)
                for first, last, *sizes in cells
            ),
        )


def _compare(session: Session, base: Session, sample: Sample) -> tuple[str, Box, bool]:
    path, box = sample
    key = tuple(slice(*span) for span in box)
    with ignore_warnings():
        stores = (session.store, base.store)
        now, before = (np.asarray(zarr.open_array(store, path=path, mode="r")[key]) for store in stores)
    if now.dtype.kind == "V":
        return path, box, now.tobytes() == before.tobytes()
    return path, box, bool(np.array_equal(now, before, equal_nan=now.dtype.kind in "fcmM"))


def parse_array(path: str, user_data: bytes) -> ArrayToRechunk:
    """Parse the zarr.json of an array to rechunk."""
    document = json.loads(user_data)
    names = document.get("dimension_names") or [None] * len(document["shape"])
    return ArrayToRechunk(
        path, document, tuple(str(axis) if name is None else name for axis, name in enumerate(names))
    )


def design_layout(array: ArrayToRechunk, wanted: TargetLayout) -> Target:
    """Design the new layout of an array. Raise an error if its chunk grid is not regular."""
    kind = array.document["chunk_grid"]["name"]
    if kind != "regular":
        raise _make_error(
            f"{array.path} has a {kind} chunk grid: only arrays with a regular chunk grid can be rechunked"
        )
    chunks = tuple(
        _resolve_size(wanted.chunks.get(dim, has), whole)
        for dim, has, whole in zip(array.dims, array.chunks, array.shape, strict=True)
    )
    dtype = _make_small_array(array, array.document["codecs"]).dtype
    text = "string" if dtype.kind in "OT" else dtype.str
    target = Target(array.path, array.dims, array.shape, text, {}, {}, None, chunks)
    check_chunk_bytes(array.path, array.dims, chunks, target.itemsize)
    shards = choose_shards(array.path, array.dims, array.shape, chunks, wanted.shards)
    return replace(target, shards=shards, document=_make_document(array, chunks, shards, wanted.codec))


def _resolve_size(wanted: int, whole: int) -> int:
    return max(1, whole if wanted == -1 else wanted)


def _make_document(
    array: ArrayToRechunk, chunks: tuple[int, ...], shards: tuple[int, ...] | None, codec: str | None
) -> str:
    plain, index = _get_codecs(array)
    if codec is not None:
        plain = _choose_codecs(array, codec)
    _check_encoding(array, plain)
    inside = {"chunk_shape": list(chunks), "codecs": plain, **index}
    grid = {"name": "regular", "configuration": {"chunk_shape": list(shards or chunks)}}
    codecs = plain if shards is None else [{"name": _SHARDING, "configuration": inside}]
    return json.dumps({**array.document, "chunk_grid": grid, "codecs": codecs})


def _get_codecs(array: ArrayToRechunk) -> tuple[list[Any], dict[str, Any]]:
    """Return the codecs of the chunks, and the index settings if there are shards."""
    codecs, index = list(array.document["codecs"]), _INDEX
    if (outside := _get_sharding(codecs)) is not None:
        index = {name: outside[name] for name in _INDEX if name in outside}
    while (inside := _get_sharding(codecs)) is not None:
        codecs = list(inside["codecs"])
    return codecs, index


def _get_sharding(codecs: Sequence[Any]) -> Mapping[str, Any] | None:
    """Return the sharding configuration if the sharding codec is the only codec."""
    first = codecs[0] if len(codecs) == 1 else None
    if not isinstance(first, dict) or first.get("name") != _SHARDING:
        return None
    found: Mapping[str, Any] = first["configuration"]
    return found


def _choose_codecs(array: ArrayToRechunk, codec: str) -> list[Any]:
    """Return the codecs that zarr chooses for the array's dtype and a compressor."""
    small = _make_small_array(array, array.document["codecs"])
    metadata: Any = small.metadata
    with ignore_warnings():
        made = zarr.create_array(
            MemoryStore(),
            shape=small.shape,
            chunks=small.shape,
            dtype=metadata.data_type,
            compressors=make_compressors(codec),
            fill_value=small.fill_value,
        )
    document: Any = made.metadata.to_dict()
    return [each if isinstance(each, dict) else each.to_dict() for each in document["codecs"]]


def _check_encoding(array: ArrayToRechunk, codecs: list[Any]) -> None:
    """Encode one cell to check that the codecs can encode. Codecs of virtual arrays may be decode-only."""
    try:
        with ignore_warnings():
            small: Any = _make_small_array(array, codecs)
            small[...] = np.full(small.shape, small.fill_value, small.dtype)
    except Exception as error:
        names = ", ".join(str(each["name"] if isinstance(each, dict) else each) for each in codecs)
        raise _make_error(
            f"the codecs of {array.path} ({names}) cannot encode chunks ({explain(error)}): "
            "choose a codec for it"
        ) from error


def _make_small_array(array: ArrayToRechunk, codecs: Sequence[Any]) -> zarr.Array[Any]:
    """Create a one-cell array in memory with the same metadata. It also stores empty chunks."""
    ones = [1] * len(array.shape)
    if (inside := _get_sharding(codecs)) is not None:
        return _make_small_array(array, inside["codecs"])
    grid = {"name": "regular", "configuration": {"chunk_shape": ones}}
    document = {**array.document, "shape": ones, "chunk_grid": grid, "codecs": list(codecs)}
    stored: dict[str, Any] = {"zarr.json": cpu.Buffer.from_bytes(json.dumps(document).encode())}
    store = MemoryStore(stored)
    # zarr 3.1 ignores it as an argument to open_array.
    with ignore_warnings(), zarr.config.set({"array.write_empty_chunks": True}):
        return zarr.open_array(store, mode="r+")


def _make_error(text: str) -> InvalidInputError:
    return InvalidInputError(text, ErrorKind.INVALID_ARRAY_METADATA)
