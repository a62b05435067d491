"""Evaluate branch protection checks: SQL queries and Python functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from sqlglot import exp

from icefloe.branch_checks import BranchCheck, name_function
from icefloe.errors import ErrorKind, IcechunkError, InvalidInputError
from icefloe.query.local.sql import parse_select, run_local_query
from icefloe.session import Session

TABLE: Final = "this"
"""The table name that stands for the new snapshot in the SQL query of a check."""
_SHOWN_ROWS: Final = 5


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed branch check."""

    reason: str
    rows: tuple[Mapping[str, Any], ...] = ()
    """The first few offending rows."""


def validate_query(text: str) -> None:
    """Raise an error if the SQL query of a branch check cannot be evaluated locally."""
    try:
        _, select = parse_select(text, (TABLE,))
    except IcechunkError as error:
        raise _make_error(text, error.message) from error
    except RecursionError:
        raise _make_error(text, "it is nested too deeply") from None
    if select.args.get("order"):
        raise _make_error(text, "the order of a check's rows has no effect; remove ORDER BY")
    if select.args.get("limit"):
        raise _make_error(text, "a check must see all rows; remove LIMIT")
    if _is_total(select) and not _is_count(select):
        raise _make_error(
            text,
            "an aggregate without GROUP BY always returns a row; select the offending rows, or one count",
        )


def validate_function(text: str) -> None:
    """Raise an error if the Python function of a branch check cannot be imported."""
    try:
        _load(text)
    except IcechunkError:
        raise
    except (Exception, SystemExit) as error:
        raise InvalidInputError(
            f"the check {text!r} cannot be used: {type(error).__name__}: {error}; if the module is not "
            "installed, add its folder to PYTHONPATH",
            kind=ErrorKind.INVALID_COMMIT_CONFIGURATION,
        ) from error


def find_failure(check: BranchCheck, session: Session) -> Failure | None:
    """Evaluate a branch check on a session's snapshot. Return the failure, or None if the check passes."""
    try:
        return _run_query(check.text, session) if check.kind == "sql" else _call(check.text, session)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a check that cannot run does not pass
        reason = error.message if isinstance(error, IcechunkError) else f"{type(error).__name__}: {error}"
        return Failure(f"cannot be evaluated: {reason}")


def _run_query(text: str, session: Session) -> Failure | None:
    validate_query(text)  # validate again, because another program may have stored the check
    rows = run_local_query(text, {TABLE: session}, _SHOWN_ROWS).table.to_pylist()
    _, select = parse_select(text, (TABLE,))
    if _is_total(select):
        ((count,),) = (row.values() for row in rows)
        return Failure(f"returned the count {count}, but must return 0", tuple(rows)) if count else None
    if not rows:
        return None
    shown = "; ".join(", ".join(f"{name}={value}" for name, value in row.items()) for row in rows)
    return Failure(f"returned offending rows, such as {shown}", tuple(rows))


def _is_total(select: exp.Select) -> bool:
    """Return True if a query aggregates all rows into a single row."""
    return not select.args.get("group") and any(each.find(exp.AggFunc) for each in select.selects)


def _is_count(select: exp.Select) -> bool:
    return len(select.selects) == 1 and isinstance(select.selects[0].unalias(), exp.Count)


def _call(text: str, session: Session) -> Failure | None:
    """Call a check function that the user has allowed, and return its failure, if any."""
    said = _load(text)(session)
    if isinstance(said, str):
        return Failure(f"failed: {said}")
    if said is None:
        return None
    value = said.item() if getattr(said, "ndim", None) == 0 else said  # a numpy or xarray boolean
    if not isinstance(value, bool):
        return Failure(f"returned {value!r}, but must return True, None, or a message")
    return None if value else Failure("returned False")


def _load(text: str) -> Callable[[Session], Any]:
    """Import a check function. Reject names that the module itself imported from elsewhere."""
    module, _, name = name_function(text).partition(":")
    function = getattr(import_module(module), name)
    if not callable(function) or getattr(function, "__module__", None) != module:
        raise InvalidInputError(f"{text} is not a function of that module", kind=ErrorKind.NOT_ALLOWED)
    found: Callable[[Session], Any] = function
    return found


def _make_error(text: str, reason: str) -> InvalidInputError:
    return InvalidInputError(
        f"the check {text[:200]!r} cannot be used: {reason}; a check is one SELECT of the offending rows "
        f"FROM {TABLE}, which the built-in SQL engine can answer",
        kind=ErrorKind.INVALID_COMMIT_CONFIGURATION,
    )
