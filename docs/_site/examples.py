"""Run the examples of a page: Python blocks in one namespace and `console` blocks in a shell, all in one folder.

An `output` block shows what the Python block before it prints.

    python -m docs._site.examples [--spark] [PAGE...]

runs the commands of pages and writes their output into `console` blocks where it differs in more than ids, times and sizes. Tests run the same
commands; a command may fail only if `$ echo $?` follows it. With `--spark`, examples that tests leave out because they need
Spark are run, too.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]
FOLDER_SHOWN = "/srv/weather"
"""Stands for the folder in which commands run, in their output."""

_FENCE = re.compile(r"^( *)(`{3,}|~{3,})\s*(\w*)")
_NOT_RUN = re.compile(r"^\s*<!-- not run: (.+?) -->\s*$")
_PROGRESS = re.compile(r"^tasks: \d+ of \d+\n", re.MULTILINE)
_CHANGING = re.compile(r"\b[0-9A-HJKMNP-TV-Z]{20}\b|\b[0-9A-HJKMNP-TV-Z]{8}\b|\S*\d\S*|\s+|[─━│]")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block: its language, the number of its first line, and its text without the indentation of the fence."""

    language: str
    line: int
    indent: str
    code: str
    not_run: str | None
    """The reason given for leaving it out, in a comment above."""


class CommandFailedError(Exception):
    """A command of a page failed, and the page does not say that it does."""


def blocks(text: str) -> Iterator[Block]:
    """Yield the blocks fenced as `python`, `console` and `output`."""
    lines = text.splitlines()
    start = 0
    while start < len(lines):
        opening = _FENCE.match(lines[start])
        if opening is None:
            start += 1
            continue
        indent, fence, language = opening.groups()
        end = start + 1
        while end < len(lines) and not lines[end].strip().startswith(fence):
            end += 1
        if language in ("python", "console", "output"):
            code = "\n".join(line.removeprefix(indent) for line in lines[start + 1 : end])
            marker = _NOT_RUN.match(lines[start - 1]) if start else None
            yield Block(language, start + 2, indent, code, marker[1] if marker else None)
        start = end + 1


def run_page(page: Path, *, with_spark: bool = False) -> dict[int, str]:
    """Run the examples of a page in the current folder; return new output blocks by line."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    results, printed = {}, ""
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.not_run is not None and not (with_spark and block.not_run.startswith("needs Spark")):
            continue
        if block.language == "console":
            results[block.line] = run_commands(block.code)
        elif block.language == "output":
            results[block.line] = printed.replace(os.getcwd(), FOLDER_SHOWN).rstrip()
        else:
            with contextlib.redirect_stdout(io.StringIO()) as stdout:
                # Blank lines in front, so that a traceback names the line of the page.
                exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), namespace)
            printed = stdout.getvalue()
    return results


def run_commands(text: str) -> str:
    """Run the commands of a `console` block; return the block with their output."""
    shown, status = [], 0
    commands = list(_commands(text))
    for number, command in enumerate(commands):
        following = commands[number + 1] if number + 1 < len(commands) else ""
        done = _run(command, status)
        status = done.returncode
        if status and following != "echo $?":
            raise CommandFailedError(f"exit code {status} of: {command}\n{done.stdout}")
        output = _PROGRESS.sub("", done.stdout).replace(os.getcwd(), FOLDER_SHOWN)
        shown += [f"$ {command}", output.rstrip("\n")]
    return "\n".join(part for part in shown if part)


def refresh(page: Path, *, with_spark: bool = False) -> bool:
    """Run a page in an empty folder and write changed output into it; return whether anything changed."""
    with _temporary_folder():
        results = run_page(page, with_spark=with_spark)
    before = page.read_text(encoding="utf-8")
    lines = before.splitlines()
    for block in sorted(blocks(before), key=lambda each: -each.line):
        new = results.get(block.line)
        if new is not None and (not block.code or _stable(new) != _stable(block.code)):
            size = len(block.code.splitlines())
            lines[block.line - 1 : block.line - 1 + size] = [
                f"{block.indent}{line}".rstrip() for line in new.splitlines()
            ]
    after = "\n".join(lines) + "\n"
    if after != before:
        page.write_text(after, encoding="utf-8")
    return after != before


def _commands(text: str) -> Iterator[str]:
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("$ "):
            command = line.removeprefix("$ ")
            while command.endswith("\\"):
                command += "\n" + next(lines)
            yield command


def _run(command: str, status: int) -> subprocess.CompletedProcess[str]:
    source = Path(__file__).resolve().parents[2] / "src"
    program = f'icefloe() {{ "{sys.executable}" -W ignore -m icefloe "$@"; }}; (exit {status}); {command}'
    environment = {
        **os.environ,
        "PYTHONPATH": str(source),
        "NO_COLOR": "1",
        "COLUMNS": "100",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
    }
    return subprocess.run(
        ["bash", "-c", program],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )


def _stable(text: str) -> str:
    """Leave out what differs from run to run."""
    return _CHANGING.sub(" ", text).replace(" ", "")


@contextlib.contextmanager
def _temporary_folder() -> Iterator[None]:
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def main(names: list[str]) -> None:
    """Refresh the given pages, or all that have commands."""
    with_spark = "--spark" in names
    pages = [Path(name).resolve() for name in names if not name.startswith("--")] or sorted(
        DOCS.rglob("*.md")
    )
    for page in pages:
        if any(block.language != "python" for block in blocks(page.read_text(encoding="utf-8"))):
            outcome = "changed" if refresh(page, with_spark=with_spark) else "unchanged"
            print(f"{page.relative_to(DOCS)}: {outcome}")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
