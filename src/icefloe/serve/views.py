"""Collect the facts shown on pages, as plain values. They cover everything that is visible without
JavaScript.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final
from urllib.parse import quote

import numpy as np

from icefloe._internal.amounts import counted
from icefloe._internal.paths import LEDGERS, ROOT, get_name, get_parent, is_within
from icefloe._internal.redaction import redact
from icefloe._internal.table import Table
from icefloe.ancestry_graph import AncestryGraph
from icefloe.cf import decode_fill_value, parse_time_coding
from icefloe.comparison.blame import Blame
from icefloe.core.chunk_grid import get_stored_grid
from icefloe.errors import IcechunkError
from icefloe.format.manifest import Checksum, ChunkRef, ETag, InlineRef, LastModified, NativeRef
from icefloe.format.snapshot import ArrayNodeData
from icefloe.history.versions import ResolvedVersion, find_version
from icefloe.ingest.ledger import LedgerRow, read_ledger
from icefloe.maintenance.integrity.last_report import last_verification
from icefloe.maintenance.statistics.lookup import ChunkStatistics
from icefloe.repository import Repository
from icefloe.serve.asgi import RequestError
from icefloe.serve.chunkmap import KINDS, chunk_references, reference_lengths
from icefloe.serve.quality import describe_chunk
from icefloe.serve.windows import ArrayView
from icefloe.session import Session

COMMITS_PER_PAGE: Final = 100
ROWS_PER_PAGE: Final = 200
_FIRST_ATTRIBUTES: Final = ("long_name", "standard_name", "units", "calendar", "description", "comment")
_FILL_VALUES: Final = ("_FillValue", "missing_value")
"""Attributes that xarray encodes as base64."""
_NOISE: Final = ("GRIB_", "_ARRAY_DIMENSIONS")
_MAX_TEXT: Final = 2000
_MAX_NODES: Final = 2000
_MAX_SEARCHED: Final = 20
"""The maximum number of branches, and of tags, to search for an array."""


def version_url(page: str, version: str, path: str = "") -> str:
    """Return the URL of a version's page."""
    rest = quote(path.strip("/"), safe="/")
    return f"/{page}/{quote(version, safe='')}" + (f"/{rest}" if rest else "")


def compare_url(before: str, after: str, path: str = "") -> str:
    """Return the URL of the page that compares two versions.

    Dots in names are percent-encoded, because three dots separate the versions.
    """
    one, other = (quote(each, safe="").replace(".", "%2E") for each in (before, after))
    rest = quote(path.strip("/"), safe="/")
    return f"/compare/{one}...{other}" + (f"/{rest}" if rest else "")


def branch_version(tags: Collection[str], name: str) -> str:
    """Return the version string for a branch, which is unambiguous even if a tag has the same name."""
    return f"branch:{name}" if name in tags or ":" in name else name


def size_text(count: float) -> str:
    """Format a number of bytes for display."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return ""


def time_text(time: datetime) -> str:
    """Format a time in UTC for display."""
    return time.isoformat(sep=" ", timespec="seconds").replace("+00:00", " UTC")


def truncate(text: str, most: int = _MAX_TEXT) -> str:
    """Truncate a long text, and append its length."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"


# The repository


