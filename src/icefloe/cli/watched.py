"""How far the upkeep is: a fan-out that tells, over threads or Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from icefloe._internal.concurrency import FanOut, ThreadFanOut
from icefloe.cli.output import Output
from icefloe.repository import Repository

T = TypeVar("T")
R = TypeVar("R")

_THREADS = 64
_STAGES = {
    "_info": "snapshots",
    "_read_snapshot": "snapshots",
    "_read_log": "transaction logs",
    "_manifests_of": "snapshots",
    "_chunks_of": "manifests",
    "_check_manifest": "manifests",
    "_count": "manifests",
    "_check": "sources",
    "_digest": "checksums",
    "decode": "chunks",
    "survey_some": "groups of files",
    "survey_for_references": "groups of files",
    "compare_block": "blocks compared",
    "compare_sample": "blocks compared",
    "count_boxes": "parts checked",
    "digest": "files compared",
    "set_aside": "parts put aside",
    "write_references": "tasks",
    "write": "tasks",
    "_write": "manifests",
    "delete_some": "requests to delete",
    "rewrite": "tasks",
}
"""What is gone through, by the name of what is done to each."""


class Watched:
    """A fan-out that tells how far it is."""

    def __init__(self, inner: FanOut, out: Output) -> None:
        self._inner = inner
        self._out = out

    def __call__(self, function: Callable[[T], R], items: Iterable[T], /) -> Iterator[R]:
        todo = list(items)
        stage = _STAGES.get(_name(function), "steps")
        for done, result in enumerate(self._inner(function, todo), 1):
            self._out.progress(stage, done, len(todo))
            yield result

    def over(self, inner: FanOut) -> Watched:
        """The same over another one."""
        return Watched(inner, self._out)


def watched(repo: Repository, out: Output, *, reads_only: bool = False) -> Repository:
    """The same repository, whose upkeep tells how far it is; `reads_only` if it only reads small files."""
    alone = reads_only and repo.storage.answers_at_once
    return repo.working_with(Watched(repo.fan_out or ThreadFanOut(1 if alone else _THREADS), out))


def _name(function: Any) -> str:
    """That of the function inside a partial one."""
    return str(getattr(getattr(function, "func", function), "__name__", ""))
