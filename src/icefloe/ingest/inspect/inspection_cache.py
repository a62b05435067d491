"""Cache the schemas of inspected files for the next run if a run fails.

After a run that reports problems, the user fixes or skips some files and runs again. With this cache, all
other files do not have to be opened a second time. The schemas are stored in a chunk object that no snapshot
references, and whose name is computed from the target and the options. It is deleted after a successful run,
or by garbage collection. Problems are not cached, because their cause may no longer exist, for example after
an engine was installed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

import numpy as np
import zstandard

from icefloe._internal.ids import ChunkId
from icefloe.encoding import msgpack
from icefloe.errors import FormatError, InvalidInputError, StorageError
from icefloe.format.files import CHUNKS
from icefloe.ingest.bad_files import ProblemsError
from icefloe.ingest.discover.sources import IngestSource
from icefloe.ingest.options import Options
from icefloe.ingest.records import FileSchema, VariableSchema
from icefloe.storage.base import ObjectKind, ObjectNotFoundError, Storage

_VERSION = 1
_LEVEL = 1
_NOT_KEPT = frozenset({"source", "spilled"})
"""Schema fields that are not cached, because the source belongs to the current run and spilled references are
deleted.
"""


class InspectionCache:
    """A cache of schemas from earlier runs. It is read when a run starts, and written if the run fails."""

    def __init__(self, storage: Storage, options: Options) -> None:
        self._storage = storage
        self._path = _make_object_path(options)
        self._stored = False
        self._schemas: dict[str, list[FileSchema]] = {}

    def __enter__(self) -> InspectionCache:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        """Store the schemas if the run failed, or delete them if it succeeded. Storage errors are ignored.

        After an error about an option, nothing is stored, so that a repository created for this run is still
        empty and can be removed.
        """
        is_option = isinstance(error, InvalidInputError) and not isinstance(error, ProblemsError)
        with suppress(StorageError):
            if kind is None and self._stored:
                self._storage.delete([self._path])
            elif kind is not None and self._schemas and not is_option:
                packed = msgpack.pack([_VERSION, dict(_encode_schemas(self._schemas))])
                data = zstandard.ZstdCompressor(_LEVEL).compress(packed)
                self._storage.put(self._path, data, kind=ObjectKind.CHUNK)

    def find(self, sources: Iterable[IngestSource]) -> dict[str, list[FileSchema]]:
        """Return cached schemas by URL, for sources that have not changed since they were inspected."""
        try:
            data, _ = self._storage.get(self._path)
            self._stored = True
            unpacked: Any = msgpack.unpack(zstandard.ZstdDecompressor().decompress(bytes(data)))
            version, stored = unpacked
            known = {
                each.url: _decode_schemas(stored[_make_key(each)], each)
                for each in sources
                if _make_key(each) in stored
            }
        except (ObjectNotFoundError, FormatError, zstandard.ZstdError, ValueError, TypeError, KeyError):
            return {}  # the object does not exist, or another version of icefloe wrote it
        return known if version == _VERSION else {}

    def add(self, schemas: Iterable[FileSchema]) -> None:
        """Add the schemas inspected in this run to the cache."""
        for each in schemas:
            self._schemas.setdefault(each.source.url, []).append(each)


def _make_object_path(options: Options) -> str:
    """Return the path of the cache object. It does not depend on storage options, which may be secret and do
    not affect schemas.
    """
    reading = options.reading
    how = [options.branch, options.group, options.mode, reading.engine, reading.group, reading.variables]
    text = repr([*how, sorted((name, repr(value)) for name, value in reading.open_options.items())])
    digest = hashlib.sha256(f"inspection {text}".encode()).digest()
    return f"{CHUNKS}/{ChunkId(digest[: ChunkId.SIZE])}"


def _make_key(source: IngestSource) -> str:
    """Return a cache key for a source version: its etag, or else its modification time."""
    return f"{source.url}\n{source.size_bytes}\n{source.etag or source.modified_us}"


def _encode_schemas(schemas: Mapping[str, Sequence[FileSchema]]) -> Iterable[tuple[str, Any]]:
    for members in schemas.values():
        with suppress(_NotEncodableError):  # a file that cannot be encoded is inspected again
            yield _make_key(members[0].source), [[each.source.group, _encode(each)] for each in members]


def _decode_schemas(members: Any, source: IngestSource) -> list[FileSchema]:
    return [FileSchema(replace(source, group=group), **_decode_schema(schema)) for group, schema in members]


def _decode_schema(encoded: Any) -> dict[str, Any]:
    found = _decode(encoded)
    found["variables"] = tuple(VariableSchema(**each) for each in found["variables"])
    return dict(found)


class _NotEncodableError(Exception):
    """Error raised for values that cannot be cached, such as dates in a non-standard calendar."""


def _encode(value: Any) -> Any:
    """Convert a value to types that msgpack supports. Values of other types become tagged lists."""
    if isinstance(value, FileSchema | VariableSchema):
        names = [each.name for each in fields(value) if each.name not in _NOT_KEPT]
        return {name: _encode(getattr(value, name)) for name in names}
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype == object and all(isinstance(each, str) for each in array.reshape(-1)):
            return ["text", list(array.shape), array.reshape(-1).tolist()]
        if array.dtype.hasobject or array.dtype.names:
            raise _NotEncodableError
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        return [kind, array.dtype.str, list(array.shape), array.tobytes()]
    if isinstance(value, Mapping):
        return {str(name): _encode(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return ["tuple" if isinstance(value, tuple) else "list", [_encode(each) for each in value]]
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    raise _NotEncodableError


def _decode(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _decode(each) for name, each in value.items()}
    if not isinstance(value, list | tuple):
        return value
    match list(value):
        case ["text", shape, texts]:
            found = np.empty(len(texts), object)
            found[:] = texts
            return found.reshape(shape)
        case ["array", dtype, shape, data]:
            return np.frombuffer(data, np.dtype(dtype)).reshape(shape).copy()
        case ["scalar", dtype, _, data]:
            return np.frombuffer(data, np.dtype(dtype))[0]
        case ["tuple", members]:
            return tuple(map(_decode, members))
        case ["list", members]:
            return list(map(_decode, members))
    raise ValueError("unknown tag")
