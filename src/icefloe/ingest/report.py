"""The report of an ingest: its sources, plan, commits and check results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from icefloe._internal.amounts import counted, format_bytes
from icefloe._internal.table import Table
from icefloe.core.commit.limits import count_commits
from icefloe.ingest.bad_files import BadFile, ProblemsError, make_problem_table
from icefloe.ingest.discover.sources import Discovered, IngestSource
from icefloe.ingest.inspect.agreement import FileFinding
from icefloe.ingest.inspect.inspect_files import Inspected
from icefloe.ingest.ledger import Ledger, Outcome, RunSources
from icefloe.ingest.plan.design import Design, list_changed_chunks
from icefloe.ingest.write.batch import Commit, StagedFiles
from icefloe.repository import Repository


@dataclass(frozen=True, slots=True)
class ArrayReport:
    """The planned layout of one array."""

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None
    nbytes: int


@dataclass(frozen=True, slots=True)
class PlanReport:
    """A summary of the plan of an ingest."""

    files: int
    arrays: tuple[ArrayReport, ...]
    tasks: int
    blocks: int
    nbytes: int
    memory_bytes: int
    """The peak memory of a task in bytes, excluding the interpreter and its modules."""
    read_factor: float
    spilled_bytes: int = 0
    """The number of bytes that are temporarily spilled to the repository's storage, and deleted
    at the end.
    """
    commits: int = 1

    def __str__(self) -> str:
        again = f", files read {self.read_factor:.1f} times" if self.read_factor > 1.05 else ""
        aside = f", {format_bytes(self.spilled_bytes)} spilled" if self.spilled_bytes else ""
        split = f", {self.commits} commits" if self.commits > 1 else ""
        return (
            f"{counted(self.files, 'file')} into {counted(len(self.arrays), 'array')}: "
            f"{format_bytes(self.nbytes)} in {counted(self.blocks, 'block')}, {counted(self.tasks, 'task')} "
            f"of at most {format_bytes(self.memory_bytes)}"
            f"{again}{aside}{split}"
        )

    @staticmethod
    def add_up(plans: Sequence[PlanReport | None]) -> PlanReport | None:
        """Add up the plan summaries of several commits. Return None if there are none."""
        there = [plan for plan in plans if plan is not None]
        if not there:
            return None
        size = sum(plan.nbytes for plan in there)
        return PlanReport(
            sum(plan.files for plan in there),
            there[-1].arrays,
            sum(plan.tasks for plan in there),
            sum(plan.blocks for plan in there),
            size,
            max(plan.memory_bytes for plan in there),
            sum(plan.read_factor * plan.nbytes for plan in there) / size if size else 1.0,
            sum(plan.spilled_bytes for plan in there),
            sum(plan.commits for plan in there),
        )


def summarize_plans(designs: Sequence[Design]) -> PlanReport:
    """Summarize the designs of one commit."""
    arrays = [each for design in designs for each in _describe_arrays(design)]
    plans = [design.plan for design in designs]
    size = sum(plan.nbytes for plan in plans)
    return PlanReport(
        len({file.source.url for design in designs for file in design.combined.files}),
        tuple(arrays),
        sum(len(plan.tasks) for plan in plans),
        sum(len(plan.blocks) for plan in plans),
        size,
        max(plan.memory_bytes for plan in plans),
        sum(plan.read_factor * plan.nbytes for plan in plans) / size if size else 1.0,
        sum(plan.spilled_bytes for plan in plans),
        count_commits(list_changed_chunks(designs)),
    )


def _describe_arrays(design: Design) -> Iterator[ArrayReport]:
    group = design.combined.state.below
    for each in (*design.targets, *(target for target, _ in design.coordinates)):
        name = f"{group}/{each.name}" if group else each.name
        yield ArrayReport(name, each.dims, each.shape, each.dtype, each.chunks, each.shards, each.nbytes)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check on the staged data of an ingest."""

    name: str
    passed: bool
    text: str


