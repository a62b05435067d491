"""An ASGI application for web pages and their data. None of its routes change state."""

from __future__ import annotations

import json
import shlex
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np

from icefloe._internal.concurrency import get_pool
from icefloe._internal.paths import ROOT
from icefloe._version import __version__
from icefloe.charts import draw_line
from icefloe.core.chunk_grid import get_stored_grid
from icefloe.derive.pyramid import find_levels
from icefloe.errors import IcechunkError
from icefloe.format.snapshot import ArrayNodeData
from icefloe.history.versions import ResolvedVersion
from icefloe.maintenance.statistics.lookup import ChunkStatistics
from icefloe.serve import views
from icefloe.serve.array_plot import (
    MAX_CELLS,
    PlotLayout,
    PlotSource,
    PlotStatistics,
    choose_layout,
    value_table,
)
from icefloe.serve.array_plot_config import describe_picture, describe_sliders
from icefloe.serve.asgi import (
    NO_STORE,
    Receive,
    RequestError,
    Scope,
    Send,
    as_request_error,
    respond,
)
from icefloe.serve.assets import render, static_asset
from icefloe.serve.chunkmap import MAX_CHUNKS_COUNTED, count_references, label_chunks
from icefloe.serve.compare import (
    NodeChange,
    changed_chunks,
    common_shape,
    compare_nodes,
    compare_values,
    metadata_changes,
)
from icefloe.serve.data import Data
from icefloe.serve.derived import draw_levels, lineage_facts, list_dependents
from icefloe.serve.difference_plot import (
    describe_extent,
    describe_shapes,
    find_first_change,
    outline_changes,
    tabulate_difference,
)
from icefloe.serve.first_page import RepositorySize, list_arrays, read_extent
from icefloe.serve.line_plot import describe_line, series_url
from icefloe.serve.log import read_log
from icefloe.serve.positions import (
    describe_view,
    has_labels,
    label_region,
    list_places,
    parse_positions,
    query_with,
    resolve_labels,
)
from icefloe.serve.quality import describe_quality, find_scale
from icefloe.serve.requests import (
    HTML,
    JSON,
    NO_CACHE,
    OpenVersions,
    Request,
    Response,
    ShownVersion,
    parse_request,
    request_has,
    required,
)
from icefloe.serve.series import MAX_COMMITS, cell_history, read_series
from icefloe.serve.settings import Settings
from icefloe.serve.snippets import Reading, Snippet, bisect_snippet, comparison_snippets
from icefloe.serve.versions import Versions
from icefloe.serve.windows import ArrayView, parse_index
from icefloe.serve.work import CancelledError, Decoders

T = TypeVar("T")

_STALE_S: Final = 2.0
_MAX_STALE: Final = 1000
_MAX_EXTENTS: Final = 50
"""The maximum number of changed arrays whose ranges are shown with labels."""


def pages_app(versions: Versions, settings: Settings, decoders: Decoders) -> Pages:
    """Create the ASGI application for pages, assets and page data. The gateway handles all other requests."""
    return Pages(versions, settings, decoders)


