"""Page requests and responses, and the versions and arrays that they open."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, unquote_to_bytes

import numpy as np

from icefloe._internal.paths import normalize
from icefloe.comparison.blame import Blame, blame
from icefloe.core.chunk_grid import get_stored_grid
from icefloe.errors import InvalidInputError, NotFoundError
from icefloe.maintenance.statistics.lookup import ChunkStatistics, load_statistics
from icefloe.serve.asgi import Headers, RequestError, Scope, header
from icefloe.serve.settings import Settings
from icefloe.serve.versions import ResultCache, Versions
from icefloe.serve.windows import ArrayView, DecodedChunks, Index

HTML: Final = (b"content-type", b"text/html; charset=utf-8")
JSON: Final = (b"content-type", b"application/json")
BYTES: Final = (b"content-type", b"application/octet-stream")
NO_CACHE: Final = (b"cache-control", b"no-cache")
_MAX_COMMITS: Final = 1000
"""The maximum number of commits to search for the one that wrote a chunk."""
_MAX_DESCRIBED: Final = 2_000_000
"""The maximum number of chunks in an array for which statistics are loaded: about 100 MB."""
IMMUTABLE: Final = (b"cache-control", b"private, max-age=31536000, immutable")


@dataclass(frozen=True, slots=True)
class Request:
    """A request for a page or its data: the parsed path and query."""

    segments: tuple[str, ...]
    """The decoded segments of the path."""
    raw: tuple[bytes, ...]
    """The path segments as sent, still percent-encoded."""
    query: Mapping[str, str]
    base_url: str

    def number(self, name: str, default: int = 0) -> int:
        """Return a number from the query."""
        number = parse_number(self.query.get(name, ""))
        return default if number is None else number

    def numbers(self, name: str) -> tuple[int, ...]:
        """Return numbers from the query, such as `cell=3,5`; empty if they are invalid."""
        found = [parse_number(each) for each in self.query.get(name, "").split(",")]
        return tuple(each for each in found if each is not None) if None not in found else ()

    def node_path(self, after: int) -> str:
        """Return the node path that follows the first segments of the request path."""
        return normalize("/" + "/".join(self.segments[after:]))


@dataclass(frozen=True, slots=True)
class Response:
    """A complete HTTP response."""

    body: bytes
    headers: Headers
    status: int = 200


@dataclass(frozen=True, slots=True)
class ShownVersion:
    """A requested version, and the snapshot that it currently selects."""

    name: str
    snapshot_id: str
    is_fixed: bool

    @property
    def label(self) -> str:
        """The label of this version: without its prefix, and shortened if it is a snapshot id."""
        short = self.name[:8] if self.name == self.snapshot_id else self.name
        return short.removeprefix("branch:").removeprefix("tag:")

    @property
    def branch(self) -> str:
        """The branch of this version, if the page announces new commits on it."""
        return "" if self.is_fixed or set("~@") & set(self.name) else self.name.removeprefix("branch:")


class OpenVersions:
    """The versions and arrays that page requests use. They stay open for later requests.

    Parameters
    ----------
    versions
        The versions of the repository.
    settings
        The options of the server.
    """

    def __init__(self, versions: Versions, settings: Settings) -> None:
        self.versions = versions
        self.repo = versions.repo
        self.limits = settings.limits
        self.results: ResultCache[Any] = ResultCache(64)
        """A cache of comparisons and chunk maps."""
        self._kept = DecodedChunks(settings.limits.kept_bytes, settings.limits.decoders)
        self._views: ResultCache[ArrayView] = ResultCache(64)
        self._check_statistics: ResultCache[tuple[ChunkStatistics | None]] = ResultCache(2)

    def show(self, text: str) -> ShownVersion:
        try:
            found = self.versions.resolve(text)
        except NotFoundError as error:
            raise RequestError(410, error.message) from None
        except InvalidInputError as error:
            raise RequestError(409, error.message) from None
        return ShownVersion(text, found.snapshot_id, found.is_fixed)

    def view(self, snapshot_id: str, path: str) -> ArrayView:
        found = self._views.get((snapshot_id, path))
        if found is None:
            session = self.versions.session(snapshot_id)
            found = self._views.put((snapshot_id, path), ArrayView(session, path, self.limits, self._kept))
        return found

    def writers(self, snapshot_id: str, path: str) -> Blame:
        """Find the commit that wrote each chunk of an array."""
        key = ("writers", snapshot_id, path)
        found: Blame | None = self.results.get(key)
        if found is None:
            found = blame(self.repo, path, snapshot_id=snapshot_id, limit=_MAX_COMMITS)
            self.results.put(key, found)
        return found

    def statistics(self, snapshot_id: str, path: str) -> ChunkStatistics | None:
        """Find the chunk statistics of an array. Return None if it has none, or too many chunks to load
        them.
        """
        if math.prod(get_stored_grid(self.view(snapshot_id, path).document).counts) > _MAX_DESCRIBED:
            return None
        key = (snapshot_id, path)
        found = self._check_statistics.get(key)
        if found is None:
            session = self.versions.session(snapshot_id)
            found = self._check_statistics.put(key, (load_statistics(session, path),))
        return found[0]

    def show_both(self, raw: bytes) -> tuple[ShownVersion, ShownVersion]:
        """Resolve the two versions that a comparison request names."""
        one, dots, other = raw.partition(b"...")
        if not dots or not one or not other:
            raise RequestError(404, "the URL lacks a version: expected two, such as /compare/v1...main")
        return self.show(unquote_to_bytes(one).decode()), self.show(unquote_to_bytes(other).decode())


def parse_number(text: str) -> int | None:
    """Parse a number from a query. Return None if it is invalid or too long."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else None


def parse_request(scope: Scope) -> Request:
    """Parse the path and query of a request."""
    path = scope.get("raw_path") or scope["path"].encode()
    raw = tuple(each for each in path.split(b"/") if each)
    try:
        segments = tuple(unquote_to_bytes(each).decode() for each in raw)
    except UnicodeDecodeError:
        raise RequestError(400, "the URL is not UTF-8") from None
    query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
    host = (header(scope, b"host") or b"").decode("latin-1")
    base = f"{scope.get('scheme', 'http')}://{host}"
    return Request(segments, raw, query, base)


def required(request: Request, at: int, what: str) -> str:
    """Return a segment of the request path. Raise an error if it is missing."""
    if len(request.segments) <= at:
        raise RequestError(404, f"the URL lacks {what}")
    return request.segments[at]


def required_raw(request: Request, at: int) -> bytes:
    """Return a segment of the request path, still encoded. Raise an error if it is missing."""
    required(request, at, "a version")
    return request.raw[at]


def check_response(index: Index, item: int, most: int) -> None:
    """Raise an error if the response to a window request would be too large."""
    cells = int(np.prod([len(range(p.start, p.stop, p.step)) for p in index], dtype=object))
    if cells * item > most:
        raise RequestError(413, f"{cells} values are too many for one response; request a smaller window")


def meta_header(value: Any) -> tuple[bytes, bytes]:
    """Create a response header that describes the binary data in the body."""
    return (b"x-icefloe-meta", json.dumps(value, allow_nan=False).encode())


def json_response(value: Any, headers: Headers) -> Response:
    """Create a JSON response to a data request."""
    body = json.dumps(value, allow_nan=False, ensure_ascii=True).encode()
    return Response(body, [JSON, *headers])


def request_has(scope: Scope, response: Response) -> bool:
    """Return True if the client already has this response in its cache."""
    e_tag = next((value for name, value in response.headers if name == b"etag"), None)
    return e_tag is not None and header(scope, b"if-none-match") == e_tag
