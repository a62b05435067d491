"""The pages."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from icefloe.serve.settings import Settings
from icefloe.serve.versions import Versions
from icefloe.serve.work import Decoders


def pages_app(versions: Versions, settings: Settings, decoders: Decoders) -> Starlette:
    """Create the application that answers everything except the gateway."""

    async def home(request: Request) -> Response:
        return PlainTextResponse("icefloe\n")

    return Starlette(routes=[Route("/", home)])
