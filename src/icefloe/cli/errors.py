"""What went wrong, as the shell is told: one sentence, or a JSON document, and an exit code."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType

import click

from icefloe._internal.extras import missing_package
from icefloe._internal.printable import printable_json
from icefloe._internal.redaction import redact
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ErrorKind,
    FormatError,
    IcechunkError,
    InvalidInputError,
    NotFoundError,
    RefNotFoundError,
)

FAILED = 1
USAGE = 2
NOT_FOUND = 3
CONFLICT = 4
NOT_WELL = 5
"""A check found something wrong: `verify`, `doctor`, `ingest`."""
STOPPED = 130
"""By Ctrl-C; shells say the same. By another signal it is 128 and its number."""

_OBJECT = re.compile(r"\b(snapshots|manifests|transactions|chunks)/[0-9A-Z]{20}\b")

WAYS_OUT: Mapping[str, str] = MappingProxyType(
    {
        "create one with Repository.create": "`icefloe init` makes one",
        "choose another place, or pass check_clean_root=False to keep what is there": "choose another place",
        "upgrade it with upgrade_icechunk_repository": "`icefloe migrate` upgrades it",
        "upgrade_icechunk_repository upgrades it": "`icefloe migrate` upgrades it",
        "icefloe.migrate copies it with `target`": "`icefloe migrate --to` copies it",
        "icefloe.migrate": "`icefloe migrate`",
        "set_status can put it online": "`icefloe status --set online` puts it online again",
        "or overwrite=True": "or say --overwrite",
        "overwrite=True lets it follow": "--overwrite lets it follow",
        "or say to overwrite it": "or say --overwrite",
        "or skip bad files": "or say --on-bad-file skip",
        "along as concat_dim": "along with --concat-dim",
        "give chunks, shards or a codec": "give --chunks, --shards or --codec",
        "when you open or create the repository, with authorize_virtual_chunk_access": "with --authorize "
        "PREFIX, or all with --authorize all",
        "pass the container in `config` when you open the repository": "say --authorize PREFIX@ENDPOINT, "
        "or for an ingest --source-option endpoint_url=ENDPOINT",
        "with format=": "with --engine (of an ingest) or --format (of virtualize)",
    }
)
"""What the library advises, and what that is on the command line; longer ones first."""


class Signalled(KeyboardInterrupt):
    """A signal said that the work is to end, as Ctrl-C does."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Stopped(click.ClickException):
    """Somebody pressed Ctrl-C, or sent a signal."""

    def __init__(self, cause: BaseException | None = None) -> None:
        super().__init__("stopped")
        self.code = 128 + cause.number if isinstance(cause, Signalled) else STOPPED


def interruption(error: BaseException | None) -> KeyboardInterrupt | None:
    """The signal that came before an error: what was under way then ends in many ways."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error


def tell(error: Exception, *, as_json: bool) -> int:
    """Print what went wrong: to the error stream, and for programs as the result; the exit code."""
    (sentence, code), kind = explained(error), getattr(error, "kind", None)
    if as_json:
        document = {"error": sentence, "kind": kind and str(kind), "exit_code": code}
        click.echo(printable_json(json.dumps(document, indent=2, ensure_ascii=False)))
    is_help = isinstance(error, click.exceptions.NoArgsIsHelpError)
    # Further lines are indented: a line break in a name must not forge a message of its own.
    text = sentence if is_help else sentence.replace("\n", "\n  ")
    click.echo(text if is_help or isinstance(error, Stopped) else f"error: {text}", err=True)
    if isinstance(error, click.UsageError) and error.ctx is not None and not is_help:
        click.echo(f"`{error.ctx.command_path} --help` shows what can be said", err=True)
    return code


def explained(error: Exception) -> tuple[str, int]:
    """Explain an error to people, without secrets; and its exit code."""
    return redact(_sentence(error)), _exit_code(error)


def _sentence(error: Exception) -> str:
    match error:
        case click.ClickException():
            return error.format_message()
        case IcechunkError():
            damaged = isinstance(error, FormatError) or error.kind == ErrorKind.OBJECT_NOT_FOUND
            sentence = in_the_shell(str(error))
            if damaged and _OBJECT.search(sentence):
                return f"{sentence}; `icefloe verify` lists what is damaged"
            if isinstance(error, RefNotFoundError) and ";" not in sentence:
                return f"{sentence}; `icefloe refs` lists what there is"
            return sentence
        case OSError() if error.strerror:
            return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        case ImportError():  # one of ours already says how to install what is missing
            return str(missing_package(error) or error)
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text} (--debug shows where it came from)"


def in_the_shell(sentence: str) -> str:
    """The same sentence with the way out that the command line has."""
    for advice, here in WAYS_OUT.items():
        sentence = sentence.replace(advice, here)
    return sentence


def _exit_code(error: Exception) -> int:
    kind = getattr(error, "kind", None)
    if isinstance(error, Stopped):
        return error.code
    if isinstance(error, click.ClickException):
        return error.exit_code
    if isinstance(error, NotFoundError) or kind == ErrorKind.OBJECT_NOT_FOUND:
        return NOT_FOUND
    if isinstance(error, ConflictError | AlreadyExistsError):
        return CONFLICT
    wrong = isinstance(error, InvalidInputError) or kind == ErrorKind.CANNOT_PARSE_URL
    return USAGE if wrong else FAILED
