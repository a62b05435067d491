"""The web application, which routes requests, and the server that runs it."""

from __future__ import annotations

import logging
import socket
from typing import Any, Final

import uvicorn

from icefloe.repository import Repository
from icefloe.serve.asgi import Receive, Scope, Send
from icefloe.serve.connections import limit_connections
from icefloe.serve.gateway import Gateway
from icefloe.serve.guard import Guard
from icefloe.serve.pages import pages_app
from icefloe.serve.settings import Settings
from icefloe.serve.versions import Versions, read_only
from icefloe.serve.work import Decoders

_GATEWAY: Final = ("/zarr/", "/icechunk/")
_BACKLOG: Final = 2048


class App:
    """The ASGI application for one repository. It routes requests to the gateway and to the pages.

    Parameters
    ----------
    repo
        The repository. It is reopened so that every write raises an error.
    settings
        The options of the server.
    """

    def __init__(self, repo: Repository, settings: Settings) -> None:
        versions = Versions(read_only(repo))
        self._decoders = Decoders(settings.limits)
        self._gateway = Gateway(versions, settings, self._decoders)
        self._pages = pages_app(versions, settings, self._decoders)
        self._guard = Guard(self._route, settings)
        self.limits = settings.limits
        """The limits on the resources that a request may use."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        await self._guard(scope, receive, send)

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_gateway = scope["type"] == "http" and scope["path"].startswith(_GATEWAY)
        await (self._gateway if is_gateway else self._pages)(scope, receive, send)

    def close(self) -> None:
        """Close the web application, and stop the threads that decode chunks."""
        self._decoders.close()


def bind(host: str, port: int) -> socket.socket:
    """Bind a socket to a port for the web application; 0 picks a free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def server(app: App) -> uvicorn.Server:
    """Create a uvicorn server for the web application. It uses uvloop and httptools if they are installed."""
    config: Any = uvicorn.Config(
        app,
        http=limit_connections(app.limits),
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=1,
        ws="none",
    )
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # the gateway itself logs aborted responses
    return uvicorn.Server(config)
