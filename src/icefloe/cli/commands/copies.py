"""Commands that take data elsewhere: clone, export."""

from __future__ import annotations

from typing import Any

import click

import icefloe
from icefloe._internal.amounts import bytes_text, counted
from icefloe.cli import revisions
from icefloe.cli.authorize import authorize_option
from icefloe.cli.complete import complete_branch, complete_place, complete_tag
from icefloe.cli.output import Output, plain
from icefloe.cli.pairs import storage_options
from icefloe.cli.params import output_option, repo_argument, repo_at_argument, spark_option, target_argument
from icefloe.cli.selection import index_of, label_of
from icefloe.repository import Repository
from icefloe.storage.base import Storage

_NETCDF = (".nc", ".nc4", ".netcdf")
_OTHERS = (".csv", ".grib", ".grib2", ".h5", ".hdf5", ".json", ".npy", ".parquet", ".tif", ".tiff", ".zip")
"""Endings of names that somebody expects another format of."""


@click.command()
@repo_argument
@target_argument
@click.option(
    "--branch",
    "branches",
    multiple=True,
    help="This branch and main; all without it.",
    shell_complete=complete_branch,
)
@click.option("--tag", "tags", multiple=True, help="This tag; all without it.", shell_complete=complete_tag)
@click.option("--no-tags", is_flag=True, help="No tags at all.")
@click.option("--depth", type=click.IntRange(min=1), help="So many of the newest snapshots of each.")
@click.option("--read-back", is_flag=True, help="Read every copy again, and compare.")
@click.option("--overwrite", is_flag=True, help="Branches follow, even if their commits there get lost.")
@click.option("--dry-run", is_flag=True, help="Count, and write nothing.")
@spark_option
@output_option
def clone(
    repo: Repository,
    target: Storage,
    branches: tuple[str, ...],
    tags: tuple[str, ...],
    no_tags: bool,
    depth: int | None,
    read_back: bool,
    overwrite: bool,
    dry_run: bool,
    out: Output,
) -> None:
    """Copy a repository to TARGET, or add what is new to a copy that is there.

    What was broken off goes on when it is run again.

    \b
    icefloe clone data/repo s3://bucket/repo --target-option region=eu-west-1
    icefloe clone data/repo backup/repo --depth 10
    """
    report = repo.clone_to(
        target,
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
        f"{counted(report.chunks, 'chunk')}, {bytes_text(report.bytes_copied)}; there already: "
        f"{counted(report.objects_there, 'object')}"
    )
    out.value(plain(report), text)


@click.command()
@repo_at_argument
@click.argument("target", metavar="TARGET", shell_complete=complete_place)
@click.option("--target-option", "target_options", multiple=True, metavar="NAME=VALUE", help="Of the target.")
@click.option("--group", default="/", show_default=True, help="It becomes the root.")
@click.option("--variables", help="Names of arrays, with commas between; their coordinates come along.")
@click.option("--isel", multiple=True, metavar="DIM=START:STOP", help="Elements of a dimension, or one.")
@click.option("--sel", multiple=True, metavar="DIM=FIRST..LAST", help="Labels of a dimension, or one.")
@click.option("--overwrite", is_flag=True, help="Even if there is something at TARGET.")
@click.option("--dry-run", is_flag=True, help="Count, and write nothing.")
@authorize_option
@spark_option
@output_option
def export(
    repo: Repository,
    revision: str,
    target: str,
    target_options: tuple[str, ...],
    group: str,
    variables: str | None,
    isel: tuple[str, ...],
    sel: tuple[str, ...],
    overwrite: bool,
    dry_run: bool,
    out: Output,
) -> None:
    """Write a group, or a region of it, to TARGET: plain Zarr, or NetCDF where its name ends in .nc.

    \b
    icefloe export data/repo@v1.0 s3://bucket/plain.zarr --target-option region=eu-west-1
    icefloe export data/repo subset.nc --variables t2m --sel time=2024-01-01..2024-01-31
    icefloe export data/repo subset.zarr --isel time=0:24 --isel lat=10:20
    """
    if target.lower().endswith(_OTHERS):
        raise click.BadParameter(
            f"{target}: an export is Zarr, or NetCDF where the name ends in .nc", param_hint="TARGET"
        )
    session = repo.readonly_session(snapshot_id=revisions.resolve(repo, revision))
    options: dict[str, Any] = {
        "group": group,
        "variables": None if variables is None else [each.strip() for each in variables.split(",")],
        "isel": dict(map(index_of, isel)),
        "sel": dict(map(label_of, sel)),
        "overwrite": overwrite,
        "dry_run": dry_run,
        "progress": out.progress,
    }
    if target.lower().endswith(_NETCDF):
        report = icefloe.export_netcdf(session, target, **options)
    else:
        place = icefloe.storage_from_url(target, **storage_options(target_options))
        report = icefloe.export_zarr(session, place, **options, executor=repo.executor)
    verb = "would write" if dry_run else "wrote"
    text = (
        f"{verb} {counted(len(report.arrays), 'array')} and {counted(report.groups, 'group')}, "
        f"{bytes_text(report.bytes_written)}; {counted(report.chunks_copied, 'chunk')} as they are, "
        f"{report.chunks_encoded} encoded anew"
    )
    out.value(plain(report), text)