def history_page(repo: Repository, page: int) -> dict[str, Any]:
    """Collect the commits of all branches for the history page, newest first."""
    commits = repo.ancestry_graph().commits
    start = max(page - 1, 0) * COMMITS_PER_PAGE
    shown = AncestryGraph.of(commits[start : start + COMMITS_PER_PAGE])
    return {
        "graph": shown.shapes(),
        "commits": [
            {
                "id": each.id,
                "title": truncate(each.message.partition("\n")[0].strip() or "(no message)", 200),
                "time": _from_us(each.written_at_us),
                "at": each.written_at_us,
                "branches": each.branches,
                "tags": each.tags,
                "merged": each.merged_ids,
                "parent": each.parent_id,
            }
            for each in shown.commits
        ],
        "times": {each.id: each.written_at_us for each in commits if each.branches or each.tags},
        "page": max(page, 1),
        "pages": max(1, -(-len(commits) // COMMITS_PER_PAGE)),
        "total": len(commits),
    }


def _from_us(microseconds: int) -> str:
    return str(np.datetime64(microseconds, "us").astype("M8[m]")).replace("T", " ")


def repository_facts(repo: Repository) -> dict[str, Any]:
    """Collect the status line and the refs for the home page."""
    from icefloe.history.overview import collect_overview

    found = collect_overview(repo._refs, repo.storage, 10_000)
    status = found["status"]
    return {
        "format": found["format"],
        "status": getattr(status, "name", str(status)),
        "branches": {each: repo.lookup_branch(each) for each in found["branches"]},
        "tags": {each: repo.lookup_tag(each) for each in found["tags"]},
        "commits": found["commits_on_main"],
        "latest": truncate(str(found["latest_commit"] or "").partition("\n")[0], 200),
        "committed_at": time_text(found["committed_at"]) if found["committed_at"] else "",
        "storage": redact(repo.storage.place),
    }


def total_size(repo: Repository) -> str:
    """Format the total size of all chunks in the repository. Each chunk is counted once."""
    found = repo.chunk_storage_stats()
    own = f"{size_text(found.non_virtual_bytes())} of chunks"
    return f"{own}, {size_text(found.virtual_bytes)} in other files" if found.virtual_bytes else own


# Nodes


def tree_facts(session: Session, group: str) -> dict[str, Any]:
    """Collect the groups, coordinates and data variables of a group, with their CF attributes."""
    workspace = session._workspace
    paths = workspace.below(group)[: _MAX_NODES + 1]
    arrays, groups = [], []
    for path in paths:
        if path == group or (group == ROOT and is_within(path, LEDGERS)):
            continue
        node = workspace.node(path)
        if node is None:
            continue
        document = json.loads(node.user_data)
        if isinstance(node.node_data, ArrayNodeData):
            arrays.append(array_summary(path, document))
        elif get_parent(path) == group:
            groups.append(
                {"path": path, "name": get_name(path), "attributes": len(document.get("attributes") or {})}
            )
    own = workspace.node(group)
    attributes = {} if own is None else json.loads(own.user_data).get("attributes") or {}
    return {
        "groups": groups,
        "coordinates": [each for each in arrays if each["is_coordinate"]],
        "arrays": [each for each in arrays if not each["is_coordinate"]],
        "attributes": attribute_rows(attributes),
        "is_cut": len(paths) > _MAX_NODES,
    }


def array_summary(path: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """Summarize the zarr.json of an array."""
    attributes = document.get("attributes") or {}
    shape = document["shape"]
    dims = document.get("dimension_names") or [None] * len(shape)
    grid = document["chunk_grid"]["configuration"]
    data_type = document["data_type"]
    own = get_name(path)
    chunks, shards = _format_chunk_shapes(document)
    return {
        "path": path,
        "name": own,
        "title": truncate(str(attributes.get("long_name") or attributes.get("standard_name") or ""), 200),
        "units": truncate(str(attributes.get("units", "")), 100),
        "shape": shape,
        "dims": [f"{dim} {size}" if dim else str(size) for dim, size in zip(dims, shape, strict=True)],
        "dtype": data_type if isinstance(data_type, str) else data_type.get("name", "?"),
        "chunks": chunks,
        "shards": shards,
        "codecs": ", ".join(each if isinstance(each, str) else each["name"] for each in document["codecs"]),
        "is_coordinate": list(dims) == [own] or own in {*dims},
        "fill_value": _format_fill_value(document.get("fill_value")),
        "size": _format_uncompressed_size(document),
        "grid": "rectilinear" if "chunk_shapes" in grid else "regular",
    }


def _format_fill_value(value: Any) -> str:
    return value if value in ("NaN", "Infinity", "-Infinity") else truncate(json.dumps(value), 60)


def _format_uncompressed_size(document: Mapping[str, Any]) -> str:
    """Format the uncompressed size of an array; empty if its values have no fixed size."""
    named = document["data_type"]
    bits = re.search(r"(\d+)$", named) if isinstance(named, str) else None
    if named != "bool" and bits is None:
        return ""
    item = 1 if bits is None else int(bits[1]) // 8
    return size_text(item * math.prod(document["shape"]))


def _format_chunk_shapes(document: Mapping[str, Any]) -> tuple[str, str]:
    """Format chunk and shard shapes. With sharding, the chunk grid consists of shards."""
    grid = document["chunk_grid"]["configuration"]
    outer = _format_shape(grid.get("chunk_shape", grid.get("chunk_shapes")))
    for codec in document["codecs"]:
        if isinstance(codec, Mapping) and codec["name"] == "sharding_indexed":
            return _format_shape(codec["configuration"]["chunk_shape"]), outer
    return outer, ""


def _format_shape(shape: Any) -> str:
    return truncate(" × ".join(json.dumps(each) for each in shape), 120) or "scalar"


def attribute_rows(attributes: Mapping[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """Sort attributes for display: CF attributes first. Attributes that converters added are listed
    separately.
    """
    rows = [(key, truncate(_format_attribute(key, value))) for key, value in attributes.items()]
    rank = {key: number for number, key in enumerate(_FIRST_ATTRIBUTES)}
    rows.sort(key=lambda row: rank.get(row[0], len(rank)))
    return {
        "shown": [row for row in rows if not row[0].startswith(_NOISE)],
        "folded": [row for row in rows if row[0].startswith(_NOISE)],
    }


def _format_attribute(name: str, value: Any) -> str:
    """Format an attribute as JSON, but strings without quotes, and fill values with their number."""
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    number = decode_fill_value(value, np.dtype("f8")) if name in _FILL_VALUES else None
    return value if number is None else f"{value} ({number:g})"


def contents(session: Session, most: int = 200) -> dict[str, Any]:
    """List the arrays of a version: data variables, coordinates and pyramid levels."""
    found: dict[str, Any] = {"data": [], "coordinates": [], "levels": [], "more": 0}
    paths = [path for path in session._workspace.paths() if not is_within(path, LEDGERS)]
    pyramids = _Pyramids(session)
    for at, path in enumerate(paths):
        node = session._workspace.node(path)
        if node is None or not isinstance(node.node_data, ArrayNodeData):
            continue
        if sum(len(found[kind]) for kind in ("data", "coordinates", "levels")) >= most:
            found["more"] = len(paths) - at
            break
        document = json.loads(node.user_data)
        own = get_name(path)
        kind = "coordinates" if own in (document.get("dimension_names") or ()) else "data"
        kind = "levels" if pyramids.contain(path) else kind
        shape = "×".join(map(str, document["shape"])) or "scalar"
        attributes = document.get("attributes") or {}
        is_time = parse_time_coding(attributes.get("units"), attributes.get("calendar")) is not None
        found[kind].append(
            {
                "path": path,
                "name": path.strip("/") or "/",
                "shape": shape,
                "dims": tuple(document.get("dimension_names") or ()),
                "title": truncate(str(attributes.get("long_name", "")), 80),
                "units": "" if is_time else truncate(str(attributes.get("units", "")), 40),
                "is_time": is_time and len(document["shape"]) == 1,
            }
        )
    return found


class _Pyramids:
    """The groups of a version that contain pyramid levels."""

    def __init__(self, session: Session) -> None:
        self._workspace = session._workspace
        self._known: dict[str, bool] = {}

    def contain(self, path: str) -> bool:
        """Return True if an array is in the group of a pyramid level."""
        group = get_parent(get_parent(path) or ROOT)
        if group is None:
            return False
        if group not in self._known:
            node = self._workspace.node(group)
            attributes = {} if node is None else json.loads(node.user_data).get("attributes") or {}
            self._known[group] = "multiscales" in attributes
        return self._known[group]


def recent_commits(
    repo: Repository, version: ResolvedVersion, has_array: Callable[[str], bool], most: int = 12
) -> list[dict[str, Any]]:
    """List the newest commits of a version for the sidebar, and mark those that lack an array."""
    return [
        {
            "id": info.id,
            "title": truncate(info.message.partition("\n")[0], 120),
            "time": time_text(info.written_at),
            "is_without": info.parent_id is None or not has_array(info.id),
        }
        for info in islice(repo.ancestry(snapshot_id=version.snapshot_id), most)
    ]


def earlier_versions(repo: Repository, name: str, *, is_branch: bool) -> list[tuple[str, str]]:
    """List earlier versions that a page offers for comparison, as names and descriptions."""
    offered = [(f"{name}~1", "one commit earlier")]
    if is_branch:
        offered += [(f"{name}@1d", "1 day ago"), (f"{name}@7d", "7 days ago")]
    return [each for each in offered if _exists(repo, each[0])]


def _exists(repo: Repository, version: str) -> bool:
    try:
        find_version(repo, version)
    except IcechunkError:
        return False
    return True


def chunk_facts(view: ArrayView) -> dict[str, Any]:
    """Count an array's chunks by kind and by source file."""
    refs = chunk_references(view)
    lengths = reference_lengths(refs)
    kinds = [
        (KINDS[kind], int((refs.kind == kind).sum()), size_text(int(lengths[refs.kind == kind].sum())))
        for kind in KINDS
        if (refs.kind == kind).any()
    ]
    data = view.node.node_data
    places = 1
    for size in data.shape if isinstance(data, ArrayNodeData) else ():
        places *= size.num_chunks
    virtual = refs.location_codes[refs.kind == 2]
    counts = np.bincount(virtual, minlength=len(refs.locations)) if len(virtual) else np.zeros(0, int)
    order = np.argsort(-counts)[:10]
    sources = [
        (redact(refs.locations[int(row)].decode("utf-8", "replace")), int(counts[row]))
        for row in order
        if counts[row]
    ]
    return {
        "there": len(refs),
        "places": places,
        "kinds": kinds,
        "bytes": size_text(int(lengths.sum())),
        "sources": sources,
        "more_sources": max(0, int((counts > 0).sum()) - len(sources)),
    }


# Other pages


def commit_facts(repo: Repository, id: str) -> dict[str, Any]:
    """Collect the message, time, metadata and parents of a commit."""
    info = repo.lookup_snapshot(id)
    return {
        "id": info.id,
        "parent": info.parent_id,
        "time": time_text(info.written_at),
        "message": truncate(info.message, 20_000),
        "metadata": attribute_rows(info.metadata)["shown"],
    }


def operations(repo: Repository, page: int) -> dict[str, Any]:
    """List the operations on the repository, newest first."""
    start = max(page - 1, 0) * ROWS_PER_PAGE
    try:
        found = list(islice(repo.ops_log(), start, start + ROWS_PER_PAGE + 1))
    except IcechunkError as error:
        return {"rows": [], "page": 1, "more": False, "problem": redact(str(error))}
    rows = [
        {
            "time": time_text(each.updated_at),
            "what": _split_words(type(each.kind).__name__),
            "details": [
                (item.name.replace("snap_id", "snapshot"), redact(str(getattr(each.kind, item.name))))
                for item in fields(each.kind)
            ],
        }
        for each in found[:ROWS_PER_PAGE]
    ]
    return {"rows": rows, "page": max(page, 1), "more": len(found) > ROWS_PER_PAGE, "problem": ""}


def is_snapshot_id(name: str, text: str) -> bool:
    """Return True if an operation detail is a snapshot id."""
    return "snapshot" in name and len(text) == 20 and text.isalnum()


def _split_words(name: str) -> str:
    text = "".join(f" {each.lower()}" if each.isupper() else each for each in name).strip()
    return text.replace("g c ", "garbage collection ").replace("repo ", "repository ").capitalize()


def storage_facts(repo: Repository, open_session: Callable[[str], Session]) -> dict[str, Any]:
    """Sum up the stored bytes by array and by snapshot."""
    arrays, snapshots = repo.storage_stats(by="array"), repo.storage_stats(by="snapshot")
    return {
        "arrays": [
            {**row, "version": _find_version_with(repo, row["key"], open_session)}
            for row in _list_rows(arrays, "array")
        ],
        "snapshots": _list_rows(snapshots, "snapshot"),
        "kinds": [kind for kind in ("native", "virtual", "inlined") if np.any(arrays[f"{kind}_bytes"])],
    }


def _find_version_with(repo: Repository, path: str, open_session: Callable[[str], Session]) -> str:
    """Find a version that contains an array, preferably main; empty if it was deleted everywhere."""
    if not path.startswith("/"):
        return ""
    branches = ["main", *sorted(repo.list_branches() - {"main"})[:_MAX_SEARCHED]]
    tags = sorted(repo.list_tags())[:_MAX_SEARCHED]
    tips = {f"branch:{name}": repo.lookup_branch(name) for name in branches}
    tips |= {f"tag:{name}": repo.lookup_tag(name) for name in tags}
    having = (each for each, id in tips.items() if open_session(id)._workspace.node(path) is not None)
    return next(having, "")


def _list_rows(table: Table, key: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    largest = 1
    for at in range(min(len(table), 1000)):
        row = {column: table[column][at] for column in table.names}
        sizes = {column: int(value) for column, value in row.items() if column.endswith("_bytes")}
        total = sum(
            sizes[column] for column in ("native_bytes", "virtual_bytes", "inlined_bytes") if column in sizes
        )
        largest = max(largest, total)
        found.append(
            {
                "key": str(row[key]),
                "message": truncate(str(row.get("message", "")).partition("\n")[0], 120),
                "chunks": int(row["chunks"]) if "chunks" in row else None,
                "total": total,
                "sizes": {column: size_text(size) for column, size in sizes.items()},
            }
        )
    for each in found:
        each["share"] = round(100 * each["total"] / largest)
        each["total"] = size_text(each["total"])
    return found


def ledger_facts(session: Session, wanted: str, page: int) -> dict[str, Any]:
    """List ingested files and the regions that they fill, filtered by name."""
    rows = [(group, row) for group in _ledger_groups(session) for row in read_ledger(session, group)]
    found = [(group, row) for group, row in rows if wanted.lower() in row.source.lower()]
    start = max(page - 1, 0) * ROWS_PER_PAGE
    shown = [_ledger_row(group, row) for group, row in found[start : start + ROWS_PER_PAGE]]
    return {
        "rows": shown,
        "total": len(rows),
        "found": len(found),
        "page": max(page, 1),
        "more": len(found) > start + ROWS_PER_PAGE,
        "filter": wanted,
    }


def _ledger_groups(session: Session) -> Iterator[str]:
    prefix = f"{LEDGERS}/ledger"
    for path in session._workspace.below(prefix):
        if path.endswith("/source"):
            yield path[len(prefix) :].rpartition("/")[0].strip("/")


def _ledger_row(group: str, row: LedgerRow) -> dict[str, Any]:
    home = "/".join(part for part in (group, row.target_group) if part)
    return {
        "source": redact(row.source),
        "size": size_text(row.size_bytes),
        "modified": _from_us(row.modified_us) if row.modified_us else "",
        "mode": row.mode,
        "batch": row.batch,
        "region": ", ".join(f"{dim} {first}:{last}" for dim, (first, last) in row.box.items()),
        "box": dict(row.box),
        "arrays": [f"/{home}/{each}".replace("//", "/") for each in row.names],
    }


def verify_facts(repo: Repository) -> dict[str, Any] | None:
    """Return the last recorded verification report for the health page, or None if there is none."""
    record = last_verification(repo.storage)
    if record is None:
        return None
    counts = [
        (item.name.replace("_", " "), str(getattr(record.report, item.name)))
        for item in fields(record.report)
        if item.name not in ("level", "findings") and getattr(record.report, item.name)
    ]
    scope = "all branches and tags" if record.snapshot_id is None else f"snapshot {record.snapshot_id}"
    return {
        "time": time_text(record.verified_at),
        "level": str(record.report.level),
        "facts": [
            ("result", _format_verdict(record.findings_total)),
            ("level", str(record.report.level)),
            ("scope", scope),
            *counts,
        ],
        "findings": [
            {"kind": each.kind, "where": f"{each.where} {each.object}".strip(), "text": redact(each.message)}
            for each in record.report.findings
        ],
        "more": record.findings_total - len(record.report.findings),
    }


def _format_verdict(findings: int) -> str:
    return "no problems" if not findings else counted(findings, "finding")


# Chunks


def one_chunk(
    view: ArrayView, coords: tuple[int, ...], writers: Blame, statistics: ChunkStatistics | None
) -> dict[str, Any]:
    """Describe one chunk: its values, its location, the commit that wrote it and the file it came from."""
    ref = view.session._workspace.ref(view.node, coords)
    grid = get_stored_grid(view.document)
    if any(at >= count for at, count in zip(coords, grid.counts, strict=True)):
        raise RequestError(404, f"{view.path} has no chunk {coords}")
    box = grid.inside(coords)
    values = () if statistics is None else describe_chunk(statistics, coords)
    facts = [*_box_facts(view, box), *values, *_reference_facts(ref)]
    return {
        "coords": coords,
        "facts": facts,
        "is_stored": ref is not None,
        "writer": None if ref is None else _writer(writers, coords),
        "files": _files_of(view, box),
    }


def _box_facts(view: ArrayView, box: tuple[slice, ...]) -> list[tuple[str, str]]:
    """Describe the part of an array that a chunk covers, with coordinate labels if there are any."""
    cells = ", ".join(f"{dim} {part.start}:{part.stop}" for dim, part in zip(view.dims, box, strict=True))
    try:
        named = [view.coordinate(axis) for axis in range(len(box))]
    except (RequestError, IcechunkError):  # a coordinate that cannot be read
        named = []
    if all(each.values is None for each in named):
        return [("cells", cells)]
    covered = [each.range_text(part.start, part.stop - 1) for each, part in zip(named, box, strict=True)]
    return [("covers", ", ".join(covered)), ("cells", cells)]


def _reference_facts(ref: ChunkRef | None) -> list[tuple[str, str]]:
    match ref:
        case None:
            return [("kind", "not stored: all cells have the fill value")]
        case InlineRef(data):
            return [("kind", "inline, in the manifest"), ("size", size_text(len(data)))]
        case NativeRef():
            return [("kind", "native"), ("object", f"chunks/{ref.chunk_id}"), ("size", size_text(ref.length))]
    return [
        ("kind", "virtual"),
        ("file", redact(ref.location)),
        *_checksum_facts(ref.checksum),
        ("bytes", f"{ref.offset} to {ref.offset + ref.length}, {size_text(ref.length)}"),
    ]


def _checksum_facts(checksum: Checksum | None) -> list[tuple[str, str]]:
    """Describe the checksum that a source file must match for its chunks to be readable."""
    match checksum:
        case ETag(value):
            return [("entity tag", value)]
        case LastModified(seconds):
            return [("unchanged since", time_text(datetime.fromtimestamp(seconds, UTC)))]
        case None:
            return []


def _writer(writers: Blame, coords: tuple[int, ...]) -> dict[str, str] | None:
    """Find the commit that wrote a chunk. Return None if the chunk is older than the searched commits."""
    (rows,) = np.nonzero((writers.coords == np.array(coords, np.uint32)).all(axis=1))
    code = int(writers.writers[rows[0]]) if len(rows) else -1
    if code < 0:
        return None
    found = writers.commits[code]
    title = truncate(found.message.partition("\n")[0], 200)
    return {"id": found.id, "message": title, "time": time_text(found.written_at)}


def _files_of(view: ArrayView, box: tuple[slice, ...]) -> list[str]:
    """Find the ingested files that overlap a region of an array."""
    group = (get_parent(view.path) or ROOT).strip("/")
    spans = {dim: (part.start, part.stop) for dim, part in zip(view.dims, box, strict=True)}
    found = []
    for home in _ledger_groups(view.session):
        for row in read_ledger(view.session, home):
            target = "/".join(part for part in (home, row.target_group) if part)
            if target == group and get_name(view.path) in row.names and _overlaps(row.box, spans):
                found.append(redact(row.source))
    return found[:20]


def _overlaps(one: Mapping[str, tuple[int, int]], other: Mapping[str, tuple[int, int]]) -> bool:
    return all(one[dim][0] < span[1] and span[0] < one[dim][1] for dim, span in other.items() if dim in one)
