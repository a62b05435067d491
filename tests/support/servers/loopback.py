"""The base of HTTP servers on loopback."""

from __future__ import annotations

import http.server


class LoopbackServer(http.server.ThreadingHTTPServer):
    """A threaded HTTP server that accepts many connections at once.

    The default backlog of five drops the rest of a burst of connections. Linux lets their clients believe
    that they are connected, so a request waits for its whole timeout.
    """

    request_queue_size = 128
    daemon_threads = True
