"""Tests of scripts/setup-env on difficult machines. They install packages: `make test-setup` runs them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

from tests.support.source_tree import ROOT

pytestmark = pytest.mark.setup

Done = subprocess.CompletedProcess[str]

NOBODY = 65534
NO_NETWORK = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple"}
IS_ROOT = os.geteuid() == 0


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Copy the files of a checkout that the set-up needs to a folder with an inconvenient name."""
    return copy_checkout(tmp_path / "é dir" / "icefloe")


def copy_checkout(folder: Path) -> Path:
    for name in ("pyproject.toml", "constraints.txt", "README.md", "LICENSE"):
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder)
    for name in ("src", "scripts"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def command(checkout: Path, group: str = "core", python: str = sys.executable) -> list[str]:
    return [python, str(checkout / "scripts" / "setup-env"), group]


def environment(checkout: Path, **variables: str) -> dict[str, str]:
    """Variables of a user with an empty home."""
    home = checkout.parent / "home"
    home.mkdir(exist_ok=True)
    dropped = ("PYTEST", "COVERAGE", "PYTHONPATH")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return {**kept, "HOME": str(home), "PIP_NO_CACHE_DIR": "1", "UV_NO_CACHE": "1", **variables}


def set_up(checkout: Path, *words: str, **variables: str) -> Done:
    return subprocess.run(
        words or command(checkout),
        env=environment(checkout, **variables),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def core_python(checkout: Path) -> Path:
    return checkout / ".venv" / "{}.{}-core".format(*sys.version_info) / "bin" / "python"


def runs(checkout: Path) -> bool:
    """Return whether the environment has icefloe from this checkout, and pytest."""
    code = "import hypothesis, icefloe, numpy, pytest, zarr; print(icefloe.__file__)"
    done = subprocess.run(
        [core_python(checkout), "-I", "-c", code], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() == str(checkout / "src" / "icefloe" / "__init__.py")


def one_sentence(done: Done) -> str:
    """Return the only line on standard error of a set-up that failed."""
    assert done.returncode == 1, done.stdout + done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("setup: ")
    return line


def test_second_run_needs_no_network(checkout: Path) -> None:
    assert set_up(checkout).returncode == 0
    assert runs(checkout)

    again = set_up(checkout, **NO_NETWORK)

    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")


def test_missing_network_is_reported_and_the_next_run_recovers(checkout: Path) -> None:
    problem = one_sentence(set_up(checkout, **NO_NETWORK))

    assert "the package index cannot be reached" in problem
    assert set_up(checkout).returncode == 0
    assert runs(checkout)


def test_pip_is_the_fallback_for_uv(checkout: Path, tmp_path: Path) -> None:
    constraint = tmp_path / "no-uv.txt"
    constraint.write_text("uv==0.0.0\n")

    done = set_up(checkout, PIP_CONSTRAINT=str(constraint))

    assert done.returncode == 0, done.stderr
    assert "going on with pip" in done.stdout
    assert runs(checkout)


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name
)
def test_interrupted_setup_recovers(number: signal.Signals, checkout: Path) -> None:
    for delay_s in (0.0, 1.5, 3.0, 4.5):  # creating the environment, installing uv, installing packages
        process = subprocess.Popen(
            command(checkout),
            env=environment(checkout),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # A shell that starts the tests in the background lets them ignore SIGINT.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first.startswith("setup: ")
        time.sleep(delay_s)
        os.killpg(process.pid, number)
        rest, errors = process.communicate(timeout=60)
        assert "Traceback" not in errors
        if delay_s and "is ready" in first + rest:  # a fast machine was done before the signal
            break
        assert process.returncode != 0

    assert set_up(checkout).returncode == 0
    assert runs(checkout)


def test_missing_venv_module_is_reported(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "ensurepip.py").write_text("raise ImportError('not packaged')\n")

    problem = one_sentence(set_up(checkout, PYTHONPATH=str(tmp_path)))

    assert "has no venv or ensurepip module. Install your system's package for it" in problem


@pytest.mark.skipif(not IS_ROOT, reason="only root can become another user")
def test_another_user_sets_up_in_their_own_folder(checkout: Path, open_python: str) -> None:
    environment(checkout)
    make_traversable(checkout)
    for path in [checkout.parent, *checkout.parent.rglob("*")]:
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)

    done = set_up(checkout, *as_nobody(command(checkout, python=open_python)))

    assert done.returncode == 0, done.stderr
    assert next(checkout.glob(".venv/*-core")).stat().st_uid == NOBODY


@pytest.mark.skipif(not IS_ROOT, reason="only root can become another user")
def test_folder_that_cannot_be_written_is_reported(checkout: Path, open_python: str) -> None:
    environment(checkout)
    make_traversable(checkout)

    problem = one_sentence(set_up(checkout, *as_nobody(command(checkout, python=open_python))))

    assert "a folder cannot be written" in problem
    assert str(checkout / ".venv") in problem


@pytest.mark.skipif(not IS_ROOT, reason="only root can mount a small file system")
@pytest.mark.parametrize("size_mb", [12, 60, 110])
def test_full_disk_is_reported(size_mb: int, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size_mb}m", str(small_disk)], check=True)
    checkout = copy_checkout(small_disk / "icefloe")

    problem = one_sentence(set_up(checkout, TMPDIR="/tmp"))

    assert f"the disk of {checkout} is full. Free some space there" in problem
    subprocess.run(["mount", "-o", "remount,size=2g", str(small_disk)], check=True)
    assert set_up(checkout).returncode == 0
    assert runs(checkout)


@pytest.mark.skipif(not IS_ROOT, reason="only root can mount a small file system")
@pytest.mark.parametrize(("variable", "size_mb"), [("TMPDIR", 12), ("UV_CACHE_DIR", 60)])
def test_full_disk_of_another_folder_is_named(
    variable: str, size_mb: int, small_disk: Path, checkout: Path
) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size_mb}m", str(small_disk)], check=True)
    cache = {"UV_NO_CACHE": "1"} if variable == "TMPDIR" else {"UV_NO_CACHE": "0"}

    problem = one_sentence(set_up(checkout, **cache, **{variable: str(small_disk)}))

    assert f"the disk of {small_disk} is full" in problem


def test_settings_of_pip_are_passed_on_to_uv(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = checkout.parent / "pip.conf"
    config.write_text(
        "[global]\nindex-url = https://a.example/simple\n"
        "extra-index-url =\n  https://b.example\n  https://c.example\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.setenv("PIP_TRUSTED_HOST", "a.example")
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    script = load_script()
    folder = checkout / ".venv"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.setattr(script, "ROOT", ROOT)

    settings = script.uv_settings(folder)

    assert settings["UV_DEFAULT_INDEX"] == "https://a.example/simple"
    assert settings["UV_INDEX"].split() == ["https://b.example", "https://c.example"]
    assert settings["UV_INSECURE_HOST"] == "a.example"


def load_script() -> Any:
    loader = SourceFileLoader("setup_env", str(ROOT / "scripts" / "setup-env"))
    spec = spec_from_loader("setup_env", loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules["setup_env"] = module  # dataclasses look up their module
    loader.exec_module(module)
    return module


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def open_python() -> str:
    """Return an interpreter that other users may run, too."""
    names = ("python3", "python3.11", "python3.13")
    check = (
        "import ensurepip, subprocess, sys, venv; "
        "sys.exit(sys.version_info < (3, 11) or subprocess.run([sys.executable, '-V']).returncode)"
    )
    for candidate in [sys.executable, *(found for name in names for found in on_path(name))]:
        words = as_nobody([candidate, "-c", check])
        if subprocess.run(words, capture_output=True, cwd="/", check=False).returncode == 0:
            return candidate
    pytest.skip("no Python 3.11 or newer with ensurepip that other users may run")


def on_path(name: str) -> list[str]:
    folders = [*os.environ["PATH"].split(os.pathsep), "/usr/bin"]
    return [f"{folder}/{name}" for folder in folders if os.access(f"{folder}/{name}", os.X_OK)]


def as_nobody(words: list[str]) -> list[str]:
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *words]


def make_traversable(path: Path) -> None:
    """Let other users reach a folder below pytest's private one."""
    for folder in path.parents:
        if folder.stat().st_uid == 0 and folder.stat().st_mode & 0o005 != 0o005:
            folder.chmod(folder.stat().st_mode | 0o055)
