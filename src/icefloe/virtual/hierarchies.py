"""Zarr hierarchies whose chunks are already told apart: from their keys to variables.

Zarr stores are one kind, with an object for each chunk; kerchunk's references another, with ranges of files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from icefloe.virtual.dataset import VirtualDataset
from icefloe.virtual.refusals import CannotVirtualizeError, Refused, RefusedVariable
from icefloe.virtual.sources import Source
from icefloe.virtual.variables import ChunkReferences, VirtualVariable
from icefloe.virtual.wanted import Wanted
from icefloe.virtual.zarr_documents import array_from_v2, array_from_v3

METADATA: Final = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")
_CHUNK: Final = re.compile(r"(?:c[/.])?(\d+(?:[./]\d+)*)|c")


@dataclass(frozen=True, slots=True)
class Entries:
    """The chunks of a hierarchy, by their keys."""

    ranges: Mapping[str, tuple[int, int, int]]
    """Source, offset and length."""
    inline: Mapping[str, bytes]
    sources: tuple[Source, ...]


def dataset_of(documents: Mapping[str, Any], entries: Entries, wanted: Wanted, place: str) -> VirtualDataset:
    """The dataset of a hierarchy. `documents` are the metadata, parsed, by their keys."""
    root = wanted.group or ""
    if root and not any(key.startswith(f"{root}/") for key in documents):
        raise CannotVirtualizeError(f"{place} has no group {wanted.group!r}")
    chunks = _by_array(documents, entries)
    return _group(root, documents, chunks, entries, wanted, root)


def _group(
    path: str,
    documents: Mapping[str, Any],
    chunks: Mapping[str, list[tuple[tuple[int, ...], str]]],
    entries: Entries,
    wanted: Wanted,
    root: str,
) -> VirtualDataset:
    variables: dict[str, VirtualVariable] = {}
    refused: list[Refused] = []
    groups: dict[str, VirtualDataset] = {}
    for name in sorted(_children(path, documents)):
        child = f"{path}/{name}" if path else name
        shown = child.removeprefix(f"{root}/")
        if wanted.drops(shown):
            continue
        if not _is_array(child, documents):
            groups[name] = _group(child, documents, chunks, entries, wanted, root)
            continue
        try:
            variables[name] = _variable(child, documents, chunks.get(child, []), entries)
        except RefusedVariable as refusal:
            refused.append(refusal.named(name))
    return VirtualDataset(
        variables, entries.sources, _group_attributes(path, documents), groups, tuple(refused)
    )


def _children(path: str, documents: Mapping[str, Any]) -> set[str]:
    prefix = f"{path}/" if path else ""
    found = set()
    for key in documents:
        name, slash, rest = key.removeprefix(prefix).partition("/")
        if key.startswith(prefix) and slash and rest:
            found.add(name)
    return found


def _is_array(path: str, documents: Mapping[str, Any]) -> bool:
    document = documents.get(f"{path}/zarr.json")
    return f"{path}/.zarray" in documents or (document is not None and document.get("node_type") == "array")


def _group_attributes(path: str, documents: Mapping[str, Any]) -> Mapping[str, Any]:
    prefix = f"{path}/" if path else ""
    if f"{prefix}zarr.json" in documents:
        return dict(documents[f"{prefix}zarr.json"].get("attributes") or {})
    return dict(documents.get(f"{prefix}.zattrs") or {})


def _by_array(documents: Mapping[str, Any], entries: Entries) -> dict[str, list[tuple[tuple[int, ...], str]]]:
    """Coordinates and keys of the chunks of each array."""
    arrays = sorted(
        (key.rpartition("/")[0] for key in documents if _is_array(key.rpartition("/")[0], documents)),
        key=len,
        reverse=True,
    )
    known = set(arrays)
    found: dict[str, list[tuple[tuple[int, ...], str]]] = {}
    for key in (*entries.ranges, *entries.inline):
        # The path is what comes before the numbers: `a/0.1`, `a/0/1` and `a/c/0/1` are all of `a`.
        path = key
        while path and path not in known:
            path = path.rpartition("/")[0]
        match = _CHUNK.fullmatch(key[len(path) + 1 :] if path else key)
        if path in known and match is not None:
            numbers = re.split(r"[./]", match[1]) if match[1] else []
            found.setdefault(path, []).append((tuple(map(int, numbers)), key))
    return found


def _variable(
    path: str,
    documents: Mapping[str, Any],
    found: list[tuple[tuple[int, ...], str]],
    entries: Entries,
) -> VirtualVariable:
    if f"{path}/zarr.json" in documents:
        variable = array_from_v3(documents[f"{path}/zarr.json"])
    else:
        variable = array_from_v2(documents[f"{path}/.zarray"], documents.get(f"{path}/.zattrs") or {})
    rank, grid = len(variable.shape), variable.grid_shape
    rows: list[tuple[int, ...]] = []
    ranges: list[tuple[int, int, int]] = []
    inline: dict[tuple[int, ...], bytes] = {}
    for coords, key in found:
        place = coords if rank else ()
        if len(place) != rank or any(at >= size for at, size in zip(place, grid, strict=True)):
            continue  # left over from a larger shape
        if key in entries.inline:
            inline[place] = entries.inline[key]
        else:
            rows.append(place)
            ranges.append(entries.ranges[key])
    table = np.array(ranges, np.uint64).reshape(len(ranges), 3)
    return replace(
        variable,
        chunks=ChunkReferences.of(
            np.array(rows, np.uint32).reshape(len(rows), rank),
            table[:, 1],
            table[:, 2],
            table[:, 0].astype(np.uint32),
            inline,
        ),
    )


def parsed(key: str, data: Any, place: str) -> Any:
    """A metadata document, which may be parsed already."""
    if isinstance(data, Mapping):
        return data
    try:
        found = json.loads(data)
    except ValueError as error:
        raise CannotVirtualizeError(f"{place}: {key} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise CannotVirtualizeError(f"{place}: {key} is not a JSON object")
    return found
