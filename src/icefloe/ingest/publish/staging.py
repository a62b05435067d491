"""Write, audit and publish: the target branch moves only if the staged data passes all checks.

Every run has its own staging branch, named after its process, so that several runs can write to the same
target concurrently. If a run fails or is killed, the next run takes over its staged data.
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
from icefloe._internal.ids import SnapshotId
from icefloe.branch_checks import CheckFailedError
from icefloe.conflicts import MergeConflictError
from icefloe.core.commit.flush import OWN_METADATA
from icefloe.core.merge.lineage import MERGED, get_recorded_ids
from icefloe.core.open import LAYOUTS, find_layout
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ErrorKind,
    IcechunkError,
    RefNotFoundError,
    SessionStateError,
)
from icefloe.format.files import TRANSACTIONS
from icefloe.format.snapshot import ArrayNodeData
from icefloe.ingest.ledger import Ledger, LedgerRow, RunSources, read_ledger, select_sources, sort_sources
from icefloe.ingest.options import Options
from icefloe.ingest.publish.append import NotAppendedError, append_staged
from icefloe.ingest.publish.audit import audit, find_staged
from icefloe.ingest.records import LOGGER
from icefloe.ingest.report import CheckResult, IngestReport, StagedRun
from icefloe.ingest.write.batch import METADATA, StagedFiles
from icefloe.repository import Repository
from icefloe.session import Session

_ABANDONED_AFTER = timedelta(days=1)
"""The time since the last commit after which a run on another machine is considered dead."""
_MAX_COPIED_BYTES = 4 << 20
"""The maximum size of a transaction log whose commit is amended to record check results."""
_MAX_APPENDS = 20
"""The maximum number of attempts to publish staged data while other writers move the target branch."""
_numbers = count()
_active_branches: set[str] = set()
"""The staging branches of the runs in this process."""


class OvertakenError(Exception):
    """Error raised when staged data must be combined again, because another ingest published first."""


@dataclass(frozen=True, slots=True)
class Staging:
    """The staging branch of an ingest run and its target branch, as a context manager."""

    repo: Repository
    target: str
    base: str
    """The snapshot of the target branch at which the staging branch was created."""
    branch: str
    """The name of the staging branch."""

    @property
    def failed(self) -> str:
        """The name of the branch for staged data that failed a check."""
        return f"{self.target}.ingest-failed"

    @staticmethod
    def begin(repo: Repository, target: str) -> Staging:
        """Create a staging branch at the tip of the target, or at the last commit of an interrupted run.

        An interrupted run is continued if the target has not changed, or if the changes can be merged. A
        commit by another writer must not discard a week of work.
        """
        repo.writable_session(target)  # raise errors before any work if this process may not publish
        left = find_abandoned(repo, target)
        found = [each for name in left if (each := _find_staged_commits(repo, target, name)) is not None]
        best = max(found, key=lambda each: each.commits, default=None)
        base = repo.lookup_branch(target) if best is None else best.base
        start = base if best is None else best.tip
        staging = Staging(repo, target, base, _name_staging_branch(target))
        # The branch is registered before it exists. Otherwise, another run in this process could mistake
        # it for the branch of a killed run.
        _active_branches.add(staging.branch)
        repo.create_branch(staging.branch, start)
        for name in left:
            with suppress(IcechunkError):  # another run may take over the branch at the same time
                repo.delete_branch(name)
        return staging

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        """If this run failed, keep its staged data for the next run."""
        try:
            if kind is not None and issubclass(kind, OvertakenError):
                self.drop()
            elif kind is not None:
                with suppress(IcechunkError):  # the original error is the one to raise
                    self.release()
        finally:
            self.end()

    def end(self) -> None:
        """Mark the run of this staging branch as ended, so that the next run may take it over."""
        _active_branches.discard(self.branch)

    def resume(self, selection: RunSources, options: Options) -> RunStart:
        """Resume an interrupted run: return its staged data, and the sources that remain to be ingested.

        Files that changed after an interrupted run staged them are ingested again.
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
        # The ledger is part of the staged commits, so its new rows list exactly the files whose data was
        # staged, whenever the earlier run was killed.
        rows = now.find_rows_since(ledger)
        sources = selection.found.sources
        stale = {source.url for source in sort_sources(sources, rows).changed}
        sound = [row for row in rows if row.source not in stale]
        staged = tuple(find_staged(session, options.group, sound, sources))
        selection = select_sources(selection.found, now, replace_changed=again, stale=stale)
        return RunStart(selection, ledger, staged)

    def release(self) -> None:
        """Hand over the staging branch and its data to the next run."""
        tip = self.repo.lookup_branch(self.branch)
        if tip != self.base:
            try:
                self.repo.create_branch(_name_unowned_branch(self.target), tip)
            except (
                AlreadyExistsError
            ):  # another run created that branch: keep this branch, and let the next run choose
                return
        self.drop()

    @property
    def is_empty(self) -> bool:
        """True if the staging branch has no commits of its own."""
        return self.repo.lookup_branch(self.branch) == self.base

    def drop(self) -> None:
        """Delete the staging branch."""
        self.repo.delete_branch(self.branch)

    def check_and_publish(
        self, resumed: RunStart, written: StagedRun, options: Options, executor: Executor
    ) -> IngestReport:
        """Publish the staged data if it passes all checks. Otherwise move it to the branch for
        failed data.
        """
        report, staging = written.report, replace(self, repo=written.repo)
        if staging.is_empty:
            staging.drop()
            return report
        rows = tuple(written.ledger.find_rows_since(resumed.before))
        staged: tuple[StagedFiles, ...] = (*resumed.staged, *written.staged)
        for _ in range(_MAX_APPENDS):
            session = staging.repo.readonly_session(branch=staging.branch)
            before = staging.repo.readonly_session(snapshot_id=staging.base)
            results = tuple(audit(session, before, rows, staged, options, executor))
            for result in results:
                passed = "passed" if result.passed else "FAILED"
                LOGGER.info("check %s: %s, %s", result.name, passed, result.text)
            if not all(result.passed for result in results):
                return staging._reject(results, report)
            try:
                tip = staging.publish(results, options.message or "Publish what was ingested", options.group)
            except CheckFailedError as error:
                rejected = CheckResult(f"protected branch {error.branch}", False, error.message)
                return staging._reject((*results, rejected), report)
            except (OvertakenError, MergeConflictError) as error:
                if options.append_order is None:
                    raise
                staging, rows = staging._append(options, error)
                staged = tuple(
                    find_staged(
                        staging.repo.readonly_session(branch=staging.branch),
                        options.group,
                        rows,
                        resumed.selection.found.sources,
                    )
                )
                continue
            LOGGER.info("published: %s is at %s", self.target, tip)
            return replace(report, checks=results, published=tip)
        raise OvertakenError

    def _append(
        self, options: Options, reason: OvertakenError | MergeConflictError
    ) -> tuple[Staging, tuple[LedgerRow, ...]]:
        """Convert the staged data to an append on top of the target branch, after the rows of other writers.

        Return the staging branch with its new base, and the staged ledger rows. If the data cannot be
        appended, raise `reason`, the error that explains why it could not be merged.
        """
        base, tip = self.repo.lookup_branch(self.target), self.repo.lookup_branch(self.branch)
        aside = _name_staging_branch(self.target)
        _active_branches.add(aside)
        try:
            self.repo.create_branch(aside, base)
            appended = append_staged(self.repo, self.base, tip, aside, options)
            self.repo.reset_branch(self.branch, appended.snapshot_id, from_snapshot_id=tip)
        except NotAppendedError as error:
            LOGGER.info("the data cannot be appended: %s", error)
            raise reason from error
        finally:
            with suppress(IcechunkError):
                self.repo.delete_branch(aside)
            _active_branches.discard(aside)
        return replace(self, base=base), appended.rows

    def _reject(self, results: Sequence[CheckResult], report: IngestReport) -> IngestReport:
        """Move the staged data to the branch for failed data, and add the check results to the report."""
        self.keep_failed(results)
        LOGGER.info("%s did not change; the staged data is on the branch %s", self.target, self.failed)
        return replace(report, checks=tuple(results), failed_branch=self.failed)

    def keep_failed(self, results: Sequence[CheckResult]) -> None:
        """Keep the staged data and the check results on the branch for failed data."""
        self._record(results)
        tip = self.repo.lookup_branch(self.branch)
        if self.failed in self.repo.list_branches():
            self.repo.reset_branch(self.failed, tip)
        else:
            self.repo.create_branch(self.failed, tip)
        self.drop()

    def publish(self, results: Sequence[CheckResult], message: str, group: str) -> str:
        """Publish the staged data by moving the target branch to it, or by a merge if the target has moved.

        Return the new tip. Raise OvertakenError if another ingest has written to the same group. The check
        results are stored in the metadata of the last commit and of the merge commit.
        """
        metadata = self._record(results)
        tip = self.repo.lookup_branch(self.branch)
        try:
            # A conditional move of the branch publishes all commits atomically: readers see either all new
            # files or none, and the published data is exactly the checked data.
            self.repo.reset_branch(self.target, tip, from_snapshot_id=self.base)
        except ConflictError:
            tip = self._merge(message, metadata, group)
        except RefNotFoundError as error:
            raise RefNotFoundError(
                f"branch {self.target} was deleted during the ingest, and the staged data is kept; create"
                f" {self.target} again, and repeat the ingest",
                kind=error.kind,
            ) from error
        self.drop()
        return tip

    def _merge(self, message: str, metadata: dict[str, Any], group: str) -> str:
        # A merge keeps all changed chunks of both sides in memory.
        large = _count_large_logs(self.repo, self.branch, self.base)
        if large and (tip := self._transplant(metadata)) is not None:
            return tip
        if large > 1:
            raise self._make_unmergeable_error()
        try:
            outcome = self.repo.merge(self.branch, self.target, message=message, metadata=metadata)
        except MergeConflictError as error:
            old = self.repo.readonly_session(snapshot_id=self.base)
            now = self.repo.readonly_session(branch=self.target)
            arrays = [path for path in _list_conflict_paths(error) if not _is_group(now, path)]
            # Another ingest published in the meantime. Its positions along the concatenation dimension
            # collide with ours, so the data must be planned again. Other conflicts are edits by people,
            # which are never overwritten.
            if not arrays or read_ledger(old, group) != read_ledger(now, group):
                raise OvertakenError from error
            raise MergeConflictError(
                error.result,
                f"conflict: {', '.join(arrays)} was changed on {self.target} during the ingest, and the"
                f" change is kept; check the history of {self.target}, and repeat the ingest",
            ) from error
        except SessionStateError as error:
            if error.kind != ErrorKind.COMMIT_NOT_ALLOWED:
                raise
            tip = None if large else self._transplant(metadata)
            if tip is None:
                raise self._make_unmergeable_error() from error
            return tip
        return str(outcome.snapshot_id)

    def _transplant(self, metadata: dict[str, Any]) -> str | None:
        """Replay the staged commits one by one on top of the target branch, and publish them together.

        Return None if the target branch has changed the same nodes.
        """
        base, source = (SnapshotId.parse(id) for id in (self.base, self.repo.lookup_branch(self.branch)))
        for _ in range(_MAX_APPENDS):
            onto, aside = self.repo.lookup_branch(self.target), _name_staging_branch(self.target)
            _active_branches.add(aside)
            try:
                self.repo.create_branch(aside, onto)
                tip = self.repo._branching().transplant(base, source, aside, metadata)
                if tip is None:
                    return None
                self.repo.reset_branch(self.target, str(tip), from_snapshot_id=onto)
            except ConflictError:  # the target branch has moved again
                continue
            else:
                return str(tip)
            finally:
                with suppress(IcechunkError):
                    self.repo.delete_branch(aside)
                _active_branches.discard(aside)
        raise OvertakenError

    def _make_unmergeable_error(self) -> SessionStateError:
        kept = _name_unowned_branch(self.target)
        return SessionStateError(
            f"{self.target} changed the same nodes as this ingest, which is too large for a merge; the data "
            f"is kept on branch {kept}: undo the change of {self.target} and repeat the ingest, or delete "
            f"{kept} to ingest the files again",
            kind=ErrorKind.COMMIT_NOT_ALLOWED,
        )

    def _record(self, results: Sequence[CheckResult]) -> dict[str, Any]:
        """Add the check results to the metadata of the last staged commit, and return this metadata."""
        tip = next(iter(self.repo.ancestry(branch=self.branch)))
        said = tip.metadata.get(METADATA)
        about = {**(said if isinstance(said, dict) else {}), "checks": [asdict(each) for each in results]}
        known = {name: value for name, value in tip.metadata.items() if name != OWN_METADATA}
        metadata = {**known, METADATA: about}
        session = self.repo.writable_session(self.branch)
        layout = find_layout(self.repo.storage, LAYOUTS)
        can_amend = layout is not None and layout.spec.refs_in_repo_info  # older formats cannot amend commits
        # Amending a commit copies its transaction log, which takes 300 MB of memory for a log of ten
        # million references.
        if can_amend and self.repo.storage.size_of(f"{TRANSACTIONS}/{tip.id}") <= _MAX_COPIED_BYTES:
            session.amend(tip.message, metadata=metadata, allow_empty=True)
        else:
            session.commit(f"{tip.message}: checked", metadata, allow_empty=True)
        return metadata


