"""Branches and tags of V1 repositories: one JSON file per ref, plus an empty file for each deleted tag."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from icefloe._internal.ids import SnapshotId
from icefloe.errors import ErrorKind, FormatError, InvalidInputError

REFS: Final = "refs"
REF_FILE: Final = "ref.json"
TOMBSTONE_FILE: Final = "ref.json.deleted"


class RefKind(StrEnum):
    """The kind of a V1 ref file: branch or tag."""

    BRANCH = "branch"
    TAG = "tag"


@dataclass(frozen=True, slots=True)
class RefFile:
    """The file of a V1 branch or tag, or the tombstone file of a deleted tag."""

    kind: RefKind
    name: str
    deleted: bool = False

    @property
    def path(self) -> str:
        """The path of the V1 ref file, relative to the root of the repository."""
        return f"{REFS}/{self.kind}.{self.name}/{TOMBSTONE_FILE if self.deleted else REF_FILE}"

    @staticmethod
    def parse(path: str) -> RefFile | None:
        """Parse the path of a V1 ref file, relative to the root; return None for other paths."""
        parts = path.split("/")
        if len(parts) != 3 or parts[0] != REFS or parts[2] not in (REF_FILE, TOMBSTONE_FILE):
            return None
        kind, dot, name = parts[1].partition(".")
        if not dot or not name or kind not in RefKind.__members__.values():
            return None
        return RefFile(RefKind(kind), name, parts[2] == TOMBSTONE_FILE)


def encode_ref(snapshot: SnapshotId) -> bytes:
    """Encode the JSON file of a V1 branch or tag exactly like official releases."""
    return f'{{"snapshot":"{snapshot}"}}'.encode()


def decode_ref(data: bytes, place: str) -> SnapshotId:
    """Decode the snapshot id in the JSON file of a V1 branch or tag."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{place}: not JSON: {error}", kind=ErrorKind.DESERIALIZATION) from None
    text = value.get("snapshot") if isinstance(value, dict) else None
    if not isinstance(text, str):
        raise FormatError(f'{place}: "snapshot" is missing', kind=ErrorKind.DESERIALIZATION)
    try:
        return SnapshotId.parse(text)
    except InvalidInputError as error:
        raise FormatError(f"{place}: {error.message}", kind=ErrorKind.DESERIALIZATION) from None


def change_bytes(data: bytes, number: int) -> bytes:
    """Return a V1 ref file that parses to the same value but has different bytes, by encoding a number as
    trailing whitespace.
    """
    return data.rstrip() + bin(number)[2:].encode().translate(bytes.maketrans(b"01", b" \t"))
