"""Write, audit, publish: data lands on a branch beside its target, which moves only if all checks pass.

Every run has a branch of its own, named after its process, so that several may work for one target at once.
What a run leaves that was killed or failed is taken over by the next one.
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
from icefloe.ingest.report import CheckResult, Report, Written
from icefloe.ingest.write.batch import METADATA, StagedFiles
from icefloe.repository import Repository
from icefloe.session import Session

_LEFT_FOR_GOOD = timedelta(days=1)
"""A run on another machine that made no commit for so long counts as dead."""
_numbers = count()
_at_work: set[str] = set()
"""The branches of runs of this process."""


class OvertakenError(Exception):
    """Another ingest was published meanwhile, or groups were made: what is staged has to be made anew."""


@dataclass(frozen=True, slots=True)
class Staging:
    """The branch that an ingest writes to, and the one it is for."""

    repo: Repository
    target: str
    base: str
    """Where the branch began: the tip of the target when the ingest did."""
    branch: str
    """The branch that is written to."""

    @property
    def failed(self) -> str:
        """The branch that keeps the staged data after a failed check."""
        return f"{self.target}.ingest-failed"

    @staticmethod
    def begin(repo: Repository, target: str) -> Staging:
        """Start at the tip of the target; or go on where a run was broken off.

        That can be if the target is as it was, or others changed other things: a week's work is not lost
        because somebody has committed something.
        """
        left = left_behind(repo, target)
        found = [each for name in left if (each := _left_on(repo, target, name)) is not None]
        best = max(found, key=lambda each: each.commits, default=None)
        base = repo.lookup_branch(target) if best is None else best.base
        start = base if best is None else best.tip
        staging = Staging(repo, target, base, f"{target}.ingest.{_owner()}.{next(_numbers)}")
        _at_work.add(staging.branch)
        repo.create_branch(staging.branch, start)
        for name in left:
            with suppress(IcechunkError):  # another run may take it over at the same time
                repo.delete_branch(name)
        return staging

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        """Leave what was staged to the next run if this one failed."""
        try:
            if kind is not None and issubclass(kind, OvertakenError):
                self.drop()
            elif kind is not None:
                with suppress(IcechunkError):  # the first error is the one to raise
                    self.release()
        finally:
            self.end()

    def end(self) -> None:
        """Mark the run as over, so that the next one takes over what is left of its branch."""
        _at_work.discard(self.branch)

    def resume(self, selection: Selection, options: Options) -> Resumed:
        """Compare the sources with the ledger of the staging branch, if that is not the one they know.

        Files that changed since an interrupted run staged them are ingested again.
        """
        again, ledger = options.on_change == "ingest", selection.ledger
        if self.base != ledger.snapshot_id:
            ledger = Ledger.read(self.repo.readonly_session(snapshot_id=self.base), options.group)
        if self.is_empty:
            if ledger is not selection.ledger:
                selection = select_sources(selection.found, ledger, replace_changed=again)
            return Resumed(selection, ledger)
        session = self.repo.readonly_session(branch=self.branch)
        now = Ledger.read(session, options.group)
        rows = now.rows_since(ledger)
        sources = selection.found.sources
        stale = {source.url for source in sort_sources(sources, rows).changed}
        sound = [row for row in rows if row.source not in stale]
        staged = tuple(find_staged(session, options.group, sound, sources))
        selection = select_sources(selection.found, now, replace_changed=again, stale=stale)
        return Resumed(selection, ledger, staged)

    def release(self) -> None:
        """Leave what was staged to the next run."""
        tip = self.repo.lookup_branch(self.branch)
        if tip != self.base:
            try:
                self.repo.create_branch(_unowned(self.target), tip)
            except AlreadyExistsError:  # by another run: this branch stays, and who comes next has the choice
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
        self, resumed: Resumed, written: Written, options: Options, executor: Executor
    ) -> Report:
        """Publish what was staged if it passes all checks; keep it on a branch of its own if it does not."""
        report, staging = written.report, replace(self, repo=written.repo)
        if staging.is_empty:
            staging.drop()
            return report
        session = staging.repo.readonly_session(branch=staging.branch)
        before = staging.repo.readonly_session(snapshot_id=staging.base)
        rows = written.ledger.rows_since(resumed.before)
        staged = (*resumed.staged, *written.staged)
        results = tuple(audit(session, before, rows, staged, options, executor))
        for result in results:
            LOGGER.info("check %s: %s, %s", result.name, "passed" if result.passed else "FAILED", result.text)
        if not all(result.passed for result in results):
            staging.give_up(results)
            LOGGER.info("%s is as it was; what was staged is on the branch %s", self.target, self.failed)
            return replace(report, checks=results, failed_branch=staging.failed)
        tip = staging.publish(results, options.message or "Publish what was ingested", options.group)
        LOGGER.info("published: %s is at %s", self.target, tip)
        return replace(report, checks=results, published=tip)

    def give_up(self, results: Sequence[CheckResult]) -> None:
        """Leave what was staged, and what the checks said, under a name of its own, to be looked at."""
        self._record(results)
        tip = self.repo.lookup_branch(self.branch)
        if self.failed in self.repo.list_branches():
            self.repo.reset_branch(self.failed, tip)
        else:
            self.repo.create_branch(self.failed, tip)
        self.drop()

    def publish(self, results: Sequence[CheckResult], message: str, group: str) -> str:
        """Move the target to what was staged, or merge it in if the target moved meanwhile; its new tip.

        OvertakenError where that cannot be because another ingest has written to the same group. The results
        of the checks are in the metadata of the last commit, and of the merge.
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
            arrays = [path for path in _paths_of(error) if not _is_group(now, path)]
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
class Resumed:
    """Where a run starts: the sources to ingest, and what an interrupted run has staged."""

    selection: Selection
    before: Ledger
    """The ledger of the target branch, without what is staged."""
    staged: tuple[StagedFiles, ...] = ()


