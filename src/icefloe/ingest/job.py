"""Ingest files: discover, inspect, combine, plan, write and publish, in this order.

Every stage returns a frozen record for the next one. The ledger and the target arrays are read once per
snapshot; again only after a commit, after an interrupted run, or if the branch moved.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from icefloe._internal.executor import Executor
from icefloe.ingest.combine.existing import TargetState, read_target
from icefloe.ingest.combine_batch import combine_batch, refuse_problems
from icefloe.ingest.discover.sources import Discovered, discover
from icefloe.ingest.inspect.inspect_files import Inspected, inspect_sources, split_batches
from icefloe.ingest.inspect.inspection_cache import InspectionCache
from icefloe.ingest.inspect.reference_spill import Spill
from icefloe.ingest.ledger import Ledger, Selection, compare_with_ledger
from icefloe.ingest.options import Options
from icefloe.ingest.plan.design import LargeBatchError, design_arrays, refuse_large_batch, split_large_batch
from icefloe.ingest.publish.audit import refuse_unknown, refuse_unrunnable
from icefloe.ingest.publish.staging import OvertakenError, Staging, has_work, make_overtaken_error
from icefloe.ingest.records import LOGGER, BadFile, FileSchema, ProblemsError, drop_bad_files
from icefloe.ingest.report import IngestReport, StagedRun, summarize_plans
from icefloe.ingest.target_repository import authorize_locations, authorize_sources
from icefloe.ingest.write.batch import Commit, commit_batch
from icefloe.repository import Repository

_ATTEMPTS = 5  # if other writers publish first


def ingest(
    repo: Repository,
    sources: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | Discovered,
    options: Options,
    executor: Executor | AbstractContextManager[Executor],
    *,
    dry_run: bool = False,
) -> IngestReport:
    """Ingest new sources. See `icefloe.ingest_files`. A context manager is entered only if there is work."""
    if not isinstance(sources, Discovered):
        sources = discover(sources, options.reading.storage_options, skip=options.on_bad_file == "skip")
    if isinstance(executor, Executor):
        refuse_unrunnable(options.checks, on_spark=executor.has_sql)
        executor = nullcontext(executor)
    selection = compare_with_ledger(repo, sources, options)
    if not has_work(repo, selection, options.branch):
        return IngestReport.of(selection).complete(sources)
    with executor as started:
        refuse_unrunnable(options.checks, on_spark=started.has_sql)
        return run(repo, selection, options, started, dry_run=dry_run)


def run(
    repo: Repository, selection: Selection, options: Options, executor: Executor, *, dry_run: bool = False
) -> IngestReport:
    """Ingest the selected sources: write them to a staging branch, check them, and publish them.

    The target branch moves when everything is written and checked, and stays where it is if anything fails.
    """
    if dry_run:
        return _Job(repo, options.branch, options, executor).preview(selection).complete(selection.found)
    if options.mode != "native":
        repo = authorize_sources(repo, selection.found.sources, options.reading)
    for _ in range(_ATTEMPTS):
        try:
            with Staging.begin(repo, options.branch) as staging:
                resumed = staging.resume(selection, options)
                written = _Job(repo, staging.branch, options, executor).write(resumed.selection)
                report = staging.check_and_publish(resumed, written, options, executor)
            return report.complete(selection.found)
        except OvertakenError:
            LOGGER.info("another writer changed the same arrays on %s: starting again", options.branch)
    raise make_overtaken_error(options.branch, _ATTEMPTS)


@dataclass(frozen=True, slots=True)
class _Job:
    """One run of an ingest, up to the commits on its branch."""

    repo: Repository
    branch: str
    options: Options
    executor: Executor

    def preview(self, selection: Selection) -> IngestReport:
        """Report what would be done."""
        state, inspected = self._inspect(selection)
        combined, bad = combine_batch(inspected.files, state, self.options, self.executor)
        designs = [design_arrays(each, inspected, self.options, self.executor) for each in combined]
        return IngestReport.of(selection, inspected, bad).with_plan(designs)

    def write(self, selection: Selection) -> StagedRun:
        """Write all files to the branch, in one commit or several."""
        storage = self.repo.storage
        with Spill(storage) as spill, InspectionCache(storage, self.options) as cache:
            state, inspected = self._inspect(selection, spill, cache)
            job = replace(self, repo=authorize_locations(self.repo, inspected.files, self.options.reading))
            written = StagedRun(IngestReport.of(selection, inspected), job.repo, (), selection.ledger)
            batches = deque(split_batches(inspected.files, self.options.commit_every))
            while batches:
                batch = batches.popleft()
                try:
                    written = written.extend(*job._commit(batch, inspected, state, written.ledger))
                except LargeBatchError as error:
                    batches.extendleft(reversed(split_large_batch(batch, error)))
            return written

    def _inspect(
        self, selection: Selection, spill: Spill | None = None, cache: InspectionCache | None = None
    ) -> tuple[TargetState, Inspected]:
        LOGGER.info("%s", selection.outcome)
        state = read_target(self.repo, self.branch, self.options.group, selection.ledger)
        inspected = inspect_sources(
            state.list_schemas(), selection, self.options, self.executor, spill, cache
        )
        refuse_problems(inspected, state, self.options, self.executor)
        if selection.outcome.wanted:
            refuse_unknown(self.options.checks, inspected.variables)
        return state, inspected

    def _commit(
        self, files: Sequence[FileSchema], inspected: Inspected, state: TargetState, ledger: Ledger
    ) -> tuple[Commit | None, list[BadFile]]:
        """Combine, plan and commit a batch. Repeat this without bad files, or if the branch moved."""
        bad: list[BadFile] = []
        while files := drop_bad_files(files, bad):
            state = read_target(self.repo, self.branch, self.options.group, ledger, state)
            state = state.rename_sources(inspected.new_names)
            combined, misfits = combine_batch(files, state, self.options, self.executor)
            bad += misfits
            if not combined:
                break
            designs = [design_arrays(each, inspected, self.options, self.executor) for each in combined]
            refuse_large_batch(designs)
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
