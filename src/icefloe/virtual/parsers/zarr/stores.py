"""Parse Zarr stores, version 2 or 3. Each chunk or shard is an object, or a byte range of a zip file."""

from __future__ import annotations

import io
import struct
import zipfile
from array import array
from collections.abc import Iterable
from typing import Any, Final, cast

import numpy as np

from icefloe.virtual.dataset import VirtualDataset
from icefloe.virtual.errors import CannotVirtualizeError
from icefloe.virtual.parsers import ZIP_MAGIC, ParseOptions
from icefloe.virtual.parsers.zarr.hierarchy import METADATA, KeyedChunks, build_dataset, parse_document
from icefloe.virtual.sources import (
    FindAccess,
    Source,
    SourceFile,
    list_files,
    open_file,
    wait_for_next_second,
)

_LOCAL: Final = struct.Struct("<4s22xHH")
"""The local header of a zip member: signature, name length and extra field length."""
_ENCRYPTED: Final = 1


def parse_zarr(location: str, options: ParseOptions, access: FindAccess) -> VirtualDataset:
    """Parse a Zarr store in a directory or bucket into a virtual dataset."""
    documents: dict[str, Any] = {}
    keys: list[str] = []
    sources: list[Source] = []
    for key, source in list_files(location, access):
        if key.rpartition("/")[2] in METADATA:
            file = open_file(source.location, *access(source.location))
            documents[key] = parse_document(key, file.read(0, file.size_bytes), location)
        elif source.size_bytes:
            keys.append(key)
            sources.append(source)
    if not documents:
        raise CannotVirtualizeError(f"{location} has no Zarr metadata (zarr.json, .zgroup or .zarray)")
    wait_for_next_second(sources)
    lengths = np.array([source.size_bytes for source in sources], np.uint64)
    numbers = np.arange(len(sources), dtype=np.uint32)
    chunks = KeyedChunks(keys, numbers, np.zeros(len(sources), np.uint64), lengths, {})
    return build_dataset(documents, chunks.by_array(documents), tuple(sources), options, location)


def parse_zarr_zip(file: SourceFile, options: ParseOptions) -> VirtualDataset:
    """Parse a zip file with a Zarr store at its root or in a directory."""
    place = file.location
    try:
        with zipfile.ZipFile(io.BufferedReader(file.as_binary())) as opened:
            # If several members have the same name, the last one is valid.
            members = {each.filename: each for each in opened.infolist() if not each.is_dir()}
            root = find_root(members, place)
            documents = {
                name.removeprefix(root): parse_document(name, opened.read(each), place)
                for name, each in members.items()
                if name.startswith(root) and name.rpartition("/")[2] in METADATA
            }
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
        raise CannotVirtualizeError(f"{place} is a damaged zip file: {error}") from None
    keys: list[str] = []
    offsets, lengths = array("Q"), array("Q")
    for name, each in members.items():  # zipfile yields Python objects; columns are built here
        if name.startswith(root) and name.rpartition("/")[2] not in METADATA and each.file_size:
            keys.append(name.removeprefix(root))
            offsets.append(_find_content(file, each))
            lengths.append(each.compress_size)
    columns = np.zeros(len(keys), np.uint32), np.array(offsets, np.uint64), np.array(lengths, np.uint64)
    chunks = KeyedChunks(keys, *columns, {})
    return build_dataset(documents, chunks.by_array(documents), (file.source,), options, place)


def find_root(names: Iterable[str], place: str) -> str:
    """Find the root of a Zarr store in a zip file: the outermost directory with Zarr metadata."""
    found = [name.rpartition("/")[0] for name in names if name.rpartition("/")[2] in METADATA]
    if not found:
        raise CannotVirtualizeError(f"{place} is a zip file without a Zarr store")
    nearest = min(found, key=lambda folder: (folder.count("/") + bool(folder), folder))
    return f"{nearest}/" if nearest else ""


def _find_content(file: SourceFile, member: zipfile.ZipInfo) -> int:
    """Find the file offset at which the content of an uncompressed zip member begins."""
    if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & _ENCRYPTED:
        raise CannotVirtualizeError(
            f"{file.location}: {member.filename} is compressed or encrypted by zip, which no Zarr codec can "
            "decode; ingest a copy, or zip the store without compression"
        )
    start = member.header_offset
    head = file.peek(start, start + _LOCAL.size)
    if len(head) < _LOCAL.size or head[:4] != ZIP_MAGIC[0]:
        raise CannotVirtualizeError(f"{file.location} is a damaged zip file: no member at byte {start}")
    _, name, extra = cast(tuple[bytes, int, int], _LOCAL.unpack(head))
    return start + _LOCAL.size + name + extra
