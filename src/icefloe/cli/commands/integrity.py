"""Commands that check and restore the integrity of a repository: verify, checksums, repair."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

import icefloe
from icefloe._internal.amounts import counted
from icefloe.cli import revisions
from icefloe.cli.authorize import authorize_option
from icefloe.cli.errors import FINDINGS
from icefloe.cli.execution import repo_executor_option, with_progress
from icefloe.cli.output import CommandOutput, format_value, plain
from icefloe.cli.params import (
    branch_option,
    complete_revision,
    dry_run_option,
    output_option,
    pairs_option,
    repo_argument,
)
from icefloe.errors import IcechunkError
from icefloe.maintenance.integrity.findings import Level, VerifyLevel, VerifyReport
from icefloe.maintenance.integrity.last_report import record_report
from icefloe.maintenance.integrity.repair import ReadChunk
from icefloe.repository import Repository
from icefloe.session import Session

if TYPE_CHECKING:
    from icefloe.ingest import LedgerChunks


@click.command()
@repo_argument
@click.option(
    "--level",
    type=click.Choice([each.value for each in Level]),
    default="graph",
    show_default=True,
    help="What to check: metadata files (graph), also that chunk objects exist (objects), also the files of "
    "virtual references (sources), also that all chunks can be decoded (chunks).",
)
@click.option(
    "-r",
    "--revision",
    help=f"Verify only this version: {revisions.HELP} All branches and tags by default.",
    shell_complete=complete_revision,
)
@click.option("--no-history", is_flag=True, help="With -r: verify only this snapshot, not its ancestors.")
@click.option("--checksums", is_flag=True, help="Also compare objects with their recorded checksums.")
@click.option("--no-record", is_flag=True, help="Do not store the report in the repository.")
@click.option(
    "--incremental", is_flag=True, help="Skip snapshots that an earlier incremental run has verified."
)
@dry_run_option
@authorize_option
@repo_executor_option
@output_option
def verify(
    repo: Repository,
    level: VerifyLevel,
    revision: str | None,
    no_history: bool,
    checksums: bool,
    no_record: bool,
    incremental: bool,
    dry_run: bool,
    out: CommandOutput,
) -> int:
    """Check that a repository is complete and readable.

    The exit code is 5 if problems are found. The report contains no secrets. It is stored below icefloe/ in
    the repository, which other readers ignore.

    \b
    icefloe verify data/repo --level objects --incremental
    icefloe verify data/repo -r main --no-history --level chunks
    icefloe verify data/repo --level sources --authorize s3://archive/
    """
    if no_history and revision is None:
        raise click.UsageError("--no-history requires -r REVISION")
    snapshot_id = revision and revisions.resolve(repo, revision)
    report = with_progress(repo, out, reads_only=level == Level.GRAPH.value).verify(
        level,
        snapshot_id=snapshot_id,
        history=not no_history,
        checksums=checksums,
        incremental=incremental,
        dry_run=dry_run,
    )
    if dry_run:
        counts = {"snapshots": report.snapshots, "skipped": report.skipped}
        text = f"would check {counted(report.snapshots, 'snapshot')}, skip {report.skipped}"
        out.value({"dry_run": True, "level": level, **counts}, text)
        return 0
    if not no_record:
        _record(repo, report, snapshot_id, with_checksums=checksums or level == Level.CHUNKS.value)
    checked = (
        f"{counted(report.snapshots, 'snapshot')}, {counted(report.transaction_logs, 'transaction log')}, "
        f"{counted(report.manifests, 'manifest')}, {counted(report.references, 'reference')}"
    )
    deeper = {
        "chunk object": report.chunk_objects,
        "source": report.sources,
        "decoded chunk": report.chunks,
        "statistics file": report.statistics,
        "checksum": report.checksums,
    }
    checked += "".join(f", {counted(count, what)}" for what, count in deeper.items() if count)
    if report.skipped:
        checked += f"; skipped {counted(report.skipped, 'snapshot')} verified before"
    lines = [
        format_value(f"{found.kind}: {found.object} ({found.where}): {found.message}")
        for found in report.findings
    ]
    verdict = f"ok: {checked}" if report.ok else f"{counted(len(lines), 'finding')} in {checked}"
    out.value({"ok": report.ok, **plain(report)}, "\n".join([verdict, *lines]))
    return 0 if report.ok else FINDINGS


def _record(repo: Repository, report: VerifyReport, snapshot_id: str | None, *, with_checksums: bool) -> None:
    """Store a verification report in the repository. If it is read-only, only print a warning."""
    try:
        record_report(repo.storage, report, snapshot_id=snapshot_id, with_checksums=with_checksums)
    except IcechunkError as error:
        click.echo(format_value(f"the report was not stored: {error.message}"), err=True)


@click.group()
def checksums() -> None:
    """Record checksums of all objects in a repository.

    \b
    icefloe checksums record data/repo
    """


@checksums.command("record")
@repo_argument
@repo_executor_option
@output_option
def checksums_record(repo: Repository, out: CommandOutput) -> None:
    """Record checksums of all used objects that have none yet.

    `icefloe verify --checksums` compares objects with these checksums, which are stored below icefloe/ in the
    repository. Other readers ignore them.

    \b
    icefloe checksums record data/repo
    """
    count = repo.record_checksums(progress=out.progress)
    out.value({"recorded": count}, f"recorded {counted(count, 'checksum')}")


def _require_text(text: str) -> str:
    if not text:
        raise ValueError("empty")
    return text


@click.command()
@repo_argument
@branch_option
@click.option(
    "--from", "source", metavar="REPO", help="Restore lost chunks from this repository, such as a clone."
)
@click.option("--from-ledger", is_flag=True, help="Restore lost chunks from the ingested files.")
@pairs_option(
    "--source-option",
    "source_options",
    help="A storage option for the ingested files, such as region=eu-west-1.",
)
@click.option("--virtual", is_flag=True, help="Also check the files of virtual references.")
@pairs_option(
    "--relocate",
    form="OLD=NEW",
    parse=_require_text,
    help="Replace the prefix OLD of the URLs of virtual references with NEW.",
)
@click.option(
    "--drop",
    is_flag=True,
    help="Delete references to chunks that cannot be restored. They then read as the fill value.",
)
@click.option(
    "--checksums", is_flag=True, help="Also repair chunks that differ from their recorded checksums."
)
@dry_run_option
@click.option("-m", "--message", default="Repair", show_default=True, help="The commit message.")
@authorize_option
@repo_executor_option
@output_option
def repair(
    repo: Repository,
    branch: str,
    source: str | None,
    from_ledger: bool,
    source_options: dict[str, str],
    virtual: bool,
    relocate: dict[str, str],
    drop: bool,
    checksums: bool,
    dry_run: bool,
    message: str,
    out: CommandOutput,
) -> int:
    """Restore lost or damaged data on a branch.

    All repairs are made in one commit. Missing transaction logs are recomputed. Chunks are restored from
    another repository, or from ingested files that have not changed. The exit code is 5 if damage remains.

    \b
    icefloe repair data/repo --from backup/repo --dry-run
    icefloe repair data/repo --from-ledger
    icefloe repair data/repo --relocate s3://old-bucket/=s3://new-bucket/ --drop
    """
    sources: list[ReadChunk] = []
    if source is not None:
        sources.append(icefloe.ChunkSource.from_session(icefloe.open(source).readonly_session(branch)))
    ledger = _make_ledger_source(repo.readonly_session(branch), source_options) if from_ledger else None
    sources += [ledger] if ledger is not None else []
    report = with_progress(repo, out).repair(
        branch,
        sources=(lambda path, coords: _find_first(sources, path, coords)) if sources else None,
        drop=drop,
        checksums=checksums,
        virtual=virtual,
        relocate=relocate,
        dry_run=dry_run,
        message=message,
    )
    unusable = {} if ledger is None else ledger.unusable
    for file, reason in unusable.items():
        click.echo(format_value(f"{file}: {reason}"), err=True)
    rows = list(report.table().rows())
    if out.as_json:
        found = {"snapshot": report.snapshot_id, "complete": report.complete, "actions": rows}
        out.value({**found, "unusable_sources": unusable} if unusable else found)
    elif rows:
        out.table(rows, report.table().names)
        out.value(
            f"{format_value(branch)} is at {report.snapshot_id}"
            if report.snapshot_id
            else "nothing was committed"
        )
    else:
        out.value("nothing to repair")
    return 0 if report.complete else FINDINGS


def _make_ledger_source(session: Session, options: dict[str, str]) -> LedgerChunks:
    from icefloe.ingest import LedgerChunks
    from icefloe.ingest.read_options import ReadOptions

    return LedgerChunks(session, ReadOptions(storage_options=options))


def _find_first(sources: list[ReadChunk], path: str, coords: tuple[int, ...]) -> Any:
    """Return a chunk from the first source that has it."""
    return next((data for each in sources if (data := each(path, coords)) is not None), None)
