"""Object ids: random bytes that identify snapshots, manifests, chunks and nodes.

The text form, which is used for file names and shown to users, is Crockford's base 32 (spec, "Object Ids"):
upper case, padded with zero bits on the right, without padding characters.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Sequence
from typing import ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, InvalidInputError

ALPHABET: Final = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS: Final = [chr(first) + chr(second) for first in ALPHABET for second in ALPHABET]
"""The two base 32 digits of each 10-bit number."""
_RFC_4648: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_INVALID: Final = 255
_BLOCK: Final = 1 << 14
"""The number of ids to convert at a time, so that temporary arrays fit into the processor cache."""


def _make_digit_table() -> NDArray[np.uint8]:
    """Return a table with the digit value of each byte, or `_INVALID`. O, I and L count as 0, 1 and 1."""
    values = np.full(256, _INVALID, np.uint8)
    for digits in (ALPHABET, ALPHABET.lower()):
        values[np.frombuffer(digits, np.uint8)] = np.arange(32)
    values[np.frombuffer(b"Oo", np.uint8)] = 0
    values[np.frombuffer(b"IiLl", np.uint8)] = 1
    return values


_PAIR_DIGITS: Final = np.frombuffer("".join(_PAIRS).encode(), "<u2")
_VALUES: Final = _make_digit_table()
_IS_DIGIT: Final = np.isin(np.arange(256), np.frombuffer(ALPHABET, np.uint8))
_TO_RFC_4648: Final = bytes(ord("!") if value == _INVALID else _RFC_4648[value] for value in _VALUES)


class ObjectId(bytes):
    """An object id as raw bytes. Ids of different types are never equal, and never equal to plain bytes.

    Ids sort by their bytes, as the format requires. Many ids are stored as `(n, SIZE)` arrays of uint8; see
    `encode_column`.
    """

    __slots__ = ()

    SIZE: ClassVar[int]
    """The length of the id in bytes."""

    _NAME: ClassVar[str]
    _KIND: ClassVar[ErrorKind] = ErrorKind.INVALID_KEY

    def __new__(cls, value: bytes) -> Self:
        if len(value) != cls.SIZE:
            raise InvalidInputError(f"a {cls._NAME} has {cls.SIZE} bytes, not {len(value)}", kind=cls._KIND)
        return super().__new__(cls, value)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text form of an object id, in upper or lower case, with O, I and L for 0, 1 and 1.

        Like the official reader, ignore the padding bits of the last character, so that several texts may
        stand for the same id. Compare with `str(id)` if the spelling matters, as for file names.
        """
        digits = text.encode("ascii", "replace")
        if len(digits) == count_characters(cls.SIZE):
            padding = b"=" * (-len(digits) % 8)
            try:
                return cls(base64.b32decode(digits.translate(_TO_RFC_4648) + padding))
            except binascii.Error:
                pass
        raise InvalidInputError(_make_invalid_id_error(cls._NAME, text, cls.SIZE), kind=cls._KIND)

    @classmethod
    def random(cls) -> Self:
        """Return a random object id. The bytes come from the operating system, so forked processes get
        different ids.
        """
        return cls(os.urandom(cls.SIZE))

    def __str__(self) -> str:
        bits = 8 * self.SIZE
        number = int.from_bytes(self) << -bits % 10
        pairs = [_PAIRS[number >> shift & 1023] for shift in range(bits + -bits % 10 - 10, -1, -10)]
        return "".join(pairs)[: -(-bits // 5)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}('{self}')"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and bytes.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = bytes.__hash__


class SnapshotId(ObjectId):
    """The id of a snapshot and its transaction log (one of the four types of object ids)."""

    __slots__ = ()
    _NAME = "snapshot id"
    SIZE = 12
    _KIND = ErrorKind.INVALID_SNAPSHOT_ID


class ManifestId(ObjectId):
    """The id of a manifest file (one of the four types of object ids)."""

    __slots__ = ()
    _NAME = "manifest id"
    SIZE = 12


class ChunkId(ObjectId):
    """The id of a chunk object (one of the four types of object ids)."""

    __slots__ = ()
    _NAME = "chunk id"
    SIZE = 12


class NodeId(ObjectId):
    """The id of an array or group (one of the four types of object ids).

    Moving or renaming the node does not change it.
    """

    __slots__ = ()
    _NAME = "node id"
    SIZE = 8


INITIAL_SNAPSHOT_ID: Final = SnapshotId(bytes.fromhex("0b1cc8d6787580f0e33a6534"))
"""`1CECHNKREP0F1RSTCMT0`, the first snapshot of a repository (spec, "Initialize New Repository")."""


def count_characters(size: int) -> int:
    """Return the length of the base 32 text of an object id with `size` bytes."""
    return -(-size * 8 // 5)


def encode_column(ids: NDArray[np.uint8]) -> list[str]:
    """Convert a column of object ids, of shape `(n, size)` and type uint8, to base 32 texts."""
    n, size = ids.shape
    if not size:
        return [""] * n
    texts: list[str] = []
    for start in range(0, n, _BLOCK):
        texts += _encode_block(ids[start : start + _BLOCK])
    return texts


def _encode_block(ids: NDArray[np.uint8]) -> list[str]:
    """Encode ids two digits at a time. The ten bits of a pair of digits lie in two consecutive bytes."""
    n, size = ids.shape
    width = count_characters(size)
    pairs = -(-width // 2)
    by_place = np.zeros((size + 2, n), np.uint16)
    by_place[:size] = ids.T
    lines = np.empty((n, pairs + 1), "<u2")
    for pair in range(pairs):
        byte, bit = divmod(10 * pair, 8)
        bits = (by_place[byte] << np.uint16(8)) | by_place[byte + 1]
        lines[:, pair] = _PAIR_DIGITS[(bits >> np.uint16(6 - bit)) & np.uint16(1023)]
    characters = lines.view(np.uint8)
    characters[:, width:] = ord(" ")
    return characters.tobytes().decode("ascii").split()


def decode_names(
    texts: Sequence[str], size: int, start: int = 0
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Parse object ids from file names. Also return a mask of the valid names.

    All names have the same length, and the ids begin at `start`. Unlike `ObjectId.parse`, this function
    accepts only the canonical spelling, because a file whose name contains another spelling of an id is not
    that object.
    """
    joined = "".join(texts).encode("ascii", "replace")
    characters = np.frombuffer(joined, np.uint8).reshape(len(texts), start + count_characters(size))[
        :, start:
    ]
    ids, padding = _pack(_VALUES[characters], size)
    valid: NDArray[np.bool_] = _IS_DIGIT[characters].all(axis=1) & (padding == 0)
    return ids[valid], valid


def _pack(values: NDArray[np.uint8], size: int) -> tuple[NDArray[np.uint8], NDArray[np.uint16]]:
    """Pack rows of digits into bytes. Also return the remaining bits of each row."""
    ids = np.empty((len(values), size), np.uint8)
    bits = np.zeros(len(values), np.uint16)
    available, column = 0, 0
    for i in range(values.shape[1]):
        bits = (bits << np.uint16(5)) | values[:, i]
        available += 5
        if available >= 8:
            available -= 8
            ids[:, column] = (bits >> np.uint16(available)).astype(np.uint8)
            column += 1
    return ids, bits & np.uint16((1 << available) - 1)


def _make_invalid_id_error(what: str, text: str, size: int) -> str:
    shown = text if len(text) <= 40 else text[:40] + "..."
    return f"invalid {what}: `{shown}`, expected {count_characters(size)} characters of Crockford base 32"