@dataclass(frozen=True, slots=True)
class RunStart:
    """The state at the start of a run: the sources to ingest, and the data staged by an interrupted run."""

    selection: RunSources
    before: Ledger
    """The ledger of the target branch, without staged rows."""
    staged: tuple[StagedFiles, ...] = ()


def has_work(repo: Repository, selection: RunSources, branch: str) -> bool:
    """Return True if there are sources to ingest, or staged data of an interrupted run to publish."""
    if selection.outcome.wanted or find_abandoned(repo, branch):
        return True
    LOGGER.info("%s", selection.outcome)
    return False


def make_overtaken_error(branch: str, attempts: int) -> ConflictError:
    """Create the error for staged data that could not be published because other writers kept changing the
    branch.
    """
    return ConflictError(
        message=f"other writers changed the same arrays of {branch} {attempts} times during this ingest, "
        "which was not published: run it again"
    )


def find_abandoned(repo: Repository, target: str) -> list[str]:
    """List the staging branches of runs that ended without publishing."""
    return [name for name in sorted(repo.list_branches()) if _is_abandoned(repo, target, name)]


def _list_conflict_paths(error: MergeConflictError) -> list[str]:
    return sorted({conflict.path for conflict in error.result.conflicts})


def _is_group(session: Session, path: str) -> bool:
    node = session._workspace.node(path)
    return node is not None and not isinstance(node.node_data, ArrayNodeData)


