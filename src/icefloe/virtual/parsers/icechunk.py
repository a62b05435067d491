"""Parse one version of an Icechunk repository: native chunks become references to chunk objects."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.ids import encode_column
from icefloe.config import VirtualChunkContainer
from icefloe.core.reference_columns import to_absolute_locations
from icefloe.core.virtual_chunks.locations import Containers
from icefloe.format.manifest import INLINE, NATIVE, NO_ETAG, VIRTUAL, ArrayManifest
from icefloe.format.snapshot import ArrayNodeData
from icefloe.history.versions import DEFAULT_VERSION, resolve_version
from icefloe.repository import Repository
from icefloe.storage.external.sources import check_credential, open_repository_storage
from icefloe.virtual.dataset import VirtualDataset
from icefloe.virtual.parsers import ParseOptions
from icefloe.virtual.parsers.zarr.hierarchy import ZarrArrayChunks, build_dataset
from icefloe.virtual.sources import FindAccess, Source, SourceNumbers, make_container

_HIDDEN: Final = "_icefloe"


def is_repository(folder: str) -> bool:
    """Return True if a local directory is an Icechunk repository."""
    has = {
        name: os.path.exists(os.path.join(folder, name))
        for name in ("repo", "refs", "snapshots", "zarr.json")
    }
    return (has["repo"] or has["refs"]) and has["snapshots"] and not has["zarr.json"]


def parse_repository(location: str, options: ParseOptions, access: FindAccess) -> VirtualDataset:
    """Parse one version of an Icechunk repository into a virtual dataset. The default is the branch main."""
    store, credential = access(location)
    container = make_container(location, store)
    check_credential(container, credential)
    target = unquote(urlsplit(location).path) if location.startswith("file:") else location
    repo = Repository.open(open_repository_storage(target, container, credential))
    session = repo.readonly_session(snapshot_id=resolve_version(repo, options.version or DEFAULT_VERSION))
    configured = repo.config.virtual_chunk_containers or {}
    sources = _Sources(location.rstrip("/"), configured.values())
    documents: dict[str, Any] = {}
    chunks: dict[str, ZarrArrayChunks] = {}
    workspace = session._workspace
    for path in workspace.paths():
        name = path.strip("/")
        node = workspace.node(path)
        if node is None or name.partition("/")[0] == _HIDDEN:
            continue
        documents[f"{name}/zarr.json".lstrip("/")] = json.loads(node.user_data)
        if isinstance(node.node_data, ArrayNodeData):
            chunks[name] = _convert_chunks(workspace.refs(node), sources)
    return build_dataset(documents, chunks, sources.sources, options, location)


class _Sources(SourceNumbers):
    """The source files of a parsed repository: its chunk objects, and the files of its virtual chunks."""

    def __init__(self, location: str, containers: Iterable[VirtualChunkContainer]) -> None:
        super().__init__(location)
        self._location = location
        self._containers = Containers.of(list(containers))

    def of_native(self, ids: NDArray[np.uint8]) -> list[int]:
        """Return source numbers for native chunk objects. They never change, so they need no checksum."""
        return [self.number(Source(f"{self._location}/chunks/{each}", None)) for each in encode_column(ids)]

    def of_virtual(self, refs: ArrayManifest) -> list[int]:
        """Return source numbers for virtually referenced files, with the checksums from the repository."""
        texts = to_absolute_locations(refs.locations, self._containers)
        etags = refs.etags.texts("etag of a virtual chunk") if len(refs.etags) else []
        rows = np.stack([refs.location_codes, refs.etag_codes, refs.last_modified], axis=1)
        distinct, codes = np.unique(rows, axis=0, return_inverse=True)
        numbers = []
        for location, etag, seconds in distinct.tolist():
            modified = datetime.fromtimestamp(seconds, UTC) if seconds else None
            tag = None if etag == NO_ETAG else etags[etag]
            numbers.append(self.number(Source(texts[location], None, tag, modified)))
        return [numbers[code] for code in codes.reshape(-1).tolist()]


def _convert_chunks(refs: ArrayManifest, sources: _Sources) -> ZarrArrayChunks:
    native, virtual, inline = (refs.kind == kind for kind in (NATIVE, VIRTUAL, INLINE))
    numbers = np.zeros(len(refs), np.uint32)
    numbers[native] = sources.of_native(refs.chunk_ids[native])
    if virtual.any():
        numbers[virtual] = sources.of_virtual(refs.take(virtual))
    rows = np.flatnonzero(inline)
    places = map(tuple, refs.coords[inline].tolist())
    kept = ~inline
    return ZarrArrayChunks(
        refs.coords[kept].astype(np.int64),
        numbers[kept],
        refs.offsets[kept],
        refs.lengths[kept],
        dict(zip(places, map(bytes, refs.inline.take(rows).tolist()), strict=True)),
    )
