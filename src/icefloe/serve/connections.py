"""Close connections whose clients send or read too slowly, so that they do not exhaust the server."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from icefloe.serve.settings import RequestLimits


def limit_connections(limits: RequestLimits) -> type[asyncio.Protocol]:
    """Create a uvicorn protocol class with timeouts for slow clients."""

    class Connection(AutoHTTPProtocol):  # type: ignore[valid-type,misc]
        """An HTTP connection that is aborted if its client does not finish sending a request, or stops
        reading.
        """

        _unfinished: asyncio.TimerHandle | None = None
        _stalled: asyncio.TimerHandle | None = None

        # docstring inherited
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._unfinished = self.loop.call_later(limits.request_seconds, transport.abort)

        # docstring inherited
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._cancel_deadline()
            elif self._unfinished is None:  # later bytes of the same request do not extend the deadline
                self._unfinished = self.loop.call_later(limits.request_seconds, self.transport.abort)

        # docstring inherited
        def pause_writing(self) -> None:
            super().pause_writing()
            self._stalled = self.loop.call_later(limits.stalled_seconds, self.transport.abort)

        # docstring inherited
        def resume_writing(self) -> None:
            super().resume_writing()
            self._cancel_stalled()

        # docstring inherited
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._cancel_deadline()
            self._cancel_stalled()

        def _cancel_deadline(self) -> None:
            if self._unfinished is not None:
                self._unfinished.cancel()
                self._unfinished = None

        def _cancel_stalled(self) -> None:
            if self._stalled is not None:
                self._stalled.cancel()
                self._stalled = None

    return Connection
