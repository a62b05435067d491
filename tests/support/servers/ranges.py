"""A web server for ranges of files in memory, which counts requests and can simulate faults."""

from __future__ import annotations

import contextlib
import http.server
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import unquote

from tests.support.servers.loopback import LoopbackServer

NEWER = "Wed, 15 Nov 2023 22:13:20 GMT"


@dataclass
class RangeServer:
    """The files of the server, and the requests that it received."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    """By path, without the first slash."""
    etags: dict[str, str] = field(default_factory=dict)
    modified: dict[str, str] = field(default_factory=dict)
    """HTTP dates."""
    redirects: dict[str, str] = field(default_factory=dict)
    answers: list[str] = field(default_factory=list)
    """What to do with the next requests, in their order: `503`, `hang up`, `cut short`, `whole file`, `wrong
    range`, `newer`, for a file that was changed; anything else and from then on as usual."""
    latency_s: float = 0.0
    asked: list[tuple[str, int, int]] = field(default_factory=list)
    """Path, first byte and end of every request for a range."""
    connections: int = 0


@contextlib.contextmanager
def range_server() -> Iterator[RangeServer]:
    """Yield a server on loopback; its URL ends without a slash."""
    state = RangeServer()

    class Handler(_Handler):
        server_state = state

    server = LoopbackServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(http.server.BaseHTTPRequestHandler):
    server_state: RangeServer
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.server_state.connections += 1

    def do_GET(self) -> None:
        state = self.server_state
        time.sleep(state.latency_s)
        path = unquote(self.path).lstrip("/")
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        start, stop = (int(asked[1]), int(asked[2]) + 1) if asked else (0, 0)
        state.asked.append((path, start, stop))
        how = state.answers.pop(0) if state.answers else ""
        if how == "hang up":
            self.close_connection = True
        elif how == "503":
            self._answer(503, b"", {})
        elif path in state.redirects:
            self._answer(302, b"", {"Location": state.redirects[path]})
        elif path not in state.files:
            self._answer(404, b"", {})
        else:
            self._send_range(path, start, stop, how)

    def _send_range(self, path: str, start: int, stop: int, how: str) -> None:
        state, data = self.server_state, self.server_state.files[path]
        headers = {}
        if path in state.etags:
            headers["ETag"] = state.etags[path]
        if path in state.modified:
            headers["Last-Modified"] = state.modified[path]
        if how == "newer":
            headers["Last-Modified"] = NEWER
        stop = min(stop, len(data))
        if start >= len(data):
            self._answer(416, b"", {**headers, "Content-Range": f"bytes */{len(data)}"})
        elif how == "whole file":
            self._answer(200, data, headers)
        else:
            first = 0 if how == "wrong range" else start
            headers["Content-Range"] = f"bytes {first}-{stop - 1}/{len(data)}"
            body = data[first:stop]
            self._answer(206, body, headers, sent=len(body) // 2 if how == "cut short" else None)

    def _answer(self, status: int, body: bytes, headers: dict[str, str], sent: int | None = None) -> None:
        self.send_response_only(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[:sent])
        if sent is not None:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass
