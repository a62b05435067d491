"""Small changes to a hierarchy, as values that can be applied to any Zarr store."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from tests.support.zarr_documents import array_document, buffer


@dataclass(frozen=True)
class CreateGroup:
    path: str


@dataclass(frozen=True)
class CreateArray:
    path: str
    shape: tuple[int, ...] = (4,)


@dataclass(frozen=True)
class SetAttribute:
    """A change of the attributes of a group or an array."""

    path: str
    value: int


@dataclass(frozen=True)
class SetDocument:
    """A change of a part of the zarr.json of an array, such as its shape or codecs."""

    path: str
    part: str
    value: Any


@dataclass(frozen=True)
class Write:
    path: str
    coords: tuple[int, ...]
    value: bytes = b"w"


@dataclass(frozen=True)
class Erase:
    path: str
    coords: tuple[int, ...]


@dataclass(frozen=True)
class Delete:
    """The deletion of a node and everything below it."""

    path: str


@dataclass(frozen=True)
class Move:
    source: str
    target: str


Edit = CreateGroup | CreateArray | SetAttribute | SetDocument | Write | Erase | Delete | Move


def resize(path: str, *shape: int) -> SetDocument:
    """Return a change of the shape in the zarr.json."""
    return SetDocument(path, "shape", list(shape))


def make(session: Any, edits: Sequence[Edit]) -> None:
    """Apply changes to a session, one after the other."""
    for edit in edits:
        _make(session, edit)


def _make(session: Any, edit: Edit) -> None:
    store = session.store
    match edit:
        case CreateGroup(path):
            document = {"zarr_format": 3, "node_type": "group", "attributes": {}}
            sync(store.set(_key(path, "zarr.json"), buffer(json.dumps(document).encode())))
        case CreateArray(path, shape):
            sync(store.set(_key(path, "zarr.json"), buffer(array_document(shape))))
        case SetAttribute(path, value):
            _change_document(store, path, "attributes", {"value": value})
        case SetDocument(path, part, value):
            _change_document(store, path, part, value)
        case Write(path, coords, value):
            sync(store.set(_chunk_key(path, coords), buffer(value)))
        case Erase(path, coords):
            sync(store.delete(_chunk_key(path, coords)))
        case Delete(path):
            sync(store.delete_dir(path.strip("/")))
        case Move(source, target):
            session.move(source, target)


def _change_document(store: Any, path: str, part: str, value: Any) -> None:
    key = _key(path, "zarr.json")
    found = sync(store.get(key, default_buffer_prototype()))
    document = json.loads(found.to_bytes()) | {part: value}
    sync(store.set(key, buffer(json.dumps(document).encode())))


def _key(path: str, name: str) -> str:
    return f"{path.strip('/')}/{name}".lstrip("/")


def _chunk_key(path: str, coords: tuple[int, ...]) -> str:
    return _key(path, "/".join(["c", *map(str, coords)]))
