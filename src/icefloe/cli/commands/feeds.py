"""Commands for operational feeds: append, window, watch."""

from __future__ import annotations

import json
import shlex
import subprocess
import time
import urllib.request
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from icefloe._internal.amounts import counted, format_bytes
from icefloe.cli.output import CommandOutput, format_value
from icefloe.cli.params import (
    branch_option,
    complete_file,
    dry_run_option,
    message_option,
    metadata_option,
    order_option,
    output_option,
    repo_argument,
)
from icefloe.cli.progress import show_logs
from icefloe.cli.revisions import Duration
from icefloe.errors import ErrorKind, Hint, InvalidInputError
from icefloe.repository import Repository

if TYPE_CHECKING:
    from icefloe.feeds import Event


def _make_dim_option(use: str) -> Callable[[Any], Any]:
    """Create the `--dim` option with a help text that explains what the dimension is used for."""
    return click.option("--dim", default="time", show_default=True, help=f"The dimension {use}.")


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", shell_complete=complete_file)
@repo_argument
@_make_dim_option("to append along")
@click.option("--group", help="The group that contains the arrays; the root by default.")
@click.option("--key", help="A unique key of this append. A file is appended only once per key.")
@order_option
@branch_option
@message_option
@metadata_option
@output_option
def append(
    files: tuple[str, ...],
    repo: Repository,
    dim: str,
    group: str | None,
    key: str | None,
    order: Any,
    branch: str,
    message: str | None,
    metadata: dict[str, Any],
    out: CommandOutput,
) -> None:
    """Append files to arrays, even concurrently with other writers.

    Each FILE is appended in its own commit. Any number of processes can append to the same arrays. At labels
    that already exist, only arrays that have no values there are written.

    \b
    icefloe append today.nc data/repo --dim time --key today
    icefloe append t2m.nc data/repo && icefloe append wind.nc data/repo
    """
    from icefloe.feeds.append import append as work

    found = []
    for file in files:
        its_key = f"{key} {file}" if key is not None and len(files) > 1 else key
        with _open(file) as ds:
            report = work(
                ds,
                repo,
                dim,
                branch=branch,
                group=group,
                key=its_key,
                order=order,
                message=message,
                metadata=metadata,
            )
        found.append({"file": file, **report.to_dict()})
        if not out.as_json:
            click.echo(f"{format_value(file)}: {_format_result(found[-1], dim)}")
    if out.as_json:
        out.value(found)


def _open(file: str) -> Any:
    import xarray as xr

    try:
        return xr.open_dataset(file, decode_timedelta=False)
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"cannot open {file}: {error}", kind=ErrorKind.BAD_METADATA).with_hint(
            Hint("use `icefloe ingest` instead, which reads more formats")
        ) from error


def _format_result(report: dict[str, Any], dim: str) -> str:
    if report["snapshot_id"] is None:
        return "already appended"
    parts = [f"{counted(report['num_rows'], 'row')} appended along {dim}"]
    if report["num_collapsed"]:
        parts.append(f"{counted(report['num_collapsed'], 'label')} existed")
    if report["num_rebases"]:
        parts.append(f"after {counted(report['num_rebases'], 'concurrent commit')}")
    if not report["is_ascending"]:
        parts.append(f"{dim} is not ascending")
    return ", ".join(parts) + f"; the branch is at {report['snapshot_id']}"


@click.command()
@repo_argument
@click.option(
    "--keep",
    type=Duration(),
    required=True,
    help="The length of the window: a duration such as 3d, or a number in the units of the coordinate.",
)
@_make_dim_option("to shorten")
@click.option(
    "--exact",
    is_flag=True,
    help="Start the window at the exact label, and rewrite the chunks that it divides.",
)
@branch_option
@message_option
@metadata_option
@dry_run_option
@output_option
def window(
    repo: Repository,
    keep: timedelta | float,
    dim: str,
    exact: bool,
    branch: str,
    message: str | None,
    metadata: dict[str, Any],
    dry_run: bool,
    out: CommandOutput,
) -> None:
    """Drop the oldest labels of a dimension, in one commit.

    Chunks are moved by reference and not copied. By default, the window therefore starts at a chunk boundary
    and may keep more than --keep.

    \b
    icefloe window data/repo --keep 3d
    icefloe window data/repo --dim time --keep 36h --exact --dry-run
    """
    with show_logs("icefloe.maintenance", out.progress.say):
        report = repo.keep_window(
            keep, dim, branch=branch, exact=exact, message=message, metadata=metadata, dry_run=dry_run
        )
    out.value(report.to_dict(), _format_window(report.to_dict(), dim))