def _name_staging_branch(target: str) -> str:
    """Return a new staging branch name for this process."""
    return f"{target}.ingest.{_describe_owner()}.{next(_numbers)}"


def _name_unowned_branch(target: str) -> str:
    """Return the name of the staging branch that an ended run leaves for the next run."""
    return f"{target}.ingest"


def _is_abandoned(repo: Repository, target: str, name: str) -> bool:
    """Return True if a branch is the staging branch of a run that has ended."""
    if name == _name_unowned_branch(target):
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
    """The snapshot of the target branch at which the run started."""
    commits: int


def _find_staged_commits(repo: Repository, target: str, name: str) -> _InterruptedRun | None:
    """Return the staged commits of a branch. Return None if they can no longer be merged into the target."""
    try:
        commits = [info.id for info in repo.ancestry(branch=name)]
        history = list(repo.ancestry(branch=target))
        here = [info.id for info in history]
        known = set(here)
        new = list(takewhile(lambda id: id not in known, commits))
        if not new or len(new) == len(commits):
            return None
        left = _InterruptedRun(new[0], commits[len(new)], len(new))
        ends = SnapshotId.parse(left.base), SnapshotId.parse(left.tip)
        if left.base == here[0] or repo._branching().can_transplant(*ends, target):
            return left
        published = {str(id) for info in history for id in get_recorded_ids(info.metadata, MERGED)}
        if _count_large_logs(repo, name, left.base) > 1:  # too large for a merge, even to try it
            return None if left.tip in published else left
        # The outcome is "up to date" if a merge has published the data, but its branch was not yet deleted.
        outcome = repo.merge(left.tip, target, message="", dry_run=True).outcome
    except SessionStateError as error:
        # Too large for a merge: publishing it may fail, but must not discard it.
        return left if error.kind == ErrorKind.COMMIT_NOT_ALLOWED else None
    except IcechunkError:  # another run has continued it, or the common history has expired
        return None
    return left if outcome == "merged" else None


def _count_large_logs(repo: Repository, branch: str, base: str) -> int:
    """Count the staged commits with so many changed chunks that a merge would need too much memory."""
    logs = takewhile(lambda info: info.id != base, repo.ancestry(branch=branch))
    sizes = [repo.storage.size_of(f"{TRANSACTIONS}/{info.id}") for info in logs]
    return sum(size > _MAX_COPIED_BYTES for size in sizes)


def _describe_owner() -> str:
    process = os.getpid()
    return f"{_get_host()}.{process}.{_get_start_time(process) or 0}"


def _get_host() -> str:
    return re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname()) or "host"


def _get_start_time(process: int) -> str | None:
    """Return the start time of a local process as text. Return None if the process does not exist."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return None
    except OSError:  # the process belongs to another user
        pass
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return "0"  # on systems other than Linux, only the process id is compared
    return text.rpartition(")")[2].split()[19]
