"""Clients that send or read too slowly."""

from __future__ import annotations

import socket
import time
from http.client import HTTPConnection

import httpx
import numpy as np
import pytest

from icefloe.serve.settings import RequestLimits
from tests.support.serve import memory_repository, serving


def _connect(client: httpx.Client) -> socket.socket:
    return socket.create_connection((client.base_url.host, client.base_url.port or 80), timeout=10)


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n"])
def test_a_client_that_does_not_finish_its_request_is_disconnected(sent: bytes) -> None:
    repo = memory_repository(np.zeros(4), (2,))
    with serving(repo, limits=RequestLimits(request_seconds=0.2)) as client, _connect(client) as connection:
        connection.sendall(sent)

        assert _is_disconnected(connection)
        assert client.get("/").status_code == 200


def test_an_idle_connection_stays_open_between_requests() -> None:
    repo = memory_repository(np.zeros(4), (2,))
    with serving(repo, limits=RequestLimits(request_seconds=0.1)) as client:
        connection = HTTPConnection(client.base_url.host, client.base_url.port or 80)
        connection.connect()
        socket_used = connection.sock
        for _ in range(2):
            connection.request("GET", "/static/page.css")
            assert connection.getresponse().read()
            time.sleep(0.3)

        assert connection.sock is socket_used
        connection.close()


def test_a_response_that_nobody_reads_is_given_up() -> None:
    size = 32 << 20
    repo = memory_repository(np.ones(size, "u1"), (size,), compressors=None, filters=None)
    id = repo.lookup_branch("main")
    with serving(repo, limits=RequestLimits(stalled_seconds=0.1)) as client, _connect(client) as connection:
        connection.sendall(f"GET /zarr/{id}/a/c/0 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        time.sleep(0.7)

        received = sum(map(len, iter(lambda: connection.recv(1 << 20), b"")))

    assert 0 < received < size


def _is_disconnected(connection: socket.socket) -> bool:
    """Send a byte from time to time, until the server closes the connection."""
    for _ in range(100):
        time.sleep(0.02)
        try:
            connection.sendall(b"x")
        except ConnectionError:
            return True
    return False
