"""Virtual and hybrid ingest: what of a file can stay where it is, and references to it."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import xarray as xr
from zarr.core.metadata import ArrayV3Metadata

from icefloe._internal.amounts import bytes_text
from icefloe.credentials import AnyCredential
from icefloe.distributed import receipt
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.ingest.combine.pieces import PieceArray
from icefloe.ingest.discover.sources import Source, refuse_changed
from icefloe.ingest.discover.urls import reference_location
from icefloe.ingest.inspect.packing import attributes_of_zarr, decoded
from icefloe.ingest.inspect.reference_spill import Aside, Parsed, taken_up
from icefloe.ingest.inspect.schema import FileSchema, Reading, VariableSchema, quiet, reason, virtualized
from icefloe.ingest.plan.arrays import Target
from icefloe.ingest.write.chunk_fitting import chunks_of, common_chunks, fitted, widened, with_chunks
from icefloe.ingest.write.chunks import Written
from icefloe.repository import Repository
from icefloe.session import ForkSession
from icefloe.storage.external.access import Access, without_secrets
from icefloe.storage.external.endpoints import leads_to
from icefloe.virtual import VirtualChunkContainer
from icefloe.virtual.parsers import ParseOptions
from icefloe.virtual.sources import container_of, container_prefix, location_of
from icefloe.virtual.values import default_credential
from icefloe.virtual.write import Placed, write_placed
from icefloe.virtual.zarr_metadata import DECODING_ATTRIBUTES, differences, properties_of

_PLAIN_CHUNK_BYTES = 16 << 20
"""Larger chunks of plain bytes are cut: a reader takes whole chunks."""
_FILES_AT_ONCE = 64
"""So many files are referred to in one go."""
_MOST_FOLDERS = 8
_TINY_BYTES = 1 << 10
_MANY_CHUNKS = 1000
_SCALED_BY_FLOAT32 = (
    "is scaled by a number of 32 bits, which references cannot say: values have 64 bits and may differ in "
    "the last digits of those of the file; --hybrid copies them"
)


@dataclass(frozen=True, slots=True)
class Referral:
    """Which variables of which files are referred to, and why others are not."""

    chosen: frozenset[tuple[int, str]]
    reasons: tuple[tuple[str, str, str], ...]
    """File, variable and reason."""
    notes: tuple[tuple[str, str, str], ...] = ()
    """File, variable, and in what references are not quite what the file has."""


def refer(
    targets: Sequence[Target], dataset: xr.Dataset, files: Sequence[FileSchema], documents: Mapping[str, Any]
) -> Referral:
    """Decide it for every piece: type, codecs and chunks must be the array's, and borders those of chunks.

    What has no dimensions in a file is copied and needs no reason, as coordinates of one are: descriptions of
    grids, mostly. So are bounds of coordinates that do not fit. xarray gives both the times of the files.
    Coordinates of more dimensions that do not fit are copied, and noted.
    """
    chosen: set[tuple[int, str]] = set()
    reasons, notes = [], []
    bounds = bounds_in(dataset)
    for target in targets:
        if not target.dims:
            continue
        variable = dataset.variables[target.name]
        array = variable.data
        fits = _Fits(target, documents.get(target.name), None if array.is_complete else variable.dtype)
        mine: list[int] = []
        for number, why in _misfits(target, array, files, fits):
            if not why:
                mine.append(number)
            elif target.name in dataset.coords:
                notes.append((files[number].source.url, target.name, f"is copied: {why}"))
            elif target.name not in bounds and _has_dimensions(files[number], target.name):
                reasons.append((files[number].source.url, target.name, why))
        chosen.update((number, target.name) for number in mine)
        first = files[min(mine)] if mine else None
        if first is not None and _is_scaled_by_float32(first.variable(target.name)):
            notes.append((first.source.url, target.name, _SCALED_BY_FLOAT32))
        if first is not None and (told := _tiny_chunks(target)):
            notes.append(("", target.name, told))
    return Referral(frozenset(chosen), tuple(reasons), tuple(notes))


def bounds_in(dataset: xr.Dataset) -> set[str]:
    """The variables that are bounds of coordinates."""
    return {str(each.attrs["bounds"]) for each in dataset.coords.values() if "bounds" in each.attrs}


def _tiny_chunks(target: Target) -> str:
    """What is to be said of an array of many small chunks, each of which is a request of its own."""
    size = math.prod(target.chunks) * target.itemsize
    sizes = zip(target.shape, target.chunks, strict=True)
    count = math.prod(-(-length // chunk) for length, chunk in sizes)
    if size >= _TINY_BYTES or count < _MANY_CHUNKS:
        return ""
    return f"is {count:,} chunks of {bytes_text(size)}, slow to read: icefloe rechunk makes larger ones of it"


def _has_dimensions(file: FileSchema, name: str) -> bool:
    variable = file.variable(name)
    return variable is not None and bool(variable.dims)


def _is_scaled_by_float32(variable: VariableSchema | None) -> bool:
    names = ("scale_factor", "add_offset")
    given = [variable.packing[name] for name in names if name in variable.packing] if variable else []
    return any(np.asarray(value).dtype == np.float32 for value in given)


def _misfits(
    target: Target, array: PieceArray, files: Sequence[FileSchema], fits: _Fits
) -> Iterator[tuple[int, str]]:
    pieces = array.pieces
    chunks = np.array(target.chunks, np.int64)
    stops = pieces.stops
    ends = (stops % chunks == 0) | (stops == target.shape) if target.dims else np.ones((len(pieces), 0), bool)
    aligned = ((pieces.starts % chunks == 0) & ends).all(axis=1)
    own = pieces.axes >= 0  # those that a source lacks have its chunks again and again
    straight = (~own | (pieces.axes == own.cumsum(axis=1) - 1)).all(axis=1)
    often = Counter(pieces.source.tolist())
    for row, number in enumerate(pieces.source.tolist()):
        if number < 0:
            continue
        variable = files[number].variable(target.name)
        sizes = [files[number].sizes.get(dim, 1) for dim in target.dims]
        if variable is None or variable.document is None:
            yield number, variable.refusal if variable is not None else "it is not there"
        elif variable.raw_dims != variable.dims:
            yield number, "it is text in single characters, which xarray shows as words"
        elif fits.document is None:
            yield number, "the array is not stored in a way that can be referred to"
        elif not variable.dims:
            yield number, "it has no dimensions"
        elif not straight[row]:
            yield number, "its dimensions are in another order than those of the array"
        elif wrong := fits.differences(variable.document):
            yield number, wrong
        elif not fits.holes_are_missing:
            yield number, "some files lack cells of it, and what stands for them is not a missing value"
        elif often[number] > 1 or pieces.shape[row].tolist() != sizes:
            yield number, "its cells do not lie together in the array"
        else:
            yield number, "" if aligned[row] else "it does not begin and end with chunks of the array"


class _Fits:
    """How arrays of files differ from one of the repository. Most files have the same to say."""

    def __init__(
        self, target: Target, document: Mapping[str, Any] | None, holes: np.dtype[Any] | None
    ) -> None:
        """`holes` is the type of the values in all files together, where some cells are in no file."""
        self._target = target
        self.document = document
        self.holes_are_missing = holes is None or document is None or _misses(document, holes)
        self._known: dict[str, str] = {}

    def differences(self, of_file: str) -> str:
        """In words; nothing where a file's chunks fit."""
        if of_file not in self._known:
            self._known[of_file] = self._differences(json.loads(of_file))
        return self._known[of_file]

    def _differences(self, of_file: Mapping[str, Any]) -> str:
        mine = fitted(of_file, self._target.dims, self._target.chunks)
        if mine is None:
            return "its dimensions are not those of the array"
        there, here = (properties_of(each, loaded=False) for each in (self.document or {}, mine))
        wrong = differences(there, here)
        return "; ".join(f"its {name} is {now}, the array's {was}" for name, was, now in wrong)


