"""Commits with keys happen once: in races, and after all operations on the history."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe import (
    BasicConflictSolver,
    CommitKey,
    ConflictDetector,
    Repository,
    RetentionPolicy,
    Session,
    VersionSelection,
)
from icefloe._internal.paths import validate
from icefloe.core.commit.idempotency import (
    KEYS,
    CommittedVersions,
    has_key,
    with_version,
    with_versions_between,
)
from icefloe.errors import ConflictError, FormatError, InvalidInputError, RebaseFailedError

SOLVERS = {
    "ours": BasicConflictSolver(on_chunk_conflict=VersionSelection.UseOurs),
    "theirs": BasicConflictSolver(on_chunk_conflict=VersionSelection.UseTheirs),
    "detect": ConflictDetector(),
    "none": None,
}
NIGHTLY = CommitKey("nightly", "7")


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def repo(request: pytest.FixtureRequest) -> Repository:
    made = Repository.create(icefloe.in_memory_storage(), spec_version=request.param)
    session = made.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(8,), chunks=(1,), dtype="i4", fill_value=0)
    session.commit("array")
    return made


def writing(repo: Repository, value: int = 1, at: int = 0, branch: str = "main") -> Session:
    session = repo.writable_session(branch)
    zarr.open_array(session.store, path="a")[at] = value
    return session


def job(
    repo: Repository, key: CommitKey = NIGHTLY, value: int = 1, at: int = 0, branch: str = "main"
) -> str | None:
    """Run a job that writes one value, and return the id of its commit or None."""
    session = writing(repo, value, at, branch)
    return session.commit_once(f"{key.app} {key.version}", key=key, rebase_with=ConflictDetector())


def messages(repo: Repository, branch: str = "main") -> list[str]:
    return [info.message for info in repo.ancestry(branch=branch)]


def values(repo: Repository, branch: str = "main") -> list[int]:
    store = repo.readonly_session(branch).store
    return list(np.asarray(zarr.open_array(store, path="a", mode="r")[:]).tolist())


def branch_has(repo: Repository, key: CommitKey, branch: str = "main") -> bool:
    return has_key(repo.readonly_session(branch)._workspace.base, key)


def now() -> datetime:
    time.sleep(0.002)
    return datetime.now(UTC)


def test_second_run_of_a_job_commits_nothing(repo: Repository) -> None:
    first = job(repo)

    assert first == repo.lookup_branch("main")
    assert job(repo, value=2) is None
    assert repo.lookup_branch("main") == first
    assert job(repo, CommitKey("nightly", "8")) is not None
    assert job(repo, CommitKey("hourly", "7")) is not None
    assert job(repo, value=3) is None


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("at", [0, 3], ids=["same chunk", "other chunk"])
def test_commit_by_a_faster_copy_of_the_job_is_found(repo: Repository, solver: str, at: int) -> None:
    session = writing(repo, 5, at)
    job(repo)

    assert session.commit_once("late", key=NIGHTLY, rebase_with=SOLVERS[solver]) is None
    assert messages(repo)[0] == "nightly 7"
    assert values(repo)[0] == 1


def intervene(
    session: Session, monkeypatch: pytest.MonkeyPatch, acts: Iterator[Callable[[], object]]
) -> None:
    """Let other writers act whenever a session reads the tip of its branch or is about to move it."""
    refs: Any = session._refs
    busy: list[bool] = []

    def around(name: str) -> None:
        original = getattr(refs, name)

        def wrapper(*args: Any) -> Any:
            if not busy:
                busy.append(True)
                next(acts, lambda: None)()
                busy.clear()
            return original(*args)

        monkeypatch.setattr(refs, name, wrapper)

    for name in ("branch", "check_tip", "advance"):
        around(name)


@pytest.mark.parametrize("solver", ["ours", "theirs", "detect"])
@pytest.mark.parametrize("at", [0, 3], ids=["same chunk", "other chunk"])
@pytest.mark.parametrize("moment", range(8))
def test_commit_by_a_copy_of_the_job_is_found_at_any_moment(
    repo: Repository, solver: str, at: int, moment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer commits first, so that the session must rebase; the twin commits later."""
    rivals = Repository.open(repo.storage)
    session = writing(repo, 5, at)
    others = [lambda: writing(rivals, 9, 6).commit("somebody else")]
    twin: list[Callable[[], object]] = [lambda: job(rivals)]
    nothing: list[Callable[[], object]] = [lambda: None]
    intervene(session, monkeypatch, iter([*others, *nothing * moment, *twin]))

    made = session.commit_once("late", key=NIGHTLY, rebase_with=SOLVERS[solver])

    told = messages(rivals)
    assert told.count("late") + told.count("nightly 7") == 1
    assert (made is None) == ("nightly 7" in told)
    assert branch_has(rivals, NIGHTLY)


