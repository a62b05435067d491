"""Create repositories with tables, using xarray."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import xarray as xr

import icefloe
from icefloe.query.scan.plan import ScanPlan
from icefloe.query.scan.read import read_partition
from icefloe.session import Session
from icefloe.storage.base import Storage


def weather(days: int = 10, shape: tuple[int, int] = (6, 8)) -> xr.Dataset:
    """Create two variables over days, decreasing latitudes and longitudes. Every call returns the same."""
    random = np.random.default_rng(0)
    sizes = (days, *shape)
    t2m = random.normal(280, 10, sizes).astype("f4")
    t2m[random.random(sizes) < 0.1] = np.nan
    return xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), t2m, {"units": "K"}),
            "rain": (("time", "lat", "lon"), random.integers(0, 100, sizes, "i2")),
        },
        {
            "time": np.datetime64("2019-12-28", "ns") + np.arange(days) * np.timedelta64(86400 * 10**9, "ns"),
            "lat": np.linspace(60, 35, shape[0]),
            "lon": np.arange(shape[1]) * 2.5,
        },
    )


CHUNKS = {"t2m": {"chunks": (4, 3, 4)}, "rain": {"chunks": (4, 3, 4)}}


def repository(
    dataset: xr.Dataset,
    storage: Storage | None = None,
    encoding: Mapping[Any, Any] | None = None,
    group: str | None = None,
) -> icefloe.Repository:
    """Create a repository with a dataset in one commit."""
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    repo = icefloe.Repository.create(storage or icefloe.in_memory_storage(), config)
    put(repo, dataset, encoding, group)
    return repo


def put(
    repo: icefloe.Repository,
    dataset: xr.Dataset,
    encoding: Mapping[Any, Any] | None = None,
    group: str | None = None,
) -> str:
    """Commit a dataset."""
    session = repo.writable_session("main")
    dataset.to_zarr(session.store, group=group, consolidated=False, encoding=encoding, zarr_format=3)
    return session.commit("written")


def opened(session: Session, **more: Any) -> xr.Dataset:
    """Open a session with xarray."""
    dataset: xr.Dataset = xr.open_zarr(session.store, consolidated=False, chunks=None, **more)
    return dataset


def read_all(session: Session, plan: ScanPlan, batch_rows: int = 50) -> pa.Table:
    """Read all rows of a plan."""
    parts = [batch for n in range(plan.partitions) for batch in read_partition(session, plan, n, batch_rows)]
    return pa.Table.from_batches(parts, plan.table.schema)


def rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """Return sorted rows."""
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True), key=repr)


def frame_rows(dataset: xr.Dataset, columns: Iterable[str]) -> list[tuple[Any, ...]]:
    """Convert a dataset to sorted rows with xarray. Missing values are None, times are datetime objects."""
    names = list(columns)
    frame = dataset.to_dataframe().reset_index()
    values = [
        [None if value is None or value != value else _plain(value) for value in frame[name].tolist()]
        for name in names
    ]
    return sorted(zip(*values, strict=True), key=repr)


def _plain(value: Any) -> Any:
    return value.to_pydatetime() if hasattr(value, "to_pydatetime") else value


@contextmanager
def counted_chunks(monkeypatch: Any) -> Iterator[list[str]]:
    """Record the chunk objects that this process fetches."""
    from icefloe.core.assets import AssetStore

    fetched: list[str] = []
    original = AssetStore.chunk

    def chunk(self: AssetStore, ref: Any, start: int, stop: int) -> bytes:
        fetched.append(str(ref.chunk_id))
        return original(self, ref, start, stop)

    with monkeypatch.context() as patch:
        patch.setattr(AssetStore, "chunk", chunk)
        yield fetched
