"""Check the host, method and token of every request, and add security headers to every response."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from icefloe.serve.asgi import NO_STORE, Headers, Message, Receive, Scope, Send, header, respond
from icefloe.serve.settings import LOOPBACK, Settings

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
OPEN_TO_CORS: Final = ("/zarr", "/icechunk")
_SECURITY: Final[Headers] = [
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
]
_SAME_ORIGIN: Final = (b"cross-origin-resource-policy", b"same-origin")
_CROSS_ORIGIN: Final = (b"cross-origin-resource-policy", b"cross-origin")
_TEXT: Final = (b"content-type", b"text/plain; charset=utf-8")
_METHODS: Final = ("GET", "HEAD")
_ALLOW: Final = (b"allow", b"GET, HEAD")
_READABLE: Final = b"Accept-Ranges, Content-Length, Content-Range, ETag, X-Icefloe-Snapshot"
_NO_TOKEN: Final = (
    b"open the URL that `icefloe serve` printed, or send its token as `Authorization: Bearer TOKEN`\n"
)


class Guard:
    """ASGI middleware that checks every request and adds security headers to every response.

    Parameters
    ----------
    app
        The application that handles admitted requests.
    settings
        The options of the server.
    """

    def __init__(self, app: Any, settings: Settings) -> None:
        self._app = app
        self._token = settings.token
        self._cors = frozenset(settings.cors)
        self._any_address = not settings.is_local and _is_unspecified(settings.host)
        self._hosts = LOOPBACK | {settings.host.lower()}
        if self._any_address:
            self._hosts |= {socket.gethostname().lower(), socket.getfqdn().lower()}
        self._known_hosts: dict[bytes, bool] = {}
        self._cookie = f"icefloe-{settings.port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, and pass it to the application if it is admitted."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        extra = self._headers(scope)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *extra]
            await send(message)

        head = scope["method"] == "HEAD"
        if not self._is_known_host(header(scope, b"host") or b""):
            body = b"this server does not answer to that host name\n"
            await respond(send_with_headers, 421, body, [_TEXT, NO_STORE], head=head)
        elif scope["method"] == "OPTIONS" and self._allowed_origin(scope) is not None:
            await respond(send_with_headers, 204, b"", self._preflight(scope))
        elif scope["method"] not in _METHODS:
            body = b"this server only reads: GET and HEAD\n"
            await respond(send_with_headers, 405, body, [_ALLOW, _TEXT, NO_STORE])
        elif self._token is None or self._is_authenticated(scope):
            await self._app(scope, receive, send_with_headers)
        elif self._has_token_in_url(scope):
            await respond(send_with_headers, 303, b"", self._cookie_headers(scope), head=head)
        else:
            challenge = (b"www-authenticate", b'Bearer realm="icefloe"')
            await respond(send_with_headers, 401, _NO_TOKEN, [challenge, _TEXT, NO_STORE], head=head)

    def _headers(self, scope: Scope) -> Headers:
        """Return security headers for a response, including CORS headers for requests from other origins."""
        if not self._cors:
            return [*_SECURITY, _SAME_ORIGIN]
        origin = self._allowed_origin(scope)
        if origin is None:
            return [*_SECURITY, _SAME_ORIGIN, (b"vary", b"Origin")]
        readable = (b"access-control-expose-headers", _READABLE)
        return [
            *_SECURITY,
            _CROSS_ORIGIN,
            (b"vary", b"Origin"),
            (b"access-control-allow-origin", origin),
            readable,
        ]

    def _allowed_origin(self, scope: Scope) -> bytes | None:
        if not self._cors or not scope["path"].startswith(OPEN_TO_CORS):
            return None
        if "*" in self._cors:
            return b"*"
        origin = header(scope, b"origin")
        return origin if origin is not None and origin.decode("latin-1") in self._cors else None

    @staticmethod
    def _preflight(scope: Scope) -> Headers:
        asked = header(scope, b"access-control-request-private-network")
        private = [(b"access-control-allow-private-network", b"true")] if asked == b"true" else []
        return [
            (b"access-control-allow-methods", b"GET, HEAD"),
            (b"access-control-allow-headers", b"Authorization, Range, If-None-Match, If-Range"),
            (b"access-control-max-age", b"600"),
            *private,
        ]

    def _is_known_host(self, host: bytes) -> bool:
        known = self._known_hosts.get(host)
        if known is None:
            known = self._check_host(host.decode("latin-1"))
            if len(self._known_hosts) < 256:
                self._known_hosts[host] = known
        return known

    def _check_host(self, text: str) -> bool:
        """Reject host names that an attacker's DNS server could point to this machine (DNS rebinding)."""
        name = text.rsplit(":", 1)[0] if text.rpartition(":")[2].isdigit() else text
        name = name.removeprefix("[").removesuffix("]").lower().rstrip(".")
        return name in self._hosts or (self._any_address and _is_address(name))

    def _is_authenticated(self, scope: Scope) -> bool:
        bearer = header(scope, b"authorization") or b""
        if bearer[:7].lower() == b"bearer " and self._is_token(bearer[7:].strip().decode("latin-1")):
            return True
        try:
            cookies = SimpleCookie((header(scope, b"cookie") or b"").decode("latin-1"))
        except CookieError:
            return False
        return self._cookie in cookies and self._is_token(cookies[self._cookie].value)

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), (self._token or "").encode())

    def _has_token_in_url(self, scope: Scope) -> bool:
        return any(name == "token" and self._is_token(value) for name, value in _query(scope))

    def _cookie_headers(self, scope: Scope) -> Headers:
        """Return headers that store the token in a cookie and redirect to the same URL without the token."""
        rest = urlencode([pair for pair in _query(scope) if pair[0] != "token"])
        path: bytes = scope.get("raw_path") or scope["path"].encode()
        path = b"/" + path.lstrip(b"/\\")  # `//host` would redirect to another server
        cookie = f"{self._cookie}={self._token}; HttpOnly; SameSite=Strict; Path=/"
        return [
            (b"location", path + (f"?{rest}".encode() if rest else b"")),
            (b"set-cookie", cookie.encode()),
            NO_STORE,
        ]


def _query(scope: Scope) -> list[tuple[str, str]]:
    return parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)


def _is_unspecified(host: str) -> bool:
    return _is_address(host) and ipaddress.ip_address(host).is_unspecified


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
