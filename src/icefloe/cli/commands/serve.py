"""The command that serves a repository to browsers and Zarr clients: serve."""

from __future__ import annotations

import re
import secrets
import signal
import sys
from pathlib import Path

import click

from icefloe.cli.authorize import authorize, authorize_prefixes
from icefloe.cli.errors import explain
from icefloe.cli.params import cache_option, open_repository, storage_argument
from icefloe.storage.base import Storage

_ANY_ORIGIN = "*"
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[^/?#@:\s]+)(:[0-9]+)?")


@click.command()
@storage_argument
@cache_option
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    default=8000,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="The port to listen on; 0 chooses a free port.",
)
@click.option(
    "--no-token",
    is_flag=True,
    help="Do not require an access token. Every user of this machine can then read the repository.",
)
@click.option("--no-browser", is_flag=True, help="Do not open a browser.")
@authorize_prefixes
@click.option(
    "--cors",
    multiple=True,
    metavar="ORIGIN",
    help="Allow web pages from this origin to read data; * allows all and requires --no-token.",
)
@click.option(
    "--moving",
    is_flag=True,
    help="Also serve chunks at branch names. A read during a commit can then mix two snapshots.",
)
def serve(
    storage: Storage,
    host: str,
    port: int,
    no_token: bool,
    no_browser: bool,
    prefixes: tuple[str, ...],
    cors: tuple[str, ...],
    moving: bool,
) -> None:
    """Show a repository in a browser and serve it as Zarr.

    The server is read-only. By default it listens only on this machine, and the printed URL contains an
    access token. Zarr clients open http://HOST:PORT/zarr/VERSION and send the header `Authorization: Bearer
    TOKEN`. Press Ctrl-C to stop the server.

    \b
    icefloe serve data/repo
    icefloe serve s3://bucket/repo --no-browser --authorize s3://archive/
    """
    from icefloe.serve.settings import LOOPBACK, Settings

    if no_token and host not in LOOPBACK:
        raise click.UsageError(
            f"--no-token requires a loopback address, and {host} is not one; use --host 127.0.0.1"
        )
    if _ANY_ORIGIN in cors and not no_token:
        raise click.UsageError(
            "--cors '*' requires --no-token; pass the origin instead, such as https://example.org"
        )
    cors = tuple(map(_check_origin, cors))
    from icefloe.serve.app import App, bind, server

    repo = authorize(open_repository(storage), prefixes)
    try:
        listener = bind(host, port)
    except OSError as error:
        raise click.ClickException(f"cannot listen on {host} port {port}: {error.strerror}") from None
    settings = Settings(
        host=host,
        port=listener.getsockname()[1],
        token=None if no_token else secrets.token_urlsafe(32),
        cors=cors,
        moving=moving,
        explain=lambda error: explain(error)[0],
        location=_get_typed_location(),
    )
    app = App(repo, settings)
    running = server(app)
    interrupts: list[int] = []

    def stop(number: int, _: object) -> None:
        interrupts.append(number)
        running.should_exit = True

    # From now on, Ctrl-C only sets a flag. A KeyboardInterrupt during the imports at server startup can get
    # lost, because Python ignores exceptions in the callbacks that release module locks.
    signal.signal(signal.SIGINT, stop)
    url = _url(settings.host, settings.port, settings.token)
    click.echo(url)
    if not settings.is_local:
        click.echo(
            f"warning: anyone who can reach {host} and knows the token can read this repository, and the "
            "connection is not encrypted",
            err=True,
        )
    click.echo("press Ctrl-C to stop", err=True)
    sys.stdout.flush()
    if not no_browser:
        _open_browser(url)
    try:
        running.run([listener])
    finally:
        app.close()
    if interrupts:
        raise KeyboardInterrupt


def _check_origin(text: str) -> str:
    """Normalize an origin to the form that browsers send.

    Raises
    ------
    click.UsageError
        Browsers never send such an origin.
    """
    origin = text.lower().removesuffix("/")
    if text != _ANY_ORIGIN and not _ORIGIN.fullmatch(origin):
        raise click.UsageError(
            f"--cors {text}: expected an origin, which is a scheme and a host, such as https://example.org"
        )
    return origin


def _get_typed_location() -> str:
    """Return REPO without secrets for code snippets. Paths are made absolute, so snippets run in any
    directory.
    """
    from icefloe._internal.redaction import redact

    typed = str(click.get_current_context().params.get("repo") or "")
    if typed and "://" not in typed:
        return str(Path(typed).absolute())
    return redact(typed)


def _url(host: str, port: int, token: str | None) -> str:
    name = "127.0.0.1" if host in ("0.0.0.0", "") else "[::1]" if host in ("::", "::1") else host
    return f"http://{name}:{port}/" + (f"?token={token}" if token else "")


def _open_browser(url: str) -> None:
    import webbrowser

    webbrowser.open(url)