class Pages:
    """The ASGI application that serves a repository's pages, their assets and their data.

    Parameters
    ----------
    versions
        The versions of the repository.
    settings
        The options of the server.
    decoders
        The threads that decode windows.
    """

    def __init__(self, versions: Versions, settings: Settings, decoders: Decoders) -> None:
        self._opened = OpenVersions(versions, settings)
        self._data = Data(self._opened, decoders)
        self._settings = settings
        self._limits = settings.limits
        self._rendering = Decoders(replace(settings.limits, decoders=8))
        self._stale: dict[Any, tuple[float, Any]] = {}
        self._refreshing: set[Any] = set()
        self._size = RepositorySize(versions)
        self._lock = threading.Lock()
        pages: dict[str, Callable[[Request], Response]] = {
            "": self._home,
            "tree": self._tree,
            "array": self._array,
            "compare": self._compare,
            "log": self._log,
            "commit": self._commit,
            "ops": self._ops,
            "storage": self._storage,
            "ledger": self._ledger,
            "health": self._health,
        }
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        head = scope["method"] == "HEAD"
        is_page, request = True, None
        try:
            request = parse_request(scope)
            first = request.segments[0] if request.segments else ""
            if first == "static":
                found = static_asset("/".join(request.segments[1:]))
            elif first == "api":
                is_page = False
                found = await self._data.answer(request, receive)
            elif first in self._pages:
                found = await self._rendering.run(partial(self._pages[first], request), receive)
            else:
                raise RequestError(404, "page not found")
        except CancelledError:
            return
        except Exception as error:  # noqa: BLE001 - every failure is a page of its own
            found = self._failed(as_request_error(error, self._settings.explain), request, is_page=is_page)
        if request_has(scope, found):
            await respond(send, 304, b"", found.headers, head=True)
            return
        await respond(send, found.status, found.body, found.headers, head=head)

    def _failed(self, error: RequestError, request: Request | None, *, is_page: bool) -> Response:
        headers = [NO_STORE, *error.headers]
        if not is_page:
            body = json.dumps({"error": error.text}).encode()
            return Response(body, [JSON, *headers], error.status)
        page = render(
            "error.html",
            status=error.status,
            text=error.text,
            links=views,
            version=_version_of(error, request),
        )
        return Response(page, [HTML, *headers], error.status)

    # Shared by all pages

    @property
    def _quoted_location(self) -> str:
        """The location of the repository, quoted for a shell."""
        return shlex.quote(self._settings.location) if self._settings.location else "REPO"

    def _render(self, template: str, shown: ShownVersion | None, path: str = "", **values: Any) -> Response:
        facts = self._get_cached_facts("facts", lambda: views.repository_facts(self._opened.versions.repo))
        body = render(
            template,
            links=views,
            version=__version__,
            shown=shown,
            path=path,
            earlier=self._list_earlier(shown),
            repository=facts,
            branch=partial(views.branch_version, facts["tags"]),
            main=views.branch_version(facts["tags"], "main"),
            title=_location_name(self._settings.location or facts["storage"]),
            **{"array_view": "", "compare_view": "", **values},
        )
        return Response(body, [HTML, NO_CACHE])

    def _list_earlier(self, shown: ShownVersion | None) -> list[tuple[str, str]]:
        """List the earlier versions that a page offers for comparison."""
        if shown is None:
            return []
        name, is_branch = shown.name, bool(shown.branch)
        earlier = partial(views.earlier_versions, self._opened.versions.repo, name, is_branch=is_branch)
        found: list[tuple[str, str]] = self._get_cached_facts(("earlier", name), earlier)
        return found

    def _get_cached_facts(self, key: Any, compute: Callable[[], Any]) -> Any:
        """Return facts that depend on refs from a cache. If storage is slow, they may be outdated."""
        if self._opened.versions.answers_at_once:
            return compute()
        now = time.monotonic()
        known = self._stale.get(key)
        if known is None:
            found = compute()
            if len(self._stale) >= _MAX_STALE:
                self._stale = {}
            self._stale[key] = (time.monotonic(), found)
            return found
        if now - known[0] > _STALE_S and key not in self._refreshing:
            self._refreshing.add(key)
            get_pool("serve-refs", 4).submit(self._refresh, key, compute)
        return known[1]

    def _refresh(self, key: Any, compute: Callable[[], Any]) -> None:
        try:
            self._stale[key] = (time.monotonic(), compute())
        except IcechunkError:
            pass  # the next request tries again
        finally:
            self._refreshing.discard(key)

    # Pages

    def _home(self, request: Request) -> Response:
        page = request.number("page", 1)
        repo = self._opened.versions.repo
        history = self._get_cached_facts(("history", page), lambda: views.history_page(repo, page))
        return self._render(
            "home.html",
            None,
            history=history,
            contents=self._get_cached_facts("contents", lambda: list_arrays(self._opened)),
            verified=self._get_cached_facts("verified", lambda: views.verify_facts(repo)),
            size=self._size.count(history),
            location=self._settings.location,
        )

    def _tree(self, request: Request) -> Response:
        shown = self._opened.show(required(request, 1, "a version"))
        path = request.node_path(2)
        session = self._opened.versions.session(shown.snapshot_id)
        if path != ROOT and session._workspace.node(path) is None:
            raise RequestError(404, f"there is no node {path} in {shown.name}")
        tree = views.tree_facts(session, path)
        paths = [each["path"] for each in tree["coordinates"] if len(each["shape"]) == 1]
        views_of = [self._opened.view(shown.snapshot_id, path) for path in paths[:_MAX_EXTENTS]]
        found = get_pool("serve-refs", 4).map(read_extent, views_of)
        extents = {path: " to ".join(ends) for path, ends in zip(paths, found, strict=False)}
        return self._render("tree.html", shown, path, tree=tree, extents=extents)

    def _array(self, request: Request) -> Response:
        shown = self._opened.show(required(request, 1, "a version"))
        path = request.node_path(2)
        view = self._opened.view(shown.snapshot_id, path)
        problem, layout, values = "", PlotLayout("none", None, None, ()), None
        sources = [PlotSource(view, layout)]
        source = sources[0]
        try:
            layout = choose_layout(
                view, parse_positions(request), request.query.get("y", ""), request.query.get("x", "")
            )
            if has_labels(request):
                try:
                    return Response(b"", [(b"location", resolve_labels(request, view, layout).encode())], 302)
                except RequestError as error:
                    problem = error.text
            sources = self._sources(shown, view, layout)
            source = next((each for each in reversed(sources) if each.cells <= MAX_CELLS), sources[0])
            layout = source.as_part_of(layout)
            values = source.read(self._limits.decoded_bytes)
        except (RequestError, IcechunkError) as error:
            problem = as_request_error(error, self._settings.explain).text
        (quality,) = self._check_statistics(request, (shown, view))
        return self._render(
            "array.html",
            shown,
            path,
            **describe_view(request),
            **self._array_values(request, shown, view, layout, source, values),
            quality=None if quality is None else describe_quality(quality),
            location=self._quoted_location,
            config={
                **describe_picture(
                    shown.snapshot_id, view, layout, sources, self._limits, find_scale(quality)
                ),
                "chunk_labels": label_chunks(view),
            },
            problem=problem,
        )

    def _sources(self, shown: ShownVersion, view: ArrayView, layout: PlotLayout) -> list[PlotSource]:
        """Return the data sources for a plot, from coarse to fine: the pyramid levels, then the array
        itself.
        """
        if layout.every == (1, 1):
            return [PlotSource(view, layout)]
        key = ("levels", shown.snapshot_id, view.path)
        levels = self._get_cached_result(key, lambda: find_levels(view.session, view.path))
        found = draw_levels(levels, view, layout, partial(self._opened.view, shown.snapshot_id))
        return found or [PlotSource(view, layout)]

    def _get_cached_result(self, key: Any, compute: Callable[[], T]) -> T:
        """Return a result that depends only on snapshots, from the cache if possible."""
        found: T | None = self._opened.results.get(key)
        if found is None:
            found = compute()
            self._opened.results.put(key, found)
        return found

    def _array_values(
        self,
        request: Request,
        shown: ShownVersion,
        view: ArrayView,
        layout: PlotLayout,
        source: PlotSource,
        values: Any,
    ) -> dict[str, Any]:
        session = self._opened.versions.session(shown.snapshot_id)
        numbers = (
            source.view.numbers(values)
            if values is not None and layout.kind not in ("none", "table")
            else None
        )
        version = ResolvedVersion(shown.snapshot_id, shown.is_fixed)
        return {
            "array": views.array_summary(view.path, view.document),
            "view": view,
            "layout": layout,
            "sliders": describe_sliders(view, layout),
            "statistics": None if numbers is None else PlotStatistics.of(numbers),
            "table": None if values is None else value_table(source.view, source.layout, values),
            "attributes": views.attribute_rows(view.attributes),
            "chunk_facts": views.chunk_facts(view) if _has_few_chunks(request, view) else None,
            "chunk_count": count_references(view.session, view.node),
            "commits": views.recent_commits(
                self._opened.versions.repo, version, partial(self._has_array, view.path)
            ),
            "contents": views.contents(session),
            "snippets": self._snippets(request, shown, view, layout),
            "source": source,
            "lineage": self._lineage(shown, view),
            "line": describe_line(shown, view, layout, numbers),
            "cell": self._describe_cell(request, shown, view, layout),
            "places": list_places(request, view, layout),
            "chunk": self._chunk(request, shown, view),
            "query_with": partial(query_with, request),
        }

    def _has_array(self, path: str, snapshot_id: str) -> bool:
        """Return True if a snapshot contains an array. This is not checked if storage is slow."""
        versions = self._opened.versions
        if not versions.answers_at_once:
            return True
        node = versions.session(snapshot_id)._workspace.node(path)
        return node is not None and isinstance(node.node_data, ArrayNodeData)

    def _check_statistics(
        self, request: Request, *versions: tuple[ShownVersion, ArrayView]
    ) -> list[ChunkStatistics | None]:
        """Load an array's chunk statistics in some versions, unless it has too many chunks for a page."""
        return [
            self._opened.statistics(shown.snapshot_id, view.path) if _has_few_chunks(request, view) else None
            for shown, view in versions
        ]

    def _lineage(self, shown: ShownVersion, view: ArrayView) -> dict[str, Any]:
        """Describe the inputs of an array, and the arrays derived from it."""
        repo, path = self._opened.versions.repo, view.path
        return self._get_cached_result(
            ("lineage", shown.snapshot_id, path),
            lambda: {
                "origin": lineage_facts(repo, view.session, path),
                "dependents": list_dependents(view.session, path),
            },
        )

    def _describe_cell(
        self, request: Request, shown: ShownVersion, view: ArrayView, layout: PlotLayout
    ) -> dict[str, Any] | None:
        """Describe the selected cell: its value, its series along the first slider, and its history."""
        cell = request.numbers("cell")
        if layout.y is None or layout.x is None or len(cell) != 2:
            return None
        place = list(layout.at)
        place[layout.y], place[layout.x] = cell
        if not all(each < size for each, size in zip(place, view.shape, strict=True)):
            return None  # a cell of a larger version
        at = parse_index(",".join(map(str, place)), view.shape)
        along = next(
            (axis for axis, size in enumerate(view.shape) if axis not in (layout.y, layout.x) and size > 1),
            None,
        )
        commits = iter(self._opened.versions.repo.ancestry(snapshot_id=shown.snapshot_id))
        value, problem = "", ""
        try:
            value = view.texts(view.read(at)).reshape(-1)[0]
        except (RequestError, IcechunkError) as error:  # the origin of the chunk is still useful
            problem = as_request_error(error, self._settings.explain).text
        found: dict[str, Any] = {
            "where": [
                (view.dims[axis], view.coordinate(axis).labels([each])[0]) for axis, each in enumerate(place)
            ],
            "chunk": self._chunk_of(shown, view, at),
            "value": value,
            "problem": problem,
            "history": cell_history(view.path, at, commits, self._opened.view),
            "most_commits": MAX_COMMITS,
            "series": None,
            "partial": "",
        }
        numbers_then = [each.number for each in found["history"]]
        found["bisect"] = bisect_snippet(view, self._settings.location, place, numbers_then)
        if along is not None and not problem:
            series = read_series(view, at, along, self._limits)
            values = [np.nan if each is None else each for each in series["values"]]
            found["series"] = draw_line(values, series["labels"], place[along] - series["first"])
            found["series_name"] = view.dims[along]
            found["series_url"] = series_url(shown, view, place, along)
            if len(values) < view.shape[along]:
                last = series["first"] + len(values) - 1
                what = f"Steps {series['first']} to {last} of {view.shape[along]}"
                found["partial"] = f"{what}: a longer series would decode too much data at once."
        return found

    def _chunk_of(self, shown: ShownVersion, view: ArrayView, at: Any) -> dict[str, Any]:
        """Describe the chunk that contains a cell."""
        coords = tuple(each.start for each in get_stored_grid(view.document).find_touched(at))
        return self._describe_chunk(shown, view, coords)

    def _describe_chunk(
        self, shown: ShownVersion, view: ArrayView, coords: tuple[int, ...]
    ) -> dict[str, Any]:
        known = (shown.snapshot_id, view.path)
        return views.one_chunk(view, coords, self._opened.writers(*known), self._opened.statistics(*known))

    def _chunk(self, request: Request, shown: ShownVersion, view: ArrayView) -> dict[str, Any] | None:
        """Describe the selected chunk."""
        coords = request.numbers("chunk")
        if len(coords) != len(view.shape) or not coords:
            return None
        return self._describe_chunk(shown, view, coords)

    def _snippets(
        self, request: Request, shown: ShownVersion, view: ArrayView, layout: PlotLayout
    ) -> list[Snippet]:
        if not layout.at and view.shape:
            return []
        reading = Reading(
            view,
            layout,
            shown.snapshot_id,
            self._settings.location,
            request.base_url,
            has_token=self._settings.token is not None,
        )
        return reading.snippets()

    def _compare(self, request: Request) -> Response:
        before, after = self._opened.show_both(request.raw[1] if len(request.raw) > 1 else b"")
        path = request.node_path(2)
        one, other = (self._opened.versions.session(each.snapshot_id) for each in (before, after))
        nodes = [each._workspace.node(path) for each in (one, other)]
        if all(node is not None and isinstance(node.node_data, ArrayNodeData) for node in nodes):
            return self._compare_array(request, before, after, path)
        if path != ROOT and nodes == [None, None]:
            raise RequestError(404, f"there is no node {path} in {before.name} or {after.name}")
        changes = self._changes(before.snapshot_id, after.snapshot_id, path)
        return self._render(
            "compare.html",
            after,
            path,
            before=before,
            after=after,
            changes=changes,
            extents=self._extents(before.snapshot_id, after.snapshot_id, changes),
        )

    def _changes(self, before: str, after: str, path: str = ROOT) -> list[NodeChange]:
        """List the nodes that differ between two snapshots."""
        one, other = (self._opened.versions.session(each) for each in (before, after))
        return self._get_cached_result(
            ("compare", before, after, path), lambda: compare_nodes(one, other, path)
        )

    def _extents(self, before: str, after: str, changes: list[NodeChange]) -> dict[str, list[str]]:
        """Format the ranges of changed chunks with coordinate labels, such as `time 2025-04-01 to
        2025-05-30`.
        """
        found = {}
        for change in changes[:_MAX_EXTENTS]:
            if change.extent:
                view = self._opened.view(before if change.status == "removed" else after, change.path)
                try:
                    found[change.path] = [
                        view.coordinate(axis).range_text(*ends) for axis, ends in enumerate(change.extent)
                    ]
                except (RequestError, IcechunkError):  # a coordinate that cannot be read
                    continue
        return found

    def _log(self, request: Request) -> Response:
        shown = self._opened.show(required(request, 1, "a version"))
        path = request.node_path(2)
        view = self._opened.view(shown.snapshot_id, path)
        start = request.query.get("from") or shown.snapshot_id
        history = iter(self._opened.versions.repo.ancestry(snapshot_id=self._opened.show(start).snapshot_id))
        log = read_log(history, path, self._opened.versions.session)
        return self._render(
            "log.html", shown, path, view=view, log=log, array=views.array_summary(path, view.document)
        )

    def _compare_array(
        self, request: Request, before: ShownVersion, after: ShownVersion, path: str
    ) -> Response:
        old, new = self._opened.view(before.snapshot_id, path), self._opened.view(after.snapshot_id, path)
        shape = common_shape(old, new)
        problem, difference, layout = "", None, PlotLayout("none", None, None, ())
        chunks, labels = changed_chunks(old.session, new.session, path), label_chunks(new)
        grown = "" if shape is None or old.shape == new.shape else describe_shapes(before, old, after, new)
        if shape is not None:
            old, new = old.crop(shape), new.crop(shape)
        try:
            chosen = request.numbers("chunk")
            is_drawn = shape is not None and old.is_numeric and new.is_numeric
            key = ("first change", before.snapshot_id, after.snapshot_id, path, chosen)
            first = (
                self._get_cached_result(key, lambda: find_first_change(old, new, chunks, chosen))
                if is_drawn
                else {}
            )
            layout = choose_layout(
                new,
                {**first, **parse_positions(request)},
                request.query.get("y", ""),
                request.query.get("x", ""),
            )
            if shape is None:
                problem = f"{path} has a different number of dimensions in {before.name}"
            elif is_drawn and layout.kind not in ("none", "table"):
                difference = compare_values(old, new, layout.index(new))
        except (RequestError, IcechunkError) as error:
            problem = as_request_error(error, self._settings.explain).text
        scale = find_scale(*self._check_statistics(request, (before, old), (after, new)))
        config = describe_picture(
            after.snapshot_id, new, layout, [PlotSource(new, layout)], self._limits, scale
        )
        config |= {
            "before": before.snapshot_id,
            "changed": outline_changes(new, layout, chunks),
            "chunk_labels": labels,
            "names": [before.name, after.name],
        }
        ids = (before.snapshot_id, after.snapshot_id)
        return self._render(
            "compare_array.html",
            after,
            path,
            **describe_view(request),
            before=before,
            after=after,
            array=views.array_summary(path, new.document),
            view=new,
            layout=layout,
            sliders=describe_sliders(new, layout),
            difference=difference,
            statistics=None if difference is None else PlotStatistics.of(difference.values),
            chunks=chunks,
            config=config,
            problem=problem,
            metadata=tuple(metadata_changes(old.node, new.node)),
            grown=grown,
            differing="" if difference is None else describe_extent(new, layout, difference.unequal),
            tables=None if difference is None else tabulate_difference(new, layout, difference),
            extent=self._extents(*ids, self._changes(*ids, path)).get(path),
            line=describe_line(None, new, layout, None if difference is None else difference.values),
            snippets=comparison_snippets(self._settings.location, *ids, path),
        )

    def _commit(self, request: Request) -> Response:
        shown = self._opened.show(required(request, 1, "a commit"))
        facts = views.commit_facts(self._opened.versions.repo, shown.snapshot_id)
        changes, extents, problem = None, {}, ""
        if facts["parent"]:
            try:
                changes = self._changes(facts["parent"], shown.snapshot_id)
                extents = self._extents(facts["parent"], shown.snapshot_id, changes)
            except IcechunkError as error:
                problem = as_request_error(error, self._settings.explain).text
        return self._render(
            "commit.html", shown, commit=facts, changes=changes, extents=extents, problem=problem
        )

    def _ops(self, request: Request) -> Response:
        page, repo = request.number("page", 1), self._opened.versions.repo
        return self._render(
            "ops.html", None, ops=self._get_cached_facts(("ops", page), lambda: views.operations(repo, page))
        )

    def _storage(self, request: Request) -> Response:
        problem, facts, versions = "", None, self._opened.versions
        try:
            facts = self._get_cached_facts(
                "storage", lambda: views.storage_facts(versions.repo, versions.session)
            )
        except IcechunkError as error:
            problem = as_request_error(error, self._settings.explain).text
        return self._render("storage.html", None, storage=facts, problem=problem)

    def _ledger(self, request: Request) -> Response:
        shown = self._opened.show(request.query.get("version") or "branch:main")
        session = self._opened.versions.session(shown.snapshot_id)
        wanted = request.query.get("file", "")
        ledger = views.ledger_facts(session, wanted, request.number("page", 1))
        open_view = partial(self._opened.view, shown.snapshot_id)
        for row in ledger["rows"]:
            row["covers"] = label_region(open_view, row["arrays"][0], row["box"]) if row["arrays"] else ""
        return self._render("ledger.html", shown, ledger=ledger)

    def _health(self, request: Request) -> Response:
        return self._render(
            "health.html",
            None,
            report=self._get_cached_facts("verified", lambda: views.verify_facts(self._opened.versions.repo)),
            location=self._quoted_location,
        )


def _version_of(error: RequestError, request: Request | None) -> str:
    """Return the version whose contents a user can browse if a node was not found."""
    if request is None or error.status != 404 or request.segments[:1] not in (("array",), ("log",)):
        return ""
    return request.segments[1] if len(request.segments) > 2 else ""


def _has_few_chunks(request: Request, view: ArrayView) -> bool:
    """Return True if an array page should count chunks: there are few of them, or the user requested it."""
    few = count_references(view.session, view.node) <= MAX_CHUNKS_COUNTED
    return few or request.query.get("chunks") == "1"


def _location_name(location: str) -> str:
    return location.rstrip("/)").rpartition("/")[2] or location