def has_work(repo: Repository, selection: Selection, branch: str) -> bool:
    """Return whether there are sources to ingest, or an interrupted run to complete."""
    if selection.outcome.wanted or left_behind(repo, branch):
        return True
    LOGGER.info("%s", selection.outcome)
    return False


def always_overtaken(branch: str, attempts: int) -> ConflictError:
    """Return the error about a branch that other writers kept changing."""
    return ConflictError(
        message=f"{branch} was changed in the same places {attempts} times while this worked, and is as "
        "others left it: run this again when they are done"
    )


def left_behind(repo: Repository, target: str) -> list[str]:
    """List the staging branches of runs that have ended."""
    return [name for name in sorted(repo.list_branches()) if _is_left(repo, target, name)]


def _paths_of(error: MergeConflictError) -> list[str]:
    return sorted({conflict.path for conflict in error.result.conflicts})


def _is_group(session: Session, path: str) -> bool:
    node = session._workspace.node(path)
    return node is not None and not isinstance(node.node_data, ArrayNodeData)


def _unowned(target: str) -> str:
    """Return the name of the branch with the staged data of a failed run."""
    return f"{target}.ingest"


def _is_left(repo: Repository, target: str, name: str) -> bool:
    """Return whether a branch is the staging branch of a run that has ended."""
    if name == _unowned(target):
        return True
    owned = re.fullmatch(re.escape(target) + r"\.ingest\.([^.]+)\.(\d+)\.(\d+)\.\d+", name)
    if owned is None:
        return False
    host, process, started = owned[1], int(owned[2]), owned[3]
    if host == _host():
        return name not in _at_work if process == os.getpid() else _started(process) != started
    try:
        tip = next(iter(repo.ancestry(branch=name)))
    except RefNotFoundError:  # its run has just ended
        return False
    return datetime.now(UTC) - tip.written_at > _LEFT_FOR_GOOD


@dataclass(frozen=True, slots=True)
class _Left:
    """The staged commits of an interrupted run."""

    tip: str
    base: str
    """Where it parted from its target."""
    commits: int


def _left_on(repo: Repository, target: str, name: str) -> _Left | None:
    """Find staged commits that can still be merged into the target; None if there are none."""
    try:
        commits = [info.id for info in repo.ancestry(branch=name)]
        here = [info.id for info in repo.ancestry(branch=target)]
        known = set(here)
        new = list(takewhile(lambda id: id not in known, commits))
        if not new or len(new) == len(commits):
            return None
        left = _Left(new[0], commits[len(new)], len(new))
        if left.base == here[0]:
            return left
        # Up to date is what was published by a merge, and not yet removed.
        outcome = repo.merge(left.tip, target, message="", dry_run=True).outcome
    except IcechunkError:  # another run has taken it over, or the history between them has expired
        return None
    return left if outcome == "merged" else None


def _owner() -> str:
    process = os.getpid()
    return f"{_host()}.{process}.{_started(process) or 0}"


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname()) or "host"


def _started(process: int) -> str | None:
    """Return the start time of a local process as text; None if it does not exist."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return None
    except OSError:  # it is somebody else's
        pass
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return "0"  # no Linux: numbers of processes must do
    return text.rpartition(")")[2].split()[19]
