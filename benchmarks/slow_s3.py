"""Serve a folder over S3 with latency, in a separate process.

The server implements only reads: objects, ranges and conditional requests. Real servers on the same machine
use more CPU per request than the reader, and would dominate the measurement.
"""

from __future__ import annotations

import asyncio
import atexit
import hashlib
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

LATENCY_S = 0.02
BUCKET = "bucket"

_REASONS = {200: "OK", 206: "Partial Content", 304: "Not Modified", 404: "Not Found"}
_MISSING = b"<Error><Code>NoSuchKey</Code><Message>none</Message></Error>"
_EMPTY_LIST = b"<ListBucketResult><Name>bucket</Name><KeyCount>0</KeyCount></ListBucketResult>"
_MODIFIED = "Mon, 16 Nov 2026 00:00:00 GMT"


@cache
def start(folder: Path) -> str:
    """Start a server of a folder, which ends with this process, and return its URL."""
    process = subprocess.Popen(
        [sys.executable, __file__, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(process.kill)
    assert process.stdout is not None
    return process.stdout.readline().strip()


async def _serve(folder: Path) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                line, *lines = head.decode("latin-1").split("\r\n")
                method, target, _ = line.split(" ")
                pairs = (each.partition(":") for each in lines if each)
                headers = {name.lower(): value.strip() for name, _, value in pairs}
                await asyncio.sleep(LATENCY_S)
                writer.write(_answer(folder, method, target, headers))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    threading.Thread(
        target=lambda: (sys.stdin.read(), loop.call_soon_threadsafe(ended.set)), daemon=True
    ).start()
    await ended.wait()  # the parent process has ended


def _answer(folder: Path, method: str, target: str, headers: dict[str, str]) -> bytes:
    url = urlsplit(target)
    if "list-type" in url.query:
        return _message(200, _EMPTY_LIST, method, {})
    file = folder / unquote(url.path).removeprefix(f"/{BUCKET}/")
    if not file.is_file():
        return _message(404, _MISSING, method, {})
    data = file.read_bytes()
    tag = f'"{hashlib.md5(str(file).encode(), usedforsecurity=False).hexdigest()}"'
    fields = {"ETag": tag, "Last-Modified": _MODIFIED, "Accept-Ranges": "bytes"}
    if headers.get("if-none-match") == tag:
        return _message(304, b"", method, fields)
    wanted = headers.get("range", "").removeprefix("bytes=")
    if not wanted:
        return _message(200, data, method, fields)
    first, _, last = wanted.partition("-")
    start = int(first) if first else max(len(data) - int(last), 0)
    end = min(int(last) + 1, len(data)) if first and last else len(data)
    fields["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
    return _message(206, data[start:end], method, fields)


def _message(status: int, body: bytes, method: str, fields: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {_REASONS[status]}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + (b"" if method == "HEAD" else body)


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
