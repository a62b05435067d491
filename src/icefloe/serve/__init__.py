"""Serve a web page for a repository, and any of its versions as plain Zarr over HTTP.

Requires the packages installed by `icefloe[serve]`.
"""

from __future__ import annotations

import secrets
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from icefloe.repository import Repository

if TYPE_CHECKING:
    import socket

    import uvicorn

    from icefloe.serve.app import App
    from icefloe.serve.settings import Settings

__all__ = ["Page", "show"]


class Page:
    """A running web page of a repository, as returned by `icefloe.serve.show`. Its server runs in a thread of
    this process.
    """

    def __init__(self, url: str, app: App, server: uvicorn.Server, thread: threading.Thread) -> None:
        self.url = url
        """The URL of the page, including the access token."""
        self._app = app
        self._server = server
        self._thread = thread

    def close(self) -> None:
        """Stop the server of this page. Calling it again does nothing."""
        self._server.should_exit = True
        self._thread.join()
        self._app.close()

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<icefloe.serve.Page {self.url.partition('?')[0]}>"

    def _repr_html_(self) -> str:
        return f'<a href="{self.url}" target="_blank" rel="noopener">Open the repository in your browser</a>'


def show(repo: Repository, *, port: int = 0, open_browser: bool = False) -> Page:
    """Serve the web page of a repository on this machine, from a thread of this process.

    Parameters
    ----------
    repo
        The repository. Virtual chunks are read from the containers that it was authorized for.
    port
        The port to listen on; 0 picks a free one.
    open_browser
        Open the page in the default browser.

    Returns
    -------
    Page
        The running page, with the attribute `url` and the method `close`.

    Raises
    ------
    ImportError
        The packages of `icefloe[serve]` are not installed.
    OSError
        The port is in use.

    Examples
    --------
    >>> page = icefloe.serve.show(repo)  # doctest: +SKIP
    >>> page.url  # doctest: +SKIP
    'http://127.0.0.1:41234/?token=...'
    >>> page.close()  # doctest: +SKIP
    """
    from icefloe.serve.app import bind
    from icefloe.serve.settings import Settings

    listener = bind("127.0.0.1", port)
    chosen: int = listener.getsockname()[1]
    folder = repo.storage.describe().get("path")
    location = str(Path(folder).absolute()) if folder else ""
    settings = Settings(port=chosen, token=secrets.token_urlsafe(32), location=location)
    page = _run(repo, settings, listener)
    if open_browser:
        import webbrowser

        webbrowser.open(page.url)
    return page


def _run(repo: Repository, settings: Settings, listener: socket.socket) -> Page:
    """Run a server in a background thread."""
    from icefloe.serve.app import App, server

    app = App(repo, settings)
    running = server(app)
    thread = threading.Thread(target=running.run, args=([listener],), name="icefloe-serve", daemon=True)
    thread.start()
    query = f"?token={settings.token}" if settings.token else ""
    return Page(f"http://{settings.host}:{settings.port}/{query}", app, running, thread)
