"""The options of a server and the resources that one request may use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True, slots=True)
class Limits:
    """Resources of pages, windows, comparisons and transcoded chunks.

    Stored chunks that are served unchanged are streamed and have no limit.
    """

    decoded_bytes: int = 64 << 20
    """Decoded bytes of all chunks that a request touches, counted before any is decoded."""
    response_bytes: int = 16 << 20
    seconds: float = 30.0
    decoders: int = 2
    """Number of threads that decode."""
    queued: int = 64
    """Number of requests that may wait for a decoder; further requests are rejected."""
    kept_bytes: int = 128 << 20
    """Bytes of decoded chunks that are cached for later requests."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of a server."""

    host: str = "127.0.0.1"
    port: int = 0
    token: str | None = None
    """The token that requests must contain, as a cookie or bearer token; None admits everyone."""
    cors: tuple[str, ...] = ()
    """Origins whose pages may read the gateway."""
    moving: bool = False
    """Serve chunks under versions that can select another snapshot later."""
    limits: Limits = field(default_factory=Limits)
    explain: Callable[[Exception], str] = str
    """A function that describes an error to users, with the remedies that apply to them."""
    command: str = "icefloe"
    """The name of the command line program in snippets."""
    location: str = ""
    """The location of the repository in snippets, without secrets."""

    @property
    def is_local(self) -> bool:
        """True if only this machine can connect."""
        return self.host in LOOPBACK
