"""A run of a recipe that is killed before each access to its repository.

    python -m tests.support.killed_derive FOLDER EVERY FIRST

Each child is forked, runs the recipe, and kills itself (SIGKILL) before its n-th touch of the repository; n
goes on until a child ends by itself. After each kill, all outputs are old or all are new, and the next run
completes them.
"""

from __future__ import annotations

import gc
import shutil
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zarr

import icefloe
from tests.support.derive import OUTPUTS, derive, make_repository, stored_values, write_recipe
from tests.support.ingest.killed_ingest import killed_before

NAMES = ("t2m_daily", "climatology", "anomaly", "series")
PATHS = ("t2m_daily/t2m_daily", "climatology/climatology", "anomaly", "s/t2m", "t2m_daily/time")


@dataclass(frozen=True)
class DeriveJob:
    """The recipe as a job that can be killed."""

    name: str = "derive"

    def run(self, folder: Path, files: Sequence[str], executor: Any) -> None:
        """Bring the outputs up to date."""
        derive(folder / "recipe.yaml")


def open_killed(folder: Path) -> icefloe.Repository:
    """Open the repository that a killed run left behind."""
    return icefloe.Repository.open(icefloe.local_filesystem_storage(str(folder / "repo")))


def read_outputs(folder: Path) -> list[bytes]:
    """Return the values of all outputs, bit for bit."""
    return [stored_values(open_killed(folder), path) for path in PATHS]


def make_base(folder: Path) -> None:
    """Create a repository whose outputs are out of date: cells changed and days were appended."""
    folder.mkdir()
    repo = make_repository(folder, times=8)
    derive(write_recipe(folder, {name: OUTPUTS[name] for name in NAMES}))
    with repo.transaction("main", message="change") as store:
        for path in ("t2m", "time"):
            array: Any = zarr.open_array(store, path=path)
            array.resize((10, *array.shape[1:]))
        array = zarr.open_array(store, path="time")
        array[8:] = array[7] + [6, 12]
        zarr.open_array(store, path="t2m")[2:10] = 290


def kill_often(root: Path, every: int, first: int) -> tuple[int, int]:
    """Kill runs until one comes to its end; return the number of kills, and of kills after the commit."""
    base = root / "base"
    make_base(base)
    old = read_outputs(base)
    shutil.copytree(base, root / "complete")
    derive(root / "complete" / "recipe.yaml")
    new = read_outputs(root / "complete")
    assert all(one != other for one, other in zip(old[:4], new[:4], strict=True))
    gc.freeze()
    kills = moved = 0
    for touch in range(first, 1_000_000, every):
        folder = root / f"killed-{touch}"
        shutil.copytree(base, folder)
        was_killed = killed_before(touch, DeriveJob(), folder, ())
        found = read_outputs(folder)
        assert found in ((old, new) if was_killed else (new,)), f"kill {touch}: some outputs are old"
        moved += found == new
        report = derive(folder / "recipe.yaml")
        assert read_outputs(folder) == new, f"kill {touch}: the next run did not complete the outputs"
        assert report.is_current == (found == new)
        assert open_killed(folder).list_branches() == {"main"}
        shutil.rmtree(folder)
        if not was_killed:
            break
        kills += 1
    return kills, moved


def main(root: str, every: str, first: str) -> None:
    """Print how many kills there were."""
    warnings.simplefilter("ignore")
    print("derive", *kill_often(Path(root), int(every), int(first)))  # noqa: T201 - what the test reads


if __name__ == "__main__":
    main(*sys.argv[1:])
