"""`icefloe.ingest_files` works with any executor, and starts none if there is nothing to do."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import icefloe
from icefloe import pipeline
from icefloe.ingest.options import known_options
from tests.support.ingest.files import Travelling, archive, assert_same, expected, read


def test_files_go_into_a_new_repository(tmp_path: Path) -> None:
    files = archive(tmp_path / "files")

    report = icefloe.ingest_files(
        str(tmp_path / "files"), str(tmp_path / "repo"), executor=Travelling(), chunks={"time": 2}
    )

    repo = icefloe.open(str(tmp_path / "repo"))
    assert report.published == repo.lookup_branch("main")
    assert_same(read(repo), expected(files))


def test_no_executor_starts_for_files_that_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, repo = archive(tmp_path / "files"), tmp_path / "repo"
    icefloe.ingest_files(files, repo, executor=Travelling())
    monkeypatch.setattr(pipeline, "_start_executor", None)

    report = icefloe.ingest_files(files, repo)

    assert len(report.outcome.sources.known) == 3
    assert report.commits == ()


def test_every_option_is_spelled_out() -> None:
    parameters = inspect.signature(icefloe.ingest_files).parameters
    own = {"sources", "repo", "executor", "dry_run", "progress", "source_options"}

    assert set(parameters) - own == known_options()
