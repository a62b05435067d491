"""Hypothesis strategies for configurations, chunks and times, as in `icechunk.testing.strategies`."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import zarr
from hypothesis import strategies as st

from icefloe import config as configuration
from icefloe.config import ManifestSplittingConfig, RepositoryConfig
from icefloe.errors import SnapshotNotFoundError
from icefloe.repository import Repository
from icefloe.storage import Storage

_LONG_AGO = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_MAX_CHUNKS = 12
_UPDATES = st.integers(min_value=1, max_value=5)


@st.composite
def splitting_configs(draw: st.DrawFn, *, arrays: Iterable[zarr.Array[Any]]) -> ManifestSplittingConfig:
    """Draw a configuration that splits the manifests of some arrays along some dimensions (hypothesis).

    Parameters
    ----------
    draw
        Provided by hypothesis.
    arrays
        The arrays for which the configuration can contain conditions, by path or name.
    """
    sizes: dict[Any, dict[Any, int]] = {}
    for array in arrays:
        if array.ndim == 0:
            continue
        dimensions = draw(st.lists(st.sampled_from(range(array.ndim)), min_size=1, unique=True))
        sizes[draw(_conditions(array))] = {
            draw(_dimension_conditions(array, axis)): draw(st.integers(1, _MAX_CHUNKS)) for axis in dimensions
        }
    return ManifestSplittingConfig.from_dict(sizes)


def _conditions(array: zarr.Array[Any]) -> st.SearchStrategy[Any]:
    """Return conditions that match an array. They are patterns in which a dot matches any character."""
    condition = configuration.ManifestSplitCondition
    return st.sampled_from(
        [condition.path_matches(array.path), condition.name_matches(array.path.split("/")[-1])]
    )


def _dimension_conditions(array: zarr.Array[Any], axis: int) -> st.SearchStrategy[Any]:
    condition = configuration.ManifestSplitDimCondition
    choices: list[Any] = [condition.Axis(axis)]
    name = (getattr(array.metadata, "dimension_names", None) or [None] * array.ndim)[axis]
    if name is not None:
        choices.append(condition.DimensionName(name))
    return st.sampled_from(choices)


@st.composite
def repository_configs(
    draw: st.DrawFn,
    num_updates_per_repo_info_file: st.SearchStrategy[int] = _UPDATES,
    inline_chunk_threshold_bytes: st.SearchStrategy[int] | None = None,
    splitting: st.SearchStrategy[ManifestSplittingConfig] | None = None,
    ic_module: ModuleType | None = None,
) -> RepositoryConfig:
    """Draw a repository configuration (hypothesis).

    Parameters
    ----------
    draw
        Provided by hypothesis.
    num_updates_per_repo_info_file, inline_chunk_threshold_bytes, splitting
        Strategies for parts of the configuration.
    ic_module
        The package whose classes to use; icefloe by default.
    """
    package: Any = ic_module or configuration
    settings: dict[str, Any] = {}
    if hasattr(package.RepositoryConfig, "num_updates_per_repo_info_file"):  # not in releases 1.x
        settings["num_updates_per_repo_info_file"] = draw(num_updates_per_repo_info_file)
    if inline_chunk_threshold_bytes is not None:
        settings["inline_chunk_threshold_bytes"] = draw(inline_chunk_threshold_bytes)
    if splitting is not None:
        settings["manifest"] = package.ManifestConfig(splitting=draw(splitting))
    made: RepositoryConfig = package.RepositoryConfig(**settings)
    return made


def chunk_coordinates(numblocks: tuple[int, ...]) -> st.SearchStrategy[tuple[int, ...]]:
    """Return a hypothesis strategy for chunk coordinates.

    Parameters
    ----------
    numblocks
        The number of chunks along each dimension.
    """
    return st.tuples(*(st.integers(0, n - 1) for n in numblocks))


def chunk_slicers(
    numblocks: tuple[int, ...], chunk_shape: tuple[int, ...]
) -> st.SearchStrategy[tuple[slice, ...]]:
    """Return a hypothesis strategy for array slices that select one chunk of a regular grid.

    Parameters
    ----------
    numblocks
        The number of chunks along each dimension.
    chunk_shape
        The shape of a chunk.
    """

    def slices(index: tuple[int, ...]) -> tuple[slice, ...]:
        return tuple(slice(i * n, (i + 1) * n) for i, n in zip(index, chunk_shape, strict=True))

    return chunk_coordinates(numblocks).map(slices)


def chunk_paths(numblocks: tuple[int, ...]) -> st.SearchStrategy[str]:
    """Return a hypothesis strategy for the last part of a chunk key, such as `1/0`.

    Parameters
    ----------
    numblocks
        The number of chunks along each dimension.
    """
    return chunk_coordinates(numblocks).map(lambda index: "/".join(map(str, index)))


def draw_older_than(data: st.DataObject, storage: Storage, repo: Repository) -> datetime.datetime:
    """Draw a cutoff time before, between or after snapshots, for expiration or garbage collection
    (hypothesis).

    A time just after a snapshot is later than the snapshot's own time and the times of its files, so that
    expiration and garbage collection with this time treat it alike.

    Parameters
    ----------
    data
        The source of random choices.
    storage, repo
        The repository and its storage.
    """
    times: dict[str, datetime.datetime] = {}
    for folder in ("snapshots", "transactions"):
        for found in storage.list_objects_metadata(prefix=folder):
            name = found.key.rpartition("/")[2]
            times[name] = max(found.created_at, times.get(name, _LONG_AGO))
    for snapshot_id in times:
        try:
            times[snapshot_id] = max(times[snapshot_id], repo.lookup_snapshot(snapshot_id).written_at)
        except SnapshotNotFoundError:
            continue  # expired but not collected yet
    after_one = [time + datetime.timedelta(microseconds=1) for time in sorted(times.values())]
    after_all = max(times.values(), default=_LONG_AGO) + datetime.timedelta(days=1)
    return data.draw(st.sampled_from([_LONG_AGO, *after_one, after_all]), label="older_than")
