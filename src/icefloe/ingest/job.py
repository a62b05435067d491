"""Run the stages of an ingest in order: discover, inspect, combine, plan, write and publish.

Each stage passes a frozen record to the next. The ledger and the target are read once per snapshot."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from icefloe._internal.executor import Executor
from icefloe.ingest.bad_files import BadFile, ProblemsError
from icefloe.ingest.combine.existing import TargetState, read_target
from icefloe.ingest.combine_batch import combine_batch, refuse_problems
from icefloe.ingest.discover.sources import Discovered, discover
from icefloe.ingest.inspect.inspect_files import Inspected, inspect_sources, split_batches
from icefloe.ingest.inspect.inspection_cache import InspectionCache
from icefloe.ingest.inspect.reference_spill import Spill
from icefloe.ingest.ledger import Ledger, RunSources, compare_with_ledger
from icefloe.ingest.options import Options
from icefloe.ingest.plan.design import Design, check_batch, design_arrays, map_batches, refuse_large_file
from icefloe.ingest.publish.audit import refuse_unknown, refuse_unrunnable
from icefloe.ingest.publish.broken_references import complete_report
from icefloe.ingest.publish.staging import OvertakenError, Staging, has_work, make_overtaken_error
from icefloe.ingest.records import LOGGER, FileSchema, drop_bad_files
from icefloe.ingest.report import IngestReport, StagedRun, summarize_plans
from icefloe.ingest.target_repository import authorize_locations, authorize_sources
from icefloe.ingest.write.batch import Commit, commit_batch
from icefloe.repository import Repository

_ATTEMPTS = 5  # retry in case other writers publish first


def ingest(
    repo: Repository,
    sources: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | Discovered,
    options: Options,
    executor: Executor | AbstractContextManager[Executor],
    *,
    dry_run: bool = False,
) -> IngestReport:
    """Ingest new sources by running all stages, and return a report.

    If the executor is a context manager, it is entered only if there are sources to ingest.
    """
    if not isinstance(sources, Discovered):
        sources = discover(sources, options.reading.storage_options, skip=options.on_bad_file == "skip")
    if isinstance(executor, Executor):
        refuse_unrunnable(options.checks, on_spark=executor.has_sql)
        executor = nullcontext(executor)
    selection = compare_with_ledger(repo, sources, options)
    if not has_work(repo, selection, options.branch):
        return complete_report(IngestReport.of(selection), repo, selection, options)
    with executor as started:
        refuse_unrunnable(options.checks, on_spark=started.has_sql)
        report = run(repo, selection, options, started, dry_run=dry_run)
    return complete_report(report, repo, selection, options)


def run(
    repo: Repository, selection: RunSources, options: Options, executor: Executor, *, dry_run: bool = False
) -> IngestReport:
    """Run an ingest job: write the selected sources to a staging branch, check the data, and publish it.

    The target branch moves only after everything was written and has passed the checks.
    """
    if dry_run:
        return _Job(repo, options.branch, options, executor).preview(selection)
    if options.mode != "native":
        repo = authorize_sources(repo, selection.found.sources, options.reading)
    for _ in range(_ATTEMPTS):
        try:
            with Staging.begin(repo, options.branch) as staging:
                resumed = staging.resume(selection, options)
                written = _Job(repo, staging.branch, options, executor).write(resumed.selection)
                return staging.check_and_publish(resumed, written, options, executor)
        except OvertakenError:
            LOGGER.info("another writer changed the same arrays on %s; restarting the ingest", options.branch)
    raise make_overtaken_error(options.branch, _ATTEMPTS)


@dataclass(frozen=True, slots=True)
class _Job:
    """A single attempt at an ingest, up to the commits on its staging branch."""

    repo: Repository
    branch: str
    options: Options
    executor: Executor

    def preview(self, selection: RunSources) -> IngestReport:
        """Return the report of a dry run with the sources and the plan. Nothing is written."""
        state, inspected = self._inspect(selection)
        designs, bad = self._design(inspected.files, inspected, state)
        refuse_large_file(inspected.files, designs, lambda part: self._design(part, inspected, state)[0])
        return IngestReport.of(selection, inspected, bad).with_plan(designs)

    def write(self, selection: RunSources) -> StagedRun:
        """Write all files to the staging branch, in one or more commits."""
        with Spill(self.repo.storage) as spill, InspectionCache(self.repo.storage, self.options) as cache:
            state, inspected = self._inspect(selection, spill, cache)
            job = replace(self, repo=authorize_locations(self.repo, inspected.files, self.options.reading))
            written = StagedRun(IngestReport.of(selection, inspected), job.repo, (), selection.ledger)
            batches = split_batches(inspected.files, self.options.commit_every)
            for result in map_batches(lambda b: job._commit(b, inspected, state, written.ledger), batches):  # noqa: B023
                written = written.extend(*result)
            return written

    def _inspect(
        self, selection: RunSources, spill: Spill | None = None, cache: InspectionCache | None = None
    ) -> tuple[TargetState, Inspected]:
        state = read_target(self.repo, self.branch, self.options.group, selection.ledger)
        schemas = state.list_schemas()
        inspected = inspect_sources(schemas, selection, self.options, self.executor, spill, cache)
        refuse_problems(inspected, state, self.options, self.executor)
        if selection.outcome.wanted:
            refuse_unknown(self.options.checks, inspected.variables)
        return state, inspected

    def _design(
        self, files: Sequence[FileSchema], inspected: Inspected, state: TargetState
    ) -> tuple[list[Design], list[BadFile]]:
        combined, bad = combine_batch(files, state, self.options, self.executor)
        return [design_arrays(each, inspected, self.options, self.executor) for each in combined], bad

    def _commit(
        self, files: Sequence[FileSchema], inspected: Inspected, state: TargetState, ledger: Ledger
    ) -> tuple[Commit | None, list[BadFile]]:
        """Combine, plan and commit a batch. Try again without bad files, or if the branch has moved."""
        bad: list[BadFile] = []
        while files := drop_bad_files(files, bad):
            state = read_target(self.repo, self.branch, self.options.group, ledger, state)
            state = state.rename_sources(inspected.new_names)
            designs, misfits = self._design(files, inspected, state)
            bad += misfits
            if not designs:
                break
            check_batch(designs)
            LOGGER.info("%s", summarize_plans(designs))
            try:
                commit = commit_batch(self.repo, self.branch, designs, self.options, self.executor)
            except ProblemsError as error:
                if self.options.on_bad_file == "stop":
                    raise
                bad += error.bad
                continue
            if commit is not None:
                return commit, bad
        return None, bad
