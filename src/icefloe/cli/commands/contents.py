"""Commands that print groups, arrays and values: tree, head, cat."""

from __future__ import annotations

import json
import re
from typing import Any

import click

from icefloe._internal.paths import LEDGERS, ROOT, get_name, is_within, make_component_key, normalize
from icefloe.cli import revisions
from icefloe.cli.authorize import authorize_option
from icefloe.cli.output import CommandOutput, format_value
from icefloe.cli.params import (
    all_option,
    complete_path,
    is_listed,
    output_option,
    parse_index,
    repo_argument,
    revision_option,
)
from icefloe.cli.values import json_values, read
from icefloe.core.node_summary import format_chunks, format_dtype, format_shape, summarize_node
from icefloe.core.workspace import Workspace
from icefloe.errors import ErrorKind, InvalidInputError, NodeNotFoundError
from icefloe.repository import Repository
from icefloe.session import Session

_HEAD = 10
_ATTRIBUTES = ("units", "long_name", "standard_name")


def _format_line(node: dict[str, Any]) -> str:
    label = format_value(get_name(node["path"])) or "/"
    if node["kind"] == "group":
        return label if label == "/" else f"{label}/"
    shapes = "".join(f", {each} {format_chunks(node[each])}" for each in ("chunks", "shards") if node[each])
    words = [format_value(node["attributes"][each]) for each in _ATTRIBUTES if each in node["attributes"]]
    shape, dtype = format_value(format_shape(node)), format_value(format_dtype(node))
    what = f"{label} ({shape}) {dtype}{format_value(shapes)}"
    return what + (f"  {', '.join(words)}" if words else "")


@click.command()
@repo_argument
@click.argument("path", default=ROOT, shell_complete=complete_path)
@revision_option
@all_option
@output_option
def tree(repo: Repository, path: str, revision: str, with_ledgers: bool, out: CommandOutput) -> None:
    """List groups and arrays with shapes, types and chunks.

    PATH is the path of a group or an array. The default is the root group.

    \b
    icefloe tree data/repo air -r v1.0
    """
    workspace = repo.readonly_session(snapshot_id=revisions.resolve(repo, revision))._workspace
    top = _make_absolute(path)
    if top != ROOT and workspace.node(top) is None:
        raise _make_no_node_error(workspace, "group or array", top)
    shown_all = with_ledgers or is_within(top, LEDGERS)
    paths = [each for each in workspace.below(top) if is_listed(each, with_ledgers=shown_all)]
    nodes = [summarize_node(node) for each in paths if (node := workspace.node(each)) is not None]
    levels = [len(make_component_key(node["path"])) - len(make_component_key(top)) for node in nodes]
    lines = ["    " * level + _format_line(node) for level, node in zip(levels, nodes, strict=True)]
    out.value(nodes, "\n".join(lines) or "no groups or arrays")


def find_array(session: Session, path: str) -> str:
    """Return the full path of an array whose contents a command prints. The error suggests similar names."""
    whole = _make_absolute(path)
    if session._workspace.node(whole) is None:
        raise _make_no_node_error(session._workspace, "array", whole)
    session._workspace.array(whole)  # raises an error for a group
    return whole


def _make_no_node_error(workspace: Workspace, what: str, path: str) -> NodeNotFoundError:
    import difflib

    there = [each for each in workspace.below(ROOT) if is_listed(each, with_ledgers=False)]
    near = difflib.get_close_matches(path, there, n=1)
    hint = f"did you mean {format_value(near[0])}?" if near else "`icefloe tree` lists all groups and arrays"
    return NodeNotFoundError(f"there is no {what} {path}; {hint}", kind=ErrorKind.NODE_NOT_FOUND)


def _make_absolute(text: str) -> str:
    return normalize(text if text.startswith("/") else f"/{text}")


@click.command()
@repo_argument
@click.argument("path", shell_complete=complete_path)
@revision_option
@click.option(
    "-n",
    "--number",
    type=click.IntRange(min=1),
    default=_HEAD,
    show_default=True,
    help="The number of values to print along each dimension.",
)
@authorize_option
@output_option
def head(repo: Repository, path: str, revision: str, number: int, out: CommandOutput) -> None:
    """Print the first values of an array along each dimension.

    PATH is the path of the array.

    \b
    icefloe head data/repo air/t2m -n 5
    """
    session = repo.readonly_session(snapshot_id=revisions.resolve(repo, revision))
    shape = _get_shape(session, find_array(session, path))
    values = read(session, _make_absolute(path), (slice(0, number),) * len(shape))
    out.value(
        {"shape": shape, "dtype": str(values.dtype), "values": json_values(values)}, _format_values(values)
    )


def _get_shape(session: Session, path: str) -> list[int]:
    shape: list[int] = json.loads(session._workspace.array(path).user_data)["shape"]
    return shape


class _WithRegion(click.Command):
    """A command whose last argument can start with a negative number."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # docstring inherited
        regions = [] if "--" in args else [word for word in args if re.match(r"-\d", word)]
        rest = [word for word in args if word not in regions]
        return super().parse_args(ctx, [*rest, "--", *regions] if regions else rest)


@click.command(cls=_WithRegion)
@repo_argument
@click.argument("path", shell_complete=complete_path)
@click.argument("region", required=False)
@revision_option
@authorize_option
@output_option
def cat(repo: Repository, path: str, region: str | None, revision: str, out: CommandOutput) -> None:
    """Print the values of an array, or of a region of it.

    PATH is the path of the array. REGION selects an index or a range along each dimension, such as 0:10,5,:
    for three dimensions. By default, the whole array is printed.

    \b
    icefloe cat data/repo /t2m 0,10:20,10:20
    icefloe cat data/repo /t2m -1,::10,: -r v1.0
    """
    import sys

    import numpy as np

    session = repo.readonly_session(snapshot_id=revisions.resolve(repo, revision))
    shape = _get_shape(session, find_array(session, path))
    values = read(session, _make_absolute(path), _region(region, len(shape)))
    with np.printoptions(threshold=sys.maxsize):
        out.value(json_values(values), _format_values(values))


def _format_values(values: Any) -> str:
    """Format values as numpy does, but also escape control characters in a single string."""
    return str(values) if values.ndim else format_value(str(values))


def _region(text: str | None, rank: int) -> tuple[slice | int, ...]:
    parts = text.split(",") if text else []
    if len(parts) > rank:
        raise InvalidInputError(
            f"the region {text} has {len(parts)} dimensions, but the array has {rank}; give one index or"
            " range per dimension",
            kind=ErrorKind.INVALID_CHUNK_INDEX,
        )
    try:
        return tuple(parse_index(part) for part in parts) + (slice(None),) * (rank - len(parts))
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a region: expected an index or start:stop for each dimension"
        ) from None