def test_commit_with_a_key_still_conflicts_with_another_writer(repo: Repository) -> None:
    late = writing(repo, 5)
    writing(repo, 9).commit("somebody else")

    with pytest.raises(ConflictError):
        late.commit_once("late", key=NIGHTLY)
    with pytest.raises(RebaseFailedError):
        late.commit_once("late", key=NIGHTLY, rebase_with=ConflictDetector())

    assert late.has_uncommitted_changes
    assert not late.status().new_groups  # the key of a failed attempt is not left behind
    assert late.commit_once("late", key=NIGHTLY, rebase_with=SOLVERS["ours"]) is not None
    assert values(repo)[0] == 5


def test_keys_of_several_applications_do_not_conflict(repo: Repository) -> None:
    sessions = [writing(repo, number, number) for number in range(1, 5)]

    made = [
        session.commit_once(
            "x", key=CommitKey(f"app {number // 2}", str(number)), rebase_with=ConflictDetector()
        )
        for number, session in enumerate(sessions)
    ]

    assert None not in made
    assert values(repo) == [0, 1, 2, 3, 4, 0, 0, 0]
    assert all(branch_has(repo, CommitKey(f"app {number // 2}", str(number))) for number in range(4))


def expire(repo: Repository) -> None:
    writing(repo, 3, 5).commit("later")
    repo.expire_snapshots(now())
    repo.garbage_collect(now())
    assert "nightly 7" not in messages(repo)


def squash(repo: Repository) -> None:
    writing(repo, 3, 5).commit("later")
    first = list(repo.ancestry(branch="main"))[-1]
    repo.squash(first.id, branch="main", message="squashed")
    assert messages(repo)[0] == "squashed"


def retain(repo: Repository) -> None:
    writing(repo, 3, 5).commit("later")
    repo.retain(RetentionPolicy(last=1))
    assert "nightly 7" not in messages(repo)


def amend(repo: Repository) -> None:
    if repo.spec_version == 2:
        writing(repo, 3, 5).amend("amended")
        assert "nightly 8" not in messages(repo)


def revert(repo: Repository) -> None:
    repo.revert(repo.lookup_branch("main"), branch="main")


def overwrite(repo: Repository) -> None:
    session = repo.writable_session("main")
    zarr.open_group(session.store, mode="w")
    zarr.create_array(session.store, name="a", shape=(8,), chunks=(1,), dtype="i4", fill_value=0)
    session.commit("overwritten")


def overwrite_by_job(repo: Repository) -> None:
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(8,), chunks=(1,), dtype="i4", overwrite=True)
    session.commit_once("overwritten", key=CommitKey("other", "1"))


HISTORIES = {
    "expire": expire,
    "squash": squash,
    "retain": retain,
    "amend": amend,
    "revert": revert,
    "overwrite": overwrite,
    "overwrite by another job": overwrite_by_job,
}


@pytest.mark.parametrize("change", HISTORIES)
def test_keys_survive_removal_of_their_commits(repo: Repository, change: str) -> None:
    for version in ("7", "2024-05-01", "8"):
        assert job(repo, CommitKey("nightly", version), value=len(version)) is not None
    HISTORIES[change](repo)
    tip = repo.lookup_branch("main")

    assert job(repo, CommitKey("nightly", "7"), value=4) is None
    assert job(repo, CommitKey("nightly", "2024-05-01"), value=4) is None
    assert job(repo, CommitKey("nightly", "8"), value=4) is None
    assert repo.lookup_branch("main") == tip
    assert job(repo, CommitKey("nightly", "6"), value=4) is not None


def test_a_key_can_be_committed_again_after_its_group_was_deleted(repo: Repository) -> None:
    job(repo)
    session = repo.writable_session("main")
    del zarr.open_group(session.store)["_icefloe/keys"]
    session.commit("forget all keys")

    assert job(repo, value=2) is not None