def _misses(document: Mapping[str, Any], dtype: np.dtype[Any]) -> bool:
    """Whether cells that nobody wrote read as missing values, and all as values of a type."""
    with quiet():
        metadata = ArrayV3Metadata.from_dict({**document})
    raw = metadata.data_type.to_native_dtype()
    if raw.kind not in "iuf":
        return False
    attrs = attributes_of_zarr(metadata.attributes, raw)
    try:
        shown = decoded(xr.Variable(("x",), np.array([metadata.fill_value], raw), attrs))
    except (ValueError, OverflowError, TypeError):
        return False
    return shown.dtype == dtype and bool(shown.isnull().all())


def as_document(
    target: Target, schemas: Sequence[VariableSchema], array: PieceArray, *, is_bounds: bool, least_bytes: int
) -> Target:
    """The array as files store it, the first to begin with, so that their chunks can be referred to.

    Files that are plain bytes are cut so that all fit, and no chunk is large, but not into chunks of fewer
    bytes than the least. Bounds that xarray
    gives the times of the files are copied: they are small, and would be there once for each.
    """
    first = schemas[0]
    if first.document is None or not first.dims or first.raw_dims != first.dims:
        return target  # text in single characters, say
    document = json.loads(first.document)
    if tuple(document["dimension_names"]) != first.dims or (is_bounds and first.dims != target.dims):
        return target  # an engine may see a file in another way than the parser of references
    wide = widened(document, target.dims)
    if wide is None:
        return target
    documents = dict.fromkeys(each.document for each in schemas if each.document is not None)
    all_wide = [widened(json.loads(each), target.dims) for each in documents]
    common = common_chunks([each for each in all_wide if each is not None], array)
    if common is not None:
        common = ParseOptions(contiguous_chunk_bytes=_PLAIN_CHUNK_BYTES).chunks_of_contiguous(
            common, target.itemsize
        )
    if common is not None and math.prod(common) * target.itemsize >= least_bytes:
        wide = with_chunks(wide, common)
    told = {name: value for name, value in target.attrs.items() if name not in DECODING_ATTRIBUTES}
    attrs = {**told, **{k: v for k, v in document["attributes"].items() if k in DECODING_ATTRIBUTES}}
    return replace(target, chunks=chunks_of(wide), shards=None, attrs=attrs, document=json.dumps(wide))


