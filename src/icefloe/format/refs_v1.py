"""V1 references: one small JSON file per branch and tag, and an empty file beside a tag that was deleted."""

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
    """What a reference is."""

    BRANCH = "branch"
    TAG = "tag"


@dataclass(frozen=True, slots=True)
class RefFile:
    """The place of a reference, or of the mark that a tag was deleted."""

    kind: RefKind
    name: str
    deleted: bool = False

    @property
    def path(self) -> str:
        """Below the repository's root."""
        return f"{REFS}/{self.kind}.{self.name}/{TOMBSTONE_FILE if self.deleted else REF_FILE}"

    @staticmethod
    def parse(path: str) -> RefFile | None:
        """The reference behind a path below the root; None where the path is no reference's."""
        parts = path.split("/")
        if len(parts) != 3 or parts[0] != REFS or parts[2] not in (REF_FILE, TOMBSTONE_FILE):
            return None
        kind, dot, name = parts[1].partition(".")
        if not dot or not name or kind not in RefKind.__members__.values():
            return None
        return RefFile(RefKind(kind), name, parts[2] == TOMBSTONE_FILE)


def encode_ref(snapshot: SnapshotId) -> bytes:
    """The contents of a reference file, to the byte as official releases write it."""
    return f'{{"snapshot":"{snapshot}"}}'.encode()


def decode_ref(data: bytes, place: str) -> SnapshotId:
    """The snapshot a reference file points to."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{place}: not JSON: {error}", kind=ErrorKind.DESERIALIZATION) from None
    text = value.get("snapshot") if isinstance(value, dict) else None
    if not isinstance(text, str):
        raise FormatError(f'{place}: no "snapshot" in it', kind=ErrorKind.DESERIALIZATION)
    try:
        return SnapshotId.parse(text)
    except InvalidInputError as error:
        raise FormatError(f"{place}: {error.message}", kind=ErrorKind.DESERIALIZATION) from None


def respelt(data: bytes, number: int) -> bytes:
    """A ref file with the same meaning and other bytes: a number in white space behind it."""
    return data.rstrip() + bin(number)[2:].encode().translate(bytes.maketrans(b"01", b" \t"))
