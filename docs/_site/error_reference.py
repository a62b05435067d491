"""The page of error kinds: causes from `error_kinds.yaml`, messages from running its code."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import icefloe

PATH = "reference/errors.md"
"""Path of the page below `docs/`."""

_INTRODUCTION = """\
# Error kinds

Every error of icefloe is an [`IcechunkError`][icefloe.IcechunkError] with a stable `kind`, a message and often a `hint`
that names the remedy. In programs, compare `error.kind`, because messages may change. With `--json`, the command line also
prints the kind of an error.

```python
import icefloe

try:
    icefloe.Repository.open(icefloe.in_memory_storage())
except icefloe.IcechunkError as error:
    assert error.kind == icefloe.ErrorKind.REPOSITORY_NOT_FOUND
    print(type(error).__name__, error.kind, error.message)
```

Some sections below show code that raises the error. The code runs when this page is built, so the messages are up to
date. In this code, `repo` is a repository with a group `g` and an array `t` of four chunks, and `session` is a writable
session on `main`. For errors of ingests, Spark or the command line, see
[troubleshooting](../how-to/troubleshooting.md).
"""
_RESERVED = "icefloe never raises these kinds of the official library. They exist so that programs can refer to them: "


@dataclass(frozen=True, slots=True)
class Entry:
    """The entry of one error kind on the reference page."""

    kind: str
    cause: str = ""
    remedy: str = ""
    code: str = ""
    example: str = ""


def entries() -> dict[str, Entry]:
    """Return the entries of `error_kinds.yaml` by kind."""
    text = Path(__file__).with_name("error_kinds.yaml").read_text(encoding="utf-8")
    return {kind: Entry(kind, **fields) for kind, fields in yaml.safe_load(text).items()}


def errors_page() -> str:
    """Return the page: a section per kind, and the list of reserved kinds."""
    known = entries()
    described = [entry for entry in known.values() if entry.cause]
    reserved = ", ".join(f"`{entry.kind}`" for entry in known.values() if not entry.cause)
    sections = "\n".join(_section(entry) for entry in described)
    return f"{_INTRODUCTION}\n{sections}\n## Reserved kinds\n\n{_RESERVED}{reserved}.\n"


def provoke(code: str) -> icefloe.IcechunkError:
    """Run the code of an entry in an empty folder, and return the error that it raises."""
    import numpy as np
    import zarr

    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    with repo.transaction("main", message="start") as store:
        zarr.create_array(store, name="t", shape=(4,), chunks=(1,), dtype="i4")
        zarr.create_group(store, path="g")
    names: dict[str, Any] = {"icefloe": icefloe, "np": np, "zarr": zarr, "repo": repo}
    with _temporary_folder():
        try:
            exec(code, {**names, "session": repo.writable_session("main")})
        except icefloe.IcechunkError as error:
            return error
    raise AssertionError(f"raises no error of icefloe:\n{code}")


def _section(entry: Entry) -> str:
    error = provoke(entry.code) if entry.code else None
    raised = f"\n\nRaised as [`{type(error).__name__}`][icefloe.{type(error).__name__}]." if error else ""
    code = f"\n\n```python\n{entry.code.rstrip()}\n```" if entry.code else ""
    message = str(error).strip() if error else entry.example
    return (
        f"## {entry.kind}\n\n**Usual cause.** {entry.cause}\n\n**What to do.** {entry.remedy}{raised}{code}\n\n"
        f"```text\n{message}\n```\n"
    )


@contextmanager
def _temporary_folder() -> Iterator[None]:
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)