@dataclass(frozen=True, slots=True)
class Referred:
    """A file to refer to: the names of its variables, and where it goes."""

    number: int
    source: Source
    names: tuple[str, ...]
    box: Mapping[str, tuple[int, int]]
    lacking: Mapping[str, tuple[int, ...]]
    """The dimensions of arrays, by number, that its variables lack."""
    aside: Aside | None


@dataclass(frozen=True, slots=True)
class ReferOrder:
    """Files to refer to."""

    fork: ForkSession
    group: str
    files: tuple[Referred, ...]
    reading: Reading
    dims: Mapping[str, tuple[str, ...]]
    """Of each array."""
    chunks: Mapping[str, tuple[int, ...]]
    """Of each array: their shape."""
    windows: Mapping[str, tuple[range, ...]]
    """Arrays whose manifests are written by the task, and its part of their chunk grids."""


def write_references(order: ReferOrder) -> Written:
    """Set references through the fork: an executor's part."""
    bad: dict[int, str] = {}
    for start in range(0, len(order.files), _FILES_AT_ONCE):
        bad |= _refer_to(order.files[start : start + _FILES_AT_ONCE], order)
    for name, window in order.windows.items():
        order.fork.write_manifests(_path(order.group, name), window)
    return Written(receipt(order.fork), 0, bad)


