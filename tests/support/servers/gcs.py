"""A small server with the part of the XML API of Google Cloud Storage that obstore uses, in memory."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import itertools
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import ClassVar
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.support.servers.loopback import LoopbackServer

TOKEN = "hunter2-bearer-token"


@dataclass
class _Object:
    data: bytes
    generation: int
    modified: float = field(default_factory=time.time)

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.data, usedforsecurity=False).hexdigest()}-{self.generation}"'


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    objects: ClassVar[dict[str, _Object]]
    bucket: ClassVar[str]
    generations: ClassVar[Iterator[int]]
    changing: ClassVar[threading.Lock]

    def handle_one_request(self) -> None:
        with contextlib.suppress(ConnectionResetError):
            super().handle_one_request()

    def do_GET(self) -> None:
        if (key := self._key()) is None:
            return
        if not key:
            self._list()
            return
        found = self.objects.get(key)
        if found is None:
            self._refuse(404, "NoSuchKey")
            return
        if (wanted := self.headers.get("If-Match")) and wanted != found.etag:
            self._refuse(412, "PreconditionFailed")
            return
        if self.headers.get("If-None-Match") == found.etag:
            self._answer(304, b"", found)
            return
        data, status, extra = found.data, 200, {}
        if (given := self.headers.get("Range", "")).startswith("bytes="):
            first, _, last = given.removeprefix("bytes=").partition("-")
            size = len(data)
            start = int(first) if first else max(0, size - int(last))
            stop = min(size, int(last) + 1) if first and last else size
            if start >= size:
                self._refuse(416, "InvalidRange")
                return
            data, status, extra = data[start:stop], 206, {"Content-Range": f"bytes {start}-{stop - 1}/{size}"}
        self._answer(status, data, found, extra)

    do_HEAD = do_GET  # noqa: N815

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not (key := self._key()):
            return
        if origin := self.headers.get("x-goog-copy-source"):
            copied = self.objects.get(unquote(origin).partition("/")[2])
            if copied is None:
                self._refuse(404, "NoSuchKey")
                return
            body = copied.data
        with self.changing:
            before = self.objects.get(key)
            wanted = self.headers.get("x-goog-if-generation-match")
            if wanted is not None and int(wanted) != (before.generation if before else 0):
                self._refuse(412, "PreconditionFailed")
                return
            stored = self.objects[key] = _Object(body, next(self.generations))
        self._answer(200, b"", stored)

    def do_DELETE(self) -> None:
        if key := self._key():
            if self.objects.pop(key, None) is None:
                self._refuse(404, "NoSuchKey")
            else:
                self._answer(204, b"")

    def _key(self) -> str | None:
        """Return the key of the request, empty for the bucket, or None if the request was refused."""
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._refuse(401, "AuthenticationRequired")
            return None
        bucket, _, key = unquote(urlsplit(self.path).path.lstrip("/")).partition("/")
        if bucket != self.bucket:
            self._refuse(404, "NoSuchBucket")
            return None
        return key

    def _list(self) -> None:
        query = {name: values[-1] for name, values in parse_qs(urlsplit(self.path).query).items()}
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        after = query.get("continuation-token") or query.get("start-after") or ""
        rows: list[str] = []
        folders = set()
        last = more = ""
        for key, found in sorted(self.objects.items()):
            if not key.startswith(prefix) or key <= after:
                continue
            below = key.removeprefix(prefix)
            if delimiter and delimiter in below:
                folders.add(prefix + below.partition(delimiter)[0] + delimiter)
                continue
            if len(rows) == int(query.get("max-keys", 1000)):
                more = "<IsTruncated>true</IsTruncated>"
                more += f"<NextContinuationToken>{escape(last)}</NextContinuationToken>"
                break
            last = key
            moment = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(found.modified))
            rows.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>{moment}</LastModified>"
                f"<ETag>{escape(found.etag)}</ETag><Size>{len(found.data)}</Size></Contents>"
            )
        shared = "".join(
            f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in sorted(folders)
        )
        self._answer(200, f"<ListBucketResult>{''.join(rows)}{shared}{more}</ListBucketResult>".encode())

    def _answer(
        self, status: int, data: bytes, found: _Object | None = None, extra: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        headers = {"Content-Length": str(len(data)), **(extra or {})}
        if found is not None:
            headers |= {"ETag": found.etag, "x-goog-generation": str(found.generation)}
            headers |= {"Last-Modified": formatdate(found.modified, usegmt=True)}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _refuse(self, status: int, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextlib.contextmanager
def gcs_server(bucket: str) -> Iterator[str]:
    """Run a server with one bucket on loopback, and yield its URL."""
    names = {"objects": {}, "bucket": bucket, "generations": itertools.count(1), "changing": threading.Lock()}
    handler = type("Handler", (_Handler,), names)
    with LoopbackServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
