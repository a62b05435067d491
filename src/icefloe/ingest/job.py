"""Ingest: discover, inspect, combine, plan, write, publish, on any executor."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from icefloe._internal.amounts import counted
from icefloe._internal.executor import Executor
from icefloe.errors import ConflictError, IcechunkError
from icefloe.ingest.combine.existing import Existing, look
from icefloe.ingest.combine.grid import Combined, combine_all
from icefloe.ingest.discover.sources import Source, find_most, find_sources
from icefloe.ingest.inspect.agreement import DisagreementError, Finding
from icefloe.ingest.inspect.reference_spill import Shelf
from icefloe.ingest.inspect.tasks import sorted_along, survey_all
from icefloe.ingest.ledger.compare import Outcome, find_renamed, sort_sources, with_new_names
from icefloe.ingest.ledger.table import LedgerRow, read_ledger
from icefloe.ingest.options import Options
from icefloe.ingest.plan.design import Design, Ways, design, ways_of
from icefloe.ingest.plan.manifest_windows import Windows, windows_of, with_splitting
from icefloe.ingest.publish.arrivals import arrived
from icefloe.ingest.publish.audit import (
    Audited,
    Staged,
    audit,
    refuse_unknown,
    refuse_unrunnable,
    staged_before,
)
from icefloe.ingest.publish.staging import OvertakenError, Staging, left_behind
from icefloe.ingest.records import BadFile, FileSchema, Stored, unreadable
from icefloe.ingest.report import PlanReport, Report, plan_report
from icefloe.ingest.write.batch import METADATA, UnreadableError, write_batch
from icefloe.ingest.write.references import with_containers, with_places
from icefloe.repository import Repository
from icefloe.session import Session

Told = Callable[[str], None]
"""Is told what the job does, a sentence at a time."""
_TRIES = 5
"""So often others may come first."""


def ingest(
    repo: Repository,
    sources: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    options: Options,
    executor: Executor,
    *,
    dry_run: bool = False,
    told: Told = lambda _: None,
) -> Report:
    """Bring sources into a repository, those that are not in it yet, and say what was done.

    Files are looked at and written by `executor`; commits are made here, on a branch of their own. The target
    branch moves when all is written and checked, and stays where it is if anything fails.
    """
    refuse_unrunnable(options.checks, on_spark=executor.has_sql)
    found, unfound = found_sources(sources, options)
    report = nothing_new(repo, found, options, told) or ingest_found(
        repo, found, options, executor, dry_run=dry_run, told=told
    )
    return replace(report, bad=(*unfound, *report.bad))


def found_sources(
    sources: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], options: Options
) -> tuple[Sequence[Source], list[BadFile]]:
    """What there is to ingest; where bad files are skipped, so are those that are not there."""
    if options.on_bad_file == "stop":
        return find_sources(sources, options.reading.storage_options), []
    found = find_most(sources, options.reading.storage_options)
    return found.sources, [BadFile(Source(each.url, -1, 0), each.reason) for each in found.unfound]


def nothing_new(repo: Repository, found: Sequence[Source], options: Options, told: Told) -> Report | None:
    """The report of a job whose sources are all in the repository; None where there is something to do.

    No file is opened, nothing is written, and no executor is needed. What is left of a run broken off
    is something to do.
    """
    if left_behind(repo, options.branch):
        return None
    rows = read_ledger(repo.readonly_session(branch=options.branch), options.group)
    outcome = _outcome(found, rows, options)
    if outcome.wanted:
        return None
    told(_told_of(outcome))
    return Report(outcome)


def ingest_found(
    repo: Repository,
    found: Sequence[Source],
    options: Options,
    executor: Executor,
    *,
    dry_run: bool = False,
    told: Told = lambda _: None,
) -> Report:
    """`ingest` for sources that were looked up already."""
    if dry_run:
        return _refuse_empty(_Job(repo, options, executor, told, options.branch).outlined(found))
    if options.mode != "native":
        repo = with_containers(repo, found, options.reading)
    for _ in range(_TRIES):
        try:
            return _refuse_empty(_staged_and_published(repo, found, options, executor, told))
        except OvertakenError:
            told(f"{options.branch} was changed in the same places meanwhile: what is staged is made anew")
    raise ConflictError(
        message=f"{options.branch} was changed in the same places {_TRIES} times while this worked, and is "
        "as others left it: run this again when they are done"
    )


def _refuse_empty(report: Report) -> Report:
    """The report, unless no source contributes anything, now or earlier."""
    known = (*report.outcome.sources.known, *report.outcome.sources.changed, *report.outcome.renamed)
    if report.bad and report.plan is None and not known and report.published is None:
        raise unreadable(report.bad)
    return report


def _staged_and_published(
    repo: Repository, found: Sequence[Source], options: Options, executor: Executor, told: Told
) -> Report:
    staging = Staging.begin(repo, options.branch)
    try:
        earlier, stale = _staged_before(staging, options, found)
        report, new, repo = _Job(repo, options, executor, told, staging.branch, stale).written(found)
        staging = replace(staging, repo=repo)
        if staging.is_empty:
            staging.drop()
            return report
        return _published(report, [*earlier, *new], staging, options, executor, told)
    except OvertakenError:
        staging.drop()
        raise
    except BaseException:
        with suppress(IcechunkError):  # the first error is the one to tell
            staging.release()
        raise
    finally:
        staging.end()


def _staged_before(
    staging: Staging, options: Options, found: Sequence[Source]
) -> tuple[list[Audited], frozenset[str]]:
    """What a run that was broken off has staged, and the files that changed since, which come anew."""
    if staging.is_empty:
        return [], frozenset()
    stored = Stored(staging.repo.readonly_session(branch=staging.branch), options.group)
    before = staging.repo.readonly_session(snapshot_id=staging.base)
    rows = arrived(before, stored.session, stored.group)
    stale = frozenset(source.url for source in sort_sources(found, rows).changed)
    kept = [row for row in rows if row.source not in stale]
    return [staged_before(stored, kept, found)], stale


def _published(
    report: Report,
    staged: Sequence[Audited],
    staging: Staging,
    options: Options,
    executor: Executor,
    told: Told,
) -> Report:
    session = staging.repo.readonly_session(branch=staging.branch)
    before = staging.repo.readonly_session(snapshot_id=staging.base)
    results = tuple(audit(session, before, staged, options.checks, options, executor))
    for result in results:
        told(f"check {result.name}: {'passed' if result.passed else 'FAILED'}, {result.text}")
    if not all(result.passed for result in results):
        staging.give_up(results)
        told(f"{staging.target} is as it was; what was staged is on the branch {staging.failed}")
        return replace(report, checks=results, failed_branch=staging.failed)
    tip = staging.publish(results, options.message or "Publish what was ingested", options.group)
    told(f"published: {staging.target} is at {tip}")
    return replace(report, checks=results, published=tip)


@dataclass(frozen=True, slots=True)
class _Job:
    """One run of an ingest, up to the commits on its branch."""

    repo: Repository
    options: Options
    executor: Executor
    told: Told
    branch: str
    stale: frozenset[str] = frozenset()
    """Files that changed since they were staged: nobody has seen what they were, and they come anew."""

    def outlined(self, sources: Sequence[Source]) -> Report:
        """What would be done."""
        report, files = self._surveyed(sources)
        if not files:
            return report
        base = self.repo.readonly_session(branch=self.branch)
        existing, rows = look(base, self.options.group), self._rows(base, report)
        combined, bad = self._combined(files, existing, rows)
        report = replace(report, bad=(*report.bad, *bad))
        if combined is None:
            return report
        designed = design(combined, ways_of(files), existing, self.options)
        findings = (*report.findings, *combined.findings)
        return replace(report, findings=findings, plan=plan_report(combined, designed))

    def _combined(
        self, files: Sequence[FileSchema], existing: Existing | None, rows: Sequence[LedgerRow]
    ) -> tuple[Combined | None, list[BadFile]]:
        """Combine files; without those that do not fit beside the others, where bad files are skipped."""
        bad: list[BadFile] = []
        while files:
            try:
                return combine_all(files, existing, rows, self.options, self.executor), bad
            except DisagreementError as error:
                wrong = {each.source: str(each) for each in error.findings if each.severity == "error"}
                misfits = [file.source for file in files if file.source.url in wrong]
                if self.options.on_bad_file == "stop" or not misfits:
                    raise
                bad += [BadFile(source, wrong[source.url]) for source in misfits]
                files = [file for file in files if file.source.url not in wrong]
        return None, bad

    def written(self, sources: Sequence[Source]) -> tuple[Report, list[Audited], Repository]:
        """Write all files, in one commit or several; what of each is to be checked, and the repository as it
        can read what was referred to.
        """
        shelf = Shelf(self.repo.storage)
        try:
            report, files = self._surveyed(sources, shelf)
            job = replace(self, repo=with_places(self.repo, files, self.options.reading))
            return *job._committed(report, files), job.repo
        finally:
            shelf.clear()

    def _committed(self, report: Report, files: Sequence[FileSchema]) -> tuple[Report, list[Audited]]:
        bad, findings = list(report.bad), list(report.findings)
        commits: list[str] = []
        plans: list[PlanReport] = []
        staged: list[Audited] = []
        ways = ways_of(files)
        last = None
        for batch in self._batches(files):
            done = self._one_commit(batch, ways, report, last)
            last = done.ledger
            bad += done.bad
            if done.staged is not None:
                staged.append(done.staged.audited)  # the rest is as large as all that is there by then
                commits.append(done.staged.stored.session.snapshot_id)
                findings += done.staged.combined.findings
                referral = done.staged.designed.referral
                copies = [(file, name, f"is copied: {why}") for file, name, why in referral.reasons]
                findings += [Finding(*each, "note") for each in (*copies, *referral.notes)]
                plans.append(plan_report(done.staged.combined, done.staged.designed))
        return (
            replace(
                report,
                bad=tuple(bad),
                findings=tuple(dict.fromkeys(findings)),  # what is there may be told of with each batch
                plan=PlanReport.total(plans),
                commits=tuple(commits),
            ),
            staged,
        )

    def _surveyed(
        self, sources: Sequence[Source], shelf: Shelf | None = None
    ) -> tuple[Report, list[FileSchema]]:
        base = self.repo.readonly_session(branch=self.branch)
        existing, rows = look(base, self.options.group), read_ledger(base, self.options.group)
        outcome = _outcome(sources, rows, self.options, self.stale)
        self.told(_told_of(outcome))
        report = Report(outcome)
        if not outcome.wanted:
            return report, []
        surveyed = survey_all(outcome.wanted, existing, rows, self.options, self.executor, shelf)
        renamed = find_renamed(surveyed.files, existing, rows, {each.url for each in sources})
        there = {each.source.url for each in renamed if not each.is_referred_to}
        self.told(f"{counted(len(surveyed.files), 'file')} surveyed, {len(surveyed.bad)} left out")
        known = [*surveyed.files, *([existing.schema] if existing is not None else [])]
        refuse_unknown(self.options.checks, {each.name for file in known for each in file.variables})
        new = [file for file in surveyed.files if file.source.url not in there]
        files = sorted_along(new, self.options.combining.concat_dim)
        outcome = replace(report.outcome, renamed=tuple(renamed))
        return replace(report, outcome=outcome, bad=surveyed.bad, findings=surveyed.findings), files

    def _rows(self, base: Session, report: Report) -> list[LedgerRow]:
        """The ledger; the files that references lead to by the names that they have now."""
        rows = read_ledger(base, self.options.group)
        names = {each.was: each.source.url for each in report.outcome.renamed if each.is_referred_to}
        return with_new_names(rows, names) if names else rows

    def _batches(self, files: Sequence[FileSchema]) -> Iterator[Sequence[FileSchema]]:
        size = self.options.commit_every or max(1, len(files))
        for start in range(0, len(files), size):
            yield files[start : start + size]

    def _one_commit(
        self, batch: Sequence[FileSchema], ways: Ways, report: Report, last: _Ledger | None
    ) -> _Done:
        bad: list[BadFile] = []
        while batch:
            base = self.repo.readonly_session(branch=self.branch)
            if last is None or last.snapshot_id != base.snapshot_id:
                last = _Ledger(base.snapshot_id, self._rows(base, report))
            existing, rows = look(base, self.options.group), last.rows
            combined, misfits = self._combined(batch, existing, rows)
            bad += misfits
            if combined is None:
                break
            batch = combined.files
            designed = design(combined, ways, existing, self.options)
            self.told(str(plan_report(combined, designed)))
            windows = self._windows(designed)
            repo = with_splitting(self.repo, windows, self.options.group)
            session = repo.writable_session(self.branch)
            if session.snapshot_id != base.snapshot_id:
                continue  # somebody else is at work on the branch: look again
            given = (existing, rows, self.options, self.executor, windows)
            try:
                id, rows = write_batch(session, combined, designed, *given)
            except UnreadableError as error:
                bad += error.bad
                gone = {each.source.url for each in error.bad}
                batch = [file for file in batch if file.source.url not in gone]
                continue
            message = self.options.message or f"Ingest {counted(len(batch), 'file')}"
            about = {"batch": id, "files": len(batch), "mode": self.options.mode}
            commit = session.commit(message, {**self.options.metadata, METADATA: about})
            self.told(f"commit {commit}: {counted(len(batch), 'file')}")
            stored = Stored(self.repo.readonly_session(snapshot_id=commit), self.options.group)
            return _Done(bad, Staged(stored, combined, designed), _Ledger(commit, rows))
        return _Done(bad, None, last)

    def _windows(self, designed: Design) -> Windows | None:
        referred = {name for _, name in designed.referral.chosen}
        targets = [target for target in designed.targets if target.name in referred]
        return windows_of(targets, self.options.group, self.repo.config, self.options.manifest_references)


def _outcome(
    sources: Sequence[Source],
    rows: Sequence[LedgerRow],
    options: Options,
    stale: frozenset[str] = frozenset(),
) -> Outcome:
    """What the ledger knows of the sources, and which of them are taken up."""
    found = sort_sources(sources, rows)
    again = options.on_change == "ingest"
    changed = [each for each in found.changed if again or each.url in stale]
    referred = {row.source for row in rows if row.mode != "native"}
    references = tuple(each for each in found.changed if each.url in referred)
    return Outcome(found, (*found.new, *changed), changed_references=references)


def _told_of(outcome: Outcome) -> str:
    found = outcome.sources
    count = len(found.new) + len(found.changed) + len(found.known)
    return f"{counted(count, 'source')}: {len(found.new)} new, {len(found.changed)} changed"


@dataclass(frozen=True, slots=True)
class _Done:
    """What became of one batch."""

    bad: list[BadFile]
    staged: Staged | None
    ledger: _Ledger | None


@dataclass(frozen=True, slots=True)
class _Ledger:
    """The ledger as it is in a snapshot."""

    snapshot_id: str
    rows: list[LedgerRow]
