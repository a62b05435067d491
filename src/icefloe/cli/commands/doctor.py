"""The command that checks the installation and storage locations: doctor."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, distribution, version

import click

from icefloe._internal.extras import format_install_command
from icefloe._version import __version__
from icefloe.cli.errors import FINDINGS
from icefloe.cli.output import Output
from icefloe.cli.params import GroupWithDefault, output_option, storage_argument
from icefloe.storage.base import Storage

_PACKAGES = (
    *("zarr", "obstore", "xarray", "h5netcdf", "netCDF4", "pyspark", "matplotlib", "dask", "virtualizarr"),
    *("tifffile", "eccodes", "cfgrib"),
)


@click.group(cls=GroupWithDefault, default="storage", invoke_without_command=True)
@output_option
@click.pass_context
def doctor(ctx: click.Context, out: Output) -> None:
    """Check the installation or a storage location.

    Without REPO, list installed packages. `icefloe doctor REPO` means `icefloe doctor storage REPO`.

    \b
    icefloe doctor
    icefloe doctor s3://bucket/repo -o region=eu-west-1
    """
    if ctx.invoked_subcommand is None:
        out.record(_describe_environment())


@doctor.command("storage")
@storage_argument
@output_option
def doctor_storage(storage: Storage, out: Output) -> int:
    """Test whether a storage location supports safe concurrent writes.

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
    """Return the versions of installed packages, or the commands that install them."""
    found = {"icefloe": __version__, "python": f"{platform.python_version()} on {platform.platform()}"}
    return {**found, **{name: _describe_package(name) for name in _PACKAGES}, "java": _java()}


def _describe_package(name: str) -> str:
    try:
        # Parsing all metadata of a package would take longer than the rest of the command.
        found = re.search(r"^Version: *(\S+)", distribution(name).read_text("METADATA") or "", re.MULTILINE)
        return found[1] if found is not None else version(name)
    except PackageNotFoundError:
        return f"not installed: {format_install_command(name)}"


def _java() -> str:
    from icefloe.spark.java import find_java_home

    try:
        return str(find_java_home())
    except RuntimeError as missing:
        return f"not found: {missing}"
