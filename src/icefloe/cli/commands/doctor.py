"""The command that checks the installation and storage locations: doctor."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, distribution, version

import click

from icefloe._internal.amounts import counted, format_bytes
from icefloe._internal.extras import format_install_command
from icefloe._version import __version__
from icefloe.cli.errors import FINDINGS
from icefloe.cli.output import CommandOutput
from icefloe.cli.params import (
    GroupWithDefault,
    cache_option,
    get_cache,
    output_option,
    storage_argument,
)
from icefloe.storage.base import Storage
from icefloe.storage.disk_cache import DiskCache

_PACKAGES = (
    *("zarr", "obstore", "xarray", "h5netcdf", "netCDF4", "pyspark", "matplotlib", "dask", "virtualizarr"),
    *("tifffile", "eccodes", "cfgrib"),
)


@click.group(cls=GroupWithDefault, default="storage", invoke_without_command=True)
@cache_option
@output_option
@click.pass_context
def doctor(ctx: click.Context, out: CommandOutput) -> None:
    """Check the installation or a storage location.

    Without REPO, the command lists installed packages, and the size and hit rate of the disk cache. `icefloe
    doctor REPO` is short for `icefloe doctor storage REPO`.

    \b
    icefloe doctor
    icefloe doctor --cache /scratch/me
    icefloe doctor s3://bucket/repo -o region=eu-west-1
    """
    if ctx.invoked_subcommand is None:
        cache = get_cache()
        shown = {} if cache is None else {"disk cache": _describe_cache(cache)}
        out.record({**_describe_environment(), **shown})


@doctor.command("storage")
@storage_argument
@output_option
def doctor_storage(storage: Storage, out: CommandOutput) -> int:
    """Check whether a storage location supports safe concurrent writes.

    \b
    icefloe doctor storage s3://bucket/repo -o region=eu-west-1
    """
    from icefloe.storage.probe import probe

    was_there = os.path.isdir(storage.describe().get("path", os.curdir))
    report = probe(storage)
    if not was_there:
        storage.remove_empty_folder("")
    out.value({"place": report.place, "safe": report.safe, "checks": report.checks}, str(report))
    return 0 if report.safe else FINDINGS


def _describe_environment() -> dict[str, str]:
    """Return the version of each installed package, or the command that installs it."""
    found = {"icefloe": __version__, "python": f"{platform.python_version()} on {platform.platform()}"}
    return {**found, **{name: _describe_package(name) for name in _PACKAGES}, "java": _java()}


def _describe_package(name: str) -> str:
    try:
        # Parsing a package's complete metadata would take longer than the rest of the command.
        found = re.search(r"^Version: *(\S+)", distribution(name).read_text("METADATA") or "", re.MULTILINE)
        return found[1] if found is not None else version(name)
    except PackageNotFoundError:
        return f"not installed: {format_install_command(name)}"


def _describe_cache(cache: DiskCache) -> str:
    found = cache.usage()
    used = f"{format_bytes(found.size_bytes)} of {format_bytes(cache.max_bytes)}"
    reads = counted(found.hits + found.misses, "read")
    rate = f", hit rate {found.hit_rate:.0%}" if found.hit_rate is not None else ""
    return f"{cache.path}: {used}, {counted(found.entries, 'entry')}, {reads}{rate}"


def _java() -> str:
    from icefloe.spark.java import find_java_home

    try:
        return str(find_java_home())
    except RuntimeError as missing:
        return f"not found: {missing}"
