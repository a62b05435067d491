"""Both packages work on one repository in turn; after each step both see the same content."""

from __future__ import annotations

import os
import shutil
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import hypothesis.strategies as st
import pytest
import zarr
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import icefloe
from tests.support.compat import official

pytestmark = pytest.mark.compat

OURS, THEIRS = "icefloe", "icechunk"
WHO = st.sampled_from([OURS, THEIRS])
NAMES = st.sampled_from(["a", "b", "g/a", "g/é"])
REFS = st.sampled_from(["one", "two", "three"])


def ops_log(repo: Any) -> list[Any]:
    return [(type(update.kind).__name__, update.updated_at, update.backup_path) for update in repo.ops_log()]


def view(repo: Any, *, has_repo_info: bool) -> dict[str, Any]:
    """Return everything that both packages must agree on."""
    seen = official.history(repo)
    seen["trees"] = {tip: official.tree(repo, tip) for tip in seen["ancestry"]}
    seen["diffs"] = {tip: list(official.diffs(repo, tip)) for tip in seen["ancestry"]}
    if has_repo_info:
        seen |= {"ops_log": ops_log(repo), "metadata": repo.get_metadata()}
    return seen


class Alternating(RuleBasedStateMachine):
    """A state machine whose steps run in either package, on repositories that stay open in both."""

    spec: ClassVar[int]

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.has_repo_info = self.spec > 1
        self.steps = 0

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @initialize(who=WHO, threshold=st.sampled_from([0, 512]))
    def create(self, who: str, threshold: int) -> None:
        if who == OURS:
            config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=threshold)
            icefloe.Repository.create(
                icefloe.local_filesystem_storage(str(self.folder)), config, spec_version=self.spec
            )
        else:
            their_config = official.icechunk.RepositoryConfig(inline_chunk_threshold_bytes=threshold)
            official.create(self.folder, self.spec, their_config)
        self._open()

    @rule(who=WHO, name=NAMES, value=st.integers(-9, 9), resize=st.booleans(), amend=st.booleans())
    def write(self, who: str, name: str, value: int, resize: bool, amend: bool) -> None:
        session = self._session(who)
        root = zarr.open_group(session.store, mode="a")
        if name in root:
            array: Any = root[name]
            if resize:
                array.resize((array.shape[0] % 7 + 1, 3))
        else:
            array = root.create_array(name, shape=(4, 3), chunks=(2, 2), dtype="i4", fill_value=0)
        array[value % array.shape[0]] = value
        array.attrs["last"] = self.steps  # always a change
        self._commit(session, amend=amend)

    @rule(who=WHO, name=NAMES, whole=st.booleans())
    def delete(self, who: str, name: str, whole: bool) -> None:
        session = self._session(who)
        root: Any = zarr.open_group(session.store, mode="a", attributes={"step": self.steps})
        root.attrs["step"] = self.steps
        if name in root and whole:
            del root[name]
        elif name in root:
            root[name][...] = 0
        self._commit(session)

    @precondition(lambda self: self.has_repo_info)
    @rule(who=WHO, name=NAMES, new=st.sampled_from(["moved", "g/moved"]))
    def move(self, who: str, name: str, new: str) -> None:
        tree = official.tree(self.repos[who], self.repos[who].lookup_branch("main"))
        if f"/{name}" in tree and f"/{new}" not in tree and (new == "moved" or "/g" in tree):
            session = self.repos[who].rearrange_session("main")
            session.move(f"/{name}", f"/{new}")
            self._commit(session)

    @rule(who=WHO, ref=REFS)
    def tag(self, who: str, ref: str) -> None:
        repo = self.repos[who]
        if ref in repo.list_tags():
            repo.delete_tag(ref)
        else:
            try:
                repo.create_tag(ref, repo.lookup_branch("main"))
            except (icefloe.IcechunkError, official.icechunk.IcechunkError) as error:
                kinds = icefloe.ErrorKind
                taken = kinds.TAG_PREVIOUSLY_DELETED if self.has_repo_info else kinds.TAG_ALREADY_EXISTS
                assert error.kind == taken  # noqa: PT017

    @rule(who=WHO, ref=REFS)
    def branch(self, who: str, ref: str) -> None:
        repo = self.repos[who]
        if ref in repo.list_branches():
            repo.reset_branch("main", repo.lookup_branch(ref))
            repo.delete_branch(ref)
        else:
            repo.create_branch(ref, repo.lookup_branch("main"))

    @precondition(lambda self: self.has_repo_info)
    @rule(who=WHO)
    def describe(self, who: str) -> None:
        self.repos[who].update_metadata({who: self.steps})

    @rule(expires=WHO, collects=WHO)
    def clean_up(self, expires: str, collects: str) -> None:
        self.repos[expires].expire_snapshots(older_than=datetime.now(UTC))
        self.repos[collects].garbage_collect(datetime.now(UTC))
        self._open()  # in V1, snapshots are rewritten under their old ids, which both packages have cached

    @invariant()
    def both_see_the_same(self) -> None:
        if hasattr(self, "repos"):
            seen = {name: view(repo, has_repo_info=self.has_repo_info) for name, repo in self.repos.items()}
            assert seen[OURS] == seen[THEIRS]
            assert self.repos[OURS].verify("objects").ok

    def _open(self) -> None:
        self.repos = {OURS: icefloe.open(str(self.folder)), THEIRS: official.open_repository(self.folder)}

    def _session(self, who: str) -> Any:
        self.steps += 1
        return self.repos[who].writable_session("main")

    def _commit(self, session: Any, *, amend: bool = False) -> None:
        repo = self.repos[OURS]
        is_first = next(iter(repo.ancestry(branch="main"))).parent_id is None
        metadata = {"step": self.steps, "deep": [1.5, None]}
        if amend and self.has_repo_info and not is_first:
            session.amend(f"amended {self.steps}", metadata=metadata)
        else:
            session.commit(f"step {self.steps}", metadata=metadata)


class AlternatingV1(Alternating):
    spec = 1


class AlternatingV2(Alternating):
    spec = 2


# ICEFLOE_ALTERNATE=100 runs a hundred programs instead of a few.
WORK = settings(
    max_examples=int(os.environ.get("ICEFLOE_ALTERNATE", "4")),
    stateful_step_count=8,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

TestAlternatingV1 = AlternatingV1.TestCase
TestAlternatingV1.settings = WORK
if official.KNOWS_V2:
    TestAlternatingV2 = AlternatingV2.TestCase
    TestAlternatingV2.settings = WORK
