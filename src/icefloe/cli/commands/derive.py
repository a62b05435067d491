"""Commands for derived arrays: derive, lineage."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import click

import icefloe
from icefloe._internal.amounts import counted, format_bytes
from icefloe._internal.executor import Executor, ThreadExecutor
from icefloe.cli import revisions
from icefloe.cli.authorize import authorize, authorize_prefixes
from icefloe.cli.execution import ExecutorChoice, executor_option, start_executor
from icefloe.cli.output import CommandOutput, format_value
from icefloe.cli.params import (
    cache_option,
    complete_folder,
    complete_path,
    dry_run_option,
    memory_option,
    open_repository,
    output_option,
    repo_argument,
    revision_option,
    storage_options,
)
from icefloe.cli.progress import show_logs
from icefloe.derive.recipe import PYRAMID_METHODS
from icefloe.derive.report import DeriveReport
from icefloe.repository import Repository

STALE = 5
"""The exit code if a derived array is out of date."""


@click.command()
@click.argument("recipe", metavar="RECIPE", shell_complete=complete_folder)
@storage_options
@cache_option
@click.option(
    "--pyramid",
    metavar="ARRAY",
    help="Create a pyramid of this array: a group with levels of decreasing resolution.",
)
@click.option(
    "--levels",
    type=click.IntRange(min=1),
    help="The number of pyramid levels, including the array itself.",
)
@click.option(
    "--method", type=click.Choice(PYRAMID_METHODS), help="How the pyramid aggregates cells; mean by default."
)
@click.option(
    "--allow-module",
    multiple=True,
    metavar="MODULE",
    help="Allow the repository to run functions of this Python module.",
)
@click.option("--full", is_flag=True, help="Compute all chunks again, even if their inputs did not change.")
@click.option(
    "--strict", is_flag=True, help="Fail instead of computing all chunks of an existing array again."
)
@click.option("--check", is_flag=True, help="Write nothing, and exit with code 5 if an array is out of date.")
@authorize_prefixes
@memory_option
@dry_run_option
@executor_option
@output_option
def derive(
    recipe: str,
    options: dict[str, Any],
    pyramid: str | None,
    levels: int | None,
    method: str | None,
    allow_module: tuple[str, ...],
    full: bool,
    strict: bool,
    check: bool,
    prefixes: tuple[str, ...],
    memory: int,
    dry_run: bool,
    executor: ExecutorChoice,
    out: CommandOutput,
) -> int:
    """Update derived arrays whose inputs changed.

    Only chunks whose inputs changed are recomputed.

    RECIPE is a YAML file that specifies a repository and the arrays to derive. If RECIPE is a repository
    instead, all of its derived arrays are updated.

    \b
    icefloe derive recipe.yaml
    icefloe derive recipe.yaml --dry-run
    icefloe derive recipe.yaml --check
    icefloe derive data/repo --pyramid t2m --levels 4
    icefloe derive data/repo
    """
    from icefloe.pipeline import run_recipe

    def open_authorized(location: str, given: Mapping[str, Any]) -> Repository:
        return authorize(open_repository(icefloe.storage_from_url(location, **given)), prefixes)

    if pyramid is None and (levels or method):
        raise click.UsageError("--levels and --method require --pyramid")
    source: Any = recipe
    if pyramid is not None:
        source = _pyramid_recipe(recipe, options, pyramid, levels, method)
    elif options or "://" in recipe or os.path.isdir(recipe):
        source = open_authorized(recipe, options)
    work = partial(
        run_recipe,
        source,
        open_authorized,
        full=full,
        strict=strict,
        allow_module=allow_module,
        memory_bytes=memory << 20,
    )
    report = work(executor=ThreadExecutor(1), dry_run=True)  # report mistakes before Spark starts
    stale = not report.is_current
    if stale and not (check or dry_run):
        with show_logs("icefloe.derive", out.progress.say), _executor(report, executor, out) as running:
            report = work(executor=running)
    report = replace(report, dry_run=check or dry_run)
    out.value(report.to_dict(), _format_report(report.to_dict(), written=not (check or dry_run)))
    return STALE if check and stale else 0


@click.command()
@repo_argument
@click.argument("array", shell_complete=complete_path)
@revision_option
@output_option
def lineage(repo: Repository, array: str, revision: str, out: CommandOutput) -> int:
    """Show the inputs of a derived array.

    ARRAY is the path of the array, or of its group. The command also reports whether the array is up to date.

    \b
    icefloe lineage data/repo t2m_daily
    """
    from icefloe.derive.lineage import read_lineage

    found = read_lineage(repo, array, snapshot_id=revisions.resolve(repo, revision))
    out.value(found.to_dict(), _format_lineage(found.to_dict()))
    return 0


def _executor(
    report: DeriveReport, executor: ExecutorChoice, out: CommandOutput
) -> AbstractContextManager[Executor]:
    """Start an executor if chunks have to be computed, but not for changes of references or metadata only."""
    if not report.recomputed and not any(each.partials for each in report.outputs):
        return nullcontext(ThreadExecutor(1))
    return start_executor(executor.or_default(out), out)


def _pyramid_recipe(
    repo: str, options: dict[str, Any], array: str, levels: int | None, method: str | None
) -> dict[str, Any]:
    name = array.strip("/").rpartition("/")[2]
    function = {"pyramid": {"levels": levels, "method": method or PYRAMID_METHODS[0]}}
    inputs = {name if name.isidentifier() else "array": array}
    output = {"function": function, "inputs": inputs}
    return {"repository": repo, "storage_options": options, "outputs": {f"{name}_pyramid": output}}


def _format_report(report: dict[str, Any], *, written: bool) -> str:
    lines = [_format_line(each, written=written) for each in report["outputs"]]
    if not written:
        lines.append("nothing was written")
    elif report["commit"] is None:
        lines.append("everything is up to date")
    else:
        lines.append(f"read {format_bytes(report['bytes_read'])}; committed {report['commit']}")
    return "\n".join(map(format_value, lines))


def _format_line(output: dict[str, Any], *, written: bool) -> str:
    total = output["recomputed"] + output["moved"] + output["kept"]
    verb = "computed" if written else "to compute"
    parts = [f"{output['recomputed']} of {counted(total, 'chunk')} {verb}"]
    parts += [f"{output['moved']} moved"] if output["moved"] else []
    parts += [f"{counted(output['partials'], 'partial aggregate')} {verb}"] if output["partials"] else []
    if output["other_versions"]:
        parts.append(f"{output['other_versions']} kept from other versions of icefloe, numpy or xarray")
    because = f" because {output['reason']}" if output["reason"] else ""
    return f"    {output['path']}: {', '.join(parts)}{because}"


def _format_lineage(found: dict[str, Any]) -> str:
    state = "up to date" if found["is_current"] else "out of date: an input changed since it was computed"
    lines = [f"{found['path']}: {state}", f"    function  {found['function']}"]
    for each in found["inputs"]:
        where = f" in {each['repository']}" if each["repository"] else ""
        lines.append(f"    input     {each['name']} = {each['array']}{where} at {each['snapshot']}")
    lines.append(f"    commit    {found['commit'] or 'older than the history'}")
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    lines.append(f"    computed  with {versions}")
    return "\n".join(map(format_value, lines))
