"""Parse kerchunk references, stored as JSON (version 0 or 1) or in a directory of Parquet files.

kerchunk does not record checksums or modification times of the referenced files, so the files are assumed to
be unchanged.
"""

from __future__ import annotations

import base64
import json
import math
import os
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import numpy as np

from icefloe.virtual.dataset import VirtualDataset
from icefloe.virtual.errors import CannotVirtualizeError
from icefloe.virtual.parsers import ParseOptions
from icefloe.virtual.parsers.zarr.hierarchy import (
    METADATA,
    KeyedChunks,
    ZarrArrayChunks,
    build_dataset,
    parse_document,
)
from icefloe.virtual.sources import (
    FindAccess,
    Source,
    SourceFile,
    check_reference,
    check_sources,
    open_file,
    to_location,
    wait_for_next_second,
)

_ENCODED: Final = "base64:"
_RANGE: Final = [str, int, int]
_UNKNOWN: Final = 1 << 62
"""A placeholder for unknown file sizes, larger than any real file."""


class _Sources:
    """The referenced files, numbered in order of first use."""

    def __init__(self, referrer: str, access: FindAccess) -> None:
        self._referrer = referrer
        self._access = access
        self._numbers: dict[str, int] = {}
        self._locations: list[str] = []
        self._sizes: dict[int, int] = {}

    def number(self, url: str) -> int:
        """Return the source number for a URL. A new file gets the next number."""
        found = self._numbers.get(url)
        if found is None:
            location = to_location(url)
            check_reference(self._referrer, location)
            found = self._numbers[url] = self._numbers.setdefault(location, len(self._locations))
            if found == len(self._locations):
                self._locations.append(location)
        return found

    def size_of(self, number: int) -> int:
        """Return the size of a file, for references to whole files."""
        if number not in self._sizes:
            location = self._locations[number]
            self._sizes[number] = open_file(location, *self._access(location)).size_bytes
        return self._sizes[number]

    def check(self) -> tuple[Source, ...]:
        """Look up the current state of all referenced files."""
        found = check_sources(self._locations, self._access)
        wait_for_next_second(found)
        return tuple(found)


def _check_ends(sources: Sequence[Source], chunks: KeyedChunks | ZarrArrayChunks, place: str) -> None:
    """Raise CannotVirtualizeError if a reference extends beyond the end of its file."""
    codes, offsets, lengths = chunks.sources, chunks.offsets, chunks.lengths
    if not len(codes):
        return
    known = (_UNKNOWN if each.size_bytes is None else each.size_bytes for each in sources)
    sizes = np.fromiter(known, np.uint64, len(sources))[codes]
    for row in np.flatnonzero((offsets > sizes) | (lengths > sizes - np.minimum(offsets, sizes)))[:1]:
        key = chunks.keys[row] if isinstance(chunks, KeyedChunks) else ".".join(map(str, chunks.coords[row]))
        source = sources[int(codes[row])]
        raise CannotVirtualizeError(
            f"{place}: the reference {key} covers {lengths[row]} bytes at {offsets[row]} of "
            f"{source.location}, which has {source.size_bytes} bytes"
        )


