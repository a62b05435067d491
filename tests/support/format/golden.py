"""Repositories written by official releases and by another encoder, with what a correct reader must see.

They stand in `tests/data/golden`, an archive each, made by `scripts/pack-golden.py`.
"""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.source_tree import ROOT

FOLDER = ROOT / "tests" / "data" / "golden"
SUFFIX = ".tar.xz"
_ALL = tuple(sorted(path.name.removesuffix(SUFFIX) for path in FOLDER.glob(f"*{SUFFIX}")))
OLDER_NAMES = tuple(name for name in _ALL if name.startswith("handmade-"))
"""Those of the formats before version 1."""
NAMES = tuple(name for name in _ALL if name not in OLDER_NAMES)


@dataclass(frozen=True, slots=True)
class Golden:
    """One repository."""

    name: str
    files: Mapping[str, bytes]
    """By the path below the repository's root."""
    expected: Mapping[str, Any]

    def below(self, folder: str) -> dict[str, bytes]:
        """Return the files in a folder, by name."""
        prefix = f"{folder}/"
        return {path[len(prefix) :]: data for path, data in self.files.items() if path.startswith(prefix)}

    @property
    def has_repo_info(self) -> bool:
        """Whether this is a repository of version 2."""
        return "repo" in self.files


@cache
def load(name: str) -> Golden:
    """Return a repository in memory."""
    contents = {path: data for path, data, _ in _entries(name)}
    files = {path.removeprefix("repo/"): data for path, data in contents.items() if path.startswith("repo/")}
    return Golden(name, files, json.loads(contents["expected.json"]))


def unpack(name: str, folder: Path) -> Path:
    """Unpack a repository and its files below `folder`, and return the folder of the repository."""
    place = folder / name
    for entry, data, changed_s in _entries(name):
        path = place / entry
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, (changed_s, changed_s))
    return place


@cache
def _entries(name: str) -> tuple[tuple[str, bytes, float], ...]:
    """Read an archive once: path, content and time of each file. All archives together have ten megabytes."""
    with tarfile.open(FOLDER / f"{name}{SUFFIX}") as tar:
        return tuple((entry.name, _read(tar, entry), entry.mtime) for entry in tar)


def _read(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    contents = tar.extractfile(entry)
    if contents is None:
        raise ValueError(f"{entry.name} is no file")
    return contents.read()
