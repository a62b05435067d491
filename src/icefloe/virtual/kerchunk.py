"""References that kerchunk wrote: JSON of both versions, and folders of Parquet.

They say nothing of the versions of the files they point into, so neither can what is made of them.
"""

from __future__ import annotations

import base64
import json
import math
import os
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from icefloe.config.stores import AnyObjectStoreConfig
from icefloe.credentials import AnyCredential
from icefloe.virtual.dataset import VirtualDataset
from icefloe.virtual.hierarchies import METADATA, Entries, dataset_of, parsed
from icefloe.virtual.refusals import CannotVirtualizeError
from icefloe.virtual.sources import Source, SourceFile, location_of, open_file
from icefloe.virtual.wanted import Wanted

_ENCODED: Final = "base64:"


class _References:
    """References of either kind as they are collected."""

    def __init__(
        self, place: str, store: AnyObjectStoreConfig | None, credential: AnyCredential | None
    ) -> None:
        self._place = place
        self._store = store
        self._credential = credential
        self._rows: dict[str, int] = {}
        self.documents: dict[str, Any] = {}
        self.ranges: dict[str, tuple[int, int, int]] = {}
        self.inline: dict[str, bytes] = {}
        self.sources: list[Source] = []

    def add_bytes(self, key: str, data: bytes) -> None:
        if key.rpartition("/")[2] in METADATA:
            self.documents[key] = parsed(key, data, self._place)
        elif data:
            self.inline[key] = data

    def add_range(self, key: str, url: str, offset: int | None, length: int | None) -> None:
        row = self._rows.get(url)
        if row is None:
            row = self._rows[url] = len(self.sources)
            self.sources.append(Source(location_of(url), None))
        if offset is None or length is None:
            whole = open_file(url, self._store, self._credential).seen
            self.sources[row] = whole
            offset, length = 0, whole.size_bytes
        if length:
            self.ranges[key] = (row, offset, length)

    def dataset(self, wanted: Wanted) -> VirtualDataset:
        entries = Entries(self.ranges, self.inline, tuple(self.sources))
        return dataset_of(self.documents, entries, wanted, self._place)


def parse_kerchunk_json(
    file: SourceFile,
    wanted: Wanted,
    store: AnyObjectStoreConfig | None,
    credential: AnyCredential | None,
) -> VirtualDataset:
    """The dataset of a JSON file of references."""
    place = file.location
    try:
        found = json.loads(file.read(0, file.size_bytes))
    except ValueError as error:
        raise CannotVirtualizeError(f"{place} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise CannotVirtualizeError(f"{place} has no references: it is not a JSON object")
    refs = found.get("refs", found)
    if not isinstance(refs, dict) or not any(key.rpartition("/")[2] in METADATA for key in refs):
        raise CannotVirtualizeError(f"{place} has no references of kerchunk: no Zarr metadata in it")
    if found.get("gen"):
        raise CannotVirtualizeError(
            f"{place} has generated references (gen); let kerchunk write them out first"
        )
    templates = found.get("templates") or {}
    collected = _References(place, store, credential)
    for key, value in refs.items():
        if isinstance(value, list):
            _add_list(collected, key, value, templates, place)
        elif isinstance(value, Mapping):
            collected.documents[key] = value
        elif isinstance(value, str):
            collected.add_bytes(key, _decoded(value))
        else:
            raise CannotVirtualizeError(f"{place}: the reference {key} is {type(value).__name__}")
    return collected.dataset(wanted)


def _add_list(
    collected: _References, key: str, value: list[Any], templates: Mapping[str, str], place: str
) -> None:
    match value:
        case [str(url)]:
            collected.add_range(key, _filled(url, templates), None, None)
        case [str(url), int(offset), int(length)] if offset >= 0 and length >= 0:
            collected.add_range(key, _filled(url, templates), offset, length)
        case _:
            raise CannotVirtualizeError(f"{place}: the reference {key} is {value!r}, not a URL and a range")


def _filled(url: str, templates: Mapping[str, str]) -> str:
    for name, text in templates.items():
        url = url.replace("{{" + name + "}}", text)
    return url


def _decoded(value: str) -> bytes:
    if value.startswith(_ENCODED):
        return base64.standard_b64decode(value.removeprefix(_ENCODED))
    return value.encode()


def is_parquet(folder: str) -> bool:
    """Whether a folder of this machine has references in Parquet."""
    try:
        with open(os.path.join(folder, ".zmetadata"), encoding="utf-8") as file:
            return "record_size" in json.load(file)
    except (OSError, ValueError):
        return False


def parse_kerchunk_parquet(
    location: str, wanted: Wanted, store: AnyObjectStoreConfig | None, credential: AnyCredential | None
) -> VirtualDataset:
    """The dataset of a folder of this machine with a Parquet file for so many chunks of an array each."""
    import pyarrow.parquet

    folder = unquote(urlsplit(location).path)
    with open(os.path.join(folder, ".zmetadata"), encoding="utf-8") as file:
        consolidated = json.load(file)
    collected = _References(location, store, credential)
    for key, document in consolidated["metadata"].items():
        collected.documents[key] = parsed(key, document, location)
    size = int(consolidated["record_size"])
    for key, document in list(collected.documents.items()):
        if key.rpartition("/")[2] != ".zarray":
            continue
        path = key.rpartition("/")[0]
        grid = [
            -(-total // chunk) for total, chunk in zip(document["shape"], document["chunks"], strict=True)
        ]
        for part in range(-(-math.prod(grid) // size)):
            name = os.path.join(folder, path, f"refs.{part}.parq")
            if os.path.exists(name):
                table = pyarrow.parquet.read_table(name).to_pydict()
                _add_table(collected, path, grid, part * size, table)
    return collected.dataset(wanted)


def _add_table(
    collected: _References, path: str, grid: list[int], first: int, table: Mapping[str, list[Any]]
) -> None:
    for row, url in enumerate(table["path"]):
        if first + row >= math.prod(grid):
            break
        key = f"{path}/{'.'.join(map(str, _unraveled(first + row, grid))) or '0'}"
        raw = table["raw"][row] if "raw" in table else None
        if raw is not None:
            collected.add_bytes(key, raw)
        elif url is not None:
            length = table["size"][row]
            collected.add_range(key, url, *((table["offset"][row], length) if length else (None, None)))


def _unraveled(number: int, grid: list[int]) -> list[int]:
    found: list[int] = []
    for size in reversed(grid):
        number, at = divmod(number, size)
        found.append(at)
    return found[::-1]