def test_cleared_repository_keeps_its_keys(repo: Repository) -> None:
    job(repo)
    session = repo.writable_session("main")
    session.store.sync_clear()
    session.commit("cleared")

    assert branch_has(repo, NIGHTLY)
    assert list(zarr.open_group(repo.readonly_session("main").store, mode="r")) == ["_icefloe"]


def test_branch_reset_removes_commit_keys(repo: Repository) -> None:
    before = repo.lookup_branch("main")
    job(repo)
    repo.reset_branch("main", before)

    assert job(repo, value=2) is not None
    assert values(repo)[0] == 2


def test_merge_combines_commit_keys_of_both_branches(repo: Repository) -> None:
    job(repo, CommitKey("nightly", "1"), at=0)
    repo.create_branch("dev", repo.lookup_branch("main"))
    job(repo, CommitKey("nightly", "2"), at=1)
    job(repo, CommitKey("only main", "x"), at=2)
    job(repo, CommitKey("nightly", "3"), at=3, branch="dev")
    job(repo, CommitKey("only dev", "y"), at=4, branch="dev")

    assert repo.merge("dev", "main", message="merge").outcome == "merged"

    keys = [CommitKey("nightly", version) for version in "123"]
    keys += [CommitKey("only main", "x"), CommitKey("only dev", "y")]
    assert all(branch_has(repo, key) for key in keys)
    assert values(repo) == [1, 1, 1, 1, 1, 0, 0, 0]
    assert not branch_has(repo, CommitKey("nightly", "2"), "dev")
    assert repo.verify("objects").ok


def test_branches_that_both_added_their_first_key_can_be_merged(repo: Repository) -> None:
    """Both sides created the parent groups of the keys."""
    repo.create_branch("dev", repo.lookup_branch("main"))
    job(repo, CommitKey("a", "1"), at=0)
    job(repo, CommitKey("a", "2"), at=1, branch="dev")

    assert repo.merge("dev", "main", message="merge").outcome == "merged"

    assert branch_has(repo, CommitKey("a", "1"))
    assert branch_has(repo, CommitKey("a", "2"))


def test_merge_of_equal_content_adds_keys(repo: Repository) -> None:
    repo.create_branch("dev", repo.lookup_branch("main"))
    job(repo, CommitKey("a", "1"), at=0)
    writing(repo, 1, 0, "dev").commit("the same, without a key")

    repo.merge("main", "dev", message="merge", strategy="ours")

    assert branch_has(repo, CommitKey("a", "1"), "dev")


def test_cherry_pick_adds_only_the_key_of_its_commit(repo: Repository) -> None:
    repo.create_branch("dev", repo.lookup_branch("main"))
    job(repo, CommitKey("nightly", "1"), at=0, branch="dev")
    picked = job(repo, CommitKey("nightly", "2"), at=1, branch="dev")
    assert picked is not None

    repo.cherry_pick(picked, branch="main")

    assert branch_has(repo, CommitKey("nightly", "2"))
    assert not branch_has(repo, CommitKey("nightly", "1"))
    assert job(repo, CommitKey("nightly", "1"), at=0) is not None


def test_session_that_deletes_everything_rebases_over_keys(repo: Repository) -> None:
    job(repo, CommitKey("nightly", "1"))
    session = repo.writable_session("main")
    session.store.sync_clear()
    zarr.create_group(session.store)
    job(repo, CommitKey("nightly", "2"), at=1)

    with pytest.raises(RebaseFailedError) as caught:
        session.commit("cleared", rebase_with=ConflictDetector())

    assert [conflict.path for conflict in caught.value.conflicts] == ["/a"]
    solver = BasicConflictSolver(fail_on_delete_of_updated_array=False)
    session.commit("cleared", rebase_with=solver)
    assert branch_has(repo, CommitKey("nightly", "2"))


def test_zarr_reads_a_repository_with_keys(repo: Repository) -> None:
    job(repo, CommitKey("a/b ..", "1"))

    root = zarr.open_group(repo.readonly_session("main").store, mode="r")

    members = dict(root.members(max_depth=None))
    assert set(members) == {"a", "_icefloe", "_icefloe/keys", "_icefloe/keys/a%2Fb%20%2E%2E"}
    assert members["_icefloe/keys/a%2Fb%20%2E%2E"].attrs["last"] == "1"


