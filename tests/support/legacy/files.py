"""Files of the formats before version 1, from values that hold all that such a file can say."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final

import msgpack
import zstandard

from icefloe._internal.ids import ManifestId, NodeId
from icefloe._internal.paths import make_component_key
from icefloe.encoding.envelope import HEADER, MAGIC, ZSTD, FileType
from icefloe.format.manifest import Checksum, ChunkRef, ETag, InlineRef, NativeRef
from icefloe.legacy.codec.files import ALPHA, DRAFT, Folders
from icefloe.legacy.codec.ids import LongId
from icefloe.legacy.codec.refs import REF_FILE, make_sequence_file_name
from icefloe.legacy.codec.structures import LONG_ID

_ALL_FRAMES: Final = frozenset({FileType.SNAPSHOT, FileType.MANIFEST, FileType.TRANSACTION_LOG})
_SPEC: Final = 1


@dataclass(frozen=True, slots=True)
class OlderFormat:
    """The structure that releases of one time gave their files."""

    name: str
    folders: Folders = ALPHA
    ref_folder: str = "{kind}.{name}"
    long_sequence: bool = False
    """Sequence files have names of 13 characters, not of 8."""
    ref_details: bool = False
    """References have a timestamp and properties."""
    json: bool = False
    """Files are JSON: fields by name, ids as numbers."""
    suffix: str = ""
    long_ids: bool = False
    """Ids have 16 bytes, not 12."""
    ids_as_bytes: bool = False
    """Ids are bytes, not text."""
    counted_nodes: bool = True
    version: int | None = 0
    """What manifests and transaction logs give as the version of their format; None where they give none."""
    version_in_snapshot: bool = True
    by_parent: bool = False
    """A snapshot names its parent, not its whole history."""
    file_fields: tuple[str, ...] | None = ("id", "version")
    """What a snapshot says of its manifests; None where it lists none."""
    extents: bool = False
    id_in_manifest: bool = False
    nested: bool = False
    """References are kept array by array."""
    plain_locations: bool = False
    """Virtual locations are plain, with a checksum after the range."""
    logs: bool = False
    frames: frozenset[FileType] = frozenset()
    """Files that are zstd frames."""
    header: str | None = None
    """The name of the writer in the header; None where there is no header."""
    deleted_tags: bool = False
    """A tag that was deleted leaves a mark; before that, tags could not be deleted."""


_ALPHA_2: Final = OlderFormat("002-alpha2")
_ALPHA_5: Final = replace(_ALPHA_2, name="002-alpha5", counted_nodes=False, logs=True)
_ALPHA_8: Final = replace(_ALPHA_5, name="002-alpha8", plain_locations=True)
_ALPHA_9: Final = replace(
    _ALPHA_8, name="002-alpha9", file_fields=("id", "version", "size"), frames=frozenset({FileType.MANIFEST})
)
_ALPHA_10: Final = replace(
    _ALPHA_9,
    name="004-alpha10",
    version=1,
    version_in_snapshot=False,
    frames=_ALL_FRAMES,
    header="ic-0.1.0-alpha.10",
    deleted_tags=True,
)
_ALPHA_12: Final = replace(
    _ALPHA_10, name="004-alpha12", ids_as_bytes=True, nested=True, header="ic-0.1.0-alpha.12"
)
_ALPHA_15: Final = replace(
    _ALPHA_12,
    name="004-alpha15",
    file_fields=("id", "version", "size", "rows"),
    extents=True,
    id_in_manifest=True,
    header="ic-0.1.0-alpha.15",
)
_LAST: Final = replace(
    _ALPHA_15,
    name="004-0.1.3",
    version=None,
    by_parent=True,
    file_fields=("id", "size", "rows"),
    header="ic-0.1.3",
)
_DRAFT: Final = OlderFormat(
    "001-dev",
    folders=DRAFT,
    ref_folder="{kind}:{name}",
    long_sequence=True,
    ref_details=True,
    suffix=".msgpack",
    long_ids=True,
    version=None,
    version_in_snapshot=False,
    file_fields=None,
)

FORMATS: Final = {
    form.name: form
    for form in (
        replace(_DRAFT, name="001-json", json=True, suffix="", long_sequence=False, ref_folder="{name}"),
        _DRAFT,
        replace(_ALPHA_2, name="002-crate-alpha1", ref_folder="{kind}:{name}", long_sequence=True),
        replace(_ALPHA_2, name="002-20241011", ref_folder="{kind}:{name}"),
        _ALPHA_2,
        _ALPHA_5,
        _ALPHA_8,
        _ALPHA_9,
        _ALPHA_10,
        _ALPHA_12,
        _ALPHA_15,
        replace(_LAST, name="004-20250127", file_fields=("id", "version", "size", "rows")),
        _LAST,
    )
}
"""Every structure that is known to have been written, and the document of the draft."""


@dataclass(frozen=True, slots=True)
class Single:
    """A number of 32 bits."""

    value: float


@dataclass(frozen=True, slots=True)
class OlderArray:
    """The Zarr metadata of an array as fields. The fill value is a map from the name of its type."""

    shape: Sequence[int]
    data_type: Any
    chunk_shape: Sequence[int]
    fill_value: Any
    codecs: Sequence[tuple[str, Mapping[str, Any] | None]]
    storage_transformers: Sequence[Any] | None = None
    dimension_names: Sequence[str | None] | None = None
    manifests: Sequence[tuple[bytes, Sequence[Sequence[int]]]] = ()
    """Ids and extents, the first chunks and the ends."""
    chunk_key_encoding: str = "Slash"


@dataclass(frozen=True, slots=True)
class OlderNode:
    """A group, or an array."""

    id: NodeId
    path: str
    attributes: Mapping[str, Any] | None
    array: OlderArray | None = None


@dataclass(frozen=True, slots=True)
class OlderSnapshot:
    """All that a snapshot file can say."""

    id: bytes
    written_at: str
    message: str
    ancestors: Sequence[tuple[bytes, str, str]]
    """Ids, times and messages, the parent first."""
    properties: Mapping[str, Any]
    nodes: Sequence[OlderNode]
    files: Sequence[Mapping[str, Any]] = ()
    """Of each manifest `id`, `size` and `rows`."""
    started_at: str | None = None


@dataclass(frozen=True, slots=True)
class OlderLog:
    """All that a transaction log file can say."""

    new_groups: Sequence[NodeId]
    new_arrays: Sequence[NodeId]
    deleted_groups: Sequence[NodeId]
    deleted_arrays: Sequence[NodeId]
    updated_user_attributes: Sequence[NodeId]
    updated_zarr_metadata: Sequence[NodeId]
    updated_chunks: Mapping[NodeId, Sequence[Sequence[int]]]


References = Mapping[NodeId, Mapping[tuple[int, ...], ChunkRef]]
"""By array and place; those of another rank too."""


class OlderFiles:
    """Writes values as files of one format."""

    def __init__(self, form: OlderFormat) -> None:
        self.form = form

    # Names

    def path(self, folder: str, id: bytes) -> str:
        """Return the path of a file."""
        suffix = "" if folder == self.form.folders.transactions else self.form.suffix
        return f"{folder}/{self._text_of(id)}{suffix}"

    def branch_path(self, name: str, number: int) -> str:
        """Return the path of the file for one commit of a branch."""
        folder = self.form.ref_folder.format(kind="branch", name=name)
        file = make_sequence_file_name(number, long=self.form.long_sequence)
        return f"{self.form.folders.refs}/{folder}/{file}"

    def tag_path(self, name: str) -> str:
        """Return the path of a tag's file."""
        if "{kind}" not in self.form.ref_folder:
            return f"{self.form.folders.refs}/{name}.json"
        return f"{self.form.folders.refs}/{self.form.ref_folder.format(kind='tag', name=name)}/{REF_FILE}"

    def stored_id(self, id: bytes) -> bytes:
        """Return an id as long as the format has them."""
        return sha256(id).digest()[:LONG_ID] if self.form.long_ids and len(id) != LONG_ID else bytes(id)

    def _text_of(self, id: bytes) -> str:
        long = self.stored_id(id)
        return str(LongId(long)) if len(long) == LONG_ID else str(ManifestId(long))

    # Files

    def ref(self, snapshot: bytes, time: str, properties: Mapping[str, Any] | None = None) -> bytes:
        """Return a reference to a snapshot."""
        value: dict[str, Any] = {
            "snapshot": list(self.stored_id(snapshot)) if self.form.json else self._text_of(snapshot)
        }
        if self.form.ref_details:
            value |= {"timestamp": time, "properties": dict(properties or {})}
        separators = None if self.form.json else (",", ":")
        return json.dumps(value, ensure_ascii=False, separators=separators).encode()

    def snapshot(self, snapshot: OlderSnapshot) -> bytes:
        """Return a snapshot file."""
        form = self.form
        nodes = {
            node.path: self._node(node)
            for node in sorted(snapshot.nodes, key=lambda n: make_component_key(n.path))
        }
        files = [self._file(entry) for entry in snapshot.files]
        if form.by_parent:
            parent = self._id(snapshot.ancestors[0][0]) if snapshot.ancestors else None
            head = {"id": self._id(snapshot.id), "parent_id": parent, "flushed_at": snapshot.written_at}
            rest = {"message": snapshot.message, "metadata": snapshot.properties}
            fields = {**head, **rest, "manifest_files": files, "attribute_files": [], "nodes": nodes}
            return self._file_of(fields, FileType.SNAPSHOT)
        fields = {"version": form.version, "flags": {}} if form.version_in_snapshot else {}
        if form.file_fields is not None:
            fields |= {"manifest_files": files, "attribute_files": []}
        fields |= {
            "total_parents": len(snapshot.ancestors),
            "short_term_parents": len(snapshot.ancestors),
            "short_term_history": [self._info(*entry) for entry in snapshot.ancestors],
            "metadata": self._info(snapshot.id, snapshot.written_at, snapshot.message),
            "started_at": snapshot.started_at or snapshot.written_at,
            "properties": snapshot.properties,
            "nodes": nodes,
        }
        return self._file_of(fields, FileType.SNAPSHOT)

    def manifest(self, id: bytes, references: References) -> bytes:
        """Return a manifest file."""
        form = self.form
        fields: dict[str, Any] = {} if form.version is None else {"version": form.version, "flags": {}}
        if form.id_in_manifest:
            fields["id"] = self._id(id)
        fields["chunks"] = dict(self._chunks(references))
        return self._file_of(fields, FileType.MANIFEST)

    def log(self, log: OlderLog) -> bytes:
        """Return a transaction log file."""
        version = self.form.version
        fields: dict[str, Any] = {} if version is None else {"version": version}
        for name in log.__slots__[:-1]:
            fields[name] = [self._node_id(node) for node in getattr(log, name)]
        fields["updated_chunks"] = {self._node_id(node): c for node, c in log.updated_chunks.items()}
        return self._file_of(fields, FileType.TRANSACTION_LOG)

    def _file_of(self, fields: Mapping[str, Any], file_type: FileType) -> bytes:
        if self.form.json:
            return json.dumps(fields, ensure_ascii=False, default=_plain).encode()
        payload = pack(list(fields.values()))
        if file_type in self.form.frames:
            payload = zstandard.ZstdCompressor(level=3).compress(payload)
        if self.form.header is None:
            return payload
        return HEADER.pack(MAGIC, self.form.header.encode().ljust(24), _SPEC, file_type, ZSTD) + payload

    # Parts of files

    def _id(self, id: bytes) -> Any:
        if self.form.json:
            return list(self.stored_id(id))
        return (bytes(id), ()) if self.form.ids_as_bytes else self._text_of(id)

    def _node_id(self, id: NodeId) -> Any:
        if self.form.counted_nodes:
            return int.from_bytes(id, "big")
        return (bytes(id), ()) if self.form.ids_as_bytes else str(id)

    def _struct(self, **fields: Any) -> Any:
        return fields if self.form.json else tuple(fields.values())

    def _info(self, id: bytes, time: str, message: str) -> Any:
        return self._struct(id=self._id(id), written_at=time, message=message)

    def _file(self, entry: Mapping[str, Any]) -> Any:
        version = _SPEC if self.form.version is None else self.form.version
        known = {**entry, "id": self._id(entry["id"]), "version": version}
        return tuple(known[name] for name in self.form.file_fields or ())

    def _node(self, node: OlderNode) -> Any:
        array = node.array
        data: Any = "Group"
        if array is not None:
            named = [self._struct(name=name, configuration=c) for name, c in array.codecs]
            fields = self._struct(
                shape=array.shape,
                data_type=array.data_type,
                chunk_shape=array.chunk_shape,
                chunk_key_encoding=array.chunk_key_encoding,
                fill_value=_named_floats(array.fill_value) if self.form.json else array.fill_value,
                codecs=named,
                storage_transformers=array.storage_transformers,
                dimension_names=array.dimension_names,
            )
            data = {"Array": [fields, [self._manifest_ref(id, extents) for id, extents in array.manifests]]}
        return self._struct(
            id=self._node_id(node.id),
            path=node.path,
            user_attributes=None if node.attributes is None else {"Inline": node.attributes},
            node_data=data,
        )

    def _manifest_ref(self, id: bytes, extents: Sequence[Sequence[int]]) -> Any:
        given = extents if self.form.extents else []
        if self.form.long_ids:
            return self._struct(object_id=self._id(id), flags=[], extents=given)
        return self._struct(object_id=self._id(id), extents=given)

    def _chunks(self, references: References) -> Iterator[tuple[Any, Any]]:
        for node in sorted(references):
            own = {coords: self._payload(references[node][coords]) for coords in sorted(references[node])}
            if self.form.nested:
                yield self._node_id(node), own
                continue
            for coords, payload in own.items():
                id = self._node_id(node)
                yield "/".join(map(str, (id, *coords))) if self.form.json else (id, coords), payload

    def _payload(self, ref: ChunkRef) -> Any:
        if isinstance(ref, InlineRef):
            return {"Inline": ref.data}
        if isinstance(ref, NativeRef):
            return {"Ref": self._struct(id=self._id(ref.chunk_id), offset=ref.offset, length=ref.length)}
        span = {"offset": ref.offset, "length": ref.length}
        if self.form.plain_locations:
            return {"Virtual": self._struct(location=ref.location, **span, checksum=_checksum(ref.checksum))}
        location = ref.location if self.form.json else {"Absolute": ref.location}
        return {"Virtual": self._struct(location=location, **span)}


