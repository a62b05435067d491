"""A web server that always responds with the same bytes, and records the headers of every request."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.support.servers.loopback import LoopbackServer

BYTES = bytes([1, 2, 3, 4])


@dataclass
class Recorder:
    """The URL of the server, and the requests that it received."""

    url: str = ""
    requests: list[dict[str, str]] = field(default_factory=list)
    """The headers of each request, their names in small letters."""


@contextlib.contextmanager
def recording_server() -> Iterator[Recorder]:
    """Yield a server on loopback; its URL ends without a slash."""
    state = Recorder()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.requests.append({name.lower(): value for name, value in self.headers.items()})
            self.send_response(206)
            self.send_header("Content-Length", str(len(BYTES)))
            self.send_header("Content-Range", f"bytes 0-{len(BYTES) - 1}/{len(BYTES)}")
            self.send_header("ETag", '"x"')
            self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
            self.end_headers()
            self.wfile.write(BYTES)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with LoopbackServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        state.url = f"http://127.0.0.1:{server.server_port}"
        yield state
        server.shutdown()
        thread.join()
