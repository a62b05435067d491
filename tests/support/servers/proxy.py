"""A proxy in front of an HTTP server that loses responses, drops headers, returns errors or waits."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tests.support.servers.loopback import LoopbackServer

_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "upgrade", "proxy-authorization"}


@dataclass
class Request:
    """A request on its way; header names in lower case. A fault may change it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Fault = Callable[[Request], str | None]
"""What to do with a request: None forwards it, possibly changed; else one of the words below.

`lose-answer` forwards it and closes the connection without an answer; `lose-request` closes it without
forwarding; `503` answers with that status.
"""


@dataclass
class Proxy:
    """A running proxy. Set `fault` to inject faults; `seen` records all requests."""

    upstream: str
    url: str = ""
    fault: Fault | None = None
    latency_s: float = 0.0
    seen: list[Request] = field(default_factory=list)


@contextlib.contextmanager
def faulty_proxy(upstream: str) -> Iterator[Proxy]:
    """Yield a proxy on loopback in front of `upstream`, until the context ends."""
    proxy = Proxy(upstream)

    class Handler(_Handler):
        its_proxy = proxy

    server = LoopbackServer(("127.0.0.1", 0), Handler)
    proxy.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(http.server.BaseHTTPRequestHandler):
    its_proxy: Proxy
    protocol_version = "HTTP/1.1"

    def handle_any(self) -> None:
        proxy = self.its_proxy
        length = int(self.headers.get("content-length") or 0)
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.command, self.path, headers, self.rfile.read(length))
        proxy.seen.append(request)
        time.sleep(proxy.latency_s)
        fate = proxy.fault(request) if proxy.fault else None
        if fate == "lose-request":
            self._hang_up()
        elif fate is not None and fate.isdigit():
            self._answer(int(fate), {}, b"")
        else:
            status, answer_headers, body = self._forward(request)
            if fate == "lose-answer":
                self._hang_up()
            else:
                self._answer(status, answer_headers, body)

    def _forward(self, request: Request) -> tuple[int, dict[str, str], bytes]:
        target = urlsplit(self.its_proxy.upstream)
        connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=30)
        headers = {k: v for k, v in request.headers.items() if k not in _HOP_BY_HOP}
        try:
            connection.request(request.method, request.path, request.body or None, headers)
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        length = str(len(body))
        for name, value in headers.items():
            if name.lower() == "content-length":
                length = value if self.command == "HEAD" else length
            elif name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _hang_up(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: object) -> None:
        pass


for _method in ("GET", "PUT", "HEAD", "POST", "DELETE"):
    setattr(_Handler, f"do_{_method}", _Handler.handle_any)