def _refer_to(files: Sequence[Referred], order: ReferOrder) -> dict[int, str]:
    """Set references to some files, those of an array at once; what cannot be read of them."""
    aside = taken_up((each.aside for each in files if each.aside), order.fork._workspace.assets.storage)
    bad: dict[int, str] = {}
    placed: dict[str, list[Placed]] = {}
    for file in files:
        try:
            found = None if file.aside is None else aside.get(file.aside)
            parsed = found or _parsed(file.source, order.reading)
            refuse_changed(file.source, order.reading.storage_options)
            mine = {name: parsed.variables[name] for name in file.names}
        except Exception as error:  # noqa: BLE001 - parsers raise whatever they like about a damaged file
            bad[file.number] = reason(error)
            continue
        for name, variable in mine.items():
            box, chunks = [file.box[dim] for dim in order.dims[name]], order.chunks[name]
            sizes = [stop - start for start, stop in box]
            cut = variable.in_chunks(chunks, file.lacking.get(name, ()), sizes)
            step = tuple(start // size for (start, _), size in zip(box, chunks, strict=True))
            placed.setdefault(name, []).append(Placed(cut.chunks, parsed.sources, step, cut.grid_shape))
    for name, parts in placed.items():
        write_placed(order.fork.store, _path(order.group, name), parts)
    return bad


def _parsed(source: Source, reading: Reading) -> Parsed:
    with quiet():
        return Parsed.of(virtualized(source, reading))


def _path(group: str, name: str) -> str:
    return f"/{group.strip('/')}/{name}".replace("//", "/")


def with_containers(repo: Repository, sources: Iterable[Source], reading: Reading) -> Repository:
    """The repository, allowed to refer to the places of the sources, as its configuration then says.

    Credentials are for this process and its tasks: the configuration has none.
    """

    def places() -> Iterator[_Place]:
        for source in sources:
            url = reference_location(source.address) if source.is_remote else source.url
            yield location_of(url), partial(reading.access_to, source)

    return _with_places(repo, list(places()))


def with_places(repo: Repository, files: Iterable[FileSchema], reading: Reading) -> Repository:
    """The same for the places that files refer to, which are references themselves."""
    locations = dict.fromkeys(location for file in files for location in file.places)
    if not locations:
        return repo
    return _with_places(repo, [(each, partial(reading.access_at, each)) for each in locations])


_Place = tuple[str, Callable[[], Access | None]]
"""A location, and what finds out how it is reached: asked for one location of each container."""


def _with_places(repo: Repository, places: Sequence[_Place]) -> Repository:
    config = repo.config
    stored = Repository.fetch_config(repo.storage)  # it may have more since the repository was opened
    for container in ((stored and stored.virtual_chunk_containers) or {}).values():
        config.set_virtual_chunk_container(container)
    stores = {prefix: each.store for prefix, each in (config.virtual_chunk_containers or {}).items()}
    authorized: dict[str, AnyCredential | None] = dict(repo._handle.authorized)
    trusted = set(repo._handle.trusted)
    new: dict[str, VirtualChunkContainer] = {}
    common = _common_folder([location for location, _ in places if location.startswith("file:")])
    for location, way in places:
        prefix = next((each for each in (*stores, *new) if location.startswith(each)), None)
        if prefix is not None and prefix in authorized:
            continue
        access = way()
        if prefix is None:
            store = None if access is None else without_secrets(access.store, location)
            is_here = location.startswith("file:")
            container = container_of(common if common and is_here else location, store)
            prefix = container.url_prefix
            new[prefix] = container
            trusted.add(prefix)
        elif access is not None and leads_to(access.store, stores[prefix]):
            trusted.add(prefix)  # the caller names the endpoint too
        authorized[prefix] = default_credential(prefix) if access is None else access.credential
    for container in new.values():
        config.set_virtual_chunk_container(container)
    if not new and set(authorized) == repo.authorized_virtual_container_prefixes:
        return repo
    for prefix in set(config.virtual_chunk_containers or {}) - set(authorized):
        authorized[prefix] = default_credential(prefix)
    opened = repo._reopen(config, authorized, frozenset(trusted))
    if new:
        opened.save_config()
    return opened


def _common_folder(locations: Sequence[str]) -> str | None:
    """The folder that has all files of this machine, where they are in too many for a container of each."""
    folders = {container_prefix(location) for location in locations}
    if len(folders) <= _MOST_FOLDERS:
        return None
    common = os.path.commonpath([folder.removeprefix("file://") for folder in folders])
    return f"file://{common}/" if common.count("/") > 1 else None  # below the root it would be too much


def refuse_misfits(referral: Referral) -> None:
    """Purely virtual: whatever cannot be referred to is an error."""
    if referral.reasons:
        source, name, why = referral.reasons[0]
        more = f"; and {len(referral.reasons) - 1} more" if len(referral.reasons) > 1 else ""
        raise InvalidInputError(
            f"{source}: {name} cannot be referred to: {why}{more}; --hybrid copies what does not fit",
            ErrorKind.INVALID_VIRTUAL_REF,
        )
