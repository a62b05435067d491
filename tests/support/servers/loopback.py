"""The base of HTTP servers on loopback."""

from __future__ import annotations

import http.server
import socket


class LoopbackServer(http.server.ThreadingHTTPServer):
    """A threaded HTTP server that accepts many connections at once and answers without delay.

    The default backlog of five drops the rest of a burst of connections. Linux lets their clients believe
    that they are connected, so a request waits for its whole timeout. Headers and body are sent separately,
    so Nagle's algorithm would hold back each body until the client acknowledges the headers, 40 ms later.
    """

    request_queue_size = 128
    daemon_threads = True

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        """Accept a connection and send what is written to it at once."""
        connection, address = super().get_request()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection, address
