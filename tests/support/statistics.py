"""Random histories of an array, and its values as numpy sees them, to compare with statistics."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import icefloe
from icefloe.maintenance.statistics.files import FOLDER
from icefloe.query.schema import find_tables

FILL = -99


def create_repository(spec: int = 2, storage: icefloe.Storage | None = None) -> icefloe.Repository:
    """Create a repository with a float array, a packed one, and one of 64-bit integers."""
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=16)
    repo = icefloe.Repository.create(storage or icefloe.in_memory_storage(), config, spec_version=spec)
    with repo.transaction("main", message="create") as store:
        group = zarr.open_group(store)
        options: dict[str, Any] = {"shape": (8, 6), "chunks": (3, 4), "dimension_names": ("y", "x")}
        group.create_array("f", dtype="f4", fill_value=float("nan"), **options)
        packed: dict[str, Any] = {"_FillValue": FILL, "scale_factor": -0.5, "add_offset": 10.0}
        group.create_array("p", dtype="i2", fill_value=0, attributes=packed, **options)
        group.create_array("n", dtype="i8", fill_value=3, **options)
    return repo


def change(store: Any, random: np.random.Generator) -> None:
    """Make one random change to the arrays of a store: values, shape, attributes or a removed chunk."""
    group: Any = zarr.open_group(store)
    arrays = [group[name] for name in ("f", "p", "n")]
    shape = arrays[0].shape
    step = int(random.integers(6))
    if step <= 1:
        low = [int(random.integers(size)) for size in shape]
        box = tuple(
            slice(at, int(random.integers(at, size)) + 1) for at, size in zip(low, shape, strict=True)
        )
        cells = tuple(part.stop - part.start for part in box)
        values = random.normal(0, 50, cells).astype("f4")
        values[random.random(cells) < 0.2] = np.nan
        if random.random() < 0.1:
            values.flat[0] = np.inf
        arrays[0][box] = values
        arrays[1][box] = random.choice([FILL, *range(-20, 20)], cells).astype("i2")
        arrays[2][box] = random.integers(-(2**62), 2**62, cells)
    elif step == 2:
        smaller = tuple(max(2, size - int(random.integers(4))) for size in shape)
        for array in arrays:
            array.resize(smaller)
    elif step == 3:
        larger = tuple(size + int(random.integers(4)) for size in shape)
        for array in arrays:
            array.resize(larger)
    elif step == 4:
        arrays[1].attrs["scale_factor"] = float(random.choice([-0.5, 0.25, 2.0]))
        arrays[1].attrs["_FillValue"] = int(random.choice([FILL, 5]))
    else:
        for array in arrays:
            array[:3, :4] = array.fill_value  # zarr removes the chunk


def commit_change(repo: Any, random: np.random.Generator, **options: Any) -> None:
    """Commit one random change, with this package or with the official one."""
    session = repo.writable_session("main")
    change(session.store, random)
    if session.has_uncommitted_changes:
        session.commit("change", **options)


def merge_changes(repo: icefloe.Repository, random: np.random.Generator) -> None:
    """Commit changes on a branch and on main, and merge the branch. Conflicts are resolved at random.

    A merge is undone if it chose different lengths of one dimension for two arrays: they form no table.
    """
    name = f"side-{repo.lookup_branch('main')}"
    repo.create_branch(name, repo.lookup_branch("main"))
    for branch in ("main", name):
        session = repo.writable_session(branch)
        change(session.store, random)
        if session.has_uncommitted_changes:
            session.commit("change", collect_statistics=bool(random.random() < 0.5))
    before = repo.lookup_branch("main")
    with suppress(icefloe.MergeConflictError):  # arrays of other shapes
        repo.merge(name, "main", message="merge", strategy="ours" if random.random() < 0.5 else "theirs")
    try:
        find_tables(repo.readonly_session("main"))
    except icefloe.InvalidInputError:
        repo.reset_branch("main", before)
    repo.delete_branch(name)


class VirtualSource:
    """A file with the values of a virtual array `v`, which new versions of the file replace.

    Parameters
    ----------
    folder
        Where the file is.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "v.bin"
        self._written = 0
        self.prefix = f"file://{folder}/"

    def authorize(self, repo: icefloe.Repository) -> icefloe.Repository:
        """Declare the container of the file, and reopen the repository with access to it."""
        config = repo.config
        store = icefloe.local_filesystem_store(self.prefix.removeprefix("file://"))
        config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(self.prefix, store))
        repo.reopen(config).save_config()
        access = {self.prefix: icefloe.Credentials.LocalFileSystemAccess()}
        return icefloe.Repository.open(repo.storage, authorize_virtual_chunk_access=access)

    def change(self) -> None:
        """Replace the file by another version, one minute younger."""
        self._written += 1
        values = np.random.default_rng(self._written).normal(0, 50, (4, 6)).astype("<f4")
        values[self._written % 4, :3] = np.nan
        self._file.write_bytes(values.tobytes())
        moment = 1_600_000_000 + 60 * self._written
        os.utime(self._file, (moment, moment))

    def commit(self, repo: icefloe.Repository, **options: Any) -> None:
        """Change the file, and commit references to its new version."""
        self.change()
        session = repo.writable_session("main")
        plain: dict[str, Any] = {"compressors": None, "filters": None, "dimension_names": ("i", "j")}
        if "v" not in zarr.open_group(session.store, mode="r"):
            zarr.create_array(session.store, name="v", shape=(4, 6), chunks=(2, 6), dtype="<f4", **plain)
        moment = datetime.fromtimestamp(1_600_000_000 + 60 * self._written, UTC)
        for row in (0, 1):
            uri = f"{self.prefix}v.bin"
            session.store.set_virtual_ref(f"v/c/{row}/0", uri, offset=48 * row, length=48, checksum=moment)
        session.commit("the next version of a file", **options)


