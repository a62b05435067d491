"""Random histories of a repository with derived arrays, written by this library or another one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr

import icefloe
from tests.support.derive import OUTPUTS, derive, field, make_repository, stored_values, write_recipe
from tests.support.virtual.files import aged

STEPS = int(os.environ.get("ICEFLOE_DERIVATION_STEPS", "1"))
OpenRepository = Callable[[str], Any]
"""Open a repository at a path: the writer of a step."""


class History:
    """A repository that changes in random ways."""

    def __init__(self, folder: Path, seed: int, writers: list[OpenRepository], **options: Any) -> None:
        self.folder = folder
        self.rng = np.random.default_rng(seed)
        self._writers = writers
        files = folder / "files"
        files.mkdir()
        config = options.pop("config", icefloe.RepositoryConfig.default())
        store = icefloe.local_filesystem_store(str(files))
        config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(file_prefix(folder), store))
        self.access = {file_prefix(folder): icefloe.Credentials.LocalFileSystemAccess()}
        self.repo = make_repository(
            folder, config=config, authorize_virtual_chunk_access=self.access, **options
        )
        self.recipe = write_recipe(folder, recipe_outputs())

    def steps(self) -> list[Callable[[], None]]:
        """Return all kinds of changes."""
        return [
            self.change_cell,
            self.change_block,
            self.append,
            self.prepend,
            self.shrink,
            self.delete_chunks,
            self.change_attributes,
            self.edit_output,
            self.edit_metadata,
            self.amend,
            self.reset,
            self.merge,
            self.rebase,
            self.expire_and_collect,
            self.rewrite,
            self.move_there_and_back,
            self.change_labels,
            self.refer_to_file,
        ]

    def run(self) -> str:
        """Make one random change, and return its name."""
        steps = self.steps()
        chosen = steps[int(self.rng.integers(len(steps)))]
        chosen()
        return chosen.__name__

    # Steps

    def change_cell(self) -> None:
        with self._commit("main") as arrays:
            arrays("t2m")[self._cell()] = self.rng.normal(280, 10)

    def change_block(self) -> None:
        with self._commit("main") as arrays:
            first = int(self.rng.integers(0, self._times()))
            arrays("t2m")[first : first + 5, :3] = self.rng.normal(280, 10)

    def append(self) -> None:
        writer = self._writer()
        session = writer.writable_session("main")
        times = xr.open_zarr(session.store, consolidated=False, drop_variables=DROPPED)["time"].values
        start = times[-1] + np.timedelta64(6 * int(self.rng.integers(1, 8)), "h")
        more = field(str(start), int(self.rng.integers(1, 7)), seed=int(self.rng.integers(1000)))
        more.to_zarr(session.store, append_dim="time", consolidated=False)
        session.commit("append")

    def prepend(self) -> None:
        session = self.repo.writable_session("main")
        arrays = {name: open_array(session, name) for name in ("t2m", "time")}
        old = np.asarray(arrays["time"][:])
        for array in arrays.values():
            array.resize((array.shape[0] + 4, *array.shape[1:]))
        session.shift_array("/t2m", [1, 0, 0])
        session.shift_array("/time", [1])
        arrays["time"][:] = np.concatenate([old[0] - 6 * np.arange(4, 0, -1), old])
        arrays["t2m"][:4] = self.rng.normal(280, 10, (4, 6, 8))
        session.commit("prepend")

    def shrink(self) -> None:
        if self._times() > 12:
            with self._commit("main") as arrays:
                size = self._times() - int(self.rng.integers(1, 7))
                for name in ("t2m", "time"):
                    arrays(name).resize((size, *arrays(name).shape[1:]))

    def delete_chunks(self) -> None:
        with self._commit("main") as arrays:
            arrays("t2m")[4:8, :3, :4] = np.nan

    def change_attributes(self) -> None:
        with self._commit("main") as arrays:
            name = ("long_name", "comment", "scale_factor")[int(self.rng.integers(3))]
            arrays("t2m").attrs[name] = 2.0 if name == "scale_factor" else str(self.rng.integers(100))

    def edit_output(self) -> None:
        path = DERIVED[int(self.rng.integers(len(DERIVED)))]
        with self._commit("main") as arrays:
            array = arrays(path)
            array[(0,) * array.ndim] = 1.0

    def edit_metadata(self) -> None:
        path = DERIVED[int(self.rng.integers(len(DERIVED)))]
        with self._commit("main") as arrays:
            arrays(path).attrs["units"] = "edited"

    def amend(self) -> None:
        self.change_cell()
        if self.repo.spec_version < 2:
            return
        session = self.repo.writable_session("main")
        open_array(session, "t2m")[self._cell()] = self.rng.normal(280, 10)
        session.amend("amended")

    def reset(self) -> None:
        ancestry = [info.id for info in self.repo.ancestry(branch="main")]
        back = int(self.rng.integers(1, 4))
        if back < len(ancestry) - 2:
            self.repo.reset_branch("main", ancestry[back])

    def merge(self) -> None:
        if "other" in self.repo.list_branches():
            self.repo.delete_branch("other")
        self.repo.create_branch("other", self.repo.lookup_branch("main"))
        with self._commit("other") as arrays:
            arrays("t2m")[0, 0, 0] = self.rng.normal(280, 10)
        self._derive(self._on_branch("other"))
        with self._commit("main") as arrays:
            arrays("t2m")[-1, -1, -1] = self.rng.normal(280, 10)
        found = self.repo.merge("other", "main", message="merge")
        assert found.outcome == "merged"

    def rebase(self) -> None:
        session = self.repo.writable_session("main")
        open_array(session, "t2m")[0, 0, 0] = self.rng.normal(280, 10)
        with self._commit("main") as arrays:
            arrays("t2m")[-1, -1, -1] = self.rng.normal(280, 10)
        self._derive(self.recipe)
        session.commit("late", rebase_with=icefloe.ConflictDetector())

    def expire_and_collect(self) -> None:
        later = datetime.now(UTC) + timedelta(seconds=1)
        writer = self._writer()
        writer.expire_snapshots(later)
        writer.garbage_collect(later)

    def rewrite(self) -> None:
        """Write the same values again: chunks get other ids, except inline ones."""
        with self._commit("main") as arrays:
            array = arrays("t2m")
            array[:4] = array[:4]

    def move_there_and_back(self) -> None:
        if self.repo.spec_version < 2:
            return
        for source, target in (("/t2m", "/moved"), ("/moved", "/t2m")):
            session = self.repo.rearrange_session("main")
            session.move(source, target)
            session.commit("move")

    def change_labels(self) -> None:
        with self._commit("main") as arrays:
            arrays("time")[:] = arrays("time")[:] + int(self.rng.integers(-3, 4)) * 6

    def refer_to_file(self) -> None:
        """Replace a chunk by a reference to a part of a file, with a checksum."""
        values = self.rng.normal(280, 10, (4, 3, 4)).astype("f4")
        session = self.repo.writable_session("main")
        codecs = open_array(session, "t2m").compressors
        scratch = self.folder / "scratch"
        made = zarr.create_array(
            str(scratch), shape=(4, 3, 4), chunks=(4, 3, 4), dtype="f4", compressors=codecs, overwrite=True
        )
        made[...] = values
        data = (scratch / "c" / "0" / "0" / "0").read_bytes()
        file = self.folder / "files" / f"{self.rng.integers(10**9)}.bin"
        file.write_bytes(b"head" + data)
        aged(file)
        changed = datetime.fromtimestamp(int(file.stat().st_mtime), UTC)
        at = (int(self.rng.integers(self._times() // 4)), *self.rng.integers(2, size=2).tolist())
        key = f"t2m/c/{'/'.join(map(str, at))}"
        session.store.set_virtual_ref(key, f"file://{file}", offset=4, length=len(data), checksum=changed)
        session.commit("refer to a file")

    # Checks

    def check(self, copy: Path, note: Any) -> icefloe.DeriveReport:
        """Run the recipe, and compare every array with a full run in a copy, bit for bit."""
        report = self._derive(self.recipe)
        assert self._derive(self.recipe).commit is None, note
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.folder, copy)
        self._derive(copy / "recipe.yaml", full=True)
        storage = icefloe.local_filesystem_storage(str(copy / "repo"))
        other = icefloe.Repository.open(storage, authorize_virtual_chunk_access=self.access)
        for path in (*DERIVED, *COORDINATES):
            assert stored_values(self.repo, path) == stored_values(other, path), (note, path)
        return report

    def derive(self) -> icefloe.DeriveReport:
        """Run the recipe."""
        return self._derive(self.recipe)

    def _derive(self, recipe: Path | dict[str, Any], **options: Any) -> icefloe.DeriveReport:
        return derive(recipe, authorize_virtual_chunk_access=self.access, **options)

    def _writer(self) -> Any:
        return self._writers[int(self.rng.integers(len(self._writers)))](str(self.folder / "repo"))

    def _commit(self, branch: str) -> _Commit:
        return _Commit(self._writer().writable_session(branch))

    def _times(self) -> int:
        return int(open_array(self.repo.readonly_session("main"), "t2m").shape[0])

    def _cell(self) -> tuple[int, ...]:
        return tuple(int(self.rng.integers(0, size)) for size in (self._times(), 6, 8))

    def _on_branch(self, branch: str) -> dict[str, Any]:
        outputs = {name: {**each, "branch": branch} for name, each in recipe_outputs().items()}
        return {"repository": str(self.folder / "repo"), "outputs": outputs}


def file_prefix(folder: Path) -> str:
    """Return the prefix of the files that virtual chunks of a history refer to."""
    return f"file://{folder}/files/"


def open_here(path: str) -> icefloe.Repository:
    """Open the repository of a history with this library."""
    access = {file_prefix(Path(path).parent): icefloe.Credentials.LocalFileSystemAccess()}
    storage = icefloe.local_filesystem_storage(path)
    return icefloe.Repository.open(storage, authorize_virtual_chunk_access=access)


def check_history(
    folder: Path, seed: int, writers: list[OpenRepository], steps: int = STEPS, **options: Any
) -> None:
    """Make random changes, and compare incremental runs with full ones after each of them."""
    (folder / "work").mkdir()
    history = History(folder / "work", seed, writers, **options)
    history.check(folder / "copy", "first run")
    for number in range(steps):
        step = history.run()
        history.check(folder / "copy", (seed, number, step))


class _Commit:
    """Opens arrays of a session by path, and commits at the end."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def __enter__(self) -> Callable[[str], Any]:
        return lambda path: open_array(self._session, path)

    def __exit__(self, kind: Any, *rest: Any) -> None:
        if kind is None and self._session.has_uncommitted_changes:
            self._session.commit("step")