def test_same_key_with_different_data_is_rejected(repo: Repository) -> None:
    job(repo, CommitKey("feed", "1", digest="aa"))
    tip = repo.lookup_branch("main")

    assert job(repo, CommitKey("feed", "1", digest="aa"), value=2) is None
    with pytest.raises(InvalidInputError, match="key 1 of feed was already committed with other data"):
        job(repo, CommitKey("feed", "1", digest="bb"), value=2)

    assert repo.lookup_branch("main") == tip


def test_damaged_key_group_is_rejected(repo: Repository) -> None:
    job(repo)
    session = repo.writable_session("main")
    zarr.open_group(session.store, path=f"{KEYS[1:]}/nightly").attrs.update(numbers="none")
    session.commit("damage")

    with pytest.raises(FormatError, match="/_icefloe/keys/nightly does not contain valid commit keys"):
        job(repo)


@pytest.mark.parametrize("text", ["", "\ud800"])
def test_empty_keys_are_rejected(text: str) -> None:
    with pytest.raises(InvalidInputError, match="application of a commit key"):
        CommitKey(text, "1")
    with pytest.raises(InvalidInputError, match="version of a commit key"):
        CommitKey("app", text)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
VERSIONS = st.one_of(
    st.integers(0, 12).map(str), st.sampled_from(["007", "-1", "a", "9" * 30, str(1 << 63)]), TEXTS
)


@given(TEXTS, TEXTS)
def test_each_application_has_its_own_path(one: str, other: str) -> None:
    paths = [CommitKey(app, "1").path for app in (one, other)]

    assert [validate(path) for path in paths] == paths
    assert all(path.startswith(f"{KEYS}/") and "/" not in path[len(KEYS) + 1 :] for path in paths)
    assert (paths[0] == paths[1]) == (one == other)


@given(st.lists(VERSIONS), st.lists(VERSIONS), st.lists(VERSIONS))
def test_committed_versions_behave_like_a_set(base: list[str], ours: list[str], theirs: list[str]) -> None:
    def versions(names: list[str]) -> CommittedVersions:
        found = CommittedVersions("app")
        for name in names:
            found = with_version(found, name)
        return found

    mine, before, after = versions(base + ours), versions(base), versions(base + theirs)
    united = with_versions_between(mine, before, after)
    all_known = {*base, *ours, *theirs, "5", "b"}

    assert {name for name in all_known if name in united} == {*base, *ours, *theirs}
    fewer = with_versions_between(mine, after, before)  # a revert removes nothing
    assert {name for name in all_known if name in fewer} == {*base, *ours}


@pytest.mark.parametrize("version", ["7", "cycle-06"])
def test_earlier_key_with_other_data_is_an_error(repo: Repository, version: str) -> None:
    job(repo, CommitKey("feed", version, "one"))
    job(repo, CommitKey("feed", "later", "two"))
    tip = repo.lookup_branch("main")

    assert job(repo, CommitKey("feed", version, "one"), value=5) is None
    with pytest.raises(InvalidInputError, match=f"key {version} of feed was already committed with other"):
        job(repo, CommitKey("feed", version, "other"), value=5)
    assert repo.lookup_branch("main") == tip


def test_versions_of_an_application_are_found_per_branch(repo: Repository) -> None:
    job(repo, CommitKey("my_feed", "1", "one"))
    start = repo.lookup_branch("main")
    job(repo, CommitKey("my_feed", "2", "two"))
    repo.create_branch("dev", start)

    found = repo.committed_versions("my_feed")
    assert (found.last, found.digest) == ("2", "two")
    assert [found.get_digest(each) for each in "123"] == ["one", "two", None]
    assert "2" not in repo.committed_versions("my_feed", branch="dev")
    assert repo.committed_versions("other").last == ""
    assert repo.readonly_session("main").workspace.node(f"{KEYS}/my_feed") is not None


def test_merge_combines_key_digests_of_both_branches(repo: Repository) -> None:
    repo.create_branch("dev", repo.lookup_branch("main"))
    job(repo, CommitKey("feed", "a", "one"))
    job(repo, CommitKey("feed", "b", "two"), at=3, branch="dev")
    repo.merge("dev", "main", message="merge")

    for version in "ab":
        with pytest.raises(InvalidInputError, match="other data"):
            job(repo, CommitKey("feed", version, "other"), value=5)