def _format_window(report: dict[str, Any], dim: str) -> str:
    lines = [
        f"{format_value(group)}: {counted(rows, 'row')} of {dim} dropped, {report['kept'][group]} kept"
        for group, rows in report["dropped"].items()
    ]
    if not lines:
        return f"nothing to drop: the window begins in the first chunk of {dim}"
    if report["rewritten_bytes"]:
        lines.append(f"{format_bytes(report['rewritten_bytes'])} rewritten")
    end = "dry run: nothing was written" if report["dry_run"] else f"the branch is at {report['snapshot_id']}"
    return "\n".join([*lines, end])


@click.command()
@repo_argument
@click.option(
    "--bookmark",
    required=True,
    type=click.Path(dir_okay=False),
    help="The file that stores the position after the last event. If it does not exist, only future"
    " events are reported.",
)
@click.option(
    "--interval",
    type=click.FloatRange(0.1),
    default=5.0,
    show_default=True,
    help="The number of seconds between checks of the repository.",
)
@click.option("--once", is_flag=True, help="Report all events since the bookmark, and exit.")
@click.option(
    "--exec", "command", metavar="CMD", help="Run this command for each event, with the event on stdin."
)
@click.option("--webhook", metavar="URL", help="Send each event to this URL in a POST request.")
def watch(
    repo: Repository, bookmark: str, interval: float, once: bool, command: str | None, webhook: str | None
) -> None:
    """Report new commits, tags and operations as JSON lines.

    Each event is reported at least once. The bookmark advances only after the event has been printed, the
    command has succeeded, or the URL has accepted the event. Failed deliveries are retried every INTERVAL
    seconds, or with --once by the next run. Press Ctrl-C to stop.

    \b
    icefloe watch data/repo --bookmark seen.json
    icefloe watch data/repo --bookmark seen.json --exec "python react.py"
    """
    from icefloe.feeds import watch as work

    if command is not None and webhook is not None:
        raise click.UsageError("choose either --exec or --webhook")
    deliver: Callable[[Event], None] = _print
    if command is not None:
        deliver = _Command(command)
    elif webhook is not None:
        deliver = _Webhook(webhook)
    if not once and deliver is not _print:
        deliver = partial(_deliver_until_accepted, deliver, interval)
    work(repo, bookmark, deliver, interval=interval, once=once)


def _print(event: Event) -> None:
    click.echo(json.dumps(event.to_dict()))


def _deliver_until_accepted(deliver: Callable[[Event], None], interval: float, event: Event) -> None:
    """Retry the delivery of an event until it is accepted, so that a webhook outage does not end the
    watch.
    """
    while True:
        try:
            deliver(event)
        except InvalidInputError as error:
            click.echo(f"warning: {error}", err=True)
            time.sleep(interval)
        else:
            return


class _Command:
    """A command that runs once per event and receives the event on stdin."""

    def __init__(self, command: str) -> None:
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise click.UsageError(f"--exec {command!r} is not a command: {error}") from error
        if not self._words:
            raise click.UsageError("--exec requires a command")

    def __call__(self, event: Event) -> None:
        try:
            code = subprocess.run(
                self._words, input=json.dumps(event.to_dict()).encode(), check=False
            ).returncode
        except OSError as error:
            raise _make_undelivered_error(
                event, f"{self._words[0]} cannot be run: {error.strerror}"
            ) from error
        if code:
            raise _make_undelivered_error(event, f"{self._words[0]} exited with code {code}")


class _Webhook:
    """A webhook: a URL that receives each event as a POST request."""

    def __init__(self, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise click.UsageError("--webhook requires a URL that starts with http:// or https://")
        self._url = url

    def __call__(self, event: Event) -> None:
        request = urllib.request.Request(
            self._url, json.dumps(event.to_dict()).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=30):
                pass
        except OSError as error:
            raise _make_undelivered_error(event, f"the webhook did not accept it: {error}") from error


def _make_undelivered_error(event: Event, reason: str) -> InvalidInputError:
    return InvalidInputError(
        f"event {event.id} ({event.type}) was not delivered: {reason}; delivery will be retried",
        kind=ErrorKind.BAD_METADATA,
    )
