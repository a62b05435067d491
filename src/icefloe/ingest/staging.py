"""Write, audit, publish: data lands on a branch beside its target, which moves only if all checks pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from icefloe.core.commit import OWN_METADATA
from icefloe.errors import ConflictError, ErrorKind, IcechunkError
from icefloe.ingest.batch import METADATA
from icefloe.ingest.checks import CheckResult
from icefloe.repository import Repository


@dataclass(frozen=True, slots=True)
class Staging:
    """The branch that an ingest writes to, and the one it is for."""

    repo: Repository
    target: str
    base: str
    """The tip of the target when the ingest began."""

    @property
    def branch(self) -> str:
        """The branch that is written to."""
        return f"{self.target}.ingest"

    @property
    def failed(self) -> str:
        """The branch that is left to look at when a check failed."""
        return f"{self.target}.ingest-failed"

    @staticmethod
    def begin(repo: Repository, target: str) -> Staging:
        """Start at the tip of the target; or go on where a run was broken off, if the target is as it was."""
        staging = Staging(repo, target, repo.lookup_branch(target))
        if staging.branch not in repo.list_branches():
            repo.create_branch(staging.branch, staging.base)
        elif not staging.is_ahead():
            repo.reset_branch(staging.branch, staging.base)
        return staging

    def is_ahead(self) -> bool:
        """Whether the branch has all that the target had, and perhaps more."""
        return any(info.id == self.base for info in self.repo.ancestry(branch=self.branch))

    @property
    def is_empty(self) -> bool:
        """Whether nothing was staged."""
        return self.repo.lookup_branch(self.branch) == self.base

    def drop(self) -> None:
        """Forget what was staged."""
        self.repo.delete_branch(self.branch)

    def give_up(self) -> None:
        """Leave what was staged under a name of its own, for somebody to look at."""
        tip = self.repo.lookup_branch(self.branch)
        if self.failed in self.repo.list_branches():
            self.repo.reset_branch(self.failed, tip)
        else:
            self.repo.create_branch(self.failed, tip)
        self.drop()

    def publish(self, results: Sequence[CheckResult], message: str) -> str:
        """Move the target to what was staged, or merge it in if the target moved meanwhile; its new tip.

        The results of the checks are in the metadata of the last commit, and of the merge.
        """
        metadata = self._record(results)
        tip = self.repo.lookup_branch(self.branch)
        try:
            self.repo.reset_branch(self.target, tip, from_snapshot_id=self.base)
        except ConflictError:
            outcome = self.repo.merge(self.branch, self.target, message=message, metadata=metadata)
            tip = str(outcome.snapshot_id)
        self.drop()
        return tip

    def _record(self, results: Sequence[CheckResult]) -> dict[str, Any]:
        """Put the results into the metadata of the last commit, and give that metadata."""
        tip = next(iter(self.repo.ancestry(branch=self.branch)))
        said = tip.metadata.get(METADATA)
        about = {**(said if isinstance(said, dict) else {}), "checks": [asdict(each) for each in results]}
        known = {name: value for name, value in tip.metadata.items() if name != OWN_METADATA}
        metadata = {**known, METADATA: about}
        session = self.repo.writable_session(self.branch)
        try:
            session.amend(tip.message, metadata=metadata, allow_empty=True)
        except IcechunkError as error:
            if error.kind != ErrorKind.UNSUPPORTED_OPERATION_FOR_VERSION:
                raise
            session = self.repo.writable_session(self.branch)
            session.commit(f"{tip.message}: checked", metadata, allow_empty=True)
        return metadata
