"""The command that brings files into a repository."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from icefloe._internal.amounts import bytes_text, counted
from icefloe.cli.complete import complete_branch, complete_file
from icefloe.cli.errors import FAILED, NOT_WELL, in_shell
from icefloe.cli.execution import SparkChoice, running_executor, spark_options
from icefloe.cli.output import Output, shown
from icefloe.cli.pairs import not_a_pair
from icefloe.cli.params import is_file, output_option, storage_argument
from icefloe.cli.progress import show_logs
from icefloe.errors import Hint
from icefloe.storage.base import Storage

if TYPE_CHECKING:
    from icefloe.ingest import Options
    from icefloe.ingest.report import Report


_MODES = ("native", "virtual", "hybrid")
_CHECKS = ("monotone", "source", "gaps")
"""Those that need nothing more than a name; the others are for recipes. The first two are on by default."""


@click.command()
@click.argument("sources", nargs=-1, required=True, shell_complete=complete_file)
@storage_argument
@click.option("--group", default="", help="The group of the repository for the arrays; its root by default.")
@click.option("-v", "--variables", help="Only these variables, separated by commas.")
@click.option("--concat-dim", help="The dimension along which files follow each other.")
@click.option(
    "--combine", type=click.Choice(["by-coords", "nested"]), help="How; by-coords without --concat-dim."
)
@click.option("--chunks", help="Cells per chunk, such as time=24,lat=180,lon=360; -1 is all of them.")
@click.option("--shards", help="Cells per shard.")
@click.option("--codec", show_default="zstd", help="zstd:LEVEL, blosc:NAME:LEVEL, gzip:LEVEL, none.")
@click.option("--native", is_flag=True, help="Copy the data (the default).")
@click.option("--virtual", is_flag=True, help="Refer to the data in the files, copy none of it.")
@click.option("--hybrid", is_flag=True, help="Refer to what fits the array, copy what does not.")
@click.option("--engine", help="The xarray engine that reads the files.")
@click.option("--source-group", help="The group of the files that is read.")
@click.option(
    "--source-option",
    "source_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option for remote files.",
)
@click.option(
    "--open-option",
    "open_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="An argument of xarray.open_dataset, or of the engine; the value may be JSON.",
)
@click.option(
    "--branch",
    default="main",
    show_default=True,
    shell_complete=complete_branch,
    help="The branch that moves when all is written and checked.",
)
@click.option("-m", "--message", help="The message of the commits.")
@click.option("--metadata", multiple=True, metavar="NAME=VALUE", help="More metadata of the commits.")
@click.option(
    "--commit-every", type=click.IntRange(min=1), help="A commit for so many files, rather than one."
)
@click.option(
    "--memory", default=256, show_default=True, type=click.IntRange(min=1), help="MiB that a task may hold."
)
@click.option(
    "--manifest-references",
    default=500_000,
    show_default=True,
    type=click.IntRange(min=1),
    help="Virtual arrays with more references than this have several manifests.",
)
@click.option(
    "--on-bad-file",
    type=click.Choice(["stop", "skip"]),
    default="stop",
    show_default=True,
    help="What a file does that cannot be read, or does not fit the others: end the job, or stay out of it.",
)
@click.option(
    "--on-change",
    type=click.Choice(["report", "ingest"]),
    default="report",
    show_default=True,
    help="What becomes of files that changed since they were ingested.",
)
@click.option(
    "--checks",
    show_default=",".join(_CHECKS[:2]),
    help=f"What must be true before the branch moves: of {', '.join(_CHECKS)}, or none.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be done.")
@spark_options
@output_option
def ingest(
    storage: Storage, sources: tuple[str, ...], spark: Any, dry_run: bool, out: Output, **given: Any
) -> int:
    """Bring files into a repository, in parallel, those that are not in it yet.

    SOURCES are paths, patterns, folders, URLs, or text files of those. A repository is
    made if there is none.

    \b
    icefloe ingest 'data/*.nc' data/repo
    icefloe ingest 'data/*.nc' s3://bucket/repo -o region=eu-west-1 --chunks time=24,lat=180,lon=360
    icefloe ingest files.txt data/repo --concat-dim time --commit-every 100 --dry-run
    """
    from icefloe.ingest import make_options

    options = make_options(**_flat(given))
    return _ingested(storage, sources, options, spark, out, dry_run=dry_run)


@click.command()
@click.argument("recipe", type=click.Path(exists=True, dir_okay=False))
@click.option("--master", help="Another Spark than the recipe says.")
@click.option("--dry-run", is_flag=True, help="Say what would be done.")
@output_option
def run(recipe: str, master: str | None, dry_run: bool, out: Output) -> int:
    """Run an ingest that a file of YAML describes.

    \b
    icefloe run recipe.yaml --dry-run
    icefloe run recipe.yaml --master local[2]

    Paths in it begin at its folder. A short one; docs/ingest.md has all that may be said:

    \b
    sources: data/*.nc
    repository: repo
    options: {chunks: {time: 24}, commit_every: 100}
    checks: [monotone, source, {range: {variable: t2m, low: 180, high: 340}}]
    """
    from icefloe import storage_from_url
    from icefloe.ingest.recipe import load_recipe

    found = load_recipe(recipe)
    storage = storage_from_url(found.repository, **found.repository_options)
    choice = SparkChoice(master or found.master, dict(found.settings))
    sys.path.insert(0, str(Path(recipe).absolute().parent))  # where its checks in Python may be
    return _ingested(storage, found.sources, found.options, choice, out, dry_run=dry_run)


def _ingested(
    storage: Storage,
    sources: Any,
    options: Options,
    choice: SparkChoice,
    out: Output,
    *,
    dry_run: bool,
) -> int:
    from icefloe.ingest.discover.sources import discover
    from icefloe.ingest.job import run as run_job
    from icefloe.ingest.ledger.compare import compare_with_ledger
    from icefloe.ingest.publish.audit import refuse_unrunnable
    from icefloe.ingest.publish.staging import has_work
    from icefloe.ingest.report import Report
    from icefloe.ingest.target_repository import repository_at

    # What can be said without Spark is said before it is started.
    if is_file(storage):
        path = storage.describe()["path"]
        raise click.UsageError(
            f"{path} is a file, and a repository is a folder; REPO comes after all sources"
        )
    refuse_unrunnable(options.checks, on_spark=choice.is_spark)
    found = discover(sources, options.reading.storage_options, skip=options.on_bad_file == "skip")
    with show_logs("icefloe.ingest", out.progress.say), repository_at(storage, dry_run=dry_run) as repo:
        selection = compare_with_ledger(repo, found, options)
        if has_work(repo, selection, options.branch):
            # Spark ends first: what its tasks still write counts when an empty repository is taken away.
            with running_executor(choice, out) as (executor, _):
                report = run_job(repo, selection, options, executor, dry_run=dry_run)
        else:
            report = Report.of(selection).completed(found)
    took_changed = options.on_change == "ingest"
    out.value(report.to_dict(), _text(report, dry_run=dry_run, took_changed=took_changed))
    if report.bad and report.published is None and report.ok and not dry_run:
        return FAILED
    return 0 if report.ok else NOT_WELL


def _flat(given: dict[str, Any]) -> dict[str, Any]:
    """The options in the words of the library."""
    found = {name: value for name, value in given.items() if value is not None}
    combine = found.pop("combine", None)
    if combine == "nested" and "concat_dim" not in found:
        raise click.UsageError("--combine nested needs --concat-dim")
    if combine == "by-coords" and "concat_dim" in found:
        raise click.UsageError("--combine by-coords finds the dimension itself: leave out --concat-dim")
    modes = [mode for mode in _MODES if found.pop(mode)]
    if len(modes) > 1:
        raise click.UsageError(f"--{modes[0]} and --{modes[1]}: choose one")
    found["mode"] = modes[0] if modes else _MODES[0]
    if modes == ["virtual"] and found.keys() & {"chunks", "shards", "codec"}:
        raise click.UsageError(
            "--virtual keeps the chunks and codecs of the files; --hybrid copies what has other ones"
        )
    for name in ("chunks", "shards"):
        if name in found:
            found[name] = cells(found[name], name)
    if "variables" in found:
        found["variables"] = [name.strip() for name in found["variables"].split(",") if name.strip()]
    if "checks" in found:
        found["checks"] = _checks(found["checks"])
    found["metadata"] = metadata_of(found["metadata"])
    found["open_options"] = _named(found["open_options"], "--open-option")
    options = found.pop("source_options")
    found["storage_options"] = dict(_pair(each, "--source-option") for each in options)
    found["memory_bytes"] = found.pop("memory") << 20
    return found


def _checks(text: str) -> tuple[Any, ...]:
    from icefloe.ingest.publish.checks import Check

    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in _CHECKS and names != ["none"]:
            raise click.BadParameter(
                f"{name!r} is none of {', '.join(_CHECKS)}, none; others stand in a recipe (icefloe run)",
                param_hint="--checks",
            )
    return tuple(Check(name) for name in dict.fromkeys(names) if name != "none")


def cells(text: str, option: str) -> dict[str, int]:
    """What `--chunks` and `--shards` say."""
    pairs = [part.partition("=")[::2] for part in text.split(",")]
    names = [name.strip() for name, _ in pairs]
    try:
        sizes = [int(size) for _, size in pairs]
    except ValueError:
        sizes = []
    if not sizes or not all(names):
        raise click.BadParameter(f"{text!r} is not DIM=SIZE,DIM=SIZE", param_hint=f"--{option}")
    if len(set(names)) < len(names):
        raise click.BadParameter(f"{text!r} names a dimension twice", param_hint=f"--{option}")
    return dict(zip(names, sizes, strict=True))


def metadata_of(given: tuple[str, ...]) -> dict[str, Any]:
    """What `--metadata` says."""
    return _named(given, "--metadata")


def _named(given: tuple[str, ...], option: str) -> dict[str, Any]:
    """Names with values, in JSON or as text."""
    return {name: _value(value) for name, value in (_pair(each, option) for each in given)}


def _pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise not_a_pair(text, option)
    return name, value


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _text(found: Report, *, dry_run: bool, took_changed: bool) -> str:
    report = found.to_dict()
    lines = [f"{each.source.url}: left out: {_with_hint(each.reason, each.remedy)}" for each in found.bad]
    lines += [_with_hint(each.sentence, each.hint) for each in found.findings if each.severity == "note"]
    lines += [
        f"{each}: changed since arrays refer to it; its data cannot be read" for each in report["broken"]
    ]
    if report["broken"]:
        lines.append(f"--on-change ingest refers to {counted(len(report['broken']), 'changed file')} again")
    copied = [each for each in report["changed"] if each not in report["broken"]]
    if copied and not took_changed:
        lines.append(
            f"{counted(len(copied), 'file')} changed since they were ingested, the first "
            f"{copied[0]}; --on-change ingest takes them again"
        )
    if report["moved"]:
        first = report["moved"][0]
        lines.append(
            f"{counted(len(report['moved']), 'file')} in the repository already under another name, the "
            f"first {first['source']}, which was {first['was']}"
        )
    plan = report["plan"]
    lines += [_array(each) for each in plan["arrays"]] if plan else []
    if plan and dry_run:  # else it was told when it was made
        lines.append(
            f"{counted(plan['files'], 'file')}, {bytes_text(plan['nbytes'])} in "
            f"{counted(plan['blocks'], 'block')}, {counted(plan['tasks'], 'task')} of at most "
            f"{bytes_text(plan['memory_bytes'])}"
            + (f", files read {plan['read_factor']:.1f} times" if plan["read_factor"] > 1.05 else "")
            + (f", {bytes_text(plan['aside_bytes'])} put aside in between" if plan["aside_bytes"] else "")
        )
    lines += [
        f"check {each['name']}: FAILED, {each['text']}"
        for each in report["checks"]
        if not each["passed"]  # the others were told
    ]
    if dry_run and (plan or report["bad"]):
        lines.append("nothing was written: a dry run")
    elif report["failed_branch"]:
        lines.append(
            f"a check failed, the branch is as it was; look at {report['failed_branch']}, or leave the check "
            f"out with --checks"
        )
    elif report["bad"] and not report["published"]:
        lines.append("nothing was ingested: no new file can be read")
    elif not report["published"]:
        there = len(report["known"]) + len(report["moved"])
        lines.append(f"nothing new; in the repository already: {counted(there, 'file')}")
    else:
        lines.append(
            f"{counted(len(report['ingested']), 'file')} ingested, {len(report['known'])} there already; "
            f"the branch is at {report['published']}"
        )
    return "\n".join(map(shown, lines))


def _with_hint(text: str, hint: Hint | str | None) -> str:
    hint = in_shell(hint) if isinstance(hint, Hint) else hint
    return f"{text}; {hint}" if hint else text


def _array(array: dict[str, Any]) -> str:
    sizes = zip(array["dims"], array["shape"], array["chunks"], strict=True)
    inside = ", ".join(f"{dim}: {size} by {chunk}" for dim, size, chunk in sizes)
    return f"    {array['name']} ({inside}) {array['dtype']}  {bytes_text(array['nbytes'])}"
