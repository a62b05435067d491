"""The command that serves a repository to browsers and Zarr clients: serve."""

from __future__ import annotations

import secrets
import sys

import click

from icefloe.cli.authorize import authorize, authorize_prefixes
from icefloe.cli.errors import explain
from icefloe.cli.params import open_repository, storage_argument
from icefloe.storage.base import Storage

_ANY_ORIGIN = "*"


@click.command()
@storage_argument
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    default=8000,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="The port to listen on; 0 picks a free one.",
)
@click.option("--no-token", is_flag=True, help="Require no token: every user of this machine can read.")
@click.option("--no-browser", is_flag=True, help="Do not open the page in a browser.")
@authorize_prefixes
@click.option(
    "--cors",
    multiple=True,
    metavar="ORIGIN",
    help="Allow web pages of this origin to read the gateway; * requires --no-token.",
)
@click.option(
    "--moving",
    is_flag=True,
    help="Also serve chunks under branch names; a commit during a read can then mix two snapshots.",
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

    The server only reads. It listens on this machine, and the printed URL contains a token that admits you.
    Zarr clients open http://HOST:PORT/zarr/VERSION and send the token as `Authorization: Bearer TOKEN`. Press
    Ctrl-C to stop it.

    \b
    icefloe serve data/repo
    icefloe serve s3://bucket/prefix --port 0 --no-browser --authorize s3://archive
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
        server(app).run([listener])
    finally:
        app.close()


def _get_typed_location() -> str:
    """Return REPO as it was typed, without secrets, for the snippets of the page."""
    from icefloe._internal.redaction import redact

    typed = click.get_current_context().params.get("repo")
    return redact(str(typed)) if typed else ""


def _url(host: str, port: int, token: str | None) -> str:
    name = "127.0.0.1" if host in ("0.0.0.0", "") else "[::1]" if host in ("::", "::1") else host
    return f"http://{name}:{port}/" + (f"?token={token}" if token else "")


def _open_browser(url: str) -> None:
    import webbrowser

    webbrowser.open(url)
