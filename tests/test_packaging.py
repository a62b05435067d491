"""The package's metadata, the pinned versions and the scripts agree with each other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import icefloe
from tests.support.source_tree import ROOT

TABLES = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT, GROUPS = TABLES["project"], TABLES["dependency-groups"]
OLDEST = (3, 11)


def pins(text: str) -> dict[str, str]:
    """Name -> exact version, for the interpreter that runs this; an inexact or doubled pin is an error."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        requirement = Requirement(line)
        version = re.fullmatch(r"==([^,*]+)", str(requirement.specifier))
        if version is None:
            raise ValueError(f"not an exact pin: {line}")
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        name = canonicalize_name(requirement.name)
        if name in found:
            raise ValueError(f"pinned twice: {name}")
        found[name] = version[1]
    return found


def installed_closure(roots: Iterable[str]) -> dict[str, str]:
    """Return every installed distribution the given requirements need, directly or not, with its version."""
    found: dict[str, str] = {}
    seen: set[str] = set()
    waiting = list(roots)
    while waiting:
        text = waiting.pop()
        if text in seen:
            continue
        seen.add(text)
        requirement = Requirement(text)
        try:
            distribution = metadata.distribution(requirement.name)
        except metadata.PackageNotFoundError:
            continue
        found[canonicalize_name(requirement.name)] = distribution.version
        for extra in requirement.extras or {""}:
            for needed in map(Requirement, distribution.requires or ()):
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    needed.marker = None
                    waiting.append(str(needed))
    return found


def group(name: str) -> Iterator[str]:
    """Yield the requirements of a dependency group and of the groups it includes."""
    for entry in GROUPS[name]:
        if isinstance(entry, str):
            yield entry
        else:
            yield from group(entry["include-group"])


@pytest.mark.needs("packaging", "xarray")
def test_every_installed_test_dependency_is_pinned() -> None:
    installed = installed_closure(line for name in GROUPS for line in group(name))
    installed.pop("icefloe")
    pinned = pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))

    assert len(installed) > 20
    assert {name: version for name, version in installed.items() if pinned.get(name) != version} == {}


@pytest.mark.parametrize("text", ["numpy>=2", "numpy==2.*", "numpy", "numpy==2.4.6\nNumPy==2.5.4"])
def test_inexact_or_duplicate_pin_is_detected(text: str) -> None:
    with pytest.raises(ValueError, match="pin"):
        pins(text)


def test_dependency_closure_includes_indirect_dependencies() -> None:
    assert {"pytest", "pluggy", "iniconfig"} <= installed_closure(["pytest"]).keys()


def test_package_version_is_defined_in_one_place() -> None:
    assert metadata.version("icefloe") == icefloe.__version__
    assert "version" in PROJECT["dynamic"]


