"""Commands that take data elsewhere, as typed."""

from __future__ import annotations

from pathlib import Path

from icefloe import Repository
from icefloe.cli import app
from icefloe.storage import local_filesystem_storage
from tests.cli.test_cli import Terminal, typed

__all__ = ["typed"]


def test_clone_copies_once_and_then_what_is_new(typed: Terminal, tmp_path: Path) -> None:
    target = str(tmp_path / "copy")

    planned = typed.json("clone", target, "--dry-run")
    assert "snapshots" in typed("clone", target, "--read-back")
    again = typed.json("clone", target)

    assert planned["snapshots"] == 3
    assert again["snapshots"] == again["bytes_copied"] == 0
    copied = Repository.open(local_filesystem_storage(target))
    assert copied.verify("chunks").ok
    assert copied.list_tags() == {"v1"}


def test_clone_of_a_part(typed: Terminal, tmp_path: Path) -> None:
    typed("clone", str(tmp_path / "copy"), "--depth", "1", "--no-tags")

    copied = Repository.open(local_filesystem_storage(str(tmp_path / "copy")))
    messages = [info.message for info in copied.ancestry(branch="main")]
    assert messages == ["correct t2m", "Repository initialized"]
    assert copied.list_tags() == set()


def test_clone_to_where_something_else_is(typed: Terminal, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "notes").write_text("mine")

    typed("clone", str(tmp_path / "copy"), code=app.USAGE)

    assert "notes" in typed.errors
