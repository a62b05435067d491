"""The options of a server and the resources that one request may use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True, slots=True)
class Limits:
    """Resources of pages, windows, comparisons and transcoded chunks.

    Stored chunks that are passed on unchanged are streamed, whatever their size.
    """

    decoded_bytes: int = 64 << 20
    """Decoded bytes of all chunks that a request touches, counted before any is decoded."""
    response_bytes: int = 16 << 20
    seconds: float = 30.0
    decoders: int = 2
    """Threads that decode."""
    queued: int = 64
    """Requests that wait for a decoder; further ones are refused."""
    kept_bytes: int = 128 << 20
    """Decoded chunks that are kept for the next request."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of a server."""

    host: str = "127.0.0.1"
    port: int = 0
    token: str | None = None
    """Required in the cookie or as a bearer token; None admits everybody."""
    cors: tuple[str, ...] = ()
    """Origins whose pages may read the gateway."""
    moving: bool = False
    """Serve chunks under versions that can select another snapshot later."""
    limits: Limits = field(default_factory=Limits)
    explain: Callable[[Exception], str] = str
    """Describe an error to users, with the remedies that they have."""
    command: str = "icefloe"
    """How snippets call the command line."""
    location: str = ""
    """The repository as users name it, for snippets; no secrets."""

    @property
    def is_local(self) -> bool:
        """Whether only this machine can connect."""
        return self.host in LOOPBACK
