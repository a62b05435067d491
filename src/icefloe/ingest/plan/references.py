"""Choose variables to reference, adapt their chunk grids to the target arrays, and split manifests.

The references of large arrays are divided into windows along one dimension, and each task writes the
manifests of one window. The repository configuration splits manifests in the same way, so that a later append
rewrites only the last window.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile
from typing import Any

import numpy as np
import xarray as xr

from icefloe._internal.amounts import format_bytes
from icefloe._internal.ids import NodeId
from icefloe.config import (
    ManifestConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    RepositoryConfig,
)
from icefloe.config.repository import SplitSizesDict
from icefloe.core.commit.manifests import UNSPLIT, split_sizes
from icefloe.errors import ErrorKind, Hint, InvalidInputError
from icefloe.format.snapshot import ArrayNodeData, DimensionShape, NodeSnapshot
from icefloe.ingest.combine.pieces import EXISTING, PieceArray
from icefloe.ingest.inspect.agreement import FileFinding
from icefloe.ingest.inspect.packing import decode_variable, from_zarr_attributes
from icefloe.ingest.records import FileSchema, Target, VariableSchema
from icefloe.repository import Repository
from icefloe.virtual.codecs import GRIB, TIFF
from icefloe.virtual.parsers import ParseOptions
from icefloe.virtual.zarr_metadata import (
    DECODING_ATTRIBUTES,
    find_differences,
    list_properties,
    parse_array_metadata,
)

_STORE_RANK = ("sharding_indexed", "numcodecs.zfpy", "numcodecs.pcodec")
"""Codecs whose encoded bytes include the number of dimensions."""
_NEED_ROWS_LAST = (GRIB, TIFF)
"""Codecs that require the two grid dimensions to be the last dimensions."""

_PLAIN_CHUNK_BYTES = 16 << 20
"""The size in bytes above which uncompressed chunks are split, because readers always read whole chunks."""
_TINY_BYTES = 1 << 10
_MANY_CHUNKS = 1000
_SCALED_BY_FLOAT32 = (
    "has a 32-bit scale factor or offset, which references cannot represent: values have 64 bits and may "
    "differ from the file in the last digits"
)
_RECHUNK = Hint("{function} creates larger chunks", function="icefloe.spark.rechunk")
_COPY_MISFITS = Hint("{mode} copies what does not fit", mode="hybrid")


@dataclass(frozen=True, slots=True)
class ReferencePlan:
    """The result of choosing references: the variables to reference, and the reasons to copy others."""

    chosen: frozenset[tuple[int, str]]
    reasons: tuple[tuple[str, str, str], ...]
    """The file, the variable and the reason for each variable that cannot be referenced."""
    notes: tuple[FileFinding, ...] = ()
    """Notes about variables that are copied, slow to read, or decode slightly differently when referenced."""


def choose_references(
    targets: Sequence[Target], dataset: xr.Dataset, files: Sequence[FileSchema], documents: Mapping[str, Any]
) -> ReferencePlan:
    """Choose the variables of each file that are stored as references to its chunks.

    The data type, codecs and chunks must match those of the array, and the file must cover whole chunks of
    it. Scalars, 1-D coordinates and bounds that do not fit are silently copied, because they are small and
    xarray may repeat them for each file. Other coordinates that do not fit are copied and reported in a note.
    """
    chosen: set[tuple[int, str]] = set()
    reasons, notes = [], []
    bounds = find_bounds(dataset)
    for target in targets:
        if not target.dims:
            continue
        variable = dataset.variables[target.name]
        array = variable.data
        fits = _LayoutComparison(
            target, documents.get(target.name), None if array.is_complete else variable.dtype
        )
        mine: list[int] = []
        for number, why in _find_misfits(target, array, files, fits):
            if not why:
                mine.append(number)
            elif target.name in dataset.coords:
                notes.append(FileFinding(files[number].source.url, target.name, f"is copied: {why}", "note"))
            elif target.name not in bounds and _has_dimensions(files[number], target.name):
                reasons.append((files[number].source.url, target.name, why))
        chosen.update((number, target.name) for number in mine)
        first = files[min(mine)] if mine else None
        if first is not None and _is_scaled_by_float32(first.variable(target.name)):
            note = FileFinding(first.source.url, target.name, _SCALED_BY_FLOAT32, "note", _COPY_MISFITS)
            notes.append(note)
        if first is not None and (advice := _describe_tiny_chunks(target)):
            notes.append(FileFinding("", target.name, advice, "note", _RECHUNK))
    return ReferencePlan(frozenset(chosen), tuple(reasons), tuple(notes))


def find_bounds(dataset: xr.Dataset) -> set[str]:
    """Return the names of variables that contain coordinate bounds. These are copied instead of
    referenced.
    """
    return {str(each.attrs["bounds"]) for each in dataset.coords.values() if "bounds" in each.attrs}


def _describe_tiny_chunks(target: Target) -> str:
    """Describe why an array with many small chunks is slow to read. Return "" if this does not apply."""
    size = math.prod(target.chunks) * target.itemsize
    sizes = zip(target.shape, target.chunks, strict=True)
    count = math.prod(-(-length // chunk) for length, chunk in sizes)
    if size >= _TINY_BYTES or count < _MANY_CHUNKS:
        return ""
    return f"is {count:,} chunks of {format_bytes(size)}, which are slow to read"


def _has_dimensions(file: FileSchema, name: str) -> bool:
    variable = file.variable(name)
    return variable is not None and bool(variable.own_dims)


def _is_scaled_by_float32(variable: VariableSchema | None) -> bool:
    names = ("scale_factor", "add_offset")
    given = [variable.packing[name] for name in names if name in variable.packing] if variable else []
    return any(np.asarray(value).dtype == np.float32 for value in given)


def _find_misfits(
    target: Target, array: PieceArray, files: Sequence[FileSchema], fits: _LayoutComparison
) -> Iterator[tuple[int, str]]:
    pieces = array.pieces
    chunks = np.array(target.chunks, np.int64)
    stops = pieces.stops
    ends = (stops % chunks == 0) | (stops == target.shape) if target.dims else np.ones((len(pieces), 0), bool)
    aligned = ((pieces.starts % chunks == 0) & ends).all(axis=1)
    own = pieces.axes >= 0  # chunks are repeated along dimensions that the source lacks
    straight = (~own | (pieces.axes == own.cumsum(axis=1) - 1)).all(axis=1)
    often = Counter(pieces.source.tolist())
    for row, number in enumerate(pieces.source.tolist()):
        if number < 0:
            continue
        variable = files[number].variable(target.name)
        sizes = [files[number].sizes.get(dim, 1) for dim in target.dims]
        if variable is None or variable.document is None:
            yield number, variable.refusal if variable is not None else "it is not there"
        elif variable.is_text_in_characters:
            yield number, "it is stored as single characters, which xarray decodes to strings"
        elif fits.document is None:
            yield number, "the array is stored in a way that does not allow references"
        elif not variable.own_dims:
            yield number, "it has no dimensions"
        elif not straight[row]:
            yield number, "its dimensions are in another order than those of the array"
        elif wrong := fits.describe(variable.document):
            yield number, wrong
        elif not fits.holes_are_missing:
            yield number, "some files lack cells of it, and the fill value is not a missing value"
        elif often[number] > 1 or pieces.shape[row].tolist() != sizes:
            yield number, "its cells are not adjacent in the array"
        else:
            yield number, "" if aligned[row] else "it does not begin and end with chunks of the array"


class _LayoutComparison:
    """Compares the metadata of arrays in files with the metadata of the target array, and caches
    the results.
    """

    def __init__(
        self, target: Target, document: Mapping[str, Any] | None, holes: np.dtype[Any] | None
    ) -> None:
        """Create a comparison. `holes` is the dtype of the combined values if no file provides some cells;
        otherwise None.
        """
        self._target = target
        self.document = document
        self.holes_are_missing = holes is None or document is None or _is_decoded_as_missing(document, holes)
        self._known: dict[str, str] = {}

    def describe(self, of_file: str) -> str:
        """Describe why the chunks of a file cannot be used in the target array. Return "" if they can."""
        if of_file not in self._known:
            self._known[of_file] = self._describe(json.loads(of_file))
        return self._known[of_file]

    def _describe(self, of_file: Mapping[str, Any]) -> str:
        mine = fit_document(of_file, self._target.dims, self._target.chunks)
        if mine is None:
            return "its dimensions are not those of the array"
        there, here = (list_properties(each, loaded=False) for each in (self.document or {}, mine))
        wrong = find_differences(there, here)
        return "; ".join(f"its {name} is {now}, the array's {was}" for name, was, now in wrong)


def _is_decoded_as_missing(document: Mapping[str, Any], dtype: np.dtype[Any]) -> bool:
    """Return True if xarray decodes unwritten chunks as missing values of the expected dtype."""
    metadata = parse_array_metadata({**document, "attributes": {}})
    raw = metadata.data_type.to_native_dtype()
    if raw.kind not in "iuf":
        return False
    attrs = from_zarr_attributes(document.get("attributes", {}), raw)
    try:
        shown = decode_variable(xr.Variable(("x",), np.array([metadata.fill_value], raw), attrs))
    except (ValueError, OverflowError, TypeError):
        return False
    return shown.dtype == dtype and bool(shown.isnull().all())


def adopt_file_layout(
    target: Target, schemas: Sequence[VariableSchema], array: PieceArray, *, is_bounds: bool, least_bytes: int
) -> Target:
    """Use the chunks and codecs of the first file for a planned array, so that file chunks can be referenced.

    Uncompressed data is split into chunks that fit all files. These chunks are not large, but have at least
    `least_bytes`. Bounds that xarray would repeat for each file are copied.
    """
    first = schemas[0]
    if first.document is None or not first.own_dims or first.is_text_in_characters:
        return target  # for example, text stored as single characters
    document = json.loads(first.document)
    if tuple(document["dimension_names"]) != first.own_dims or (is_bounds and first.dims != target.dims):
        return target  # an engine and the reference parser may interpret a file differently
    wide = widen_document(document, target.dims)
    if wide is None:
        return target
    documents = dict.fromkeys(each.document for each in schemas if each.document is not None)
    all_wide = [widen_document(json.loads(each), target.dims) for each in documents]
    common = find_common_chunks([each for each in all_wide if each is not None], array)
    if common is not None:
        common = ParseOptions(contiguous_chunk_bytes=_PLAIN_CHUNK_BYTES).choose_contiguous_chunks(
            common, target.itemsize
        )
    if common is not None and math.prod(common) * target.itemsize >= least_bytes:
        wide = replace_chunks(wide, common)
    described = {name: value for name, value in target.attrs.items() if name not in DECODING_ATTRIBUTES}
    attrs = {**described, **{k: v for k, v in document["attributes"].items() if k in DECODING_ATTRIBUTES}}
    return replace(target, chunks=get_chunks(wide), shards=None, attrs=attrs, document=json.dumps(wide))


def can_keep_chunks(found: Target, target: Target, array: PieceArray) -> bool:
    """Return True if an array that gains dimensions can keep its existing references, at new chunk
    coordinates.
    """
    if found.document is None or target.document is None:
        return False
    mine = fit_document(json.loads(found.document), target.dims, target.chunks)
    if mine is None or get_chunks(mine) != target.chunks:
        return False
    there, here = (list_properties(each, loaded=False) for each in (json.loads(target.document), mine))
    pieces = array.pieces.select(array.pieces.source == EXISTING)
    chunks = np.array(target.chunks, np.int64)
    sizes = np.array([dict(zip(found.dims, found.shape, strict=True)).get(dim, 1) for dim in target.dims])
    ends = pieces.source_starts + pieces.shape
    whole = (pieces.starts % chunks == 0) & (pieces.source_starts % chunks == 0)
    return bool((whole & ((ends % chunks == 0) | (ends == sizes))).all()) and not find_differences(
        there, here
    )


def refuse_misfits(referral: ReferencePlan) -> None:
    """Raise InvalidInputError if the plan contains a variable that cannot be referenced."""
    if referral.reasons:
        source, name, why = referral.reasons[0]
        more = f"; and {len(referral.reasons) - 1} more" if len(referral.reasons) > 1 else ""
        raise InvalidInputError(
            f"{source}: {name} cannot be referenced: {why}{more}", ErrorKind.INVALID_VIRTUAL_REF
        ).with_hint(_COPY_MISFITS)


def fit_document(
    document: Mapping[str, Any], dims: Sequence[str], chunks: Sequence[int]
) -> dict[str, Any] | None:
    """Adapt the zarr.json of an array in a file to the dimensions and the chunk shape of the target array.

    Return None if the dimensions do not match.
    """
    wide = widen_document(document, dims)
    if wide is None or not is_plain(wide) or not _is_run(get_chunks(wide), chunks):
        return wide
    return replace_chunks(wide, chunks)


def widen_document(document: Mapping[str, Any], dims: Sequence[str]) -> dict[str, Any] | None:
    """Add dimensions with chunk size 1 to the zarr.json of an array in a file. Return None if its codecs do
    not allow this.
    """
    own, codecs = list(document["dimension_names"]), document["codecs"]
    names = [codec["name"] for codec in codecs]
    if own == list(dims):
        return dict(document)
    if [dim for dim in dims if dim in own] != own or not set(names).isdisjoint(_STORE_RANK):
        return None
    if not set(names).isdisjoint(_NEED_ROWS_LAST) and list(dims[len(dims) - len(own) :]) != own:
        return None
    chunks = dict(zip(own, get_chunks(document), strict=True))
    shape = dict(zip(own, document["shape"], strict=True))
    wide = {
        **document,
        "dimension_names": list(dims),
        "shape": [shape.get(dim, 1) for dim in dims],
        "codecs": [_widen_codec(codec, own, dims) for codec in codecs],
    }
    return replace_chunks(wide, [chunks.get(dim, 1) for dim in dims])


def _widen_codec(codec: Mapping[str, Any], own: Sequence[str], dims: Sequence[str]) -> Mapping[str, Any]:
    if codec["name"] != "transpose":
        return codec
    new = [axis for axis, dim in enumerate(dims) if dim not in own]
    order = [*new, *(dims.index(own[axis]) for axis in codec["configuration"]["order"])]
    return {"name": "transpose", "configuration": {"order": order}}


def find_common_chunks(documents: Sequence[Mapping[str, Any]], array: PieceArray) -> tuple[int, ...] | None:
    """Find a chunk shape that divides the chunks of all files. Return None unless chunks are uncompressed
    bytes.
    """
    if not all(map(is_plain, documents)):
        return None
    sizes = np.array([get_chunks(document) for document in documents if 0 not in document["shape"]], np.int64)
    if not len(sizes):
        return None
    found = np.gcd.reduce(np.concatenate([sizes, array.pieces.starts]), axis=0)
    common = tuple(int(size) for size in found)
    return common if all(_is_run(size, common) for size in sizes.tolist()) else None


def get_chunks(document: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the chunk shape from a zarr.json."""
    return tuple(document["chunk_grid"]["configuration"]["chunk_shape"])


