"""Random commits on several branches through any Zarr store: chunks, metadata, resizes, deletions."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.support.edits import (
    CreateArray,
    CreateGroup,
    Delete,
    Edit,
    Erase,
    SetAttribute,
    Write,
    make,
    resize,
)

NAMES = ("/a", "/b", "/g/c")
BRANCHES = ("main", "dev")


class RandomHistory:
    """A repository, of icefloe or the official package, that gets random commits."""

    def __init__(self, repo: Any, seed: int) -> None:
        self.repo = repo
        self.random = Random(seed)
        self.count = 0
        self.commits: list[str] = []
        """All snapshots, in the order of their commits."""
        self.commit("main", [CreateGroup("/"), CreateGroup("/g"), CreateArray("/a", (4,))])
        repo.create_branch("dev", repo.lookup_branch("main"))

    def commit(self, branch: str, edits: list[Edit]) -> str:
        session = self.repo.writable_session(branch)
        make(session, edits)
        self.commits.append(session.commit(f"commit {len(self.commits)}"))
        return self.commits[-1]

    def step(self, branch: str | None = None) -> str:
        """Commit one or two random changes."""
        branch = branch or self.random.choice(BRANCHES)
        store = self.repo.readonly_session(branch).store
        there = {f"/{key.removesuffix('/zarr.json')}" for key in keys(store) if key.endswith("zarr.json")}
        edits: list[Edit] = []
        for path in self.random.sample(NAMES, self.random.choice((1, 2))):
            edits += self.change(path) if path in there else self.new_array(path)
        return self.commit(branch, edits)

    def new_array(self, path: str) -> list[Edit]:
        writes = [self.write(path, at) for at in range(4) if self.random.random() < 0.6]
        return [CreateArray(path, (4,)), *writes]

    def change(self, path: str) -> list[Edit]:
        self.count += 1
        at = self.random.randrange(3)
        options: tuple[list[Edit], ...] = (
            [Delete(path)],
            [SetAttribute(path, self.count)],
            [Erase(path, (at,))],
            [resize(path, self.random.choice((3, 5)))],
        )
        written: list[Edit] = [self.write(path, each) for each in {at, self.random.randrange(3)}]
        return self.random.choice((*options, written, written, written, written))

    def write(self, path: str, at: int) -> Write:
        """Write one of few values, so that chunks of the same bytes occur."""
        return Write(path, (at,), b"%d" % self.random.randrange(6) * self.random.choice((1, 600)))


def keys(store: Any) -> list[str]:
    from zarr.core.sync import sync

    async def collect() -> list[str]:
        return [key async for key in store.list_prefix("")]

    return sync(collect())
