"""Statistics files, `icefloe/statistics/<manifest id>/<digest>`: their names, encoding and listings.

Each file is one zstd frame with a checksum. It contains magic bytes, the length of a JSON header (4 bytes,
little endian), the header, and the columns one after another. The bytes of a column are shuffled: first byte
of all rows, second byte of all rows, and so on. docs/reference/statistics.md describes all fields.

Official releases ignore the folder, even during garbage collection. Existing files are never changed. A file
that is damaged, or was written by a later release, is ignored with a warning, and its chunks are read
instead.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, Self

import numpy as np
import zstandard
from numpy.typing import NDArray

from icefloe._internal.executor import Executor, Task
from icefloe._internal.ids import ManifestId, NodeId
from icefloe._internal.printable import escape_control
from icefloe.encoding.envelope import open_frames
from icefloe.errors import ErrorKind, FormatError, IcechunkError
from icefloe.maintenance.statistics.meaning import DIGEST_BYTES, Meaning
from icefloe.maintenance.statistics.summarize import Statistics, to_floats
from icefloe.storage.base import ObjectNotFoundError, Storage

FOLDER: Final = "icefloe/statistics"
_MAGIC: Final = b"icefloe stats 1\n"
_TAG: Final = 16
_DIGEST: Final = 32
_LEVEL: Final = 3
_FEW_FOLDERS: Final = 16
"""The number of manifests up to which each statistics folder is listed separately."""
_FEW_FILES: Final = 2
"""The number of files above which files are read in parallel."""
_LARGEST_HEADER: Final = 1 << 20
LOGGER: Final = logging.getLogger("icefloe.statistics")


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The rows of a statistics file: chunk statistics with everything that identifies each chunk."""

    keys: NDArray[np.uint64]
    """The fingerprint of the reference; see `icefloe.core.fingerprints`."""
    clips: NDArray[np.uint32]
    """The number of cells of the chunk inside the array, per dimension; of shape (n, rank)."""
    chunks: NDArray[np.uint32]
    """The shape of the chunk; of shape (n, rank)."""
    statistics: Statistics

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, rows: Any) -> Self:
        """Return the selected rows of a statistics file. The selection is a mask, a slice or indices."""
        return type(self)(self.keys[rows], self.clips[rows], self.chunks[rows], self.statistics.take(rows))

    @classmethod
    def concat(cls, parts: Sequence[Rows]) -> Self:
        """Concatenate rows of statistics files for arrays with the same meaning and rank."""
        return cls(
            np.concatenate([part.keys for part in parts]),
            np.concatenate([part.clips for part in parts]),
            np.concatenate([part.chunks for part in parts]),
            Statistics.concat([part.statistics for part in parts]),
        )

    @classmethod
    def empty(cls, meaning: Meaning, rank: int) -> Self:
        """Create the columns of a statistics file without any rows."""
        none = np.zeros((0, rank), np.uint32)
        return cls(np.zeros(0, np.uint64), none, none, Statistics.empty(meaning, 0))


@dataclass(frozen=True, slots=True)
class FileName:
    """The name of a statistics file. It identifies the array and the meaning without reading the file."""

    manifest: str
    digest: str

    @property
    def path(self) -> str:
        """The storage path of a statistics file."""
        return f"{FOLDER}/{self.manifest}/{self.digest}"

    def concerns(self, node: NodeId, meaning: Meaning) -> bool:
        """Return True if, judging by its name, the file may be about an array with the given meaning."""
        return self.digest.startswith(_make_tag(node, meaning))

    @staticmethod
    def parse(path: str) -> FileName | None:
        """Parse the path of a statistics file. Return None for any other file."""
        parts = path.removeprefix(f"{FOLDER}/").split("/")
        if not path.startswith(f"{FOLDER}/") or len(parts) != 2 or len(parts[1]) != _DIGEST:
            return None
        return FileName(*parts)


