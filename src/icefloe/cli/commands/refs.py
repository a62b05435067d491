"""Commands that manage branches and tags: branch, tag, refs."""

from __future__ import annotations

import click

from icefloe._internal.amounts import counted
from icefloe.cli import revisions
from icefloe.cli.output import CommandOutput, format_value
from icefloe.cli.params import (
    GroupWithDefault,
    complete_branch,
    complete_revision,
    complete_tag,
    make_branch_option,
    make_revision_option,
    output_option,
    repo_argument,
)
from icefloe.repository import Repository


class Name(click.ParamType[str]):
    """The parameter type for new branch and tag names. It rejects names that are hard to type."""

    name = "name"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        # docstring inherited
        text = str(value)
        parts = text.split("/")
        odd = not text.isprintable() or any(each.isspace() or each in "@:\\*?[~^" for each in text)
        if odd or text.startswith("-") or any(part in ("", ".", "..") for part in parts):
            self.fail(
                f"{text!r} is not a valid name for a branch or tag: use letters, digits and any of -_.+, "
                "with / between parts, as in fix/2024-05",
                param,
                ctx,
            )
        return text


_name = click.argument("name", type=Name())


@click.group(cls=GroupWithDefault, default="list")
def branch() -> None:
    """List, create, delete and reset branches.

    \b
    icefloe branch data/repo
    icefloe branch create data/repo fix/2024-05 -r v1.0
    icefloe branch reset data/repo --branch main -r main~1
    """


@branch.command("list")
@repo_argument
@output_option
def branch_list(repo: Repository, out: CommandOutput) -> None:
    """List all branches."""
    out.table(list_refs(repo, "branch"), ["name", "snapshot"])


@branch.command("create")
@repo_argument
@_name
@make_revision_option("at which the branch starts")
@output_option
def branch_create(repo: Repository, name: str, revision: str, out: CommandOutput) -> None:
    """Create a branch called NAME."""
    id = revisions.resolve(repo, revision)
    repo.create_branch(name, id)
    _print(out, "branch", name, id)


@branch.command("delete")
@repo_argument
@click.argument("name", shell_complete=complete_branch)
@output_option
def branch_delete(repo: Repository, name: str, out: CommandOutput) -> None:
    """Delete the branch NAME. Its commits remain until garbage collection."""
    id = repo.lookup_branch(name)
    repo.delete_branch(name)
    _print(out, "branch", name, id, deleted=True)


@branch.command("reset")
@repo_argument
@make_branch_option("to move")
@click.option(
    "-r",
    "--revision",
    required=True,
    help=f"The version to which the branch is moved: {revisions.HELP}",
    shell_complete=complete_revision,
)
@output_option
def branch_reset(repo: Repository, branch: str, revision: str, out: CommandOutput) -> None:
    """Move a branch to another snapshot."""
    before, after = repo.lookup_branch(branch), revisions.resolve(repo, revision)
    repo.reset_branch(branch, after, from_snapshot_id=before)
    out.value(
        {"name": branch, "snapshot": after, "before": before},
        f"branch {format_value(branch)} at {after}; it was at {before}",
    )


@click.group(cls=GroupWithDefault, default="list")
def tag() -> None:
    """List, create and delete tags.

    \b
    icefloe tag data/repo
    icefloe tag create data/repo v1.0 -r main~1
    """


@tag.command("list")
@repo_argument
@output_option
def tag_list(repo: Repository, out: CommandOutput) -> None:
    """List all tags."""
    out.table(list_refs(repo, "tag"), ["name", "snapshot"])


@tag.command("create")
@repo_argument
@_name
@make_revision_option("to tag")
@output_option
def tag_create(repo: Repository, name: str, revision: str, out: CommandOutput) -> None:
    """Create a tag called NAME. A tag cannot be moved."""
    id = revisions.resolve(repo, revision)
    repo.create_tag(name, id)
    _print(out, "tag", name, id)


