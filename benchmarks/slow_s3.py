"""Serve a folder over S3 with latency, in a separate process.

The server implements what repositories need: objects, ranges, conditional reads and writes, copies, deletions
and listings. Objects that clients write stay in memory. Real servers on the same machine use more CPU per
request than the client, and would dominate the measurement.
"""

from __future__ import annotations

import asyncio
import atexit
import hashlib
import json
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

LATENCY_S = 0.02
SLOW_S = 0.06
BUCKET = "bucket"

_REASONS = {
    200: "OK",
    204: "No Content",
    206: "Partial Content",
    304: "Not Modified",
    404: "Not Found",
    412: "Precondition Failed",
}
_MISSING = b"<Error><Code>NoSuchKey</Code><Message>none</Message></Error>"
_REFUSED = b"<Error><Code>PreconditionFailed</Code><Message>changed</Message></Error>"
_STATISTICS = "/-/statistics"
_PAGE = 1000


@cache
def start(folder: Path, latency_s: float = LATENCY_S) -> str:
    """Start a server of a folder, which ends with this process, and return its URL."""
    process = subprocess.Popen(
        [sys.executable, __file__, str(folder), str(latency_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(process.kill)
    assert process.stdout is not None
    return process.stdout.readline().strip()


def storage(package: Any, url: str, prefix: str = "repo", client: str = "someone") -> Any:
    """Return the storage of either package for a server, which counts attempts per client."""
    return package.s3_storage(
        bucket=BUCKET,
        prefix=prefix,
        region="us-east-1",
        endpoint_url=url,
        allow_http=True,
        force_path_style=True,
        access_key_id=client,
        secret_access_key="secret",
    )


@dataclass(frozen=True, slots=True)
class Traffic:
    """The requests that a server has received since the last call."""

    requests: dict[str, int]
    """By method and kind of object, such as `PUT manifests`."""
    uploaded: dict[str, int]
    """Bytes by kind of object."""
    attempts: list[int]
    """The number of conditional writes of `repo` for each of them that succeeded, failed ones included."""


def traffic(url: str) -> Traffic:
    """Return the requests since the last call."""
    with urllib.request.urlopen(url + _STATISTICS) as response:
        return Traffic(**json.load(response))


@dataclass(slots=True)
class _Bucket:
    """The objects of the bucket: those of a folder, and those that clients wrote."""

    folder: Path
    written: dict[str, bytes | None] = field(default_factory=dict)
    """By key; None for objects that were deleted."""
    tags: dict[str, str] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    uploaded: Counter[str] = field(default_factory=Counter)
    attempts: list[int] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)
    """Conditional writes of `repo` that failed since the last success, by client."""

    def flush_statistics(self) -> bytes:
        found = {"requests": self.requests, "uploaded": self.uploaded, "attempts": self.attempts}
        self.requests, self.uploaded, self.attempts = Counter(), Counter(), []
        return json.dumps(found).encode()

    def get(self, key: str) -> bytes | None:
        if key in self.written:
            return self.written[key]
        file = self.folder / key
        return file.read_bytes() if file.is_file() else None

    def tag(self, key: str) -> str:
        known = self.tags.get(key) or hashlib.md5(key.encode(), usedforsecurity=False).hexdigest()
        return f'"{known}"'

    def matches(self, key: str, tag: str) -> bool:
        """Compare a tag of a client, with or without quotes."""
        return self.tag(key).strip('"') == tag.strip('"')

    def put(self, key: str, data: bytes) -> None:
        self.written[key] = data
        self.tags[key] = hashlib.md5(data, usedforsecurity=False).hexdigest()

    def keys(self, prefix: str) -> list[str]:
        files = (
            path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file()
        )
        found = {*files, *self.written} - {key for key, data in self.written.items() if data is None}
        return sorted(key for key in found if key.startswith(prefix))


async def _serve(folder: Path, latency_s: float) -> None:
    bucket = _Bucket(folder)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                line, *lines = head.decode("latin-1").split("\r\n")
                method, target, _ = line.split(" ")
                pairs = (each.partition(":") for each in lines if each)
                headers = {name.lower(): value.strip() for name, _, value in pairs}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                if target != _STATISTICS:
                    # Half before and half after the effect, as on a network.
                    await asyncio.sleep(latency_s / 2)
                answer = _answer(bucket, method, target, headers, body)
                if target != _STATISTICS:
                    await asyncio.sleep(latency_s / 2)
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    threading.Thread(
        target=lambda: (sys.stdin.read(), loop.call_soon_threadsafe(ended.set)), daemon=True
    ).start()
    await ended.wait()  # the parent process has ended


def _answer(bucket: _Bucket, method: str, target: str, headers: dict[str, str], body: bytes) -> bytes:
    url = urlsplit(target)
    if target == _STATISTICS:
        return _message(200, bucket.flush_statistics(), method, {})
    if "list-type" in url.query:
        bucket.requests["LIST"] += 1
        return _message(200, _list(bucket, parse_qs(url.query)), method, {})
    key = unquote(url.path).removeprefix(f"/{BUCKET}/")
    kind = key.split("/")[-2] if key.count("/") > 1 else key.rpartition("/")[2]
    bucket.requests[f"{method} {kind}"] += 1
    if method == "POST":  # ?delete
        tree = ElementTree.fromstring(body)
        keys = [each.text or "" for each in tree.iter() if each.tag.endswith("Key")]
        bucket.written.update(dict.fromkeys(keys))
        return _message(200, b"<DeleteResult/>", method, {})
    if method == "DELETE":
        bucket.written[key] = None
        return _message(204, b"", method, {})
    if method == "PUT":
        return _put(bucket, key, kind, headers, body)
    return _get(bucket, key, method, headers)


def _put(bucket: _Bucket, key: str, kind: str, headers: dict[str, str], body: bytes) -> bytes:
    old = bucket.get(key)
    wanted = headers.get("if-match")
    if (wanted and (old is None or not bucket.matches(key, wanted))) or (
        "if-none-match" in headers and old is not None
    ):
        bucket.failed[_client(headers)] += 1
        return _message(412, _REFUSED, "PUT", {})
    if wanted:
        bucket.attempts.append(bucket.failed.pop(_client(headers), 0) + 1)
    source = headers.get("x-amz-copy-source")
    if source is not None:
        origin = unquote(source).lstrip("/").removeprefix(f"{BUCKET}/")
        data = bucket.get(origin)
        expected = headers.get("x-amz-copy-source-if-match")
        if data is None:
            return _message(404, _MISSING, "PUT", {})
        if expected and not bucket.matches(origin, expected):
            return _message(412, _REFUSED, "PUT", {})
        bucket.put(key, data)
        tag = escape(bucket.tag(key))
        text = f"<ETag>{tag}</ETag><LastModified>2026-01-01T00:00:00Z</LastModified>"
        return _message(200, f"<CopyObjectResult>{text}</CopyObjectResult>".encode(), "PUT", {})
    bucket.uploaded[kind] += len(body)
    bucket.put(key, body)
    return _message(200, b"", "PUT", {"ETag": bucket.tag(key)})


def _client(headers: dict[str, str]) -> str:
    """Return the access key of a signed request."""
    return headers.get("authorization", "").partition("Credential=")[2].partition("/")[0]


def _get(bucket: _Bucket, key: str, method: str, headers: dict[str, str]) -> bytes:
    data = bucket.get(key)
    if data is None:
        return _message(404, _MISSING, method, {})
    tag = bucket.tag(key)
    fields = {"ETag": tag, "Last-Modified": formatdate(usegmt=True), "Accept-Ranges": "bytes"}
    if "if-none-match" in headers and bucket.matches(key, headers["if-none-match"]):
        return _message(304, b"", method, fields)
    if "if-match" in headers and not bucket.matches(key, headers["if-match"]):
        return _message(412, _REFUSED, method, fields)
    wanted = headers.get("range", "").removeprefix("bytes=")
    if not wanted:
        return _message(200, data, method, fields)
    first, _, last = wanted.partition("-")
    start = int(first) if first else max(len(data) - int(last), 0)
    end = min(int(last) + 1, len(data)) if first and last else len(data)
    fields["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
    return _message(206, data[start:end], method, fields)


def _list(bucket: _Bucket, query: dict[str, list[str]]) -> bytes:
    prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
    after = query.get("continuation-token", query.get("start-after", [""]))[0]
    groups: dict[str, bool] = {}
    for key in bucket.keys(prefix):
        end = key.find(delimiter, len(prefix)) if delimiter else -1
        groups[key if end < 0 else key[: end + 1]] = end >= 0
    names = [name for name in groups if name > after]
    parts = [
        f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
        if groups[name]
        else f"<Contents><Key>{escape(name)}</Key><Size>{len(bucket.get(name) or b'')}</Size>"
        f"<ETag>{escape(bucket.tag(name))}</ETag><LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"
        for name in names[:_PAGE]
    ]
    more = len(names) > _PAGE
    if more:
        parts.append(f"<NextContinuationToken>{escape(names[_PAGE - 1])}</NextContinuationToken>")
    head = f"<Name>{BUCKET}</Name><KeyCount>{len(parts)}</KeyCount>"
    head += f"<IsTruncated>{str(more).lower()}</IsTruncated>"
    return f"<ListBucketResult>{head}{''.join(parts)}</ListBucketResult>".encode()


def _message(status: int, body: bytes, method: str, fields: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {_REASONS[status]}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + (b"" if method == "HEAD" else body)


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), float(sys.argv[2])))