def parse_kerchunk_json(file: SourceFile, options: ParseOptions, access: FindAccess) -> VirtualDataset:
    """Parse a kerchunk JSON file into a virtual dataset."""
    place = file.location
    try:
        found = json.loads(file.read(0, file.size_bytes))
    except ValueError as error:
        raise CannotVirtualizeError(f"{place} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise CannotVirtualizeError(f"{place} contains no references: it is not a JSON object")
    refs = found.get("refs", found)
    if not isinstance(refs, dict) or not any(key.rpartition("/")[2] in METADATA for key in refs):
        raise CannotVirtualizeError(f"{place} contains no references of kerchunk: it has no Zarr metadata")
    if found.get("gen"):
        raise CannotVirtualizeError(
            f"{place} has generated references (gen), which are not supported; expand them with kerchunk"
        )
    return _parse_references(refs, found.get("templates") or {}, _Sources(place, access), options, place)


def _parse_references(
    refs: Mapping[str, Any],
    templates: Mapping[str, str],
    sources: _Sources,
    options: ParseOptions,
    place: str,
) -> VirtualDataset:
    documents: dict[str, Any] = {}
    inline: dict[str, bytes] = {}
    keys: list[str] = []
    codes, offsets, lengths = array("L"), array("Q"), array("Q")
    filled: dict[str, int] = {}
    for key, value in refs.items():  # JSON parsing yields Python objects; columns are built here
        if isinstance(value, list):
            url, offset, length = value if _is_range(value) else _parse_range(key, value, place)
            code = filled.get(url)
            if code is None:
                code = filled[url] = sources.number(_expand_templates(url, templates))
            if length is None:
                offset, length = 0, sources.size_of(code)
            if length:
                keys.append(key)
                codes.append(code)
                offsets.append(offset)
                lengths.append(length)
        elif isinstance(value, Mapping):
            documents[key] = value
        elif isinstance(value, str):
            data = _decode_inline(key, value, place)
            if key.rpartition("/")[2] in METADATA:
                documents[key] = parse_document(key, data, place)
            elif data:
                inline[key] = data
        else:
            raise CannotVirtualizeError(f"{place}: the reference {key} is {type(value).__name__}")
    checked = sources.check()
    columns = (np.array(codes, np.uint32), np.array(offsets, np.uint64), np.array(lengths, np.uint64))
    chunks = KeyedChunks(keys, *columns, inline)
    _check_ends(checked, chunks, place)
    return build_dataset(documents, chunks.by_array(documents), checked, options, place)


def _is_range(value: list[Any]) -> bool:
    if [type(each) for each in value] != _RANGE:
        return False
    return bool(0 <= value[1] < _UNKNOWN and 0 <= value[2] < _UNKNOWN)


def _parse_range(key: str, value: list[Any], place: str) -> tuple[str, int, int | None]:
    """Return the URL, offset and length of a kerchunk reference. The length is None for a whole file."""
    if len(value) == 1 and isinstance(value[0], str):
        return value[0], 0, None
    raise CannotVirtualizeError(
        f"{place}: the reference {key} is {value!r}, expected a URL, an offset and a length"
    )


def _expand_templates(url: str, templates: Mapping[str, str]) -> str:
    for name, text in templates.items():
        url = url.replace("{{" + name + "}}", text)
    return url


def _decode_inline(key: str, value: str, place: str) -> bytes:
    if not value.startswith(_ENCODED):
        return value.encode()
    try:
        return base64.b64decode(value.removeprefix(_ENCODED), validate=True)
    except ValueError as error:
        raise CannotVirtualizeError(f"{place}: the reference {key} is not valid base64: {error}") from None


def is_parquet(folder: str) -> bool:
    """Return True if a local directory contains kerchunk references in Parquet files."""
    try:
        with open(os.path.join(folder, ".zmetadata"), encoding="utf-8") as file:
            return "record_size" in json.load(file)
    except (OSError, ValueError):
        return False


def parse_kerchunk_parquet(location: str, options: ParseOptions, access: FindAccess) -> VirtualDataset:
    """Parse a local directory of kerchunk Parquet files, each with `record_size` references of one array."""
    folder = unquote(urlsplit(location).path)
    with open(os.path.join(folder, ".zmetadata"), encoding="utf-8") as file:
        consolidated = json.load(file)
    documents = {key: parse_document(key, each, location) for key, each in consolidated["metadata"].items()}
    size = int(consolidated["record_size"])
    sources = _Sources(location, access)
    chunks: dict[str, ZarrArrayChunks] = {}
    for key, document in documents.items():
        if key.rpartition("/")[2] == ".zarray":
            path = key.rpartition("/")[0]
            chunks[path] = _read_parquet_array(os.path.join(folder, path), document, size, sources)
    checked = sources.check()
    for path, each in chunks.items():
        _check_ends(checked, each, f"{location}: {path}")
    return build_dataset(documents, chunks, checked, options, location)


def _read_parquet_array(
    folder: str, document: Mapping[str, Any], size: int, sources: _Sources
) -> ZarrArrayChunks:
    import pyarrow.parquet

    grid = [-(-total // chunk) for total, chunk in zip(document["shape"], document["chunks"], strict=True)]
    parts: list[tuple[Any, Any, Any, Any]] = []
    inline: dict[tuple[int, ...], bytes] = {}
    for part in range(-(-math.prod(grid) // size)):
        name = os.path.join(folder, f"refs.{part}.parq")
        if os.path.exists(name):
            table = pyarrow.parquet.read_table(name).slice(0, math.prod(grid) - part * size)
            rows, raw = _read_columns(table, sources)
            parts.append((rows[0] + part * size, *rows[1:]))
            inline |= {_unravel(part * size + row, grid): data for row, data in raw.items() if data}
    empty = np.zeros(0, np.int64)
    numbers, codes, offsets, lengths = (
        np.concatenate(column) for column in zip((empty,) * 4, *parts, strict=True)
    )
    coords = (
        np.stack(np.unravel_index(numbers, grid), axis=1) if grid else np.zeros((len(numbers), 1), np.int64)
    )
    return ZarrArrayChunks(
        coords, codes.astype(np.uint32), offsets.astype(np.uint64), lengths.astype(np.uint64), inline
    )


def _read_columns(table: Any, sources: _Sources) -> tuple[tuple[Any, Any, Any, Any], dict[int, bytes]]:
    """Read kerchunk Parquet columns: row, source, offset and length of each reference, and inline data by
    row.
    """
    raw: dict[int, bytes] = {}
    if "raw" in table.column_names:
        column = table["raw"].combine_chunks()
        present = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        raw = {int(row): column[int(row)].as_py() for row in present}
    paths = table["path"].combine_chunks()
    if not hasattr(paths, "dictionary"):
        paths = paths.dictionary_encode()
    rows = np.flatnonzero(paths.is_valid().to_numpy(zero_copy_only=False))
    rows = rows[~np.isin(rows, list(raw))]
    table_of = np.array([sources.number(url) for url in paths.dictionary.to_pylist()], np.int64)
    codes = table_of[paths.indices.fill_null(0).to_numpy(zero_copy_only=False)[rows]] if len(rows) else rows
    offsets = table["offset"].to_numpy()[rows].astype(np.int64)
    lengths = table["size"].to_numpy()[rows].astype(np.int64)
    for row in np.flatnonzero(lengths == 0).tolist():  # references to whole files
        offsets[row], lengths[row] = 0, sources.size_of(int(codes[row]))
    return (rows, codes, offsets, lengths), raw


def _unravel(number: int, grid: list[int]) -> tuple[int, ...]:
    return tuple(int(at) for at in np.unravel_index(number, grid)) if grid else ()