def _checksum(checksum: Checksum | None) -> Any:
    if checksum is None:
        return None
    return {"ETag": checksum.value} if isinstance(checksum, ETag) else {"LastModified": checksum.seconds}


def _named_floats(value: Any) -> Any:
    """Return a fill value with names in place of the numbers that JSON does not have."""
    if isinstance(value, Mapping):
        return {name: _named_floats(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_named_floats(item) for item in value]
    number = value.value if isinstance(value, Single) else value
    if isinstance(number, float) and not math.isfinite(number):
        return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    return number


def _plain(value: Any) -> Any:
    """Convert values that JSON does not support."""
    if isinstance(value, bytes):
        return list(value)
    raise TypeError(f"{type(value).__name__} in a file")


def pack(value: Any) -> bytes:
    """MessagePack with numbers as short as can be, maps in their order, and floats of both sizes."""
    return b"".join(_packed(value))


def _packed(value: Any) -> Iterator[bytes]:
    if isinstance(value, Mapping):
        yield msgpack.Packer().pack_map_header(len(value))
        for key, item in value.items():
            yield from _packed(key)
            yield from _packed(item)
    elif isinstance(value, list | tuple):
        yield msgpack.Packer().pack_array_header(len(value))
        for item in value:
            yield from _packed(item)
    elif isinstance(value, Single):
        yield msgpack.packb(value.value, use_single_float=True)
    else:
        yield msgpack.packb(bytes(value) if isinstance(value, bytes) else value)
