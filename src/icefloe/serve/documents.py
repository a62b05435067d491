"""Convert snapshots for the gateway: consolidated metadata, and chunks in widely supported codecs."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import zarr
import zstandard
from numcodecs.vlen import VLenBytes, VLenUTF8

from icefloe._internal.paths import ROOT, list_ancestors
from icefloe.core.chunk_grid import Grid, count_item_bytes, get_stored_grid
from icefloe.core.workspace import Workspace
from icefloe.errors import IcechunkError
from icefloe.format.manifest import ChunkRef, InlineRef, NativeRef
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot
from icefloe.serve.asgi import RequestError
from icefloe.serve.settings import RequestLimits
from icefloe.session import Session

MAX_CONSOLIDATED: Final = 50_000
"""The maximum number of nodes below a group for which consolidated metadata is served."""
_MARK: Final = b'"consolidated_metadata"'
GDAL_CODECS: Final = frozenset({"blosc", "bytes", "gzip", "zstd"})
"""The codecs that GDAL supports. GDAL 3.12 also has transpose, but applies the inverse of some orders, which
yields wrong values.
"""
_ZARRITA: Final = ("bitround", "blosc", "delta", "gzip", "lz4", "shuffle", "zlib", "zstd")
COMMON_CODECS: Final = frozenset(
    {*GDAL_CODECS, "crc32c", "sharding_indexed", "transpose", "vlen-bytes", "vlen-utf8"}
    | {f"numcodecs.{name}" for name in _ZARRITA}
)
"""The codecs that clients in other languages support."""
_ZSTD: Final = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}
_EMPTY_GROUP: Final = b'{"zarr_format":3,"node_type":"group","attributes":{}}'
_KEPT_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Document:
    """A zarr.json document as served by the gateway, with its entity tag."""

    body: bytes
    e_tag: bytes

    @staticmethod
    def of(body: bytes) -> Document:
        """Create a document whose entity tag is derived from its content."""
        return Document(body, b'"%s"' % hashlib.sha256(body).hexdigest()[:32].encode())


class Published:
    """The documents and chunks of a snapshot as the gateway serves them, as plain Zarr.

    Thread-safe.

    Parameters
    ----------
    session
        A session on the snapshot.
    limits
        The resources that transcoding a chunk may use.
    codecs
        The codecs that clients support. Chunks that use other codecs are converted.
    """

    def __init__(
        self, session: Session, limits: RequestLimits, codecs: frozenset[str] = COMMON_CODECS
    ) -> None:
        self.session = session
        self.workspace: Workspace = session._workspace
        self._limits = limits
        self._codecs = codecs
        self._documents: dict[str, Document] = {}
        self._kept_bytes = 0
        self._transcoders: dict[str, Transcoder | None] = {}
        self._lock = threading.Lock()

    def is_warm(self, path: str) -> bool:
        """Return True if chunks of the array were looked up before, so that the next lookup is fast."""
        return path in self._transcoders

    def document(self, path: str) -> Document | None:
        """Return the zarr.json of a node as the gateway serves it, or None if there is no such node. Groups
        have consolidated metadata.
        """
        kept = self._documents.get(path)
        if kept is not None:
            return kept
        node = self.workspace.node(path)
        if node is None:
            return None
        body = self._array_document(node) if _is_array(node) else self._group_document(node)
        document = Document.of(body)
        with self._lock:
            if self._kept_bytes + len(body) > _KEPT_BYTES:
                self._documents, self._kept_bytes = {}, 0
            self._documents[path] = document
            self._kept_bytes += len(body)
        return document

    def transcoder(self, node: NodeSnapshot) -> Transcoder | None:
        """Return the transcoder for the chunks of an array, or None if its chunks are served unchanged.

        Raises
        ------
        RequestError
            Neither the clients nor this server can decode the array.
        """
        if node.path in self._transcoders:
            return self._transcoders[node.path]
        found = self._transcoders[node.path] = _find_transcoder(
            self.session, node, self._limits, self._codecs
        )
        return found

    def _array_document(self, node: NodeSnapshot) -> bytes:
        transcoder = self.transcoder(node)
        return node.user_data if transcoder is None else transcoder.document

    def _group_document(self, node: NodeSnapshot) -> bytes:
        own = _drop_consolidated(node.user_data)
        below = self.workspace.below(node.path)
        if len(below) - 1 > MAX_CONSOLIDATED:
            return own
        members = b",".join(self._list_members(node.path, below))
        consolidated = b'{"kind":"inline","must_understand":false,"metadata":{%s}}' % members
        return b"%s,%s:%s}" % (own.rstrip()[:-1], _MARK, consolidated)

    def _list_members(self, group: str, paths: Iterable[str]) -> Iterator[bytes]:
        """Yield a JSON member for each node below a group, including implicit groups."""
        start = 1 if group == ROOT else len(group) + 1
        seen: set[str] = {group}
        for path in paths:
            if path == group:
                continue
            for implied in list_ancestors(path):
                if implied not in seen and len(implied) > start and self.workspace.node(implied) is None:
                    yield b"%s:%s" % (json.dumps(implied[start:]).encode(), _EMPTY_GROUP)
                seen.add(implied)
            seen.add(path)
            node = self.workspace.node(path)
            body = None if node is None else self._make_member(node)
            if body is not None:
                yield b"%s:%s" % (json.dumps(path[start:]).encode(), body)

    def _make_member(self, node: NodeSnapshot) -> bytes | None:
        """Return the consolidated metadata of a node, or None for arrays that cannot be served."""
        if not _is_array(node):
            return _drop_consolidated(node.user_data)
        try:
            return self._array_document(node)
        except RequestError:
            return None


def chunk_e_tag(ref: ChunkRef, transcoder: Transcoder | None = None) -> bytes:
    """Derive the entity tag of a served chunk.

    It is the same in every version that contains this chunk.
    """
    if isinstance(ref, NativeRef):
        tag = f"{ref.chunk_id}-{ref.offset:x}-{ref.length:x}"
    elif isinstance(ref, InlineRef):
        tag = f"i-{hashlib.sha256(ref.data).hexdigest()[:32]}"
    else:
        identity = f"{ref.location}\0{ref.offset}\0{ref.length}\0{ref.checksum}"
        tag = f"v-{hashlib.sha256(identity.encode()).hexdigest()[:32]}"
    return f'"{tag}{"" if transcoder is None else "-z"}"'.encode()


class Transcoder:
    """Transcodes chunks to the codecs in the array's served zarr.json.

    Parameters
    ----------
    array
        The array, opened with zarr.
    document
        Its parsed zarr.json.
    limits
        The resources that one chunk may use.
    """

    def __init__(self, array: zarr.Array[Any], document: Mapping[str, Any], limits: RequestLimits) -> None:
        self._array = array
        self._grid: Grid = get_stored_grid(document)
        self._limits = limits
        self._is_variable = array.dtype.kind in "OT"
        codecs = [_serializer(document["data_type"], array.dtype), _ZSTD]
        self.document = json.dumps({**document, "codecs": codecs, "storage_transformers": []}).encode()
        """The zarr.json with the new codecs."""

    def encode(self, coords: tuple[int, ...]) -> bytes:
        """Decode a chunk, and encode it with the codecs in the array's served zarr.json.

        Raises
        ------
        RequestError
            The chunk is too large.
        """
        box = self._grid.box(coords)
        shape = tuple(part.stop - part.start for part in box)
        size = int(np.prod(shape, dtype=object)) * count_item_bytes(self._array.dtype)
        if size > self._limits.decoded_bytes:
            raise RequestError(
                413,
                f"chunk {coords} of {self._array.path} has {size} bytes when decoded; this server converts "
                f"chunks of at most {self._limits.decoded_bytes}",
            )
        inside = self._grid.inside(coords)
        found = np.asarray(self._array[inside])
        if found.shape != shape:  # the last chunks along a dimension extend beyond the array
            whole = np.full(shape, self._array.fill_value, found.dtype)
            whole[tuple(slice(0, part.stop - part.start) for part in inside)] = found
            found = whole
        return zstandard.ZstdCompressor(level=1).compress(self._serialize(found))

    def _serialize(self, values: np.ndarray[Any, Any]) -> bytes:
        if not self._is_variable:
            little = values.astype(values.dtype.newbyteorder("<"), copy=False)
            return np.ascontiguousarray(little).tobytes()
        flat = np.ascontiguousarray(values).reshape(-1).astype(object)
        codec = VLenBytes() if any(isinstance(each, bytes) for each in flat[:1]) else VLenUTF8()
        return bytes(codec.encode(flat))


def _find_transcoder(
    session: Session, node: NodeSnapshot, limits: RequestLimits, known: frozenset[str]
) -> Transcoder | None:
    document = json.loads(node.user_data)
    unusual = [name for name in _codec_names(document["codecs"]) if name not in known]
    if not unusual:
        return None
    try:
        array = zarr.open_array(session.store, path=node.path.strip("/"), mode="r")
    except (ImportError, KeyError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, IcechunkError):
            raise
        named = ", ".join(map(repr, unusual))
        raise RequestError(
            501, f"the array {node.path} is not served: this server cannot decode its codecs {named}"
        ) from None
    return Transcoder(array, document, limits)


def _codec_names(codecs: Iterable[Any]) -> Iterator[str]:
    for codec in codecs:
        if isinstance(codec, str):
            yield codec
            continue
        yield codec["name"]
        inner = codec.get("configuration", {})
        for part in ("codecs", "index_codecs"):
            yield from _codec_names(inner.get(part) or ())


def _serializer(data_type: Any, dtype: np.dtype[Any]) -> dict[str, Any]:
    """Choose the codec that serializes values to bytes."""
    if dtype.kind in "OT":
        name = data_type if isinstance(data_type, str) else data_type.get("name")
        return {"name": "vlen-utf8" if name == "string" else "vlen-bytes"}
    return (
        {"name": "bytes", "configuration": {"endian": "little"}} if dtype.itemsize > 1 else {"name": "bytes"}
    )


def _is_array(node: NodeSnapshot) -> bool:
    return isinstance(node.node_data, ArrayNodeData)


def _drop_consolidated(document: bytes) -> bytes:
    """Drop the stored consolidated metadata of a group, which may be outdated."""
    if _MARK not in document:
        return document
    parsed = json.loads(document)
    parsed.pop("consolidated_metadata", None)
    return json.dumps(parsed).encode()
