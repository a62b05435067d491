"""Commit the rows of a job exactly once, even if the job runs several times.

Spark may run a job again after it succeeded, for example if the driver did not receive the response. A key
(`txnAppId` and `txnVersion`, as in Delta Lake) is stored in the commit, and a job whose key is already on the
branch commits nothing. The commit itself checks the key again, because two runs of a job can overlap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from icefloe.conflicts import BasicConflictSolver, ConflictDetector, ConflictSolver, VersionSelection
from icefloe.core.commit.idempotency import CommitKey, has_key
from icefloe.errors import ErrorKind, InvalidInputError, RefNotFoundError
from icefloe.feeds.append_solver import AppendSolver
from icefloe.query.options import QueryOptions
from icefloe.query.schema import make_unknown_name_error
from icefloe.repository import Repository
from icefloe.session import Session
from icefloe.snapshots import list_folded_commits

APP: Final = "txnAppId"
VERSION: Final = "txnVersion"
_TRIES: Final = 100
_MESSAGE: Final = "written by Spark"
_SOLVERS: Final[Mapping[str, ConflictSolver | None]] = {
    "none": None,
    "detect": ConflictDetector(),
    "ours": BasicConflictSolver(on_chunk_conflict=VersionSelection.UseOurs),
    "theirs": BasicConflictSolver(on_chunk_conflict=VersionSelection.UseTheirs),
}


_APPEND: Final = "append"
Solver: TypeAlias = ConflictSolver | Literal["append"] | None
"""A conflict solver, or "append" for an `AppendSolver` along the append dimension."""


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """The arguments of an exactly-once commit."""

    branch: str = "main"
    message: str = _MESSAGE
    metadata: Mapping[str, Any] = field(default_factory=dict)
    app: str | None = None
    version: str | None = None
    """The version of this run, which forms the unique key together with `app`."""
    solver: Solver = None
    """The conflict solver to use if the branch has moved; None to raise an error instead."""

    @staticmethod
    def from_options(options: QueryOptions) -> CommitRequest:
        """Create the arguments of an exactly-once commit from the options of a Spark write."""
        for name in ("tag", "snapshot", "versionAsOf", "timestampAsOf"):
            if options.text(name):
                raise InvalidInputError(
                    f"{name} selects a version, which cannot be written to; pass a branch",
                    kind=ErrorKind.INVALID_REF_TYPE,
                )
        return CommitRequest(
            options.text("branch") or "main",
            options.text("commitMessage") or _MESSAGE,
            options.mapping("userMetadata"),
            options.text("txnAppId"),
            options.text("txnVersion"),
            parse_solver(options.text("solver")),
        )

    def __post_init__(self) -> None:
        if (self.app is None) != (self.version is None):
            raise InvalidInputError(
                "txnAppId and txnVersion form one key; pass both or neither",
                kind=ErrorKind.INVALID_COMMIT_CONFIGURATION,
            )

    @property
    def key(self) -> CommitKey | None:
        """The idempotency key of the commit, or None if none was given."""
        return None if self.app is None or self.version is None else CommitKey(self.app, self.version)

    @property
    def properties(self) -> dict[str, Any]:
        """The commit metadata, including the idempotency key."""
        key = {} if self.app is None else {APP: self.app, VERSION: self.version}
        return {**self.metadata, **key}

    def find_commit(self, repo: Repository) -> str | None:
        """Return the commit on the branch that an earlier write made with the same idempotency key, or None.

        If that commit has expired, or was squashed or merged, return the tip of the branch, which contains
        its data. Early releases stored keys only in the commit metadata.
        """
        if self.key is None:
            return None
        # The history names the commit itself. The snapshot at the tip knows only that the key was used, but
        # still knows it after the commit was expired, squashed or merged.
        for info in repo.ancestry(branch=self.branch):
            for _, record in list_folded_commits(info):
                if str(record.get(APP)) == self.app and str(record.get(VERSION)) == self.version:
                    return info.id
        tip = repo.readonly_session(self.branch)
        return tip.snapshot_id if has_key(tip.workspace.base, self.key) else None

    def commit_once(self, repo: Repository, session: Session, append_dim: str) -> str:
        """Commit a write, unless its idempotency key is already on the branch.

        Return the id of the new or existing commit.
        """
        solver = AppendSolver(append_dim) if self.solver == _APPEND else self.solver
        if self.key is None:
            return session.commit(self.message, self.properties, rebase_with=solver, rebase_tries=_TRIES)
        made = session.commit_once(
            self.message, self.properties, key=self.key, rebase_with=solver, rebase_tries=_TRIES
        )
        return made or self.find_commit(repo) or session.snapshot_id


def parse_solver(word: str | ConflictSolver | None) -> Solver:
    """Return a conflict solver by name: none, detect, ours, theirs or append."""
    if isinstance(word, ConflictSolver):
        return word
    name = "detect" if word is None else word.lower()
    if name == _APPEND:
        return _APPEND
    if name not in _SOLVERS:
        raise make_unknown_name_error(
            "solver", name, [*_SOLVERS, _APPEND], kind=ErrorKind.INVALID_COMMIT_CONFIGURATION
        )
    return _SOLVERS[name]


def check_branch(repo: Repository, branch: str) -> None:
    """Raise an error if the branch to commit to is actually a tag."""
    if branch not in repo.list_branches() and branch in repo.list_tags():
        raise RefNotFoundError(
            f"{branch} is a tag, which cannot be written to; pass a branch", kind=ErrorKind.BRANCH_NOT_FOUND
        )