def replace_chunks(document: Mapping[str, Any], chunks: Sequence[int]) -> dict[str, Any]:
    """Return a copy of a zarr.json with another chunk shape."""
    return {**document, "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunks)}}}


def is_plain(document: Mapping[str, Any]) -> bool:
    """Return True if the chunks described by a zarr.json are plain bytes, without compression or filters."""
    return [codec["name"] for codec in document["codecs"]] == ["bytes"]


def _is_run(chunk: Sequence[int], part: Sequence[int]) -> bool:
    """Return True if a chunk consists of parts of the given shape that are contiguous in its bytes."""
    if any(size % cut for size, cut in zip(chunk, part, strict=True)):
        return False
    cut = dropwhile(lambda pair: pair[1] == 1, zip(chunk, part, strict=True))
    return all(size == whole for size, whole in list(cut)[1:])


Extents = tuple[range, ...]
"""A region of a chunk grid: the range of chunk indices along each dimension."""


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows into which the references of large virtual arrays are divided. Each has its own
    manifests.
    """

    dim: str
    size: int
    """The length of a window in cells."""
    arrays: tuple[Target, ...]

    def list_spans(self) -> Iterator[tuple[int, int]]:
        """Yield the first cell and the stop (exclusive) of each window along the dimension."""
        length = max(_get_length(target, self.dim) for target in self.arrays)
        for start in range(0, length, self.size):
            yield start, min(start + self.size, length)

    def compute_extents(self, span: tuple[int, int]) -> dict[str, Extents]:
        """Return, for each array, the region of its chunk grid that lies in a window."""
        found = {}
        for target in self.arrays:
            grid = [range(count) for count in _compute_grid(target)]
            axis = target.dims.index(self.dim)
            chunk = target.chunks[axis]
            grid[axis] = range(span[0] // chunk, -(-span[1] // chunk))
            found[target.name] = tuple(grid)
        return found


def plan_windows(
    targets: Sequence[Target], group: str, config: RepositoryConfig, references: int
) -> Windows | None:
    """Plan windows for arrays with more than `references` references. Return None if there are none."""
    large = sorted(
        (each for each in targets if each.dims and math.prod(_compute_grid(each)) > references),
        key=lambda each: -math.prod(_compute_grid(each)),
    )
    if not large:
        return None
    first = large[0]
    axis = next(axis for axis, count in enumerate(_compute_grid(first)) if count > 1)
    dim = first.dims[axis]
    arrays = [each for each in large if dim in each.dims]
    rules = config.effective().split_sizes
    unit = math.lcm(*(_get_unit(each, dim, split_sizes(rules, _make_node(each, group))) for each in arrays))
    per_unit = math.prod(_compute_grid(first)) * unit / max(1, _get_length(first, dim))
    return Windows(dim, unit * max(1, int(references / per_unit)), tuple(arrays))


def configure_splitting(repo: Repository, windows: Windows | None, group: str) -> Repository:
    """Configure manifest splitting for arrays with windows, unless a splitting rule already covers them."""
    if windows is None:
        return repo
    config = repo.config
    rules = config.effective().split_sizes
    known = config.manifest.splitting.to_dict() if config.manifest and config.manifest.splitting else {}
    new: SplitSizesDict = {}
    for target in windows.arrays:
        node, axis = _make_node(target, group), target.dims.index(windows.dim)
        if split_sizes(rules, node)[axis] == UNSPLIT:
            condition = ManifestSplitCondition.path_matches(f"^{re.escape(node.path)}$")
            size = windows.size // target.chunks[axis]
            new[condition] = {ManifestSplitDimCondition.Axis(axis): size}
    if not new:
        return repo
    splitting = ManifestSplittingConfig.from_dict({**new, **known})
    opened = repo.reopen(RepositoryConfig(manifest=ManifestConfig(splitting=splitting)))
    opened.save_config()
    return opened


def _compute_grid(target: Target) -> tuple[int, ...]:
    return tuple(max(1, -(-size // chunk)) for size, chunk in zip(target.shape, target.chunks, strict=True))


def _get_length(target: Target, dim: str) -> int:
    return target.shape[target.dims.index(dim)]


def _get_unit(target: Target, dim: str, sizes: Sequence[int]) -> int:
    """Return the number of cells per manifest along a dimension, or per chunk if there is no
    splitting rule.
    """
    axis = target.dims.index(dim)
    return target.chunks[axis] * (1 if sizes[axis] == UNSPLIT else sizes[axis])


def _make_node(target: Target, group: str) -> NodeSnapshot:
    """Create a node for an array, to look up the splitting rule that applies to it."""
    shape = tuple(map(DimensionShape, target.shape, _compute_grid(target)))
    path = f"/{group.strip('/')}/{target.name}".replace("//", "/")
    return NodeSnapshot(NodeId(bytes(NodeId.SIZE)), path, b"", ArrayNodeData(shape, (), target.dims))


def find_files_within(
    boxes: Mapping[int, Mapping[str, tuple[int, int]]], dim: str, span: tuple[int, int]
) -> Iterator[int]:
    """Yield the files whose references belong to a window.

    Files that lack the dimension belong to the first window.
    """
    for number, box in boxes.items():
        start, stop = box.get(dim, (0, 1))
        if start < span[1] and stop > span[0]:
            yield number
