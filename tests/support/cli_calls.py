"""Arguments for every command, for a repository with hostile names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

EVIL = (
    "a\x1b[5;41m\x07\x08\x7f\x9b2J\x85\u202e\u2066\u2028\u2029\u200b\U000e0001"
    "\r\nFORGED line\x0b\x0c\x1b]0;t\x1b\\"
)
"""C0 and C1 controls, DEL, bidirectional marks, invisible characters, and every way to end a line."""
NAME = EVIL.replace("\\", "")

NONE = ("--executor", "threads")

CALLS: dict[str, list[list[str]]] = {
    "init": [["REPO"]],
    "ingest": [["FILE", "NEW", *NONE, "--dry-run"], ["FILE", "FILE2", "NEW", *NONE],
               ["--recipe", "RECIPE", *NONE]],
    "append": [["FILE", "REPO"], [f"{NAME}x", "REPO", "--key", NAME]],
    "watch": [["REPO", "--bookmark", "NEW", "--once"], ["REPO", "--bookmark", "FILE", "--once"]],
    "window": [["REPO", "--keep", "1d", "--dry-run"], ["REPO", "--keep", "2", "--dim", NAME]],
    "rechunk": [["REPO", NAME, "--chunks", f"{NAME}=1", "--dry-run", *NONE], ["REPO", "/x"]],
    "derive": [["RECIPE"], ["FILE"]],
    "lineage": [["REPO", NAME], ["REPO", f"{NAME}x"]],
    "statistics": [["REPO", *NONE]],
    "describe": [["REPO"], ["REPO", NAME], ["REPO", f"{NAME}x"]],
    "extract": [["REPO", NAME, "--points", "FILE"], ["REPO", f"{NAME}x", "--zones", "FILE", "--by", NAME]],
    "info": [["REPO"]],
    "config": [["REPO"]],
    "status": [["REPO"]],
    "doctor": [[]],
    "doctor storage": [["NEW"]],
    "log": [["REPO"], ["REPO", "--graph"], ["REPO", "-r", f"tag:{NAME}"]],
    "show": [["REPO", "--all"], ["REPO", "-r", "main~1"], ["REPO", "-r", NAME], ["REPO", "-r", f"{NAME}x"]],
    "diff": [["REPO", "main~3", "-r", "main", "--all"], ["REPO", NAME, "main", "--values"]],
    "blame": [["REPO", NAME], ["REPO", "strings", "-r", NAME], ["REPO", f"{NAME}x"]],
    "bisect": [["REPO", NAME, "--when", "max > 0"], ["REPO", NAME, "--when", NAME],
               ["REPO", NAME, "--at", f"{NAME}=0", "--when", "max > 0"]],
    "protect": [["REPO", "--branch", NAME], ["REPO", "--branch", f"{NAME}x"], ["REPO", "--remove"]],
    "refs": [["REPO"]],
    "ops": [["REPO"]],
    "branch list": [["REPO"]],
    "branch create": [["REPO", NAME]],
    "branch delete": [["REPO", f"{NAME}x"]],
    "branch reset": [["REPO", "--branch", f"{NAME}x", "-r", "main"]],
    "tag list": [["REPO"]],
    "tag create": [["REPO", NAME]],
    "tag delete": [["REPO", f"{NAME}x"]],
    "merge": [["REPO", NAME, "--dry-run"], ["REPO", f"branch:{NAME}"]],
    "cherry-pick": [["REPO", NAME, "--dry-run"]],
    "revert": [["REPO", "main~1", "--dry-run"]],
    "squash": [["REPO", "main~2", "--dry-run"], ["REPO", "main", "--branch", NAME]],
    "tree": [["REPO"], ["REPO", "--all"], ["REPO", f"{NAME}x"]],
    "head": [["REPO", "strings"], ["REPO", f"{NAME}x"], ["REPO", f"group{NAME}"]],
    "cat": [["REPO", "strings"], ["REPO", "scalar"], ["REPO", "_icefloe/ledger/source"], ["REPO", "virtual"]],
    "plot": [["REPO", NAME], ["REPO", NAME, "--isel", f"{NAME}=0"], ["REPO", "strings"],
             ["REPO", NAME, "-f", "PNG"]],
    "inspect-file": [["FILE"], ["FILE", "FILE2"]],
    "verify": [["REPO", "--level", "objects"], ["REPO", "--level", "sources"], ["REPO", "-r", NAME]],
    "checksums record": [["REPO"]],
    "repair": [["REPO", "--dry-run"], ["REPO", "--dry-run", "--drop"],
               ["REPO", "--from-ledger", "--dry-run"]],
    "gc": [["REPO", "--older-than", "7d", "--dry-run"],
           ["REPO", "--older-than", "0s", "--dry-run", "--table"]],
    "expire": [["REPO", "--older-than", "0s", "--dry-run"], ["REPO", "--keep-last", "1", "--dry-run"]],
    "storage": [["REPO"], ["REPO", "--by", "array", "--all"], ["REPO", "--by", "snapshot"]],
    "rewrite-manifests": [["REPO", "--dry-run"], ["REPO", "--dry-run", "--branch", NAME]],
    "migrate": [["REPO", "--dry-run"]],
    "clone": [["REPO", "NEW"]],
    "export": [["REPO", "NEW", "--dry-run"], ["REPO", "NEW.nc"], ["REPO", "NEW", "--variables", f"{NAME}x"]],
    "completion": [["bash"]],
}  # fmt: skip
"""Every command, as it is typed at the hostile repository. `sql` and `serve` have tests of their own."""


def commands(group: Any, prefix: str = "") -> Iterator[str]:
    """Return all commands, including those of groups."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix}{name} ")
            if command.invoke_without_command:
                yield prefix + name
        else:
            yield prefix + name
