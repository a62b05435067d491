"""A user of the official package whose random actions depend only on a seed."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from tests.support.compat import official, samples

VIRTUAL = "s3://bucket/"
DTYPES = ["int8", "uint16", "int32", "float64", "bool"]
NAMES = ["a", "a-b", "a.b", "b", "é", "日本", "Z", "x y"]
CHECKSUMS: list[Any] = [None, "an-etag", '"quoted"', datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)]


class RandomUser:
    """A user who performs random actions on one repository."""

    def __init__(self, folder: Path, spec: int, seed: int) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.repository = official.create(folder, spec, config=_config(self.random))
        self.has_repo_info = official.has_repo_info(self.repository)
        self.serial = 0
        self.session = self.repository.writable_session("main")
        zarr.create_group(self.session.store)
        self.commit()

    def work(self, actions: int) -> None:
        """Perform a number of actions, and commit at the end."""
        inside = [self.new_group, self.new_array, self.write, self.write, self.resize, self.attributes]
        inside += [self.delete, self.virtual, self.virtual, self.commit, self.commit]
        outside = [self.tag, self.delete_tag, self.branch, self.reset_branch, self.rewrite, self.save_config]
        if self.has_repo_info:
            inside += [self.amend, self.flush, self.virtual_in_bulk]
            outside += [self.move, self.metadata, self.flag, self.empty_commit]
        for _ in range(actions):
            if self.random.random() < 0.75:
                self.random.choice(inside)()
            else:
                self.commit()
                self.random.choice(outside)()
                self.session = self.repository.writable_session("main")
        self.commit()

    # Inside a session.

    def new_group(self) -> None:
        self._root().require_group(self._new_path())

    def new_array(self) -> None:
        rank = self.random.randrange(4)
        shape = [self.random.randrange(0 if rank > 1 else 1, 9) for _ in range(rank)]
        names = [self.random.choice(["t", "x", None]) for _ in shape]
        self._root().create_array(
            self._new_path(),
            shape=shape,
            chunks=[self.random.randrange(1, 5) for _ in shape],
            dtype=self.random.choice(DTYPES),
            dimension_names=self.random.choice([None, names]),
            compressors=self.random.choice(["auto", None]),
        )

    def write(self) -> None:
        array = self._array()
        if array is not None and array.size:
            # From the start of a chunk: writing part of a virtual one would fetch it.
            window = tuple(
                slice(self.random.randrange(0, n, c), None)
                for n, c in zip(array.shape, array.chunks, strict=True)
            )
            array[window] = self.random.randrange(1, 100)

    def resize(self) -> None:
        array = self._array()
        if array is not None and array.ndim:
            array.resize([self.random.randrange(1, 9) for _ in array.shape])

    def attributes(self) -> None:
        node = self.random.choice([self._root(), self._array() or self._root()])
        name = self.random.choice(list(samples.METADATA))
        node.update_attributes({name: samples.METADATA[name], "serial": self.serial})

    def delete(self) -> None:
        names = list(self._root())
        if names:
            del self._root()[self.random.choice(names)]

    def virtual(self) -> None:
        array = self._array()
        if array is None or not array.size:
            return
        grid = [-(-n // c) for n, c in zip(array.shape, array.chunks, strict=True)]
        key = "/".join([array.path, "c", *(str(self.random.randrange(n)) for n in grid)])
        self.session.store.set_virtual_ref(
            key, self._location(), offset=7, length=5, checksum=self.random.choice(CHECKSUMS)
        )

    def virtual_in_bulk(self) -> None:
        array = self._array()
        if array is None or not array.size or not array.ndim:
            return
        grid = tuple(-(-n // c) for n, c in zip(array.shape, array.chunks, strict=True))
        count = int(np.prod(grid))
        locations = [self._location() for _ in range(count)]
        numbers = np.arange(1, count + 1, dtype=np.uint64)
        self.session.store.set_virtual_refs_arr(array.path, grid, locations, numbers, numbers)

    def commit(self) -> None:
        if self.session.has_uncommitted_changes:
            self.session.commit(f"commit {self.serial} é", metadata=self._some_metadata())
        self.session = self.repository.writable_session("main")

    def amend(self) -> None:
        tip = next(iter(self.repository.ancestry(branch="main")))
        if self.session.has_uncommitted_changes and tip.parent_id is not None and tip.message != "moved":
            self.session.amend(f"amended {self.serial}")
        self.session = self.repository.writable_session("main")

    def flush(self) -> None:
        if self.session.has_uncommitted_changes:
            self.session.flush(f"flushed {self.serial}")
        self.session = self.repository.writable_session("main")

    # On the repository.

    def tag(self) -> None:
        self.serial += 1
        self.repository.create_tag(f"tag {self.serial}", snapshot_id=self._some_snapshot())

    def delete_tag(self) -> None:
        tags = sorted(self.repository.list_tags())
        if tags:
            self.repository.delete_tag(self.random.choice(tags))

    def branch(self) -> None:
        self.serial += 1
        self.repository.create_branch(f"branch-{self.serial}", snapshot_id=self._some_snapshot())

    def reset_branch(self) -> None:
        others = sorted(self.repository.list_branches() - {"main"})
        if others:
            self.repository.reset_branch(self.random.choice(others), self._some_snapshot())

    def rewrite(self) -> None:
        self.repository.rewrite_manifests("rewritten", branch="main")

    def save_config(self) -> None:
        self.repository.save_config()

    def move(self) -> None:
        names = sorted(self._root())
        if not names:
            return
        source, target = self.random.choice(names), self._new_path()
        if not target.startswith(f"{source}/"):
            session = self.repository.rearrange_session("main")
            session.move(f"/{source}", f"/{target}")
            session.commit("moved")

    def metadata(self) -> None:
        self.repository.set_metadata(self._some_metadata() or {})

    def flag(self) -> None:
        self.repository.set_feature_flag("create_tag", self.random.choice([True, None]))

    def empty_commit(self) -> None:
        self.repository.writable_session("main").commit("nothing", allow_empty=True)

    def expire_and_collect(self) -> None:
        """Expire the older half of the history of main, and collect garbage."""
        times = [info.written_at for info in self.repository.ancestry(branch="main")]
        self.repository.expire_snapshots(older_than=times[len(times) // 2])
        self.repository.garbage_collect(datetime.now(UTC) + timedelta(days=1))

    def set_status(self) -> None:
        """Close the repository for writing."""
        status = official.icechunk.RepoStatus(
            official.icechunk.RepoAvailability.read_only, limited_availability_reason="ü"
        )
        self.repository.set_status(status)

    def _root(self) -> Any:
        return zarr.open_group(self.session.store, mode="r+", use_consolidated=False)

    def _array(self) -> Any:
        found = [node for _, node in self._root().members(max_depth=None) if isinstance(node, zarr.Array)]
        return self.random.choice(found) if found else None

    def _new_path(self) -> str:
        self.serial += 1
        groups = [path for path, node in self._root().members() if isinstance(node, zarr.Group)]
        name = f"{self.random.choice(NAMES)}{self.serial}"
        return self.random.choice([name, *(f"{group}/{name}" for group in groups)])

    def _location(self) -> str:
        return f"{VIRTUAL}some/folder/file-{self.random.randrange(20):04d}.nc"

    def _some_metadata(self) -> dict[str, Any] | None:
        names = self.random.sample(list(samples.METADATA), self.random.randrange(4))
        return {name: samples.METADATA[name] for name in names} or None

    def _some_snapshot(self) -> str:
        return str(self.random.choice(list(self.repository.ancestry(branch="main"))).id)


def _config(chooser: random.Random) -> Any:
    icechunk = official.icechunk
    splits = {
        icechunk.ManifestSplitCondition.AnyArray(): {
            icechunk.ManifestSplitDimCondition.Any(): chooser.choice([2, 1000])
        }
    }
    manifest = {"splitting": icechunk.ManifestSplittingConfig.from_dict(splits)}
    options: dict[str, Any] = {}
    if official.KNOWS_V2:
        manifest["virtual_chunk_location_compression"] = (
            icechunk.ManifestVirtualChunkLocationCompressionConfig(min_num_chunks=6)
        )
        options["num_updates_per_repo_info_file"] = chooser.choice([6, 1000])
    config = icechunk.RepositoryConfig(
        inline_chunk_threshold_bytes=16, manifest=icechunk.ManifestConfig(**manifest), **options
    )
    store = icechunk.s3_store(region="us-east-1")
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(VIRTUAL, store))
    return config
