"""The command that ingests files into a repository: ingest."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from icefloe._internal.amounts import counted, format_bytes
from icefloe.cli.errors import FAILED, FINDINGS, format_hint
from icefloe.cli.execution import ExecutorChoice, ExecutorType, executor_option, start_executor
from icefloe.cli.output import CommandOutput, format_value
from icefloe.cli.params import (
    DescribedDefault,
    Sizes,
    branch_option,
    codec_help,
    complete_file,
    dry_run_option,
    is_file,
    json_or_text,
    memory_option,
    message_option,
    metadata_option,
    optional_repo_argument,
    output_option,
    pairs_option,
)
from icefloe.cli.progress import show_logs
from icefloe.errors import Hint

if TYPE_CHECKING:
    from icefloe.ingest.report import IngestReport


_MODES = ("native", "virtual", "hybrid")
_CHECKS = ("monotone", "source", "gaps")
"""The checks without parameters, of which the first two run by default. All other checks require a recipe."""


@click.command()
@click.argument("sources", nargs=-1, metavar="SOURCES...", shell_complete=complete_file)
@optional_repo_argument
@click.option(
    "--recipe",
    type=click.Path(exists=True, dir_okay=False),
    help="A YAML file with sources, repository, options and checks. Options on the command line take"
    " precedence.",
)
@click.option("--group", default="", help="The group to write to; the root by default.")
@click.option("-v", "--variables", help="The variables to ingest, separated by commas; all by default.")
@click.option("--concat-dim", help="The dimension along which to concatenate files; inferred by default.")
@click.option(
    "--combine",
    type=click.Choice(["by-coords", "nested"]),
    help="How to combine files: by-coords infers the dimension, and nested requires --concat-dim.",
)
@click.option(
    "--data-vars",
    type=click.Choice(["minimal", "different", "all"]),
    help="Which data variables to concatenate, as in xarray; by default, variables with the concatenated"
    " dimension.",
)
@click.option(
    "--coords",
    type=click.Choice(["minimal", "different", "all"]),
    cls=DescribedDefault,
    show_default="minimal",
    help="Which coordinates to concatenate, as in xarray.",
)
@click.option(
    "--compat",
    type=click.Choice(["identical", "equals", "broadcast_equals", "no_conflicts", "override"]),
    cls=DescribedDefault,
    show_default="no_conflicts",
    help="How to compare variables that are not concatenated, as in xarray. With override, the first file"
    " is used.",
)
@click.option(
    "--join",
    type=click.Choice(["outer", "inner", "left", "right", "exact", "override"]),
    cls=DescribedDefault,
    show_default="exact",
    help="How to combine different labels along the other dimensions, as in xarray.",
)
@click.option(
    "--chunks",
    type=Sizes(),
    help="The chunk shape, such as time=24,lat=180,lon=360; -1 is the whole dimension. Chosen from the"
    " files by default.",
)
@click.option("--shards", type=Sizes(), help="The shard shape, such as time=240; no shards by default.")
@click.option("--codec", cls=DescribedDefault, show_default="zstd", help=f"The compression: {codec_help}.")
@click.option("--native", is_flag=True, help="Copy the data. This is the default.")
@click.option(
    "--virtual", is_flag=True, help="Store references to the data in the files instead of copying the data."
)
@click.option(
    "--hybrid", is_flag=True, help="Store references to data whose chunks match the array, and copy the rest."
)
@click.option("--engine", help="The xarray engine that reads the files; detected by default.")
@click.option("--source-group", help="The group to read from the files; all groups by default.")
@pairs_option(
    "--source-option",
    "source_options",
    help="A storage option for remote source files, such as region=eu-west-1.",
)
@pairs_option(
    "--open-option",
    "open_options",
    parse=json_or_text,
    help="An argument for xarray.open_dataset or the engine. The value can be JSON.",
)
@branch_option
@message_option
@metadata_option
@click.option(
    "--commit-every",
    type=click.IntRange(min=1),
    help="Commit after every N files, instead of once at the end.",
)
@memory_option
@click.option(
    "--manifest-references",
    default=500_000,
    show_default=True,
    type=click.IntRange(min=1),
    help="The maximum number of references per manifest of a virtual array.",
)
@click.option(
    "--on-bad-file",
    type=click.Choice(["stop", "skip"]),
    default="stop",
    show_default=True,
    help="What to do with files that cannot be read, or not combined with the others.",
)
@click.option(
    "--on-change",
    type=click.Choice(["report", "ingest"]),
    default="report",
    show_default=True,
    help="What to do with files that have changed since they were ingested.",
)
@click.option(
    "--append-order",
    type=click.Choice(["commit", "sorted", "strict"]),
    help="If another ingest extends the same arrays first, append the new rows instead of ingesting again: "
    "at the end (commit), sorted by label (sorted), or only if all labels come last (strict).",
)
@click.option(
    "--checks",
    cls=DescribedDefault,
    show_default=",".join(_CHECKS[:2]),
    help=f"The checks to run before publishing the data, separated by commas: {', '.join(_CHECKS)}, or none.",
)
@click.option(
    "--report",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Also write a report of the ingest to this HTML file.",
)
@dry_run_option
@executor_option
@output_option
def ingest(
    sources: tuple[str, ...],
    repo: str | None,
    options: dict[str, str],
    recipe: str | None,
    executor: ExecutorChoice,
    dry_run: bool,
    report: Path | None,
    out: CommandOutput,
    **given: Any,
) -> int:
    """Ingest new files into a repository, in parallel.

    SOURCES are paths, folders, glob patterns, URLs, or text files that list them. Files that were already
    ingested are skipped. REPO is created if it does not exist. With --recipe, omit SOURCES and REPO.

    \b
    icefloe ingest 'data/*.nc' data/repo
    icefloe ingest 'data/*.nc' s3://bucket/repo -o region=eu-west-1
    icefloe ingest files.txt data/repo --chunks time=24,lat=180 --dry-run
    icefloe ingest --recipe recipe.yaml --executor spark:local[2]
    """
    if recipe is None:
        if repo is None or not sources:
            raise click.UsageError("pass SOURCES followed by REPO, or --recipe")
        typed = _library_options(given)
        return _ingest(sources, repo, options, typed, executor, out, report, dry_run=dry_run)
    if repo is not None:
        raise click.UsageError("a recipe contains its own sources and repository; omit SOURCES and REPO")
    from icefloe.ingest.recipe import load_recipe

    context = click.get_current_context()
    typed = {
        name: value
        for name, value in given.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    found = load_recipe(recipe, _library_options(typed))
    chosen = executor.text or (found.executor and ExecutorType()(found.executor))
    executor = ExecutorChoice(chosen, {**found.spark_conf, **executor.spark_conf})
    sys.path.insert(
        0, str(Path(recipe).absolute().parent)
    )  # Python checks are imported from the current folder
    storage_options = {**found.repository_options, **options}
    place = found.repository, storage_options
    return _ingest(found.sources, *place, found.arguments, executor, out, report, dry_run=dry_run)


def _ingest(
    sources: Sequence[str],
    repo: str,
    storage_options: Mapping[str, Any],
    arguments: Mapping[str, Any],
    executor: ExecutorChoice,
    out: CommandOutput,
    file: Path | None,
    *,
    dry_run: bool,
) -> int:
    from icefloe.ingest.publish.audit import refuse_unrunnable
    from icefloe.pipeline import ingest_files
    from icefloe.storage import storage_from_url

    # Report mistakes before Spark starts.
    storage = storage_from_url(repo, **storage_options)
    if is_file(storage):
        path = storage.describe()["path"]
        raise click.UsageError(f"{path} is a file, but a repository is a folder; pass REPO after the sources")
    executor = executor.or_default(out)
    refuse_unrunnable(arguments.get("checks", ()), on_spark=executor.is_spark)
    arguments = {**arguments, "storage_options": storage_options, "dry_run": dry_run}
    with show_logs("icefloe.ingest", out.progress.say):
        report = ingest_files(sources, repo, executor=start_executor(executor, out), **arguments)
    if file is not None:
        file.write_text(report.to_html(), encoding="utf-8")
    took_changed = arguments.get("on_change") == "ingest"
    out.value(report.to_dict(), _format_report(report, dry_run=dry_run, took_changed=took_changed))
    if report.bad and report.published is None and report.ok and not dry_run:
        return FAILED
    return 0 if report.ok else FINDINGS


def _library_options(given: dict[str, Any]) -> dict[str, Any]:
    """Convert command-line options to library options."""
    found = {name: value for name, value in given.items() if value is not None}
    combine = found.pop("combine", None)
    if combine == "nested" and "concat_dim" not in found:
        raise click.UsageError("--combine nested requires --concat-dim")
    if combine == "by-coords" and "concat_dim" in found:
        raise click.UsageError("--combine by-coords infers the dimension; omit --concat-dim")
    modes = [mode for mode in _MODES if found.pop(mode, False)]
    if len(modes) > 1:
        raise click.UsageError(f"--{modes[0]} and --{modes[1]} cannot be combined")
    if modes:
        found["mode"] = modes[0]
    if modes == ["virtual"] and found.keys() & {"chunks", "shards", "codec"}:
        raise click.UsageError(
            "--virtual keeps the chunks and codecs of the files; use --hybrid to copy data with different"
            " chunks"
        )
    if "variables" in found:
        found["variables"] = [name.strip() for name in found["variables"].split(",") if name.strip()]
    if "checks" in found:
        found["checks"] = _checks(found["checks"])
    if "memory" in found:
        found["memory_bytes"] = found.pop("memory") << 20
    return found


def _checks(text: str) -> tuple[Any, ...]:
    from icefloe.ingest.options import Check

    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in _CHECKS and names != ["none"]:
            raise click.BadParameter(
                f"{name!r} is not one of {', '.join(_CHECKS)} or none; other checks require a recipe",
                param_hint="--checks",
            )
    return tuple(Check(name) for name in dict.fromkeys(names) if name != "none")


def _format_report(found: IngestReport, *, dry_run: bool, took_changed: bool) -> str:
    report = found.to_dict()
    lines = [f"{each.source.url}: skipped: {_with_hint(each.problem, each.remedy)}" for each in found.bad]
    lines += [_with_hint(each.sentence, each.hint) for each in found.findings if each.severity == "note"]
    lines += _format_broken(report)
    copied = [each for each in report["changed"] if each not in report["broken"]]
    if copied and not took_changed:
        lines.append(
            f"changed since the last ingest: {counted(len(copied), 'file')}, first {copied[0]}; "
            f"--on-change ingest ingests them again"
        )
    if report["moved"]:
        first = report["moved"][0]
        lines.append(
            f"already ingested under another name: {counted(len(report['moved']), 'file')}, first "
            f"{first['source']}, which was {first['was']}"
        )
    plan = report["plan"]
    lines += [_array(each) for each in plan["arrays"]] if plan else []
    if plan and dry_run:  # a real run has already logged the plan
        lines.append(
            f"{counted(plan['files'], 'file')}, {format_bytes(plan['nbytes'])} in "
            f"{counted(plan['blocks'], 'block')}, {counted(plan['tasks'], 'task')} of at most "
            f"{format_bytes(plan['memory_bytes'])}"
            + (f", files read {plan['read_factor']:.1f} times" if plan["read_factor"] > 1.05 else "")
            + (f", {format_bytes(plan['spilled_bytes'])} spilled" if plan["spilled_bytes"] else "")
            + (f", {plan['commits']} commits" if plan["commits"] > 1 else "")
        )
    lines += [
        f"check {each['name']}: FAILED, {each['text']}"
        for each in report["checks"]
        if not each["passed"]  # checks that passed have already been logged
    ]
    if dry_run and (plan or report["bad"]):
        lines.append("dry run: nothing was written")
    elif report["failed_branch"]:
        lines.append(
            f"a check failed, so nothing was published; see branch {report['failed_branch']}, or omit the "
            f"check with --checks"
        )
    elif report["bad"] and not report["published"]:
        lines.append("nothing was ingested: none of the new files can be read")
    elif not report["published"]:
        there = len(report["known"]) + len(report["moved"])
        lines.append(f"nothing new: {counted(there, 'file')} ingested before")
    else:
        lines.append(
            f"{counted(len(report['ingested']), 'file')} ingested, {len(report['known'])} ingested before; "
            f"the branch is at {report['published']}"
        )
    return "\n".join(map(format_value, lines))


def _format_broken(report: dict[str, Any]) -> list[str]:
    missing = set(report["missing"])
    lines = [
        f"{each}: {'is missing' if each in missing else 'changed since it was ingested'}; "
        "virtual references to it cannot be read"
        for each in report["broken"]
    ]
    if changed := len(report["broken"]) - len(missing):
        lines.append(f"--on-change ingest updates the references to {counted(changed, 'changed file')}")
    if missing:
        lines.append(
            f"restore {counted(len(missing), 'missing file')}, or correct the references with icefloe repair"
        )
    return lines


def _with_hint(text: str, hint: Hint | str | None) -> str:
    hint = format_hint(hint) if isinstance(hint, Hint) else hint
    return f"{text}; {hint}" if hint else text


def _array(array: dict[str, Any]) -> str:
    sizes = zip(array["dims"], array["shape"], array["chunks"], strict=True)
    inside = ", ".join(f"{dim}: {size} by {chunk}" for dim, size, chunk in sizes)
    return f"    {array['name']} ({inside}) {array['dtype']}  {format_bytes(array['nbytes'])}"