def write_file(
    storage: Storage, manifest: ManifestId, node: NodeId, shape: Sequence[int], meaning: Meaning, rows: Rows
) -> int:
    """Write a statistics file for an array's chunks in a manifest, and return its size in bytes."""
    data = encode_rows([node], shape, meaning, rows)
    content = blake2b(data, digest_size=(_DIGEST - _TAG) // 2).hexdigest()
    path = FileName(str(manifest), _make_tag(node, meaning) + content).path
    storage.put(path, data)
    return len(data)


def list_files(storage: Storage, manifests: Sequence[str] | None = None) -> list[FileName]:
    """List the statistics files of the given manifests, or of all manifests."""
    if manifests is not None and len(manifests) <= _FEW_FOLDERS:
        keys = [info.key for each in manifests for info in storage.list_prefix(f"{FOLDER}/{each}/")]
    else:
        keys = [info.key for info in storage.list_prefix(f"{FOLDER}/")]
    found = [name for key in keys if (name := FileName.parse(key)) is not None]
    if manifests is None:
        return found
    wanted = set(manifests)
    return [name for name in found if name.manifest in wanted]


def read_files(
    storage: Storage, names: Iterable[FileName], node: NodeId, meaning: Meaning, rank: int, executor: Executor
) -> Iterator[Rows]:
    """Read the statistics files for an array with a given meaning. Damaged files are skipped with a
    warning.
    """
    wanted = [name for name in names if name.concerns(node, meaning)]
    reading: Task[FileName, Rows | None] = Task(
        lambda name: _read_file(storage, name, node, meaning, rank), "statistics files"
    )
    found: Iterable[Rows | None] = (
        executor.map(reading, wanted) if len(wanted) >= _FEW_FILES else map(reading.run, wanted)
    )
    return (rows for rows in found if rows is not None)


def _read_file(storage: Storage, name: FileName, node: NodeId, meaning: Meaning, rank: int) -> Rows | None:
    try:
        return decode_rows(storage.get(name.path)[0], name.path, node, meaning, rank)
    except ObjectNotFoundError:
        return None  # a garbage collection deleted it
    except IcechunkError as error:
        LOGGER.warning("ignored a statistics file that cannot be read: %s", escape_control(str(error)))
        return None


def _make_tag(node: NodeId, meaning: Meaning) -> str:
    halves = blake2b(bytes(node), digest_size=_TAG // 4), blake2b(meaning.digest, digest_size=_TAG // 4)
    return "".join(half.hexdigest() for half in halves)


def encode_rows(nodes: Sequence[NodeId], shape: Sequence[int], meaning: Meaning, rows: Rows) -> bytes:
    """Encode a statistics file."""
    rank = rows.clips.shape[1]
    header = {
        "nodes": [str(node) for node in nodes],
        "shape": list(shape),
        "meaning": meaning.digest.hex(),
        "dtype": meaning.extremes_dtype.str,
        "rows": len(rows),
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    payload = bytearray(_MAGIC + len(text).to_bytes(4, "little") + text)
    statistics = rows.statistics
    columns: list[NDArray[Any]] = [rows.keys]
    columns += [part[:, axis] for part in (rows.clips, rows.chunks) for axis in range(rank)]
    columns += [getattr(statistics, name) for name in _list_fields(meaning)]
    for column, dtype in zip(columns, _list_types(meaning, rank), strict=True):
        payload += _shuffle(np.ascontiguousarray(column, dtype))
    return zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress(bytes(payload))


def decode_rows(data: bytes, path: str, node: NodeId, meaning: Meaning, rank: int) -> Rows | None:
    """Decode a statistics file. Return None if it is about another array or meaning.

    Raises FormatError if the file is damaged.
    """
    header, payload = open_file(data, path)
    if str(node) not in header["nodes"] or header["meaning"] != meaning.digest.hex():
        return None
    if header["dtype"] != meaning.extremes_dtype.str or len(header["shape"]) != rank:
        return None
    count, types = header["rows"], _list_types(meaning, rank)
    if len(payload) != count * sum(each.itemsize for each in types):
        raise _damaged(path, f"{len(payload)} bytes of columns for {count} rows")
    columns, at = [], 0
    for dtype in types:
        columns.append(_unshuffle(payload[at : at + count * dtype.itemsize], dtype))
        at += count * dtype.itemsize
    clips, chunks = (
        np.stack(part, axis=1) if rank else np.zeros((count, 0), np.uint32)
        for part in (columns[1 : 1 + rank], columns[1 + rank : 1 + 2 * rank])
    )
    named = dict(zip(_list_fields(meaning), columns[1 + 2 * rank :], strict=True))
    return Rows(columns[0], clips, chunks, _complete_columns(named, meaning, count))


def open_file(data: bytes, path: str) -> tuple[dict[str, Any], NDArray[np.uint8]]:
    """Return the header and columns of a statistics file. Raise FormatError if it is damaged."""
    payload = np.frombuffer(open_frames(memoryview(data), path), np.uint8)
    start = len(_MAGIC) + 4
    if payload[: len(_MAGIC)].tobytes() != _MAGIC or len(payload) < start:
        raise _damaged(path, "unknown magic bytes")
    size = int.from_bytes(payload[len(_MAGIC) : start].tobytes(), "little")
    try:
        if size > _LARGEST_HEADER:
            raise ValueError
        header = json.loads(payload[start : start + size].tobytes())
        valid = isinstance(header["rows"], int) and header["rows"] >= 0 and isinstance(header["nodes"], list)
        valid = valid and isinstance(header["shape"], list) and isinstance(header["dtype"], str)
        if not valid or len(bytes.fromhex(header["meaning"])) != DIGEST_BYTES:
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise _damaged(path, "invalid header") from None
    return header, payload[start + size :]


def _complete_columns(named: dict[str, NDArray[Any]], meaning: Meaning, count: int) -> Statistics:
    """Compute the columns that are not stored in the file."""
    empty = Statistics.empty(meaning, count)
    given = {name: named.get(name, getattr(empty, name)) for name in Statistics.__slots__}
    if meaning.is_integer:
        given["total"] = to_floats(given["high"], given["low"])
    return Statistics(**given)


def _list_fields(meaning: Meaning) -> list[str]:
    """List the statistics columns that are stored in a file."""
    fields = ["minimum", "maximum"] if meaning.has_extremes else []
    fields.append("nulls")
    if meaning.has_sums:
        fields += ["high", "low", "m2"] if meaning.is_integer else ["total", "m2"]
    return fields


def _list_types(meaning: Meaning, rank: int) -> list[np.dtype[Any]]:
    extremes = meaning.extremes_dtype
    types: dict[str, Any] = {"minimum": extremes, "maximum": extremes, "nulls": "<i8"}
    types |= {"total": "<f8", "m2": "<f8"}
    types |= {"high": "<i8", "low": "<u8"}
    own = [np.dtype(types[name]) for name in _list_fields(meaning)]
    return [np.dtype("<u8"), *[np.dtype("<u4")] * (2 * rank), *own]


def _shuffle(column: NDArray[Any]) -> bytes:
    size = column.dtype.itemsize
    return column.view(np.uint8).reshape(-1, size).T.tobytes()


def _unshuffle(data: NDArray[np.uint8], dtype: np.dtype[Any]) -> NDArray[Any]:
    rows = np.ascontiguousarray(data.reshape(dtype.itemsize, -1).T)
    return rows.view(dtype).reshape(-1).astype(dtype.newbyteorder("="), copy=False)


def _damaged(path: str, problem: str) -> FormatError:
    return FormatError(
        f"{path} is not a valid statistics file: {problem}; delete it and collect statistics again",
        kind=ErrorKind.INVALID_FILE_FORMAT,
    )