@dataclass(frozen=True, slots=True)
class IngestReport:
    """The report of an ingest, or of a dry run."""

    outcome: Outcome
    """The sources that were found, as compared with the ledger."""
    bad: tuple[BadFile, ...] = ()
    """The files that were skipped, with the reasons."""
    findings: tuple[FileFinding, ...] = ()
    """Findings from comparing the files with each other."""
    plan: PlanReport | None = None
    """The arrays and tasks of all commits; None if there was nothing to write."""
    commits: tuple[str, ...] = ()
    """The staged commits in order, before check results were added to the last one."""
    checks: tuple[CheckResult, ...] = ()
    """The results of the checks on the staged data."""
    published: str | None = None
    """The new tip of the target branch; None if nothing was published."""
    failed_branch: str | None = None
    """The branch with the data that failed a check; None if all checks passed."""
    broken: tuple[IngestSource, ...] = ()
    """The sources of virtual references that can no longer be read, because they changed or are missing."""
    missing: tuple[IngestSource, ...] = ()
    """The sources in `broken` that no longer exist."""

    @staticmethod
    def of(
        selection: RunSources, inspected: Inspected | None = None, bad: Sequence[BadFile] = ()
    ) -> IngestReport:
        """Create an ingest report from the selected sources and the result of inspecting them.

        Parameters
        ----------
        selection
            The sources, compared with the ledger.
        inspected
            The result of inspecting the sources; None if they were not inspected.
        bad
            Files that were skipped after the inspection.

        Returns
        -------
        IngestReport
            The report of a run that has not yet written anything.
        """
        if inspected is None:
            return IngestReport(selection.outcome)
        outcome = replace(selection.outcome, renamed=inspected.renamed)
        return IngestReport(outcome, (*inspected.bad, *bad), inspected.findings)

    def with_plan(self, designs: Sequence[Design]) -> IngestReport:
        """Return a copy of an ingest report with the plan of a dry run.

        Parameters
        ----------
        designs
            The designs of the commit, one per group.

        Returns
        -------
        IngestReport
            The report with the plan.
        """
        if not designs:
            return self
        findings = [finding for design in designs for finding in design.combined.findings]
        return replace(self, findings=(*self.findings, *findings), plan=summarize_plans(designs))

    def with_commit(self, commit: Commit) -> IngestReport:
        """Return a copy of an ingest report with one more commit and its plan.

        Parameters
        ----------
        commit
            The commit.

        Returns
        -------
        IngestReport
            The report with the commit.
        """
        notes: list[FileFinding] = []
        for design in commit.designs:
            copied = design.referral.reasons
            notes += design.combined.findings
            notes += [FileFinding(file, name, f"is copied: {why}", "note") for file, name, why in copied]
            notes += design.referral.notes
        # Findings about existing arrays recur with every commit.
        findings = dict.fromkeys((*self.findings, *notes))
        plan = PlanReport.add_up([self.plan, summarize_plans(commit.designs)])
        commits = (*self.commits, commit.ledger.snapshot_id)
        return replace(self, findings=tuple(findings), plan=plan, commits=commits)

    def complete(self, found: Discovered) -> IngestReport:
        """Complete the report of an ingest with the names that matched no source.

        Parameters
        ----------
        found
            The result of the search for sources.

        Returns
        -------
        IngestReport
            The final report.

        Raises
        ------
        ProblemsError
            If no source contributed any data.
        """
        known = (*self.outcome.sources.known, *self.outcome.sources.changed, *self.outcome.renamed)
        if self.bad and self.plan is None and not known and self.published is None:
            raise ProblemsError(self.bad)
        unfound = [BadFile(IngestSource(each.url, -1, 0), each.reason) for each in found.unfound]
        return replace(self, bad=(*unfound, *self.bad))

    @property
    def problems(self) -> Table:
        """The problems of skipped files as a table: file, variable, problem and remedy."""
        return make_problem_table(self.bad)

    @property
    def ok(self) -> bool:
        """True if all checks of the ingest passed and all referenced files are unchanged."""
        return self.failed_branch is None and not self.broken

    def to_html(self) -> str:
        """Return the ingest report as a self-contained HTML document.

        Returns
        -------
        str
        """
        from icefloe._internal import html

        return html.render_page("Ingest report", self._repr_html_())

    def _repr_html_(self) -> str:
        from icefloe.ingest.report_html import render_report

        return render_report(self.to_dict(), ok=self.ok)

    def to_dict(self) -> dict[str, Any]:
        """Return the ingest report as JSON-compatible values.

        Returns
        -------
        dict
        """
        sources = self.outcome.sources
        renamed = self.outcome.renamed
        out = {each.source.url for each in self.bad} | {each.source.url for each in renamed}
        return {
            "ingested": [s.url for s in self.outcome.wanted if s.url not in out] if self.published else [],
            "moved": [{"source": each.source.url, "was": each.was} for each in renamed],
            "known": [source.url for source in sources.known],
            "changed": [source.url for source in sources.changed],
            "broken": [source.url for source in self.broken],
            "missing": [source.url for source in self.missing],
            "bad": [{"source": each.source.url, "reason": each.sentence} for each in self.bad],
            "problems": list(self.problems.rows()),
            "findings": [
                {**asdict(finding), "hint": finding.hint and str(finding.hint)} for finding in self.findings
            ],
            "plan": asdict(self.plan) if self.plan else None,
            "commits": list(self.commits),
            "checks": [asdict(check) for check in self.checks],
            "published": self.published,
            "failed_branch": self.failed_branch,
        }


@dataclass(frozen=True, slots=True)
class StagedRun:
    """The commits on the staging branch of a run, collected for its report."""

    report: IngestReport
    repo: Repository
    """The repository, authorized to read all referenced files."""
    staged: tuple[StagedFiles, ...]
    ledger: Ledger
    """The ledger after the last commit."""

    def extend(self, commit: Commit | None, bad: Sequence[BadFile]) -> StagedRun:
        """Add a commit to a staged run, with the files that the commit skipped."""
        report = replace(self.report, bad=(*self.report.bad, *bad))
        if commit is None:
            return replace(self, report=report)
        return StagedRun(report.with_commit(commit), self.repo, (*self.staged, *commit.staged), commit.ledger)