def test_each_core_dependency_is_justified_in_the_decision() -> None:
    text = (ROOT / "docs" / "decisions" / "0001-dependencies.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE)

    assert sorted(rows) == sorted(Requirement(line).name for line in PROJECT["dependencies"])


def test_py_typed_marker_is_part_of_the_package() -> None:
    assert (Path(icefloe.__file__).parent / "py.typed").is_file()


def scripts() -> list[Path]:
    """Return the scripts that the Makefile, CI and people call."""
    return [ROOT / ".ci" / "run", *sorted(path for path in (ROOT / "scripts").iterdir() if path.is_file())]


@pytest.mark.parametrize("script", scripts(), ids=lambda path: str(path.relative_to(ROOT)))
def test_scripts_are_executable_and_parse(script: Path) -> None:
    text = script.read_text(encoding="utf-8")

    assert os.access(script, os.X_OK)
    program = text.splitlines()[0].removeprefix("#!").split()[-1]
    if program == "python3":
        compile(text, str(script), "exec")
    else:
        subprocess.run([program, "-n", str(script)], check=True)


def run_script(name: str, *arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run one of our scripts, with nothing but `path` and the system's tools to find."""
    environment = {
        "PATH": f"{path}:/usr/bin:/bin" if path else "/usr/bin:/bin",
        "HOME": str(path),
        "PYENV_ROOT": "",
    }
    return subprocess.run(
        [str(ROOT / "scripts" / name), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def fake_python(folder: Path, name: str, body: str) -> Path:
    """Return an executable that answers like an interpreter, or refuses to."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)
    return file


def test_newest_python_skips_broken_interpreters(tmp_path: Path) -> None:
    fake_python(tmp_path, "python3.98", "echo 'command not found' >&2; exit 127")
    working = fake_python(tmp_path, "python3.97", "echo 3097000")

    assert run_script("newest-python", path=tmp_path).stdout.strip() == str(working)


def test_newest_python_looks_under_pyenv(tmp_path: Path) -> None:
    working = fake_python(tmp_path / ".pyenv" / "versions" / "3.97.0" / "bin", "python", "echo 3097000")

    assert run_script("newest-python", "3.90", path=tmp_path).stdout.strip() == str(working)


def test_newest_python_asks_uv(tmp_path: Path) -> None:
    working = fake_python(tmp_path / "elsewhere", "python3.97", "echo 3097000")
    fake_python(tmp_path, "uv", f"echo 'cpython-3.97.0-linux-x86_64-gnu    {working}'")

    assert run_script("newest-python", "3.90", path=tmp_path).stdout.strip() == str(working)


def test_newest_python_fails_quietly_when_there_is_none(tmp_path: Path) -> None:
    answer = run_script("newest-python", "3.90", path=tmp_path)

    assert (answer.returncode, answer.stdout) == (1, "")


def test_newest_python_respects_its_bounds(tmp_path: Path) -> None:
    fake_python(tmp_path, "python3.97", "echo 3097000")
    older = fake_python(tmp_path, "python3.96", "echo 3096004")

    assert run_script("newest-python", "3.95", "3.96", path=tmp_path).stdout.strip() == str(older)


def test_newest_python_resolves_pyenv_shims(tmp_path: Path) -> None:
    shims = tmp_path / "pyenv" / "shims"
    fake_python(shims, "python3.97", "echo 'pyenv: python3.97: command not found' >&2; exit 127")
    working = fake_python(tmp_path / "pyenv" / "versions" / "3.97.0" / "bin", "python", "echo 3097000")

    assert run_script("newest-python", "3.90", path=shims).stdout.strip() == str(working)


def test_find_python_names_a_missing_interpreter() -> None:
    answer = run_script("find-python", "no-such-python")

    assert answer.returncode == 1
    assert answer.stderr.startswith("setup: cannot run 'no-such-python'. Install Python 3.11 or newer")
    assert answer.stderr.count("\n") == 1


def test_find_python_rejects_an_old_interpreter(tmp_path: Path) -> None:
    old = fake_python(tmp_path, "python3", "echo 3.9 /usr/bin/python3.9")

    answer = run_script("find-python", str(old))

    assert answer.returncode == 1
    assert "is Python 3.9, and icefloe needs 3.11 or newer" in answer.stderr


def test_find_python_skips_an_old_default(tmp_path: Path) -> None:
    fake_python(tmp_path, "python3", "echo 3.9 /usr/bin/python3.9")
    working = fake_python(tmp_path, "python3.97", "echo 3097000")

    assert run_script("find-python", path=tmp_path).stdout.strip() == str(working)


def test_find_python_resolves_an_inactive_pyenv_shim(tmp_path: Path) -> None:
    shims = tmp_path / "py env é" / "shims"
    fake_python(shims, "python3.97", "echo 'pyenv: python3.97: command not found' >&2; exit 127")
    working = fake_python(shims.parent / "versions" / "3.97.0" / "bin", "python", "echo 3097000")

    assert run_script("find-python", "python3.97", path=shims).stdout.strip() == str(working)


def test_minimum_python_version_is_consistent() -> None:
    assert PROJECT["requires-python"] == f">={OLDEST[0]}.{OLDEST[1]}"
    for script in ("find-python", "newest-python"):
        assert re.search(
            rf'oldest="?(\$\{{1:-)?{OLDEST[0]}\.{OLDEST[1]}', (ROOT / "scripts" / script).read_text()
        )
    assert sys.version_info >= OLDEST


def test_pre_commit_hooks_are_make_targets() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0][
        "hooks"
    ]
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)

    assert [hook["entry"] for hook in hooks] == [f"make --no-print-directory {hook['id']}" for hook in hooks]
    assert {hook["id"] for hook in hooks} <= set(targets)
