"""Commands that look whether a repository is well: verify, checksums, repair."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

import icefloe
from icefloe._internal.amounts import counted
from icefloe.cli import revisions
from icefloe.cli.authorize import authorize_option
from icefloe.cli.complete import complete_branch, complete_tag
from icefloe.cli.errors import NOT_WELL
from icefloe.cli.output import Output, plain, shown
from icefloe.cli.pairs import storage_options
from icefloe.cli.params import output_option, repo_argument, spark_option
from icefloe.cli.watched import watched
from icefloe.maintenance.integrity.findings import Level, VerifyLevel
from icefloe.maintenance.integrity.repair import ReadChunk
from icefloe.repository import Repository
from icefloe.session import Session

if TYPE_CHECKING:
    from icefloe.ingest import LedgerChunks


@click.command()
@repo_argument
@click.option(
    "--level", type=click.Choice([each.value for each in Level]), default="graph", show_default=True
)
@click.option("--branch", help="This branch alone.", shell_complete=complete_branch)
@click.option("--tag", help="This tag alone.", shell_complete=complete_tag)
@click.option("--snapshot", "snapshot_id", help="This snapshot alone.")
@click.option("--no-history", is_flag=True, help="Without the snapshots before it.")
@click.option("--checksums", is_flag=True, help="Compare objects with the checksums that were recorded.")
@click.option("--incremental", is_flag=True, help="Only what an earlier run did not find well.")
@click.option("--dry-run", is_flag=True, help="Count the snapshots to look at, and look at none.")
@authorize_option
@spark_option
@output_option
def verify(
    repo: Repository,
    level: VerifyLevel,
    branch: str | None,
    tag: str | None,
    snapshot_id: str | None,
    no_history: bool,
    checksums: bool,
    incremental: bool,
    dry_run: bool,
    out: Output,
) -> int:
    """Look whether all that branches and tags lead to is there and readable. Exit code 5 if not.

    \b
    icefloe verify data/repo --level objects --incremental
    icefloe verify data/repo --branch main --no-history --level chunks
    icefloe verify data/repo --level sources --authorize s3://archive/
    """
    chosen = [each for each in (branch, tag, snapshot_id) if each is not None]
    if len(chosen) > 1 or (no_history and not chosen):
        raise click.UsageError("say one of --branch, --tag and --snapshot; --no-history needs one of them")
    report = watched(repo, out, reads_only=level == Level.GRAPH.value).verify(
        level,
        branch=branch,
        tag=tag,
        snapshot_id=snapshot_id and revisions.resolve(repo, snapshot_id),
        history=not no_history,
        checksums=checksums,
        incremental=incremental,
        dry_run=dry_run,
    )
    if dry_run:
        counts = {"snapshots": report.snapshots, "skipped": report.skipped}
        text = f"would look at {counted(report.snapshots, 'snapshot')}; verified before: {report.skipped}"
        out.value({"dry_run": True, "level": level, **counts}, text)
        return 0
    looked = (
        f"{counted(report.snapshots, 'snapshot')}, {counted(report.transaction_logs, 'transaction log')}, "
        f"{counted(report.manifests, 'manifest')}, {counted(report.references, 'reference')}"
    )
    deeper = {
        "chunk object": report.chunk_objects,
        "source": report.sources,
        "decoded chunk": report.chunks,
        "checksum": report.checksums,
    }
    looked += "".join(f", {counted(count, what)}" for what, count in deeper.items() if count)
    if report.skipped:
        looked += f"; verified before: {counted(report.skipped, 'snapshot')}"
    lines = [
        shown(f"{found.kind}: {found.object} ({found.where}): {found.message}") for found in report.findings
    ]
    verdict = f"well: {looked}" if report.ok else f"{counted(len(lines), 'fault')} among {looked}"
    out.value({"ok": report.ok, **plain(report)}, "\n".join([verdict, *lines]))
    return 0 if report.ok else NOT_WELL


@click.command()
@repo_argument
@spark_option
@output_option
def checksums(repo: Repository, out: Output) -> None:
    """Record checksums of all objects in use that have none yet, for `icefloe verify --checksums`.

    They are kept below icefloe/ in the repository's place, where other readers do not look.

    \b
    icefloe checksums data/repo
    """
    count = repo.record_checksums(progress=out.progress)
    out.value({"recorded": count}, f"recorded {counted(count, 'checksum')}")


@click.command()
@repo_argument
@click.option("--branch", default="main", show_default=True, shell_complete=complete_branch)
@click.option("--from", "source", metavar="REPO", help="Take lost chunks from a copy, such as a clone.")
@click.option("--from-ledger", is_flag=True, help="Make lost chunks again from the files they came from.")
@click.option(
    "--source-option", "source_options", multiple=True, metavar="NAME=VALUE", help="Where those files are."
)
@click.option("--virtual", is_flag=True, help="Also look at the files of virtual references.")
@click.option(
    "--relocate", multiple=True, metavar="OLD=NEW", help="Where such files went, by prefix of the URL."
)
@click.option("--drop", is_flag=True, help="Let go of what no source knows: chunks read as fill value.")
@click.option("--checksums", is_flag=True, help="Also chunks with other bytes than were recorded.")
@click.option("--dry-run", is_flag=True, help="Tell what would be done, and write nothing.")
@click.option("-m", "--message", default="Repair", show_default=True)
@authorize_option
@spark_option
@output_option
def repair(
    repo: Repository,
    branch: str,
    source: str | None,
    from_ledger: bool,
    source_options: tuple[str, ...],
    virtual: bool,
    relocate: tuple[str, ...],
    drop: bool,
    checksums: bool,
    dry_run: bool,
    message: str,
    out: Output,
) -> int:
    """Repair what the tip of a branch has lost, in a commit of its own. Exit code 5 if something is left.

    Transaction logs are computed again; chunks come from another repository that has them, or from the files
    that were ingested, while they are what they were.

    \b
    icefloe repair data/repo --from backup/repo --dry-run
    icefloe repair data/repo --from-ledger
    icefloe repair data/repo --relocate s3://old-bucket/=s3://new-bucket/ --drop
    """
    sources: list[ReadChunk] = []
    if source is not None:
        sources.append(icefloe.ChunkSource.from_session(icefloe.open(source).readonly_session(branch)))
    ledger = _ledger(repo.readonly_session(branch), source_options) if from_ledger else None
    sources += [ledger] if ledger is not None else []
    report = watched(repo, out).repair(
        branch,
        sources=(lambda path, coords: _first(sources, path, coords)) if sources else None,
        drop=drop,
        checksums=checksums,
        virtual=virtual,
        relocate=_prefixes(relocate),
        dry_run=dry_run,
        message=message,
    )
    unusable = {} if ledger is None else ledger.unusable
    for file, reason in unusable.items():
        click.echo(shown(f"{file}: {reason}"), err=True)
    rows = list(report.table().rows())
    if out.as_json:
        found = {"snapshot": report.snapshot_id, "complete": report.complete, "actions": rows}
        out.value({**found, "unusable_sources": unusable} if unusable else found)
    elif rows:
        out.table(rows, report.table().names)
        out.value(
            f"{shown(branch)} is at {report.snapshot_id}" if report.snapshot_id else "nothing was committed"
        )
    else:
        out.value("nothing is lost")
    return 0 if report.complete else NOT_WELL


def _ledger(session: Session, options: tuple[str, ...]) -> LedgerChunks:
    from icefloe.ingest import LedgerChunks
    from icefloe.ingest.records import Reading

    return LedgerChunks(session, Reading(storage_options=storage_options(options)))


def _first(sources: list[ReadChunk], path: str, coords: tuple[int, ...]) -> Any:
    """What the first of several sources has that has anything."""
    return next((data for each in sources if (data := each(path, coords)) is not None), None)


def _prefixes(texts: tuple[str, ...]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    wrong = next(("".join(pair) for pair in pairs if not all(pair)), None)
    if wrong is not None:
        raise click.BadParameter(f"{wrong!r} is not OLD=NEW", param_hint="--relocate")
    return {old: new for old, _, new in pairs}