def damage(repo: icefloe.Repository, random: np.random.Generator) -> None:
    """Delete or truncate a statistics file, if there is one."""
    paths = sorted(info.key for info in repo.storage.list_prefix(f"{FOLDER}/"))
    if paths:
        path = paths[int(random.integers(len(paths)))]
        if random.random() < 0.5:
            repo.storage.delete([path])
        else:
            repo.storage.put(path, repo.storage.get(path)[0][:-5])


def read_values(repo: icefloe.Repository) -> dict[str, np.ma.MaskedArray[Any, Any]]:
    """Read the arrays with zarr, and decode them with numpy alone."""
    group: Any = zarr.open_group(repo.readonly_session("main").store, mode="r")
    f, p, n = (np.asarray(group[name][...]) for name in ("f", "p", "n"))
    about = group["p"].attrs
    scaled = p.astype("f8") * about["scale_factor"] + about["add_offset"]
    there = {"v": np.asarray(group["v"][...])} if "v" in group else {}
    return {
        **{name: np.ma.array(values, mask=np.isnan(values)) for name, values in there.items()},
        "f": np.ma.array(f, mask=np.isnan(f)),
        "p": np.ma.array(scaled, mask=p == about["_FillValue"]),
        "n": np.ma.array(n),
    }


def check_answers(repo: icefloe.Repository) -> None:
    """Check that aggregates with and without statistics equal those of numpy."""
    for name, values in read_values(repo).items():
        there = values.compressed()
        for statistics in (True, False):
            scan = icefloe.scan(repo, variables=name, statistics=statistics)
            (found,) = scan.aggregate(**{name: ["count", "min", "max"]}).to_pylist()
            extremes = [each.item() for each in (there.min(), there.max())] if len(there) else [None, None]
            assert [found[f"{name}_count"], found[f"{name}_min"], found[f"{name}_max"]] == [
                len(there),
                *extremes,
            ]
            if len(there) and np.isfinite(there).all():
                check_moments(scan, name, there)
            limit = float(np.median(there)) if len(there) else 0.0
            if name != "n":
                (passed,) = (
                    icefloe.scan(repo, variables=name, filters=[(name, ">", limit)], statistics=statistics)
                    .aggregate(**{name: ["count", "max"]})
                    .to_pylist()
                )
                expected = there[there.astype("f8") > limit]
                assert passed[f"{name}_count"] == len(expected)
                assert passed[f"{name}_max"] == (expected.max().item() if len(expected) else None)


def check_moments(scan: icefloe.LocalScan, name: str, there: Any) -> None:
    """Check sums and standard deviations of finite values."""
    exact = sum(map(int, there)) if there.dtype.kind == "i" else math.fsum(there.astype("f8").tolist())
    if there.dtype.kind == "i" and not -(2**63) <= exact < 2**63:
        try:
            scan.aggregate(**{name: "sum"})
        except icefloe.InvalidInputError:
            return
        raise AssertionError("a sum beyond 64 bits raised no error")
    (found,) = scan.aggregate(**{name: ["sum", "std"]}).to_pylist()
    if there.dtype.kind == "i":
        assert found[f"{name}_sum"] == exact
    else:
        limit = 1e-12 * float(np.abs(there.astype("f8")).sum())
        assert abs(found[f"{name}_sum"] - exact) <= limit
    if len(there) > 1:
        std = float(there.astype("f8").std(ddof=1))
        assert abs(found[f"{name}_std"] - std) <= 1e-9 * max(abs(std), 1e-9) + 1e-12
