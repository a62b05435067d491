"""Commands that copy data out of a repository: clone, export."""

from __future__ import annotations

from typing import Any

import click

import icefloe
from icefloe._internal.amounts import counted, format_bytes
from icefloe.cli import revisions
from icefloe.cli.authorize import authorize_option
from icefloe.cli.execution import repo_executor_option
from icefloe.cli.output import CommandOutput, plain
from icefloe.cli.params import (
    complete_branch,
    complete_tag,
    dry_run_option,
    isel_option,
    output_option,
    pairs_option,
    repo_argument,
    revision_option,
    sel_option,
    target_argument,
)
from icefloe.repository import Repository

_NETCDF = (".nc", ".nc4", ".netcdf")
_PARQUET = (".parquet",)
_OTHERS = (".csv", ".grib", ".grib2", ".h5", ".hdf5", ".json", ".npy", ".tif", ".tiff", ".zip")
"""File name extensions of formats that data cannot be exported to."""


@click.command()
@repo_argument
@target_argument
@click.option(
    "--branch",
    "branches",
    multiple=True,
    help="A branch to copy in addition to main; can be repeated. All branches by default.",
    shell_complete=complete_branch,
)
@click.option(
    "--tag",
    "tags",
    multiple=True,
    help="A tag to copy; can be repeated. All tags by default.",
    shell_complete=complete_tag,
)
@click.option("--no-tags", is_flag=True, help="Do not copy tags.")
@click.option(
    "--depth",
    type=click.IntRange(min=1),
    help="Copy only this many of the newest snapshots of each branch and tag.",
)
@click.option(
    "--read-back", is_flag=True, help="Read every copied object again and compare it with the source."
)
@click.option("--overwrite", is_flag=True, help="Move branches of TARGET even if that discards commits.")
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
    out: CommandOutput,
) -> None:
    """Clone a repository, or update an existing clone.

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
@click.option(
    "--format",
    "form",
    type=click.Choice(["zarr", "netcdf", "parquet", "iceberg"]),
    help="The format to write. By default, NetCDF if TARGET ends in .nc, Parquet if it ends in .parquet,"
    " and Zarr otherwise.",
)
@click.option(
    "--group", default="/", show_default=True, help="The group to export, which becomes the root of TARGET."
)
@click.option(
    "--variables",
    multiple=True,
    help="The arrays to export, separated by commas or in several options; all by default. Their coordinates"
    " are included.",
)
@isel_option
@sel_option
@click.option(
    "--partition-by",
    "terms",
    multiple=True,
    metavar="TERM",
    help="Partition Parquet files and new Iceberg tables by a coordinate or a date part, such as "
    "month(time).",
)
@click.option("--catalog", help="The Iceberg catalog: a URI, or a name in the configuration of pyiceberg.")
@pairs_option(
    "--catalog-option", help="A property of the Iceberg catalog, such as warehouse=s3://bucket/tables."
)
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
    form: str | None,
    group: str,
    variables: tuple[str, ...],
    isel: dict[str, slice | int],
    sel: dict[str, Any],
    terms: tuple[str, ...],
    catalog: str | None,
    catalog_option: dict[str, str],
    overwrite: bool,
    dry_run: bool,
    out: CommandOutput,
) -> None:
    """Export a group as Zarr, NetCDF, Parquet or Iceberg.

    Use --sel and --isel to select a region.

    TARGET is the path or URL of a NetCDF file, a Zarr store or a folder of Parquet files, or the name of an
    Iceberg table. Parquet files and Iceberg tables have one row per cell.

    \b
    icefloe export data/repo s3://bucket/plain.zarr -r v1.0
    icefloe export data/repo subset.nc --sel time=2024-01-01..2024-01-31
    icefloe export data/repo rows --format parquet --partition-by 'month(time)'
    icefloe export data/repo weather.t2m --format iceberg --catalog my_catalog
    """
    form = form or _infer_format(target)
    if (catalog is not None) != (form == "iceberg"):
        raise click.UsageError("--format iceberg requires --catalog, and other formats do not support it")
    if terms and form not in ("parquet", "iceberg"):
        raise click.UsageError("--partition-by requires --format parquet or iceberg")
    session = repo.readonly_session(snapshot_id=revisions.resolve(repo, revision))
    options: dict[str, Any] = {
        "group": group,
        "variables": [name.strip() for each in variables for name in each.split(",")] or None,
        "isel": isel,
        "sel": sel,
        "overwrite": overwrite,
        "dry_run": dry_run,
        "progress": out.progress,
    }
    if form in ("parquet", "iceberg"):
        options |= {"partition_by": terms, "executor": repo.executor}
        if form == "iceberg":
            options |= {"catalog": catalog, "catalog_options": catalog_option}
            rows = icefloe.export_iceberg(session, target, storage_options=target_options, **options)
        else:
            store = icefloe.storage_from_url(target, **target_options)
            rows = icefloe.export_parquet(session, store, **options)
        out.value(plain(rows), _describe_rows(rows))
        return
    if form == "netcdf":
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


def _describe_rows(report: icefloe.TableExportReport) -> str:
    text = f"{counted(report.rows, 'row')} with the columns {', '.join(report.columns)}"
    if report.dry_run:
        return f"would write {text}"
    return f"wrote {text} to {counted(report.files, 'file')}, {format_bytes(report.bytes_written)}"


def _infer_format(target: str) -> str:
    name = target.lower()
    if name.endswith(_OTHERS):
        raise click.BadParameter(
            f"{target}: unsupported format; export to Zarr, NetCDF (.nc), Parquet (.parquet) or Iceberg",
            param_hint="TARGET",
        )
    if name.endswith(_NETCDF):
        return "netcdf"
    return "parquet" if name.endswith(_PARQUET) else "zarr"
