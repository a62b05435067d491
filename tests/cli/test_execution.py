"""The option `--executor`: valid values and the default."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from icefloe._internal.executor import ProcessExecutor, ThreadExecutor
from icefloe.cli import main as app
from icefloe.cli.execution import ExecutorChoice, ExecutorType, start_executor
from icefloe.cli.output import CommandOutput
from icefloe.spark import java
from tests.support.ingest.files import archive


@pytest.mark.parametrize(
    "text", ["spark", "spark:local[2]", "spark:spark://host:7077", "processes", "processes:4", "threads"]
)
def test_valid_executors_are_accepted(text: str) -> None:
    assert ExecutorType()(text) == text


@pytest.mark.parametrize(
    "text", ["", "dask", "spark:", "processes:0", "processes:x", "processes:", "threads:4", "local[2]"]
)
def test_invalid_executors_are_rejected(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not spark"):
        ExecutorType()(text)


def test_spark_is_the_default_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "describe_missing", lambda: None)

    chosen = ExecutorChoice(spark_conf={"a": "b"}).or_default(CommandOutput(as_json=False))

    assert chosen == ExecutorChoice("spark", {"a": "b"})


def test_processes_are_the_default_executor_without_spark(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(java, "describe_missing", lambda: "pip install pyspark")

    chosen = ExecutorChoice().or_default(CommandOutput(as_json=False))

    assert chosen.text == "processes"
    assert "Spark is not available (pip install pyspark)" in capsys.readouterr().err


def test_explicit_executor_does_not_search_for_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "describe_missing", lambda: pytest.fail("not asked for"))

    assert ExecutorChoice("threads").or_default(CommandOutput(as_json=False)).text == "threads"


def test_executor_is_reported_when_it_starts(capsys: pytest.CaptureFixture[str]) -> None:
    out = CommandOutput(as_json=False)

    with start_executor(ExecutorChoice("threads"), out) as threads:
        assert isinstance(threads, ThreadExecutor)
        assert threads.parallelism == 1
    with start_executor(ExecutorChoice("processes:3"), out) as processes:
        assert isinstance(processes, ProcessExecutor)
        assert processes.parallelism == 3

    told = capsys.readouterr().err
    assert "running in this process" in told
    assert "running in 3 processes of this machine" in told


def test_options_on_the_command_line_override_a_recipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive(tmp_path / "data", (2, 2))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "sources: data\nrepository: repo\nexecutor: spark:nowhere\noptions: {chunks: {time: 1}}\n"
    )
    words = ["ingest", "--recipe", str(recipe), "--executor", "threads", "--dry-run", "--json"]

    found = []
    for more in ([], ["--chunks", "time=2"]):
        assert app.main([*words, *more]) == 0
        arrays = json.loads(capsys.readouterr().out)["plan"]["arrays"]
        found.append(next(each["chunks"][0] for each in arrays if each["name"] == "t2m"))

    assert found == [1, 2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ingest"], "pass SOURCES followed by REPO, or --recipe"),
        (["ingest", "data"], "pass SOURCES followed by REPO, or --recipe"),
        (["ingest", "data", "repo", "--recipe", "RECIPE"], "omit SOURCES and REPO"),
        (["ingest", "data", "repo", "--executor", "none"], "is not spark[:MASTER], processes[:N] or threads"),
    ],
)
def test_invalid_executors_and_recipes_are_reported(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("sources: data\nrepository: repo\n")

    assert app.main([word.replace("RECIPE", str(recipe)) for word in words]) == 2

    assert said in capsys.readouterr().err


def test_executor_in_a_recipe_is_validated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("sources: data\nrepository: repo\nexecutor: dask\n")

    assert app.main(["ingest", "--recipe", str(recipe)]) == 2

    assert "'dask' is not spark[:MASTER], processes[:N] or threads" in capsys.readouterr().err
