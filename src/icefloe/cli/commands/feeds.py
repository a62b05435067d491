"""Commands for operational feeds: append, window, watch."""

from __future__ import annotations

import json
import shlex
import subprocess
import urllib.request
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from icefloe._internal.amounts import counted, format_bytes
from icefloe.cli.output import Output, format_value
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

_dim_option = click.option("--dim", default="time", show_default=True, help="The dimension.")


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", shell_complete=complete_file)
@repo_argument
@_dim_option
@click.option("--group", help="The group of the arrays; the root by default.")
@click.option("--key", help="A name for this append, which happens once per key and file.")
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
    out: Output,
) -> None:
    """Append files to arrays, even while others append.

    Each FILE is appended in a commit of its own. Any number of processes may append to the same arrays: for a
    label that already exists, only arrays without values there are written.

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
        out.progress.say(f"{format_value(file)}: {_format_result(found[-1], dim)}")
    out.value(
        found, "\n".join(f"{format_value(each['file'])}: {_format_result(each, dim)}" for each in found)
    )


def _open(file: str) -> Any:
    import xarray as xr

    try:
        return xr.open_dataset(file, decode_timedelta=False)
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"cannot open {file}: {error}", kind=ErrorKind.BAD_METADATA).with_hint(
            Hint("ingest the file instead: an ingest reads more formats")
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
    help="What to keep: a duration such as 3d, or a number of units.",
)
@_dim_option
@click.option("--exact", is_flag=True, help="Cut at the exact label, and rewrite chunks that it divides.")
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
    out: Output,
) -> None:
    """Drop the oldest labels of a dimension, in one commit.

    Chunks move by reference, so the window begins at a chunk boundary and keeps at least what --keep says.

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
    help="A file that remembers the last event. If it does not exist, events are reported from now on.",
)
@click.option(
    "--interval",
    type=click.FloatRange(0.1),
    default=5.0,
    show_default=True,
    help="Seconds between two looks at the repository.",
)
@click.option("--once", is_flag=True, help="Report what happened since the bookmark, and end.")
@click.option("--exec", "command", metavar="CMD", help="Run a command for each event, which is on stdin.")
@click.option("--webhook", metavar="URL", help="Send each event to a URL with POST.")
def watch(
    repo: Repository, bookmark: str, interval: float, once: bool, command: str | None, webhook: str | None
) -> None:
    """Report new commits, tags and operations as JSON lines.

    Each event is reported at least once: the bookmark moves after it was printed, the command succeeded, or
    the URL accepted it. Press Ctrl-C to stop.

    \b
    icefloe watch data/repo --bookmark seen.json
    icefloe watch s3://bucket/repo --bookmark seen.json --interval 60 --exec "python react.py"
    """
    from icefloe.feeds import watch as work

    if command is not None and webhook is not None:
        raise click.UsageError("choose either --exec or --webhook")
    deliver: Callable[[Event], None] = _print
    if command is not None:
        deliver = _Command(command)
    elif webhook is not None:
        deliver = _Webhook(webhook)
    work(repo, bookmark, deliver, interval=interval, once=once)


def _print(event: Event) -> None:
    click.echo(json.dumps(event.to_dict()))


class _Command:
    """A command that takes events."""

    def __init__(self, command: str) -> None:
        self._words = shlex.split(command)
        if not self._words:
            raise click.UsageError("--exec needs a command")

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
            raise _make_undelivered_error(event, f"{self._words[0]} ended with exit code {code}")


class _Webhook:
    """A URL that takes events."""

    def __init__(self, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise click.UsageError("--webhook needs a URL that starts with http:// or https://")
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
        f"event {event.id} ({event.type}) was not delivered: {reason}; it will be delivered again",
        kind=ErrorKind.BAD_METADATA,
    )
