"""`icefloe.ingest_files` works with any executor, and starts none if there is nothing to do."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import icefloe
from icefloe import default_executor
from icefloe._internal.executor import ProcessExecutor
from icefloe.ingest.options import list_options
from tests.support.ingest.files import Travelling, archive, assert_same, expected, read


def test_files_are_ingested_into_a_new_repository(tmp_path: Path) -> None:
    files = archive(tmp_path / "files")

    report = icefloe.ingest_files(
        str(tmp_path / "files"), str(tmp_path / "repo"), executor=Travelling(), chunks={"time": 2}
    )

    repo = icefloe.open(str(tmp_path / "repo"))
    assert report.published == repo.lookup_branch("main")
    assert_same(read(repo), expected(files))


def test_executor_does_not_start_without_new_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, repo = archive(tmp_path / "files"), tmp_path / "repo"
    icefloe.ingest_files(files, repo, executor=Travelling())
    monkeypatch.setattr("icefloe.spark.session.open_default_session", None)
    monkeypatch.setattr(default_executor, "ProcessExecutor", None)

    report = icefloe.ingest_files(files, repo)

    assert len(report.outcome.sources.known) == 3
    assert report.commits == ()


def test_ingest_files_lists_every_option_in_its_signature() -> None:
    parameters = inspect.signature(icefloe.ingest_files).parameters
    own = {"sources", "repo", "executor", "dry_run", "progress", "source_options"}

    assert set(parameters) - own == list_options()


def test_spark_ingest_has_the_same_options() -> None:
    from icefloe.spark.ingest_files import ingest

    own = inspect.signature(icefloe.ingest_files).parameters
    on_spark = inspect.signature(ingest).parameters

    assert list(on_spark) == ["spark", *(name for name in own if name != "executor")]
    assert all(on_spark[name] == own[name] for name in on_spark if name != "spark")


def test_processes_replace_spark_without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = archive(tmp_path / "files")
    started: list[str] = []

    @contextmanager
    def no_java() -> Iterator[None]:
        started.append("spark")
        yield None

    monkeypatch.setattr("icefloe.spark.session.open_default_session", no_java)

    def processes(*args: Any, **options: Any) -> Any:
        started.append("processes")
        return ProcessExecutor(1)

    monkeypatch.setattr(default_executor, "ProcessExecutor", processes)

    icefloe.ingest_files(files, tmp_path / "repo")

    assert started == ["spark", "processes"]
    assert_same(read(icefloe.open(str(tmp_path / "repo"))), expected(files))
