"""Checks for protected branches, and the permission to import the Python modules that they name.

Checks are stored in a repository, which may be hostile. SQL checks can only read the snapshot being checked.
A Python function is imported only if the user of this process has allowed its module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, Literal

from icefloe.errors import ErrorKind, FormatError, Hint, IcechunkError, InvalidInputError, SessionStateError

__all__ = ["BranchCheck", "CheckFailedError", "allow_check_modules"]

MAX_CHECKS: Final = 100
"""The maximum number of checks on a branch."""
MAX_CHARACTERS: Final = 10_000
"""The maximum length of a SQL check."""
_EVALUATOR: Final = "icefloe.query.local.checks"
"""The module that evaluates checks. SQL belongs to a higher layer than repositories, so the module is
imported by name on first use, as `icefloe` imports its public names.
"""

_allowed: set[str] = set()


@dataclass(frozen=True, slots=True)
class BranchCheck:
    """A check that each new tip of a protected branch must pass."""

    kind: Literal["sql", "python"]
    """The language of the check."""
    text: str
    """A query that returns the offending rows, or a function as `module:function`."""


class CheckFailedError(IcechunkError):
    """Raised when a commit to a protected branch fails a check. The branch did not move.

    Parameters
    ----------
    branch
        The protected branch.
    snapshot_id
        The id of the rejected snapshot, which no branch points to.
    check
        The failed check.
    reason
        A phrase that says why the check failed.
    rows
        The first offending rows, by column name.
    is_tip
        True if it was the current tip of the branch that failed a newly added check.
    """

    def __init__(
        self,
        branch: str,
        snapshot_id: str,
        check: BranchCheck,
        reason: str,
        rows: Sequence[Mapping[str, Any]] = (),
        is_tip: bool = False,
    ) -> None:
        failed = f"the check {check.text!r} {reason}"
        super().__init__(
            f"the checks of branch {branch} were not changed: {failed}; the current tip, {snapshot_id}, must "
            "pass new checks"
            if is_tip
            else f"branch {branch} did not move: {failed}; snapshot {snapshot_id} has the rejected data "
            "until the next garbage collection",
            ErrorKind.COMMIT_NOT_ALLOWED,
        )
        self.branch = branch
        self.snapshot_id = snapshot_id
        self.check = check
        self.rows = tuple(rows)
        self.args = (branch, snapshot_id, check, reason, self.rows, is_tip)


def allow_check_modules(*modules: str) -> None:
    """Allow the checks of protected branches to import Python modules, in this process.

    A repository only stores the names of the functions that check its branches. A function is imported only
    if its module, or a package that contains it, has been allowed.

    Parameters
    ----------
    *modules
        Names of modules or packages.

    Examples
    --------
    >>> icefloe.allow_check_modules("station_checks")
    """
    _allowed.update(modules)


@contextmanager
def modules_allowed(modules: Sequence[str]) -> Iterator[None]:
    """Allow branch checks to import Python modules until the end of the context."""
    before = set(_allowed)
    allow_check_modules(*modules)
    try:
        yield
    finally:
        _allowed.intersection_update(before)


def require_allowed(branch: str, checks: Sequence[BranchCheck]) -> None:
    """Raise an error unless the modules of all Python checks on a branch have been allowed."""
    for check in checks:
        module = check.text.partition(":")[0]
        if check.kind == "python" and not any(
            module == each or module.startswith(f"{each}.") for each in _allowed
        ):
            raise SessionStateError(
                f"branch {branch} is checked by the function {check.text}, which only the repository names, "
                "so it is not imported",
                kind=ErrorKind.NOT_ALLOWED,
            ).with_hint(Hint(f"{{function}} allows the module {module}", function="allow_check_modules"))


def name_function(function: str | Callable[..., Any]) -> str:
    """Return the name, `module:function`, under which a check function is stored."""
    if not isinstance(function, str):
        function = f"{function.__module__}:{getattr(function, '__qualname__', '')}"
    module, _, name = function.partition(":")
    if not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise _make_error(f"{function!r} is not the name of a function: expected module:function")
    if module == "__main__":
        raise _make_error(
            f"{name} is defined in the main program; move it to a module that others can import"
        )
    return function


def validate_queries(texts: Sequence[str]) -> None:
    """Raise an error if a SQL check is invalid."""
    if isinstance(texts, str):
        raise _make_error("expected a list of queries, not a string")
    if len(texts) > MAX_CHECKS:
        raise _make_error(f"{len(texts)} checks are more than a branch can have, {MAX_CHECKS}")
    for text in texts:
        if len(text) > MAX_CHARACTERS:
            raise _make_error(f"a check has more than {MAX_CHARACTERS} characters: {text[:60]!r}...")
        import_module(_EVALUATOR).validate_query(text)


def validate_functions(names: Sequence[str]) -> None:
    """Raise an error if the function of a Python check cannot be imported."""
    for name in names:
        import_module(_EVALUATOR).validate_function(name)


def decode_checks(branch: str, stored: object) -> tuple[BranchCheck, ...]:
    """Decode the checks of a branch from repository metadata."""
    found = []
    if isinstance(stored, list) and len(stored) <= MAX_CHECKS:
        for each in stored:
            match each:
                case {"sql": str(text)} if len(text) <= MAX_CHARACTERS:
                    found.append(BranchCheck("sql", text))
                case {"python": str(text)} if len(text) <= MAX_CHARACTERS:
                    found.append(BranchCheck("python", text))
        if len(found) == len(stored):
            return tuple(found)
    raise FormatError(
        f"the checks of branch {branch} in the metadata of the repository cannot be read",
        kind=ErrorKind.INVALID_FILE_FORMAT,
    ).with_hint(Hint("{function} replaces or removes them", function="Repository.protect"))


def run_checks(branch: str, checks: Sequence[BranchCheck], session: Any, *, is_tip: bool = False) -> None:
    """Run the checks of a branch on a read-only session's snapshot. Raise CheckFailedError if one fails."""
    evaluator = import_module(_EVALUATOR)
    for check in checks:
        failure = evaluator.find_failure(check, session)
        if failure is not None:
            raise CheckFailedError(branch, session.snapshot_id, check, failure.reason, failure.rows, is_tip)


def _make_error(text: str) -> InvalidInputError:
    return InvalidInputError(text, kind=ErrorKind.INVALID_COMMIT_CONFIGURATION)
