"""User functions are loaded from the present source of their modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from icefloe.derive.user_code import UserCode
from icefloe.errors import InvalidInputError
from tests.support.derive import derive, make_repository, open_derived, write_recipe


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a module that no other test uses, and leave the search path as it was."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return f"functions_{abs(hash(tmp_path))}"


def write_source(folder: Path, name: str, text: str) -> None:
    file = folder.joinpath(*name.split(".")).with_suffix(".py")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def call(name: str, folder: Path) -> Any:
    return UserCode.find(f"{name}:f", str(folder)).load()()


def test_a_module_that_changed_is_executed_again(tmp_path: Path, module: str) -> None:
    found = []
    for number in range(3):  # of equal length, within a second: bytecode would look up to date
        write_source(tmp_path, module, f"def f():\n    return {number}\n")
        found.append(call(module, tmp_path))

    assert found == [0, 1, 2]


def test_recipes_in_two_folders_use_separate_modules(tmp_path: Path, module: str) -> None:
    for folder in ("a", "b"):
        write_source(
            tmp_path / folder, module, f"from {module}_help import NAME\ndef f():\n    return NAME\n"
        )
        write_source(tmp_path / folder, f"{module}_help", f"NAME = '{folder}'\n")

    assert [call(module, tmp_path / each) for each in "aba"] == ["a", "b", "a"]


@pytest.mark.parametrize(
    "statement",
    [
        "from {0}.more import VALUE",
        "from {1}more import VALUE",
        "from {1} import more; VALUE = more.VALUE",
        "import {0}.more as more; VALUE = more.VALUE",
    ],
)
def test_a_module_that_a_function_imports_is_part_of_its_digest(
    tmp_path: Path, module: str, statement: str
) -> None:
    write_source(tmp_path, f"{module}.__init__", "")
    write_source(tmp_path, f"{module}.main", f"{statement.format(module, '.')}\ndef f():\n    return VALUE\n")
    digests, values = [], []
    for number in range(2):
        write_source(tmp_path, f"{module}.more", f"VALUE = {number}\n")
        digests.append(UserCode.find(f"{module}.main:f", str(tmp_path)).digest)
        values.append(call(f"{module}.main", tmp_path))

    assert values == [0, 1]
    assert digests[0] != digests[1]


def test_a_module_that_changes_during_a_run_is_reported(tmp_path: Path, module: str) -> None:
    write_source(tmp_path, module, "def f():\n    return 1\n")
    planned = UserCode(f"{module}:f", str(tmp_path), "0" * 32)

    with pytest.raises(InvalidInputError, match="changed after the run was planned"):
        planned.load()


def test_modules_of_python_are_not_replaced(tmp_path: Path, module: str) -> None:
    write_source(tmp_path, "json", "VALUE = 1\n")
    write_source(tmp_path, module, "import json\ndef f():\n    return json.dumps([])\n")

    assert call(module, tmp_path) == "[]"


def test_a_changed_function_computes_other_values_in_the_same_process(tmp_path: Path, module: str) -> None:
    repo = make_repository(tmp_path)
    recipe = write_recipe(tmp_path, {"out": {"function": f"{module}:f", "inputs": {"t2m": "t2m"}}})
    for factor in (2, 3):
        write_source(tmp_path, module, f"def f(t2m):\n    return t2m * {factor}\n")
        report = derive(recipe)

        found = open_derived(repo)
        assert report.kept == 0
        assert found["out"].equals(found["t2m"] * factor)
