"""Commands on branches and tags."""

from __future__ import annotations

import click

from icefloe.cli import revisions
from icefloe.cli.arguments import output_option, repo_argument
from icefloe.cli.output import Output
from icefloe.repository import Repository


@click.group()
def branch() -> None:
    """List, create, delete and reset branches."""


@branch.command("list")
@repo_argument
@output_option
def branch_list(repo: Repository, out: Output) -> None:
    """All branches."""
    rows = ({"name": name, "snapshot": repo.lookup_branch(name)} for name in sorted(repo.list_branches()))
    out.table(rows, ["name", "snapshot"])


@branch.command("create")
@repo_argument
@click.argument("name")
@click.argument("revision", default="main")
@output_option
def branch_create(repo: Repository, name: str, revision: str, out: Output) -> None:
    """Start a branch at REVISION."""
    id = revisions.resolve(repo, revision)
    repo.create_branch(name, id)
    out.value({"name": name, "snapshot": id}, f"branch {name} at {id}")


@branch.command("delete")
@repo_argument
@click.argument("name")
@output_option
def branch_delete(repo: Repository, name: str, out: Output) -> None:
    """Remove a branch; its commits stay until they are collected."""
    id = repo.lookup_branch(name)
    repo.delete_branch(name)
    out.value({"name": name, "snapshot": id}, f"branch {name} is gone; it was at {id}")


@branch.command("reset")
@repo_argument
@click.argument("name")
@click.argument("revision")
@output_option
def branch_reset(repo: Repository, name: str, revision: str, out: Output) -> None:
    """Point a branch elsewhere."""
    before, after = repo.lookup_branch(name), revisions.resolve(repo, revision)
    repo.reset_branch(name, after, from_snapshot_id=before)
    out.value(
        {"name": name, "snapshot": after, "before": before}, f"branch {name} at {after}; it was at {before}"
    )


@click.group()
def tag() -> None:
    """List, create and delete tags."""


@tag.command("list")
@repo_argument
@output_option
def tag_list(repo: Repository, out: Output) -> None:
    """All tags."""
    rows = ({"name": name, "snapshot": repo.lookup_tag(name)} for name in sorted(repo.list_tags()))
    out.table(rows, ["name", "snapshot"])


@tag.command("create")
@repo_argument
@click.argument("name")
@click.argument("revision", default="main")
@output_option
def tag_create(repo: Repository, name: str, revision: str, out: Output) -> None:
    """Name REVISION for good."""
    id = revisions.resolve(repo, revision)
    repo.create_tag(name, id)
    out.value({"name": name, "snapshot": id}, f"tag {name} at {id}")


@tag.command("delete")
@repo_argument
@click.argument("name")
@output_option
def tag_delete(repo: Repository, name: str, out: Output) -> None:
    """Remove a tag; its name can never be used again."""
    id = repo.lookup_tag(name)
    repo.delete_tag(name)
    out.value({"name": name, "snapshot": id}, f"tag {name} is gone; it was at {id}")
