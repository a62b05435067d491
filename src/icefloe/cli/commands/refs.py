"""Commands that manage branches and tags: branch, tag."""

from __future__ import annotations

import click

from icefloe.cli import revisions
from icefloe.cli.output import Output, shown
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
    """The name of a new branch or tag. Names that are hard to type are refused."""

    name = "name"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        # docstring inherited
        text = str(value)
        parts = text.split("/")
        odd = not text.isprintable() or any(each.isspace() or each in "@:\\*?[~^" for each in text)
        if odd or text.startswith("-") or any(part in ("", ".", "..") for part in parts):
            self.fail(
                f"{text!r} is no name for a branch or tag: use letters, digits and any of -_.+, "
                "with / between parts, as in fix/2024-05",
                param,
                ctx,
            )
        return text


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
    rows = ({"name": name, "snapshot": repo.lookup_branch(name)} for name in sorted(repo.list_branches()))
    out.table(rows, ["name", "snapshot"])


@branch.command("create")
@repo_argument
@click.argument("name", type=Name())
@revision_option
@output_option
def branch_create(repo: Repository, name: str, revision: str, out: Output) -> None:
    """Create a branch called NAME."""
    id = revisions.resolve(repo, revision)
    repo.create_branch(name, id)
    out.value({"name": name, "snapshot": id}, f"branch {shown(name)} at {id}")


@branch.command("delete")
@repo_argument
@click.argument("name", shell_complete=complete_branch)
@output_option
def branch_delete(repo: Repository, name: str, out: Output) -> None:
    """Delete the branch NAME. Its commits stay until garbage collection."""
    id = repo.lookup_branch(name)
    repo.delete_branch(name)
    out.value({"name": name, "snapshot": id}, f"branch {shown(name)} is gone; it was at {id}")


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
        f"branch {shown(branch)} at {after}; it was at {before}",
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
    rows = ({"name": name, "snapshot": repo.lookup_tag(name)} for name in sorted(repo.list_tags()))
    out.table(rows, ["name", "snapshot"])


@tag.command("create")
@repo_argument
@click.argument("name", type=Name())
@revision_option
@output_option
def tag_create(repo: Repository, name: str, revision: str, out: Output) -> None:
    """Create a tag called NAME. Tags never move."""
    id = revisions.resolve(repo, revision)
    repo.create_tag(name, id)
    out.value({"name": name, "snapshot": id}, f"tag {shown(name)} at {id}")


@tag.command("delete")
@repo_argument
@click.argument("name", shell_complete=complete_tag)
@output_option
def tag_delete(repo: Repository, name: str, out: Output) -> None:
    """Delete the tag NAME. Its name can never be used again."""
    id = repo.lookup_tag(name)
    repo.delete_tag(name)
    out.value({"name": name, "snapshot": id}, f"tag {shown(name)} is gone; it was at {id}")
