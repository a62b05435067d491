"""Page templates and their static assets: scripts, styles and the icon."""

from __future__ import annotations

import hashlib
import json
import mimetypes
from functools import cache
from importlib.resources import files
from typing import Any, Final

import jinja2

from icefloe._internal.amounts import counted
from icefloe._internal.paths import LEDGERS, ROOT, get_parent, is_within
from icefloe.charts import COLOUR_MAPS
from icefloe.serve import views
from icefloe.serve.asgi import RequestError
from icefloe.serve.positions import VIEW_NAMES
from icefloe.serve.requests import NO_CACHE, Response

_CONTROLS: Final = {
    code: f"\u27e8U+{code:04X}\u27e9"
    for code in (*range(32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
    if chr(code) not in "\t\n\r"
}


def render(template: str, **values: Any) -> bytes:
    """Render a page template.

    Names can contain lone surrogates, which UTF-8 cannot encode, and characters that control a terminal or
    the text direction. Both are replaced with their code points.
    """
    text = _templates().get_template(template).render(**values)
    return text.translate(_CONTROLS).encode("utf-8", "backslashreplace")


@cache
def static_asset(name: str) -> Response:
    """Return a static asset, such as a script."""
    folder = files("icefloe.serve").joinpath("static")
    known = {each.name for each in folder.iterdir()}
    if name == "colours.js":
        body = f"export const COLOUR_MAPS = {json.dumps(COLOUR_MAPS)};\n".encode()
    elif name in known:
        body = folder.joinpath(name).read_bytes()
    else:
        raise RequestError(404, "file not found")
    kind = "text/javascript" if name.endswith(".js") else mimetypes.guess_type(name)[0] or "text/plain"
    tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'.encode()
    return Response(body, [(b"content-type", kind.encode()), NO_CACHE, (b"etag", tag)])


@cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("icefloe.serve"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["plain"] = lambda value: "-" if value is None else f"{value:.6g}"
    environment.filters["size"] = views.size_text
    environment.tests["ledger"] = lambda path: is_within(path, LEDGERS)
    environment.tests["snapshot_id"] = views.is_snapshot_id
    environment.filters["counted"] = counted
    environment.globals["view_names"] = VIEW_NAMES
    environment.globals["colour_maps"] = [*COLOUR_MAPS]
    environment.globals["parent_of"] = lambda path: get_parent(path) or ROOT
    return environment
