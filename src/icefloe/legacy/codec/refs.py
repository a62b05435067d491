"""Branches and tags of old formats. A branch has one file per commit, and the newest sorts first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from icefloe._internal.ids import ObjectId, SnapshotId
from icefloe.format.repo_info import MAIN
from icefloe.legacy.codec.files import ALPHA, DRAFT, Folders, loads_json
from icefloe.legacy.codec.ids import make_object_id
from icefloe.legacy.codec.structures import LegacyFindings, Structure, make_damage_error

REF_FILE: Final = "ref.json"
TOMBSTONE: Final = "ref.json.deleted"
_REF: Final = Structure(
    "a reference", (("snapshot", "timestamp", "properties"),), frozenset({"timestamp", "properties"})
)
_DIGITS: Final = "[0-9A-HJKMNP-TV-Z]"
_SEQUENCE: Final = re.compile(rf"({_DIGITS}{{8}}|{_DIGITS}{{13}})\.json")
_KIND: Final = re.compile(r"(branch|tag)[.:](.+)", re.DOTALL)
_LAST_OF_8: Final = (1 << 40) - 1
_LAST_OF_13: Final = (1 << 64) - 1
_MAX_SHOWN: Final = 5


class _Sequence5(ObjectId):
    __slots__ = ()
    _NAME = "sequence number"
    SIZE = 5


class _Sequence8(ObjectId):
    __slots__ = ()
    _NAME = "sequence number"
    SIZE = 8


@dataclass(slots=True)
class RefFiles:
    """The files of the branches and tags of a legacy repository."""

    branches: dict[str, dict[int, str]] = field(default_factory=dict)
    """For each branch, the paths of its files by sequence number."""
    tags: dict[str, str] = field(default_factory=dict)
    """All tags, including deleted ones."""
    deleted_tags: set[str] = field(default_factory=set)

    def tip(self, branch: str) -> str:
        """Return the path of the newest ref file of a legacy branch."""
        files = self.branches[branch]
        return files[max(files)]

    def gaps(self, branch: str) -> list[int]:
        """Return the first few sequence numbers that have no ref file on a legacy branch."""
        files = self.branches[branch]
        if len(files) == max(files) + 1:
            return []
        found: list[int] = []
        expected = 0
        for number in sorted(files):
            found.extend(range(expected, min(number, expected + _MAX_SHOWN)))
            if len(found) >= _MAX_SHOWN:
                break
            expected = number + 1
        return found[:_MAX_SHOWN]


def collect(keys: Iterable[str], root: Folders) -> RefFiles:
    """Collect the branches and tags of a legacy repository from the names of its files.

    Unknown names are ignored.
    """
    found = RefFiles()
    folders: dict[tuple[str, str], str] = {}
    for key in sorted(keys):
        parts = key.split("/")
        if parts[0] != root.refs or len(parts) not in (2, 3):
            continue
        if len(parts) == 2:
            if root is DRAFT and parts[1].endswith(".json"):
                _take_tag(found, parts[1].removesuffix(".json"), key)
            continue
        _, folder, file = parts
        named = _KIND.fullmatch(folder)
        kind, name = (named[1], named[2]) if named else ("branch" if root is DRAFT else "", folder)
        number = parse_sequence_number(file)
        if not kind or (number is None and file not in (REF_FILE, TOMBSTONE)):
            continue
        if folders.setdefault((kind, name), folder) != folder:
            raise make_damage_error(
                f"{root.refs}: {kind} {name} is in two folders, {folders[kind, name]} and {folder}"
            )
        if kind == "branch" and number is not None:
            files = found.branches.setdefault(name, {})
            if number in files:
                raise make_damage_error(
                    f"{root.refs}: {files[number]} and {key} are both commit {number} of a branch"
                )
            files[number] = key
        elif kind == "tag" and file == TOMBSTONE:
            found.deleted_tags.add(name)
        elif kind == "tag" and file == REF_FILE:
            _take_tag(found, name, key)
    _check_one_form(found)
    return found


def _take_tag(found: RefFiles, name: str, key: str) -> None:
    if name in found.tags:
        raise make_damage_error(f"tag {name} is in two files, {found.tags[name]} and {key}")
    found.tags[name] = key


def _check_one_form(found: RefFiles) -> None:
    """Raise an error if a branch mixes sequence numbers of 8 and of 13 characters, because their order is
    unknown.
    """
    for name, files in found.branches.items():
        if len({len(path.rpartition("/")[2]) for path in files.values()}) > 1:
            raise make_damage_error(
                f"branch {name} has sequence files of two forms, of 8 and of 13 characters"
            )


def parse_sequence_number(file: str) -> int | None:
    """Parse the sequence number in the name of a legacy branch file; None for other files."""
    digits = _SEQUENCE.fullmatch(file)
    if digits is None:
        return None
    kind, last = (_Sequence5, _LAST_OF_8) if len(digits[1]) == 8 else (_Sequence8, _LAST_OF_13)
    return last - int.from_bytes(kind.parse(digits[1]), "big")


def make_sequence_file_name(number: int, *, long: bool = False) -> str:
    """Return the file name for a sequence number of a legacy branch."""
    last, kind = (_LAST_OF_13, _Sequence8) if long else (_LAST_OF_8, _Sequence5)
    return f"{kind((last - number).to_bytes(kind.SIZE, 'big'))}.json"


def list_first_files(root: Folders) -> list[str]:
    """Return the possible paths of the first file of the branch `main` in a legacy repository."""
    folders = [f"branch:{MAIN}", MAIN if root is DRAFT else f"branch.{MAIN}"]
    names = [make_sequence_file_name(0), make_sequence_file_name(0, long=True)]
    return [f"{root.refs}/{folder}/{name}" for folder in folders for name in names]


def is_ref(key: str) -> bool:
    """Return True if a path can be a branch file of a legacy repository."""
    parts = key.split("/")
    if len(parts) != 3 or parts[0] not in (ALPHA.refs, DRAFT.refs):
        return False
    named = _KIND.fullmatch(parts[1])
    kind = named[1] if named else "branch" if parts[0] == DRAFT.refs else ""
    return kind == "branch" and parse_sequence_number(parts[2]) is not None


def is_ref_file(key: str) -> bool:
    """Return True if a path can be a branch or tag file of a legacy repository, or the tombstone of a tag."""
    parts = key.split("/")
    if len(parts) == 2:
        return parts[0] == DRAFT.refs and parts[1].endswith(".json")
    if len(parts) != 3 or parts[0] not in (ALPHA.refs, DRAFT.refs):
        return False
    has_kind = parts[0] == DRAFT.refs or _KIND.fullmatch(parts[1]) is not None
    return has_kind and (parts[2] in (REF_FILE, TOMBSTONE) or parse_sequence_number(parts[2]) is not None)


def decode_ref(data: bytes, place: str, findings: LegacyFindings) -> tuple[SnapshotId, Mapping[str, Any]]:
    """Decode a legacy ref file. Return the snapshot that it points to, and its additional properties."""
    fields = _REF.read(loads_json(data, place), place, findings)
    properties = fields.get("properties") or {}
    if not isinstance(properties, Mapping):
        raise make_damage_error(f"{place}: properties must be a map")
    return make_object_id(SnapshotId, fields["snapshot"], f"{place}: snapshot", findings), properties
