"""Commands that copy data out of a repository: clone, export."""

from __future__ import annotations

from typing import Any

import click

import icefloe
from icefloe._internal.amounts import counted, format_bytes
from icefloe.cli import revisions
from icefloe.cli.authorize import authorize_option
from icefloe.cli.execution import repo_executor_option
from icefloe.cli.output import Output, plain
from icefloe.cli.params import (
    complete_branch,
    complete_tag,
    dry_run_option,
    isel_option,
    output_option,
    repo_argument,
    revision_option,
    sel_option,
    target_argument,
)
from icefloe.repository import Repository

_NETCDF = (".nc", ".nc4", ".netcdf")
_OTHERS = (".csv", ".grib", ".grib2", ".h5", ".hdf5", ".json", ".npy", ".parquet", ".tif", ".tiff", ".zip")
"""File name extensions of formats that cannot be written."""


@click.command()
@repo_argument
@target_argument
@click.option(
    "--branch",
    "branches",
    multiple=True,
    help="A branch to copy in addition to main; all branches by default.",
    shell_complete=complete_branch,
)
@click.option(
    "--tag",
    "tags",
    multiple=True,
    help="A tag to copy; all tags by default.",
    shell_complete=complete_tag,
)
@click.option("--no-tags", is_flag=True, help="Copy no tags.")
@click.option(
    "--depth",
    type=click.IntRange(min=1),
    help="Copy only this many of the newest snapshots of each branch and tag.",
)
@click.option("--read-back", is_flag=True, help="Read every copy again and compare it with the source.")
@click.option("--overwrite", is_flag=True, help="Move branches of TARGET even if commits there are lost.")
@dry_run_option
@repo_executor_option
@output_option
def clone(
    repo: Repository,
    target: str,
    target_options: dict[str, str],
    branches: tuple[str, ...],
    tags: tuple[str, ...],
    no_tags: bool,
    depth: int | None,
    read_back: bool,
    overwrite: bool,
    dry_run: bool,
    out: Output,
) -> None:
    """Copy a repository, or bring a copy up to date.

    TARGET is a path or URL. Run the command again to resume an interrupted clone.

    \b
    icefloe clone data/repo s3://bucket/repo --target-option region=eu-west-1
    icefloe clone data/repo backup/repo --depth 10
    """
    report = repo.clone_to(
        icefloe.storage_from_url(target, **target_options),
        branches=branches or None,
        tags=() if no_tags else tags or None,
        depth=depth,
        read_back=read_back,
        overwrite=overwrite,
        dry_run=dry_run,
        progress=out.progress,
    )
    verb = "would copy" if dry_run else "copied"
    text = (
        f"{verb} {counted(report.snapshots, 'snapshot')}, "
        f"{counted(report.transaction_logs, 'transaction log')}, {counted(report.manifests, 'manifest')} and "
        f"{counted(report.chunks, 'chunk')}, {format_bytes(report.bytes_copied)}; "
        f"{counted(report.objects_there, 'object')} existed already"
    )
    out.value(plain(report), text)


@click.command()
@repo_argument
@target_argument
@revision_option
@click.option("--group", default="/", show_default=True, help="The group to export; it becomes the root.")
@click.option("--variables", help="Arrays to export, separated by commas; their coordinates are included.")
@isel_option
@sel_option
@click.option("--overwrite", is_flag=True, help="Replace existing data at TARGET.")
@dry_run_option
@authorize_option
@repo_executor_option
@output_option
def export(
    repo: Repository,
    revision: str,
    target: str,
    target_options: dict[str, str],
    group: str,
    variables: str | None,
    isel: dict[str, slice | int],
    sel: dict[str, Any],
    overwrite: bool,
    dry_run: bool,
    out: Output,
) -> None:
    """Export a group or a region as plain Zarr or NetCDF.

    TARGET is a path or URL: a NetCDF file if its name ends in .nc, otherwise a Zarr store.

    \b
    icefloe export data/repo -r v1.0 s3://bucket/plain.zarr --target-option region=eu-west-1
    icefloe export data/repo subset.nc --variables t2m --sel time=2024-01-01..2024-01-31
    icefloe export data/repo subset.zarr --isel time=0:24 --isel lat=10:20
    """
    if target.lower().endswith(_OTHERS):
        raise click.BadParameter(
            f"{target}: exports are Zarr stores, or NetCDF files if the name ends in .nc", param_hint="TARGET"
        )
    session = repo.readonly_session(snapshot_id=revisions.resolve(repo, revision))
    options: dict[str, Any] = {
        "group": group,
        "variables": None if variables is None else [each.strip() for each in variables.split(",")],
        "isel": isel,
        "sel": sel,
        "overwrite": overwrite,
        "dry_run": dry_run,
        "progress": out.progress,
    }
    if target.lower().endswith(_NETCDF):
        report = icefloe.export_netcdf(session, target, **options)
    else:
        store = icefloe.storage_from_url(target, **target_options)
        report = icefloe.export_zarr(session, store, **options, executor=repo.executor)
    verb = "would write" if dry_run else "wrote"
    text = (
        f"{verb} {counted(len(report.arrays), 'array')} and {counted(report.groups, 'group')}, "
        f"{format_bytes(report.bytes_written)}; {counted(report.chunks_copied, 'chunk')} copied, "
        f"{report.chunks_encoded} re-encoded"
    )
    out.value(plain(report), text)
