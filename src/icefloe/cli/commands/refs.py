"""Commands that manage branches and tags: branch, tag, refs."""

from __future__ import annotations

import click

from icefloe.cli import revisions
from icefloe.cli.output import Output, format_value
from icefloe.cli.params import (
    GroupWithDefault,
    branch_option,
    complete_branch,
    complete_revision,
    complete_tag,
    output_option,
    repo_argument,
    revision_option,
)
from icefloe.repository import Repository


class Name(click.ParamType[str]):
    """The name of a new branch or tag. Names that are hard to type are rejected."""

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
def branch_list(repo: Repository, out: Output) -> None:
    """List all branches."""
    out.table(list_refs(repo, "branch"), ["name", "snapshot"])


@branch.command("create")
@repo_argument
@_name
@revision_option
@output_option
def branch_create(repo: Repository, name: str, revision: str, out: Output) -> None:
    """Create a branch called NAME."""
    id = revisions.resolve(repo, revision)
    repo.create_branch(name, id)
    _print(out, "branch", name, id)


@branch.command("delete")
@repo_argument
@click.argument("name", shell_complete=complete_branch)
@output_option
def branch_delete(repo: Repository, name: str, out: Output) -> None:
    """Delete the branch NAME. Its commits stay until garbage collection."""
    id = repo.lookup_branch(name)
    repo.delete_branch(name)
    _print(out, "branch", name, id, deleted=True)


@branch.command("reset")
@repo_argument
@branch_option
@click.option(
    "-r",
    "--revision",
    required=True,
    help=f"The version to move the branch to: {revisions.HELP}",
    shell_complete=complete_revision,
)
@output_option
def branch_reset(repo: Repository, branch: str, revision: str, out: Output) -> None:
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
def tag_list(repo: Repository, out: Output) -> None:
    """List all tags."""
    out.table(list_refs(repo, "tag"), ["name", "snapshot"])


@tag.command("create")
@repo_argument
@_name
@revision_option
@output_option
def tag_create(repo: Repository, name: str, revision: str, out: Output) -> None:
    """Create a tag called NAME. Tags never move."""
    id = revisions.resolve(repo, revision)
    repo.create_tag(name, id)
    _print(out, "tag", name, id)


@tag.command("delete")
@repo_argument
@click.argument("name", shell_complete=complete_tag)
@output_option
def tag_delete(repo: Repository, name: str, out: Output) -> None:
    """Delete the tag NAME. Its name cannot be used again."""
    id = repo.lookup_tag(name)
    repo.delete_tag(name)
    _print(out, "tag", name, id, deleted=True)


@click.command()
@repo_argument
@branch_option
@click.option("--remove", is_flag=True, help="End the protection.")
@output_option
def protect(repo: Repository, branch: str, remove: bool, out: Output) -> None:
    """Protect the history of a branch from being rewritten.

    Commits, merges and resets to a later snapshot are allowed; amending, squashing, deletion and other resets
    are refused. Other clients than icefloe ignore the protection.

    \b
    icefloe protect data/repo --branch main
    """
    (repo.unprotect if remove else repo.protect)(branch)
    state = "no longer protected" if remove else "protected"
    out.value({"branch": branch, "protected": not remove}, f"branch {format_value(branch)} is {state}")


@click.command()
@repo_argument
@output_option
def refs(repo: Repository, out: Output) -> None:
    """List all branches and tags with their snapshots.

    \b
    icefloe refs data/repo
    """
    out.table([*list_refs(repo, "branch"), *list_refs(repo, "tag")], ["kind", "name", "snapshot"])


def list_refs(repo: Repository, kind: str) -> list[dict[str, str]]:
    """List the branches or the tags of a repository by name, with their snapshots."""
    names, lookup = (
        (repo.list_branches(), repo.lookup_branch)
        if kind == "branch"
        else (repo.list_tags(), repo.lookup_tag)
    )
    return [{"kind": kind, "name": name, "snapshot": lookup(name)} for name in sorted(names)]


def _print(out: Output, kind: str, name: str, id: str, *, deleted: bool = False) -> None:
    text = (
        f"{kind} {format_value(name)} deleted; it was at {id}"
        if deleted
        else f"{kind} {format_value(name)} at {id}"
    )
    out.value({"name": name, "snapshot": id}, text)
