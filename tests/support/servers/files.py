"""A plain web server that serves a folder with ranges, and one that redirects."""

from __future__ import annotations

import contextlib
import http.server
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from tests.support.servers.loopback import LoopbackServer


@contextlib.contextmanager
def file_server(folder: Path, redirects: dict[str, str] | None = None) -> Iterator[str]:
    """Run a server for a folder, and yield its URL. Paths in `redirects` redirect to these locations."""

    class Handler(_Handler):
        root = folder
        locations = redirects or {}

    server = LoopbackServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(http.server.BaseHTTPRequestHandler):
    root: Path
    locations: dict[str, str]
    protocol_version = "HTTP/1.1"

    def do_PROPFIND(self) -> None:  # the name http.server calls
        self._answer(405, b"", {"Allow": "GET, HEAD"})

    def handle_any(self) -> None:
        location = self.locations.get(self.path)
        if location is not None:
            self._answer(302, b"", {"Location": location})
            return
        file = self.root / unquote(self.path).lstrip("/")
        if not file.is_file():
            self._answer(404, b"", {})
            return
        data = file.read_bytes()
        headers = {"ETag": f'"{hash(data)}"', "Last-Modified": self.date_time_string(file.stat().st_mtime)}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if asked is None:
            self._answer(200, data, headers)
            return
        start, stop = int(asked[1]), min(int(asked[2] or len(data)) + 1, len(data))
        if start >= len(data):
            self._answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            return
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        self._answer(206, data[start:stop], headers)

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response_only(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


for _method in ("GET", "HEAD"):
    setattr(_Handler, f"do_{_method}", _Handler.handle_any)