@tag.command("delete")
@repo_argument
@click.argument("name", shell_complete=complete_tag)
@output_option
def tag_delete(repo: Repository, name: str, out: CommandOutput) -> None:
    """Delete the tag NAME. The name cannot be used again."""
    id = repo.lookup_tag(name)
    repo.delete_tag(name)
    _print(out, "tag", name, id, deleted=True)


@click.command()
@repo_argument
@make_branch_option("to protect")
@click.option(
    "--check",
    "sql",
    multiple=True,
    metavar="SELECT",
    help="A query that returns or counts the invalid rows of the new snapshot, whose table is `this`. "
    "Replaces earlier queries; can be repeated.",
)
@click.option(
    "--check-python",
    "python",
    multiple=True,
    metavar="MODULE:FUNCTION",
    help="A function that takes a session of the new snapshot and returns True, False or a message. "
    "Replaces earlier functions; can be repeated.",
)
@click.option("--no-checks", is_flag=True, help="Remove all checks, but keep the branch protected.")
@click.option("--list", "lists", is_flag=True, help="List protected branches and their checks.")
@click.option("--remove", is_flag=True, help="Remove the protection and all checks.")
@output_option
def protect(
    repo: Repository,
    branch: str,
    sql: tuple[str, ...],
    python: tuple[str, ...],
    no_checks: bool,
    lists: bool,
    remove: bool,
    out: CommandOutput,
) -> None:
    """Protect the history of a branch, and check its commits.

    Commits, merges and resets to a later snapshot are still allowed. Amending, squashing, deleting and other
    resets are rejected. A commit that fails a check does not move the branch. Other Icechunk clients ignore
    the protection and the checks.

    Later commands run a Python check only if you allow its module: icefloe --allow-module MODULE COMMAND.

    \b
    icefloe protect data/repo --branch main
    icefloe protect data/repo --check "SELECT time, t2m FROM this WHERE t2m > 400"
    icefloe protect data/repo --check-python station_checks:is_complete
    """
    if bool(sql or python) + no_checks + lists + remove > 1:
        raise click.UsageError("choose one of --check or --check-python, --no-checks, --list and --remove")
    if lists:
        checks = repo.protected_branches()
        rows = [
            {"branch": name, "kind": each and each.kind, "check": each and each.text}
            for name, own in checks.items()
            for each in own or [None]
        ]
        out.table(rows, ["branch", "kind", "check"])
        return
    if remove:
        repo.unprotect(branch)
    elif no_checks:
        repo.protect(branch, sql=[], python=[])
    else:
        repo.protect(branch, sql=sql or None, python=python or None)
    own = repo.protected_branches().get(branch, ())
    state = "no longer protected" if remove else "protected"
    state += f", with {counted(len(own), 'check')}" if own else ""
    out.value(
        {"branch": branch, "protected": not remove, "checks": [{each.kind: each.text} for each in own]},
        f"branch {format_value(branch)} is {state}",
    )


@click.command()
@repo_argument
@output_option
def refs(repo: Repository, out: CommandOutput) -> None:
    """List all branches and tags with their snapshots.

    \b
    icefloe refs data/repo
    """
    out.table([*list_refs(repo, "branch"), *list_refs(repo, "tag")], ["kind", "name", "snapshot"])


def list_refs(repo: Repository, kind: str) -> list[dict[str, str]]:
    """List a repository's branches or tags by name, with their snapshots."""
    names, lookup = (
        (repo.list_branches(), repo.lookup_branch)
        if kind == "branch"
        else (repo.list_tags(), repo.lookup_tag)
    )
    return [{"kind": kind, "name": name, "snapshot": lookup(name)} for name in sorted(names)]


def _print(out: CommandOutput, kind: str, name: str, id: str, *, deleted: bool = False) -> None:
    text = (
        f"{kind} {format_value(name)} deleted; it was at {id}"
        if deleted
        else f"{kind} {format_value(name)} at {id}"
    )
    out.value({"name": name, "snapshot": id}, text)
