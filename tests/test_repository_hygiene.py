"""No file mentions a machine, a package registry, or unfinished work without an issue."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.source_tree import ROOT

# Places that exist on any machine; a path below them says nothing about this one.
COMMON_FOLDERS = set(map(Path, ["/", "/home", "/mnt", "/opt", "/srv", "/tmp", "/usr/src", "/var/tmp"]))

HOSTS = ["py" + "pi.org", "python" + "hosted.org", "npm" + "js.org", "npm" + "js.com", "crates" + ".io"]
HOSTS += ["conda.anaconda" + ".org", "deb.debian" + ".org", "repo1.maven" + ".org"]
REGISTRY = re.compile("|".join(map(re.escape, HOSTS)) + "|" + "--(extra-)?index" + "-url|--find" + "-links")

PERSONAL_FOLDER = re.compile(r"(?<![\w.])/(home|Users)/[A-Za-z][\w.-]*/")

UNFINISHED = re.compile(r"\b(TO" + "DO|FIX" + r"ME|XX" + r"X)\b")
ISSUE = re.compile(r"#\d+")


@cache
def text_files() -> dict[str, str]:
    """Path -> text of every file that is or could be committed; binary files are left out."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout: which files belong to the project is unknown")
    found = {}
    for name in filter(None, listed.stdout.decode().split("\0")):
        path = ROOT / name
        if not path.is_file():
            continue
        content = path.read_bytes()
        if b"\0" not in content:
            found[name] = content.decode("utf-8", errors="replace")
    return found


def machine_paths(text: str, folders: set[Path]) -> Iterator[str]:
    """Return paths below one of the folders, or below a home folder."""
    for folder in folders - COMMON_FOLDERS - {Path(tempfile.gettempdir())}:
        if re.search(rf"(?<![\w.-]){re.escape(str(folder))}(/|\b)", text):
            yield str(folder)
    yield from (match[0] for match in PERSONAL_FOLDER.finditer(text))


def unfinished_lines(text: str) -> list[str]:
    """Lines that promise work without naming the issue it is kept in."""
    return [line.strip() for line in text.splitlines() if UNFINISHED.search(line) and not ISSUE.search(line)]


def test_no_file_names_a_path_of_this_machine() -> None:
    here = {ROOT, ROOT.parent, Path.home()}

    found = {name: paths for name, text in text_files().items() if (paths := list(machine_paths(text, here)))}

    assert found == {}


def test_no_file_names_a_package_registry() -> None:
    found = {name: match[0] for name, text in text_files().items() if (match := REGISTRY.search(text))}

    assert found == {}


def test_every_todo_has_an_issue_number() -> None:
    found = {
        name: lines
        for name, text in text_files().items()
        if not name.startswith("tests/data/") and (lines := unfinished_lines(text))
    }

    assert found == {}


def test_hygiene_checks_cover_all_project_files() -> None:
    assert {"pyproject.toml", "src/icefloe/__init__.py", ".ci/run"} <= text_files().keys()


@pytest.mark.parametrize(
    "text", ["cd /build/agenda/x", "path=/build/agenda", "see /ho" + "me/ann/x", "/Us" + "ers/ann/x"]
)
def test_local_machine_path_in_a_file_is_detected(text: str) -> None:
    assert list(machine_paths(text, {Path("/build/agenda")}))


@pytest.mark.parametrize(
    "text", ["file:///tmp/golden/x", "the /home page", "re/build/agenda-like", "zarr's root/"]
)
def test_well_known_system_path_in_a_file_is_allowed(text: str) -> None:
    assert not list(machine_paths(text, {Path("/tmp"), Path("/build/agenda")}))


@pytest.mark.parametrize("text", [f"https://{HOSTS[0]}/simple", "pip install --index" + "-url x"])
def test_package_registry_in_a_file_is_detected(text: str) -> None:
    assert REGISTRY.search(text)


def test_todo_without_an_issue_number_is_detected() -> None:
    word = "TO" + "DO"

    assert unfinished_lines(f"x = 1  # {word}: later\ny = 2  # {word}(#12): later") == [
        f"x = 1  # {word}: later"
    ]


def test_news_fragments_are_named_by_kind() -> None:
    names = {path.name for path in (ROOT / "changes").iterdir()} - {"README.md"}

    assert [
        name for name in names if not re.fullmatch(r"[+\w-]+\.(added|changed|fixed|removed)\.md", name)
    ] == []
