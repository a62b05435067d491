"""Commands that show the history: log, show, diff, ops."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from icefloe._internal.executor import ThreadExecutor
from icefloe._internal.times import from_microseconds
from icefloe.ancestry_graph import AncestryGraph
from icefloe.cli import revisions
from icefloe.cli.authorize import authorize_option
from icefloe.cli.output import CommandOutput, align_rows, format_value, format_value_lines, indent_text, plain
from icefloe.cli.params import (
    DescribedDefault,
    all_option,
    complete_revision,
    is_listed,
    output_option,
    repo_argument,
    revision_option,
)
from icefloe.errors import ErrorKind, InvalidInputError, NodeNotFoundError
from icefloe.repository import Repository
from icefloe.snapshots import Diff, list_folded_commits

if TYPE_CHECKING:
    from icefloe.comparison.values import ValueDifferences
    from icefloe.maintenance.statistics.describe import Shift


@click.command()
@repo_argument
@click.option(
    "-r",
    "--revision",
    cls=DescribedDefault,
    show_default="main",
    help=f"The version to start from: {revisions.HELP}",
    shell_complete=complete_revision,
)
@click.option(
    "-n",
    "--number",
    type=click.IntRange(min=1),
    help="The maximum number of commits to list; all by default.",
)
@click.option(
    "--graph",
    is_flag=True,
    help="Draw the graph of commits and merges. Without -r, include all branches and tags.",
)
@output_option
def log(repo: Repository, revision: str | None, number: int | None, graph: bool, out: CommandOutput) -> None:
    """List commits, newest first.

    \b
    icefloe log data/repo
    icefloe log data/repo -r v1.0 -n 5
    icefloe log data/repo --graph
    """
    if graph:
        _print_graph(repo, revision, number, out)
        return
    found = list(
        islice(repo.ancestry(snapshot_id=revisions.resolve(repo, revision or revisions.DEFAULT)), number)
    )
    out.table(
        (
            {"id": info.id, "written_at": info.written_at, "message": message}
            | ({"parent_id": info.parent_id, "metadata": metadata} if out.as_json else {})
            for info in found
            for message, metadata in list_folded_commits(info)
        ),
        ["id", "written_at", "message", *(["parent_id", "metadata"] if out.as_json else [])],
    )


def _print_graph(repo: Repository, revision: str | None, number: int | None, out: CommandOutput) -> None:
    id = revisions.resolve(repo, revision) if revision else None
    drawn = repo.ancestry_graph(snapshot_id=id, plain="NO_COLOR" in os.environ)
    if number is not None:
        drawn = AncestryGraph.of(drawn.commits[:number], plain=drawn.plain)
    commits = [
        {
            "id": each.id,
            "written_at": from_microseconds(each.written_at_us),
            "message": each.message,
            "parent_id": each.parent_id,
            "merged_ids": each.merged_ids,
            "branches": each.branches,
            "tags": each.tags,
        }
        for each in drawn.commits
    ]
    out.drawing(commits, str(drawn))


@click.command()
@repo_argument
@revision_option
@all_option
@output_option
def show(repo: Repository, revision: str, with_ledgers: bool, out: CommandOutput) -> None:
    """Show one commit: time, message and changes.

    \b
    icefloe show data/repo -r v1.0
    """
    info = repo.lookup_snapshot(revisions.resolve(repo, revision))
    changed = None
    if info.parent_id:
        whole = repo.diff(from_snapshot_id=info.parent_id, to_snapshot_id=info.id)
        changed = _drop_ledger_changes(whole, with_ledgers=with_ledgers)
    facts = {name: getattr(info, name) for name in ("id", "parent_id", "written_at", "message")}
    lines = [
        indent_text(f"{format_value(name):<10} ", format_value_lines(value))
        for name, value in {**facts, **info.metadata}.items()
    ]
    out.value(
        {"snapshot": info, "changes": changed}, "\n".join([*lines, "", str(changed or "").rstrip()]).rstrip()
    )


@click.command()
@repo_argument
@click.argument("since", shell_complete=complete_revision)
@click.argument("until", required=False, shell_complete=complete_revision)
@revision_option
@click.option("--values", "with_values", is_flag=True, help="Compare the values of the changed arrays.")
@click.option(
    "--stats", "with_stats", is_flag=True, help="Compare the distributions of values in the changed arrays."
)
@all_option
@authorize_option
@output_option
def diff(
    repo: Repository,
    since: str,
    until: str | None,
    revision: str,
    with_values: bool,
    with_stats: bool,
    with_ledgers: bool,
    out: CommandOutput,
) -> None:
    """Show the differences between two versions.

    UNTIL defaults to the version given by -r. If SINCE is an ancestor of UNTIL, the chunks written in between
    are listed. Otherwise the contents of the two versions are compared. --values reads only chunks that
    differ, and --stats reads only chunks without recorded statistics.

    \b
    icefloe diff data/repo v1.0
    icefloe diff data/repo v1.0 v1.1 --values
    icefloe diff data/repo v1.0 v1.1 --stats
    icefloe diff data/repo main experiment
    """
    first, last = (revisions.resolve(repo, each) for each in (since, until or revision))
    try:
        changed = Diff() if first == last else repo.diff(from_snapshot_id=first, to_snapshot_id=last)
    except InvalidInputError as error:
        if error.kind != ErrorKind.BAD_SNAPSHOT_CHAIN_FOR_DIFF:
            raise
        from icefloe.comparison.versions import compare  # imports zarr, which other commands do not need

        sessions = [repo.readonly_session(snapshot_id=each) for each in (first, last)]
        changed = compare(*sessions).to_diff()
    changed = _drop_ledger_changes(changed, with_ledgers=with_ledgers)
    text = str(changed).rstrip() or "no changes"
    if not with_values and not with_stats:
        out.value(changed, text)
        return
    document, lines = plain(changed), [text]
    if with_values:
        found = _compare_values(repo, first, last, changed)
        document["values"] = found
        lines += ["", "Values:", *(format_value(f"{path}: {each}") for path, each in found.items())]
    if with_stats:
        shifts = _compare_distributions(repo, first, last, changed)
        document["stats"] = [
            {**plain(each), "shift": each.shift, "outliers": each.outliers} for each in shifts
        ]
        lines += ["", "Statistics:", *_format_shifts(shifts)]
    out.value(document, "\n".join(lines))


def _compare_distributions(repo: Repository, first: str, last: str, changed: Diff) -> list[Shift]:
    """Compare the value distributions of the arrays that changed."""
    from icefloe.maintenance.statistics.describe import compare_arrays

    before, after = (repo.readonly_session(snapshot_id=each) for each in (first, last))
    paths = (
        changed.updated_chunks.keys() | changed.updated_arrays | changed.new_arrays | changed.deleted_arrays
    )
    executor = ThreadExecutor()
    found = (compare_arrays(before, after, path, executor) for path in sorted(paths))
    return [each for each in found if each is not None]


def _format_shifts(shifts: Sequence[Shift]) -> Iterator[str]:
    """Yield the lines of a table that shows the distributions before and after, followed by the outliers."""
    names = ("missing", "minimum", "mean", "maximum", "std")
    rows = [["array", "version", "cells", *names, "shift"]]
    for each in shifts:
        for label, side in (("before", each.before), ("after", each.after)):
            if side is None:
                continue
            values = [_format_number(getattr(side, name)) for name in names]
            moved = "" if label == "before" or each.shift is None else f"{each.shift:+.3g} std"
            rows.append([format_value(each.path), label, str(side.cells), *values, moved])
    yield from align_rows(rows, [False, False, *[True] * 7])
    for each in shifts:
        yield from (format_value(f"outlier in {each.path}: {text}") for text in each.outliers)


def _format_number(value: Any) -> str:
    return f"{value:.7g}" if isinstance(value, float) else format_value(value)


def _compare_values(
    repo: Repository, first: str, last: str, changed: Diff
) -> dict[str, ValueDifferences | str]:
    """Compare the values of each changed array. Return the reason for each array that cannot be compared."""
    from icefloe.comparison.values import compare_values

    before, after = (repo.readonly_session(snapshot_id=each) for each in (first, last))
    found: dict[str, ValueDifferences | str] = {}
    new = changed.new_arrays | changed.deleted_arrays
    for path in sorted((changed.updated_chunks.keys() | changed.updated_arrays) - new):
        try:
            found[path] = compare_values(before, after, path)
        except NodeNotFoundError as error:
            found[path] = error.message
        except InvalidInputError as error:
            if error.kind != ErrorKind.INVALID_CHUNK_INDEX:
                raise
            found[path] = error.message
    return found


def _drop_ledger_changes(changed: Diff, *, with_ledgers: bool) -> Diff:
    """Return a diff without changes to the ingest ledger."""
    if with_ledgers:
        return changed

    def listed(paths: set[str]) -> set[str]:
        return {path for path in paths if is_listed(path, with_ledgers=False)}

    return Diff(
        listed(changed.new_groups),
        listed(changed.new_arrays),
        listed(changed.deleted_groups),
        listed(changed.deleted_arrays),
        listed(changed.updated_groups),
        listed(changed.updated_arrays),
        {path: changed.updated_chunks[path] for path in listed(set(changed.updated_chunks))},
        [move for move in changed.moved_nodes if any(is_listed(path, with_ledgers=False) for path in move)],
    )


@click.command()
@repo_argument
@click.option(
    "-n",
    "--number",
    type=click.IntRange(min=1),
    help="The maximum number of operations to list; all by default.",
)
@output_option
def ops(repo: Repository, number: int | None, out: CommandOutput) -> None:
    """List the operations on the repository, newest first.

    \b
    icefloe ops data/repo -n 20
    """
    updates = islice(repo.ops_log(), number)
    rows = (
        {
            "updated_at": update.updated_at,
            "what": type(update.kind).__name__,
            "details": {name: getattr(update.kind, name) for name in getattr(update.kind, "__slots__", ())},
        }
        for update in updates
    )
    out.table(rows, ["updated_at", "what", "details"])
