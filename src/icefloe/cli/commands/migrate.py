"""The command that upgrades repositories to format version 2: migrate."""

from __future__ import annotations

from datetime import UTC, datetime

import click

import icefloe
from icefloe._internal.amounts import counted
from icefloe._internal.executor import Executor
from icefloe.cli.execution import maintenance_executor_option, with_progress
from icefloe.cli.output import CommandOutput, format_value, plain
from icefloe.cli.params import dry_run_option, output_option, storage_argument
from icefloe.core.open import find_layout
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.legacy.layout import ALL_LAYOUTS
from icefloe.legacy.upgrade import MigrationReport, is_interrupted
from icefloe.maintenance.upgrade_v1 import has_files_of_version_1
from icefloe.repository import Repository
from icefloe.storage.base import Storage


@click.command()
@storage_argument
@click.option(
    "--to", "target", metavar="URL", help="Write to this empty location instead of upgrading REPO in place."
)
@dry_run_option
@click.option("--keep-gaps", is_flag=True, help="Migrate even if objects are missing. They remain missing.")
@click.option(
    "--delete-old-files", is_flag=True, help="Without --to: delete the files that version 2 does not use."
)
@maintenance_executor_option
@output_option
def migrate(
    storage: Storage,
    target: str | None,
    dry_run: bool,
    keep_gaps: bool,
    delete_old_files: bool,
    executor: Executor | None,
    out: CommandOutput,
) -> None:
    """Upgrade a repository to version 2 of the format.

    Run the command again to resume an interrupted migration.

    \b
    icefloe migrate data/old --dry-run
    icefloe migrate data/old --to data/new
    """
    layout = find_layout(storage, ALL_LAYOUTS)
    spec = None if layout is None else layout.spec
    version_1 = spec is not None and spec.writable and not spec.refs_in_repo_info
    leftovers = delete_old_files and target is None and spec is not None and spec.refs_in_repo_info
    if version_1 or (leftovers and has_files_of_version_1(storage) and not is_interrupted(storage)):
        _upgrade(storage, target, dry_run, delete_old_files, executor, out, leftovers_only=not version_1)
        return
    report = icefloe.migrate(
        storage,
        None if target is None else icefloe.storage_from_url(target),
        dry_run=dry_run,
        keep_gaps=keep_gaps,
        delete_old_files=delete_old_files,
        progress=out.progress,
        executor=executor,
    )
    out.value(plain(report), _format_report(report))


def _upgrade(
    storage: Storage,
    target: str | None,
    dry_run: bool,
    delete_old_files: bool,
    executor: Executor | None,
    out: CommandOutput,
    *,
    leftovers_only: bool,
) -> None:
    if target is not None:
        raise InvalidInputError(
            "a repository of format version 1 is upgraded in place; omit --to", kind=ErrorKind.NOT_ALLOWED
        )
    repo = Repository.open(storage)
    repo = with_progress(repo if executor is None else repo.with_executor(executor), out, reads_only=True)
    snapshots = len(repo.retain(datetime.fromtimestamp(0, UTC), dry_run=True).table)
    branches, tags = len(repo.list_branches()), len(repo.list_tags())
    icefloe.upgrade_icechunk_repository(repo, dry_run=dry_run, delete_unused_v1_files=delete_old_files)
    text = (
        "can be upgraded from version 1 to version 2" if dry_run else "upgraded from version 1 to version 2"
    )
    if leftovers_only:
        text = "the files of version 1 would be deleted" if dry_run else "deleted the files of version 1"
    text += f": {counted(snapshots, 'snapshot')}, {counted(branches, 'branch')}, {counted(tags, 'tag')}"
    counts = {"snapshots": snapshots, "branches": branches, "tags": tags}
    out.value({"source_format": "version 1", "dry_run": dry_run, **counts}, text)


def _format_report(report: MigrationReport) -> str:
    verb = "would write" if report.dry_run else "wrote"
    head = (
        f"{verb} {counted(report.snapshots, 'snapshot')}, {counted(report.branches, 'branch')}, "
        f"{counted(report.tags, 'tag')}, {counted(report.manifests, 'manifest')} with "
        f"{counted(report.references, 'reference')}; copied: {report.copied_chunk_objects} of "
        f"{counted(report.chunk_objects, 'chunk object')}"
    )
    return "\n".join(
        [
            f"{report.source_format} format: {head}",
            *(f"tolerated: {format_value(text)}" for text in report.tolerated),
            *(f"missing: {format_value(text)}" for text in report.gaps),
        ]
    )
