"""Events of a repository: all of them, in order, at least once."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import icefloe
from icefloe.cli import main as app
from icefloe.feeds import Event, watch


@pytest.fixture(params=[1, 2])
def repo(request: pytest.FixtureRequest, tmp_path: Path) -> icefloe.Repository:
    """Create a repository in either version of the format."""
    storage = icefloe.storage_from_url(str(tmp_path / "repo"), sync=False)
    return icefloe.Repository.create(storage, spec_version=request.param)


def commit(repo: icefloe.Repository, message: str) -> str:
    return repo.writable_session("main").commit(message, allow_empty=True)


def events(repo: icefloe.Repository, bookmark: Path) -> list[Event]:
    found: list[Event] = []
    watch(repo, bookmark, found.append, once=True)
    return found


def test_events_are_reported_in_commit_order(repo: icefloe.Repository, tmp_path: Path) -> None:
    bookmark = tmp_path / "seen.json"
    commit(repo, "before the bookmark")
    assert events(repo, bookmark) == []
    ids = [commit(repo, "one"), commit(repo, "two")]
    repo.create_tag("v1", snapshot_id=ids[0])

    found = events(repo, bookmark)

    assert [each.type for each in found] == ["commit", "commit", "tag-created"]
    assert [each.snapshot_id for each in found] == [*ids, ids[0]]
    assert [each.message for each in found] == ["one", "two", "one"]
    assert [(each.branch, each.tag) for each in found] == [("main", None), ("main", None), (None, "v1")]
    assert events(repo, bookmark) == []


def test_undelivered_event_is_repeated(repo: icefloe.Repository, tmp_path: Path) -> None:
    bookmark, seen = tmp_path / "seen.json", []
    events(repo, bookmark)
    commit(repo, "one")
    commit(repo, "two")

    def deliver(event: Event) -> None:
        seen.append(event)
        if event.message == "two":
            raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        watch(repo, bookmark, deliver, once=True)

    (again,) = events(repo, bookmark)
    assert again == seen[1]


def test_branches_that_are_created_reset_and_deleted_are_reported(
    repo: icefloe.Repository, tmp_path: Path
) -> None:
    bookmark = tmp_path / "seen.json"
    first, last = commit(repo, "one"), commit(repo, "two")
    repo.create_branch("old", last)
    events(repo, bookmark)
    repo.create_branch("dev", first)
    repo.reset_branch("main", first)
    repo.delete_branch("old")

    found = {(each.type, each.branch): each.snapshot_id for each in events(repo, bookmark)}

    assert found == {
        ("branch-created", "dev"): first,
        ("branch-reset", "main"): first,
        ("branch-deleted", "old"): last,
    }


def test_commits_of_new_and_reset_branches_are_reported(repo: icefloe.Repository, tmp_path: Path) -> None:
    bookmark = tmp_path / "seen.json"
    first, _ = commit(repo, "one"), commit(repo, "two")
    events(repo, bookmark)
    repo.create_branch("dev", first)
    other = repo.writable_session("dev").commit("other", allow_empty=True)
    repo.reset_branch("main", first)
    third = commit(repo, "three")

    found = [(each.type, each.branch, each.snapshot_id) for each in events(repo, bookmark)]

    assert sorted(found) == sorted(
        [
            ("branch-created", "dev", first),
            ("commit", "dev", other),
            ("branch-reset", "main", first),
            ("commit", "main", third),
        ]
    )
    assert found.index(("branch-created", "dev", first)) < found.index(("commit", "dev", other))
    assert found.index(("branch-reset", "main", first)) < found.index(("commit", "main", third))


def test_event_of_a_deleted_ref_contains_its_snapshot(tmp_path: Path) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    events(repo, tmp_path / "seen.json")
    tip = commit(repo, "one")
    repo.create_tag("v1", tip)
    repo.delete_tag("v1")
    repo.create_branch("dev", tip)
    repo.delete_branch("dev")

    found = events(repo, tmp_path / "seen.json")

    assert [each.snapshot_id for each in found] == [tip] * 5


def test_bookmark_older_than_the_retained_history_raises_an_error(tmp_path: Path) -> None:
    bookmark = tmp_path / "seen.json"
    first, other = (icefloe.Repository.create(icefloe.in_memory_storage()) for _ in range(2))
    commit(first, "one")
    events(first, bookmark)

    with pytest.raises(icefloe.InvalidInputError, match="lies before the retained history"):
        events(other, bookmark)


def test_expired_bookmark_of_version_1_raises_an_error(tmp_path: Path) -> None:
    bookmark = tmp_path / "seen.json"
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=1)
    commit(repo, "one")
    events(repo, bookmark)
    commit(repo, "two")
    tip = commit(repo, "three")
    time = next(iter(repo.ancestry(snapshot_id=tip))).written_at
    assert repo.expire_snapshots(time)

    with pytest.raises(icefloe.InvalidInputError, match="lies before the retained history"):
        events(repo, bookmark)


def test_invalid_bookmark_file_raises_an_error(repo: icefloe.Repository, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("buy milk")

    with pytest.raises(icefloe.InvalidInputError, match="is not a bookmark"):
        events(repo, tmp_path / "notes")

    assert (tmp_path / "notes").read_text() == "buy milk"


def test_watch_command_runs_a_program_for_each_event(
    repo: icefloe.Repository, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["watch", str(tmp_path / "repo"), "--bookmark", str(tmp_path / "seen"), "--once"]
    program = tmp_path / "react.py"
    program.write_text(f"import sys; open({str(tmp_path / 'out')!r}, 'a').write(sys.stdin.read() + chr(10))")
    assert app.main(words) == 0
    commit(repo, "one")

    assert app.main([*words, "--exec", f"{sys.executable} {program}"]) == 0
    assert json.loads((tmp_path / "out").read_text())["message"] == "one"

    commit(repo, "two")
    assert app.main([*words, "--exec", f"{sys.executable} -c 'raise SystemExit(3)'"]) == 2
    assert "exited with code 3; delivery will be retried" in capsys.readouterr().err
    assert app.main(words) == 0
    assert json.loads(capsys.readouterr().out)["message"] == "two"
    assert app.main([*words, "--exec", "'unclosed"]) == 2
    assert "is not a command: No closing quotation" in capsys.readouterr().err


def test_watch_command_repeats_a_failed_delivery(
    repo: icefloe.Repository,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ["watch", str(tmp_path / "repo"), "--bookmark", str(tmp_path / "seen")]
    assert app.main([*words, "--once"]) == 0
    commit(repo, "one")
    program = tmp_path / "react.py"
    program.write_text(
        "import pathlib, sys\n"
        f"tried = pathlib.Path({str(tmp_path / 'tried')!r})\n"
        "if not tried.exists():\n"
        "    tried.touch()\n"
        "    sys.exit(1)\n"
        "tried.write_text(sys.stdin.read())\n"
    )
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", pause)

    app.main([*words, "--interval", "9", "--exec", f"{sys.executable} {program}"])

    assert "was not delivered" in capsys.readouterr().err
    assert json.loads((tmp_path / "tried").read_text())["message"] == "one"
    assert pauses == [9, 9]
