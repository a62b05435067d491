"""Command errors: a one-sentence message or a JSON document, and an exit code."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

import click

from icefloe._internal.extras import find_missing_package
from icefloe._internal.printable import escape_control_in_json
from icefloe._internal.redaction import redact
from icefloe.branch_checks import CheckFailedError
from icefloe.cli.output import align_rows, format_value
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ErrorKind,
    FormatError,
    Hint,
    IcechunkError,
    InvalidInputError,
    NotFoundError,
    RefNotFoundError,
)

FAILED = 1
USAGE = 2
NOT_FOUND = 3
CONFLICT = 4
FINDINGS = 5
"""The exit code of `verify`, `doctor` and `ingest` if a check finds problems, and of commands whose commit
fails a branch check.
"""
_COLUMNS = ("file", "variable", "problem", "remedy")
STOPPED = 130
"""The exit code after Ctrl-C, as in shells. For other signals, it is 128 plus the signal number."""

_DAMAGE = {ErrorKind.DESERIALIZATION, ErrorKind.INVALID_FILE_FORMAT, ErrorKind.DUPLICATE_SNAPSHOT_ID}
"""The kinds of FormatError that indicate a damaged object."""
_VERIFY = Hint("{function} lists all damaged objects", function="verify")
_LIST_REFS = Hint("{function} lists all branches and tags", function="list_branches")

COMMANDS = {
    "Repository.create": "icefloe init",
    "Repository.unprotect": "icefloe protect --remove",
    "Repository.protect": "icefloe protect",
    "allow_check_modules": "icefloe --allow-module MODULE COMMAND",
    "ancestry": "icefloe log",
    "icefloe.migrate": "icefloe migrate",
    "icefloe.spark.rechunk": "icefloe rechunk",
    "list_branches": "icefloe refs",
    "set_status": "icefloe status --set online",
    "upgrade_icechunk_repository": "icefloe migrate",
    "verify": "icefloe verify",
}
"""The equivalent command for each library function that a hint may mention."""
OPTIONS = {
    "authorize_virtual_chunk_access": "--authorize PREFIX, or all with --authorize all",
    "config": "--authorize PREFIX@ENDPOINT",
    "format": "--format",
    "open_options": "--open-option",
    "target": "--to",
}
"""Library options whose command-line names differ."""
ONLY_IN_PYTHON = {"check_clean_root", "loadable_variables"}


class Signalled(KeyboardInterrupt):
    """Raised when a signal other than SIGINT (Ctrl-C) interrupts a command."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Stopped(click.ClickException):
    """Raised when Ctrl-C or another signal stops a command."""

    def __init__(self, cause: BaseException | None = None) -> None:
        super().__init__("stopped")
        self.code = 128 + cause.number if isinstance(cause, Signalled) else STOPPED


def find_interruption(error: BaseException | None) -> KeyboardInterrupt | None:
    """Return the interruption that caused an error, if any. Interrupted work can fail with any exception."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error


def report_error(error: Exception, *, as_json: bool) -> int:
    """Report an error on stderr, and with `as_json` also as JSON on stdout. Return the exit code."""
    (sentence, code), kind = explain(error), getattr(error, "kind", None)
    if as_json:
        document = {"error": sentence, "kind": kind and str(kind), "exit_code": code}
        if bad := getattr(
            error, "bad", ()
        ):  # a ProblemsError; its module is not imported just for this check
            rows = [map(redact, _format_problem(each)) for each in bad]
            document["problems"] = [dict(zip(_COLUMNS, row, strict=True)) for row in rows]
        click.echo(escape_control_in_json(json.dumps(document, indent=2, ensure_ascii=False)))
    is_help = isinstance(error, click.exceptions.NoArgsIsHelpError)
    # Indent further lines, so that a line break in a name cannot forge another message.
    text = sentence if is_help else sentence.replace("\n", "\n  ")
    click.echo(text if is_help or isinstance(error, Stopped) else f"error: {text}", err=True)
    if isinstance(error, click.UsageError) and error.ctx is not None and not is_help:
        click.echo(f"see `{error.ctx.command_path} --help`", err=True)
    return code


def explain(error: Exception) -> tuple[str, int]:
    """Return the command-line message for an error, without secrets, and the exit code."""
    return redact(_format_sentence(error)), _exit_code(error)


def _format_sentence(error: Exception) -> str:
    match error:
        case click.ClickException():
            return error.format_message()
        case IcechunkError():
            hint = error.hint or _find_usual_hint(error)
            table, advice = _format_problem_table(error), format_hint(hint) if hint else ""
            parts = filter(None, (table or error.message, advice))
            return ("\n" if table else "; ").join(parts)
        case OSError() if error.strerror:
            return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        case ImportError():  # icefloe's own messages already contain the installation command
            return str(find_missing_package(error) or error)
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text} (--debug prints the traceback)"


def _format_problem_table(error: Any) -> str:
    """Format the problems of an ingest as a table, if there are several."""
    bad = getattr(error, "bad", ())
    if len(bad) < 2 or all(each.is_sound for each in bad):  # valid files have no problem to list
        return ""
    rows = [_COLUMNS, *(tuple(map(format_value, _format_problem(each))) for each in bad)]
    return "\n".join([f"{error.headline}:", *align_rows(rows, [False] * len(_COLUMNS))])


def _format_problem(bad: Any) -> tuple[str, str, str, str]:
    remedy = format_hint(bad.advice) if isinstance(bad.advice, Hint) else str(bad.advice)
    return bad.source.url, bad.variable, bad.reason, remedy


def _find_usual_hint(error: IcechunkError) -> Hint | None:
    """Return a hint for common errors that do not have one."""
    from icefloe.storage.base import ObjectNotFoundError

    if isinstance(error, ObjectNotFoundError) or (isinstance(error, FormatError) and error.kind in _DAMAGE):
        return _VERIFY
    return _LIST_REFS if isinstance(error, RefNotFoundError) else None


def format_hint(hint: Hint) -> str:
    """Format a hint with command-line options. Return "" if it names options that the command line does not
    have.
    """
    return "" if ONLY_IN_PYTHON & {name for name, _ in hint.options} else hint.render(_shell_option)


def _shell_option(name: str, value: Any) -> str:
    if name == "function":
        return f"`{COMMANDS[value]}`"
    if name == "mode":
        return f"--{value}"
    option = OPTIONS.get(name, f"--{name.replace('_', '-')}")
    if value is None or value is True:
        return option
    if isinstance(value, Mapping):
        return " ".join(f"{option} {shlex.quote(f'{key}={each}')}" for key, each in value.items())
    return f"{option} {value}"


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
    if isinstance(error, CheckFailedError):
        return FINDINGS
    wrong = isinstance(error, InvalidInputError) or kind == ErrorKind.CANNOT_PARSE_URL
    return USAGE if wrong else FAILED
