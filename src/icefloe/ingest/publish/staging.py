"""Write, audit, publish: the target branch moves only if all checks of the staged data pass.

Every run has its own staging branch, named after its process, so that several runs can write to one target at
the same time. The next run continues with the staging branch of a run that failed or was killed.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from icefloe._internal.executor import Executor
from icefloe.conflicts import MergeConflictError
from icefloe.core.commit.flush import OWN_METADATA
from icefloe.core.open import LAYOUTS, find_layout
from icefloe.errors import AlreadyExistsError, ConflictError, IcechunkError, RefNotFoundError
from icefloe.format.snapshot import ArrayNodeData
from icefloe.ingest.ledger import Ledger, Selection, read_ledger, select_sources, sort_sources
from icefloe.ingest.options import Options
from icefloe.ingest.publish.audit import audit, find_staged
from icefloe.ingest.records import LOGGER
from icefloe.ingest.report import CheckResult, IngestReport, StagedRun
from icefloe.ingest.write.batch import METADATA, StagedFiles
from icefloe.repository import Repository
from icefloe.session import Session

_ABANDONED_AFTER = timedelta(days=1)
"""The time without a commit after which a run on another machine counts as dead."""
_numbers = count()
_active_branches: set[str] = set()
"""The staging branches of the runs of this process."""


class OvertakenError(Exception):
    """The error if another ingest was published in the meantime: the staged data must be written again."""


@dataclass(frozen=True, slots=True)
class Staging:
    """The staging branch of an ingest, and its target branch."""

    repo: Repository
    target: str
    base: str
    """The tip of the target branch when the staging branch was created."""
    branch: str
    """The name of the staging branch."""

    @property
    def failed(self) -> str:
        """The branch that keeps the staged data after a failed check."""
        return f"{self.target}.ingest-failed"

    @staticmethod
    def begin(repo: Repository, target: str) -> Staging:
        """Create a staging branch: at the tip of the target, or at the last commit of an interrupted run.

        An interrupted run is continued if the target has not changed, or if its changes can be merged: a
        commit by somebody else must not discard the work of a week.
        """
        left = find_abandoned(repo, target)
        found = [each for name in left if (each := _find_staged_commits(repo, target, name)) is not None]
        best = max(found, key=lambda each: each.commits, default=None)
        base = repo.lookup_branch(target) if best is None else best.base
        start = base if best is None else best.tip
        staging = Staging(repo, target, base, f"{target}.ingest.{_describe_owner()}.{next(_numbers)}")
        _active_branches.add(staging.branch)
        repo.create_branch(staging.branch, start)
        for name in left:
            with suppress(IcechunkError):  # another run may take it over at the same time
                repo.delete_branch(name)
        return staging

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        """Keep the staged data for the next run if this run failed."""
        try:
            if kind is not None and issubclass(kind, OvertakenError):
                self.drop()
            elif kind is not None:
                with suppress(IcechunkError):  # the first error is the one to raise
                    self.release()
        finally:
            self.end()

    def end(self) -> None:
        """Mark the run as ended, so that the next one continues with its branch."""
        _active_branches.discard(self.branch)

    def resume(self, selection: Selection, options: Options) -> RunStart:
        """Compare the sources with the ledger of the staging branch, unless they were already.

        Files that changed since an interrupted run staged them are ingested again.
        """
        again, ledger = options.on_change == "ingest", selection.ledger
        if self.base != ledger.snapshot_id:
            ledger = Ledger.read(self.repo.readonly_session(snapshot_id=self.base), options.group)
        if self.is_empty:
            if ledger is not selection.ledger:
                selection = select_sources(selection.found, ledger, replace_changed=again)
            return RunStart(selection, ledger)
        session = self.repo.readonly_session(branch=self.branch)
        now = Ledger.read(session, options.group)
        rows = now.find_rows_since(ledger)
        sources = selection.found.sources
        stale = {source.url for source in sort_sources(sources, rows).changed}
        sound = [row for row in rows if row.source not in stale]
        staged = tuple(find_staged(session, options.group, sound, sources))
        selection = select_sources(selection.found, now, replace_changed=again, stale=stale)
        return RunStart(selection, ledger, staged)

    def release(self) -> None:
        """Keep the staged data for the next run."""
        tip = self.repo.lookup_branch(self.branch)
        if tip != self.base:
            try:
                self.repo.create_branch(_get_unowned_name(self.target), tip)
            except AlreadyExistsError:  # created by another run: this branch stays, and the next run chooses
                return
        self.drop()

    @property
    def is_empty(self) -> bool:
        """True if nothing was staged."""
        return self.repo.lookup_branch(self.branch) == self.base

    def drop(self) -> None:
        """Delete the staging branch."""
        self.repo.delete_branch(self.branch)

    def check_and_publish(
        self, resumed: RunStart, written: StagedRun, options: Options, executor: Executor
    ) -> IngestReport:
        """Publish the staged data if it passes all checks; otherwise keep it on a branch for failed data."""
        report, staging = written.report, replace(self, repo=written.repo)
        if staging.is_empty:
            staging.drop()
            return report
        session = staging.repo.readonly_session(branch=staging.branch)
        before = staging.repo.readonly_session(snapshot_id=staging.base)
        rows = written.ledger.find_rows_since(resumed.before)
        staged = (*resumed.staged, *written.staged)
        results = tuple(audit(session, before, rows, staged, options, executor))
        for result in results:
            LOGGER.info("check %s: %s, %s", result.name, "passed" if result.passed else "FAILED", result.text)
        if not all(result.passed for result in results):
            staging.keep_failed(results)
            LOGGER.info("%s did not change; the staged data is on the branch %s", self.target, self.failed)
            return replace(report, checks=results, failed_branch=staging.failed)
        tip = staging.publish(results, options.message or "Publish what was ingested", options.group)
        LOGGER.info("published: %s is at %s", self.target, tip)
        return replace(report, checks=results, published=tip)

    def keep_failed(self, results: Sequence[CheckResult]) -> None:
        """Keep the staged data and the results of the checks on a branch for failed data."""
        self._record(results)
        tip = self.repo.lookup_branch(self.branch)
        if self.failed in self.repo.list_branches():
            self.repo.reset_branch(self.failed, tip)
        else:
            self.repo.create_branch(self.failed, tip)
        self.drop()

    def publish(self, results: Sequence[CheckResult], message: str, group: str) -> str:
        """Move the target branch to the staged data, or merge the data if the branch moved.

        Return the new tip. Raise OvertakenError if another ingest has written to the same group. The results
        of the checks are stored in the metadata of the last commit, and of the merge.
        """
        metadata = self._record(results)
        tip = self.repo.lookup_branch(self.branch)
        try:
            self.repo.reset_branch(self.target, tip, from_snapshot_id=self.base)
        except ConflictError:
            tip = self._merge(message, metadata, group)
        except RefNotFoundError as error:
            raise RefNotFoundError(
                f"branch {self.target} was deleted while files were ingested into it; the staged data is "
                f"kept: create {self.target} again and repeat the ingest",
                kind=error.kind,
            ) from error
        self.drop()
        return tip

    def _merge(self, message: str, metadata: dict[str, Any], group: str) -> str:
        try:
            outcome = self.repo.merge(self.branch, self.target, message=message, metadata=metadata)
        except MergeConflictError as error:
            old = self.repo.readonly_session(snapshot_id=self.base)
            now = self.repo.readonly_session(branch=self.target)
            arrays = [path for path in _list_conflict_paths(error) if not _is_group(now, path)]
            if not arrays or read_ledger(old, group) != read_ledger(now, group):
                raise OvertakenError from error
            raise MergeConflictError(
                error.result,
                f"conflict: {', '.join(arrays)} was changed on {self.target} while files were ingested into "
                f"it; {self.target} keeps that change: look at its history, and repeat the ingest",
            ) from error
        return str(outcome.snapshot_id)

    def _record(self, results: Sequence[CheckResult]) -> dict[str, Any]:
        """Add the results to the metadata of the last commit, and return that metadata."""
        tip = next(iter(self.repo.ancestry(branch=self.branch)))
        said = tip.metadata.get(METADATA)
        about = {**(said if isinstance(said, dict) else {}), "checks": [asdict(each) for each in results]}
        known = {name: value for name, value in tip.metadata.items() if name != OWN_METADATA}
        metadata = {**known, METADATA: about}
        session = self.repo.writable_session(self.branch)
        layout = find_layout(self.repo.storage, LAYOUTS)
        if layout is not None and layout.spec.refs_in_repo_info:
            session.amend(tip.message, metadata=metadata, allow_empty=True)
        else:  # older formats cannot amend
            session.commit(f"{tip.message}: checked", metadata, allow_empty=True)
        return metadata


@dataclass(frozen=True, slots=True)
class RunStart:
    """The start of a run: the sources to ingest, and the data that an interrupted run has staged."""

    selection: Selection
    before: Ledger
    """The ledger of the target branch, without staged rows."""
    staged: tuple[StagedFiles, ...] = ()


def has_work(repo: Repository, selection: Selection, branch: str) -> bool:
    """Return whether there are sources to ingest, or an interrupted run to complete."""
    if selection.outcome.wanted or find_abandoned(repo, branch):
        return True
    LOGGER.info("%s", selection.outcome)
    return False


def make_overtaken_error(branch: str, attempts: int) -> ConflictError:
    """Return the error about a branch that other writers kept changing."""
    return ConflictError(
        message=f"other writers changed the same arrays of {branch} {attempts} times during this ingest, "
        "which was not published: run it again"
    )


def find_abandoned(repo: Repository, target: str) -> list[str]:
    """List the staging branches of runs that have ended."""
    return [name for name in sorted(repo.list_branches()) if _is_abandoned(repo, target, name)]


def _list_conflict_paths(error: MergeConflictError) -> list[str]:
    return sorted({conflict.path for conflict in error.result.conflicts})


def _is_group(session: Session, path: str) -> bool:
    node = session._workspace.node(path)
    return node is not None and not isinstance(node.node_data, ArrayNodeData)


def _get_unowned_name(target: str) -> str:
    """Return the name of the branch with the staged data of a failed run."""
    return f"{target}.ingest"


def _is_abandoned(repo: Repository, target: str, name: str) -> bool:
    """Return whether a branch is the staging branch of a run that has ended."""
    if name == _get_unowned_name(target):
        return True
    owned = re.fullmatch(re.escape(target) + r"\.ingest\.([^.]+)\.(\d+)\.(\d+)\.\d+", name)
    if owned is None:
        return False
    host, process, started = owned[1], int(owned[2]), owned[3]
    if host == _get_host():
        return name not in _active_branches if process == os.getpid() else _get_start_time(process) != started
    try:
        tip = next(iter(repo.ancestry(branch=name)))
    except RefNotFoundError:  # the run has just ended
        return False
    return datetime.now(UTC) - tip.written_at > _ABANDONED_AFTER


@dataclass(frozen=True, slots=True)
class _InterruptedRun:
    """The staged commits of an interrupted run."""

    tip: str
    base: str
    """The snapshot of the target branch from which the run started."""
    commits: int


def _find_staged_commits(repo: Repository, target: str, name: str) -> _InterruptedRun | None:
    """Find staged commits that can still be merged into the target; None if there are none."""
    try:
        commits = [info.id for info in repo.ancestry(branch=name)]
        here = [info.id for info in repo.ancestry(branch=target)]
        known = set(here)
        new = list(takewhile(lambda id: id not in known, commits))
        if not new or len(new) == len(commits):
            return None
        left = _InterruptedRun(new[0], commits[len(new)], len(new))
        if left.base == here[0]:
            return left
        # The outcome is "up to date" if the data was published by a merge, but its branch not yet deleted.
        outcome = repo.merge(left.tip, target, message="", dry_run=True).outcome
    except IcechunkError:  # another run continues it, or the common history has expired
        return None
    return left if outcome == "merged" else None


def _describe_owner() -> str:
    process = os.getpid()
    return f"{_get_host()}.{process}.{_get_start_time(process) or 0}"


def _get_host() -> str:
    return re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname()) or "host"


def _get_start_time(process: int) -> str | None:
    """Return the start time of a local process as text; None if it does not exist."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return None
    except OSError:  # the process of another user
        pass
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return "0"  # not on Linux: only the process id is compared
    return text.rpartition(")")[2].split()[19]