def open_array(session: Any, path: str) -> Any:
    """Open an array for reading and writing if the session allows it."""
    return zarr.open_array(session.store, path=path, mode="r" if session.read_only else "r+")


def recipe_outputs() -> dict[str, Any]:
    """Return outputs of every kind, with partial aggregates and a pyramid."""
    chosen = {name: OUTPUTS[name] for name in ("t2m_daily", "climatology", "anomaly", "deciles", "series")}
    inputs = {"t2m": "t2m"}
    return {
        **chosen,
        "hourly": {"function": "std", "inputs": inputs, "dimensions": {"time": {"reduce": True}}},
        "doubled": {"function": {"expression": "daily * 2"}, "inputs": {"daily": "t2m_daily"}},
        "t2m_pyramid": {"function": {"pyramid": {"levels": 3}}, "inputs": inputs},
    }


DERIVED = (
    "t2m_daily/t2m_daily",
    "t2m_daily/doubled",
    "climatology/climatology",
    "anomaly",
    "deciles/deciles",
    "s/t2m",
    "hourly/hourly",
    "t2m_pyramid/0/t2m",
    "t2m_pyramid/1/t2m",
    "t2m_pyramid/2/t2m",
)
COORDINATES = ("t2m_daily/time", "deciles/time", "t2m_pyramid/2/y")
DROPPED = ["anomaly", "t2m"]
