"""Append datasets along a dimension, concurrently with other processes that append to the same arrays."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from icefloe._internal.extras import format_install_command

try:
    import xarray as xr
except ImportError as cause:
    raise ImportError(f"icefloe.append requires xarray: {format_install_command('xarray')}") from cause

import zarr

from icefloe._internal.paths import join
from icefloe._internal.report import Report
from icefloe.append_labels import check_coding, check_order, get_calendar, make_misfit_error, to_numpy_times
from icefloe.core.chunk_values import get_chunk_shape
from icefloe.core.commit.idempotency import CommitKey, has_key
from icefloe.core.dimensions import find_axis
from icefloe.core.merge.append_inputs import Appended
from icefloe.core.merge.rebase import arrange_appends
from icefloe.core.merge.row_placement import AppendOrder
from icefloe.core.refs.backoff import give_way
from icefloe.errors import ConflictError, NodeNotFoundError
from icefloe.feeds.append_solver import AppendSolver
from icefloe.xarray import to_icechunk

if TYPE_CHECKING:
    from icefloe.repository import Repository
    from icefloe.session import Session

__all__ = ["AppendReport", "append"]

_APP: Final = "append"
_LABELS_PER_CHUNK: Final = 1024
_MAX_STARTS: Final = 100
"""The maximum number of times that an append restarts from the tip before it gives up."""


@dataclass(frozen=True, slots=True)
class AppendReport(Report):
    """The report of an `icefloe.append` call."""

    snapshot_id: str | None
    """The id of the new snapshot; None if the branch already contained the key or all of the rows."""
    num_rows: int = 0
    """The number of rows by which the arrays grew."""
    num_collapsed: int = 0
    """The number of appended labels that already existed in the arrays."""
    num_moved: int = 0
    """The number of chunk references that were moved after other writers' rows, without reading data."""
    num_rewritten: int = 0
    """The number of chunks that were rewritten because they also contain other writers' rows."""
    num_rebases: int = 0
    """The number of times that another writer committed first."""
    is_ascending: bool = True
    """True if the appended labels follow the existing labels in ascending order."""


def append(
    ds: xr.Dataset,
    repo: Repository,
    dim: str = "time",
    *,
    branch: str = "main",
    group: str | None = None,
    key: str | CommitKey | None = None,
    order: AppendOrder = "commit",
    message: str | None = None,
    metadata: dict[str, Any] | None = None,
    encoding: Mapping[str, Any] | None = None,
) -> AppendReport:
    """Append a dataset to the arrays of a group and commit it, safely even if other processes append
    concurrently.

    Any number of processes and machines can append to the same arrays. If another writer commits first, the
    new rows are placed after that writer's rows, usually without reading data. Rows are identified by their
    label, the value of the coordinate `dim`. At a label that already exists, only arrays that have no values
    there are written, so each writer can append a different variable.

    The first append creates the arrays. Later appends change neither attributes nor arrays without `dim`.

    Parameters
    ----------
    ds
        The rows to append. Variables without `dim` must match the stored values.
    repo
        The repository.
    dim
        The dimension to append along.
    branch
        The branch to commit to.
    group
        The path of the group; the root by default.
    key
        An idempotency key for this append, so that it happens only once even if the program runs again: a
        name, or a `CommitKey`.
    order
        Where new rows are placed: "commit" after all rows of earlier commits, "sorted" by label, which
        requires whole chunks. "strict" appends like "commit", but fails if a label is not after the last one.
    message
        The commit message.
    metadata
        The commit metadata.
    encoding
        The encoding of new arrays, as for `Dataset.to_zarr`. Only the append that creates the arrays uses it.
        Times are stored as seconds since 1970 by default, in chunks of 1024.

    Returns
    -------
    AppendReport
        The new snapshot, and how the rows were placed.

    Raises
    ------
    InvalidInputError
        If the dataset does not match the stored arrays, or the key was already used for other data. In that
        case, nothing is changed.
    AppendConflictError
        If a label already exists with different values.

    Examples
    --------
    >>> import icefloe, xarray
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> for hour in range(3):
    ...     ds = xarray.Dataset({"t2m": ("time", [280.0 + hour])}, coords={"time": [hour]})
    ...     report = icefloe.append(ds, repo, "time")
    >>> report.num_rows
    1
    """
    rows = _Rows(ds, dim, group)
    text = message or f"Append {rows.length} rows along {dim}"
    its_key = CommitKey(_APP, key, rows.digest()) if isinstance(key, str) else key
    for attempt in range(_MAX_STARTS):
        began = time.monotonic()
        session = repo.writable_session(branch)
        if its_key is not None and has_key(session.workspace.base, its_key):
            return AppendReport(None)
        solver = AppendSolver(dim, order=order)
        arranged = rows.write(session, solver, encoding)
        if its_key is None and not session.has_uncommitted_changes:
            return AppendReport(None, num_collapsed=rows.length)
        try:
            if its_key is None:
                made: str | None = session.commit(text, metadata, rebase_with=solver)
            else:
                # The key has to be recorded even if all rows already exist and nothing changes.
                made = session.commit_once(text, metadata, key=its_key, rebase_with=solver, allow_empty=True)
        except ConflictError:
            # The rows are checked against the new tip. Rows that cannot be combined are an error.
            if attempt + 1 == _MAX_STARTS:
                raise
            give_way(attempt, time.monotonic() - began)
            continue
        return _report(made, rows.length, arranged, solver)
    raise AssertionError("unreachable")


def _report(
    made: str | None, length: int, arranged: Sequence[Appended], solver: AppendSolver
) -> AppendReport:
    steps = [*arranged, *solver.appended]
    if made is None or not steps:
        return AppendReport(made, length if made is not None else 0)
    return AppendReport(
        made,
        steps[-1].num_rows,
        sum(each.num_collapsed for each in steps),
        sum(each.num_moved for each in steps),
        sum(each.num_rewritten for each in steps),
        solver.num_rebases,
        steps[-1].is_ascending,
    )


class _Rows:
    """A dataset to append, with the dimension and the target group."""

    def __init__(self, ds: xr.Dataset, dim: str, group: str | None) -> None:
        self._ds, self._dim, self._group = to_numpy_times(ds, dim), dim, group
        if dim not in ds.dims:
            raise make_misfit_error(
                f"the dataset has no dimension {dim}; it has {', '.join(map(str, ds.dims))}"
            )
        self.length = ds.sizes[dim]
        if not self.length:
            raise make_misfit_error(f"the dataset has no rows along {dim}")
        check_order(ds, dim)

    def digest(self) -> str:
        """Return a digest of the data, which ensures that a key is not reused for different data."""
        found = hashlib.blake2b(digest_size=16)
        for name in sorted(map(str, self._ds.variables)):
            values = self._ds.variables[name].values
            found.update(f"{name} {values.dtype} {values.shape}".encode())
            found.update(repr(values.tolist()).encode() if values.dtype.kind in "OT" else values.tobytes())
        return found.hexdigest()

    def write(
        self, session: Session, solver: AppendSolver, encoding: Mapping[str, Any] | None
    ) -> Sequence[Appended]:
        """Write the rows to a session. Match their labels with the stored labels if necessary."""
        stored = self._open_stored(session)
        if stored is None:
            self._create(session, encoding or {})
            return ()
        self._check(stored)
        growing = self._ds.drop_vars(
            [name for name, each in self._ds.variables.items() if self._dim not in each.dims]
        )
        # xarray would replace the group's attributes with those of the dataset, such as its `history`.
        growing.attrs = dict(zarr.open_group(session.store, path=self._group or "", mode="r").attrs)
        try:
            to_icechunk(growing, session, group=self._group, mode="a-", append_dim=self._dim)
        except ValueError as error:
            raise make_misfit_error(f"the dataset does not match the stored arrays: {error}") from error
        if self._is_after_stored_labels(stored) and set(stored.variables) <= set(self._ds.variables):
            return ()
        return arrange_appends(session.workspace, solver)

    def _create(self, session: Session, encoding: Mapping[str, Any]) -> None:
        """Create the arrays, with a coordinate encoding that can also represent later labels."""
        ds, dim = self._ds, self._dim
        if dim in ds.coords:
            ds = ds.copy()
            its: dict[str, Any] = {"chunks": (max(self.length, _LABELS_PER_CHUNK),)}
            if (calendar := get_calendar(ds.variables[dim])) is not None:
                # xarray would choose units that suit the first labels, such as days for a single midnight.
                is_whole = not ds[dim].dt.microsecond.any()
                unit = "seconds" if is_whole else "microseconds"
                its |= {"units": f"{unit} since 1970-01-01", "calendar": calendar, "dtype": "int64"}
                ds[dim].encoding = {}
            encoding = {**encoding, dim: {**its, **encoding.get(dim, {})}}
        to_icechunk(ds, session, group=self._group, mode="a", encoding=encoding)

    def _open_stored(self, session: Session) -> xr.Dataset | None:
        """Open the stored group as a dataset. Return None if no array has the dimension yet."""
        self._check_grids(session)
        try:
            found = xr.open_zarr(session.store, group=self._group, consolidated=False, chunks=None)
        except (FileNotFoundError, NodeNotFoundError):
            return None
        return found if self._dim in found.dims else None

    def _check_grids(self, session: Session) -> None:
        """Raise an error if an array with the dimension has a rectilinear chunk grid, which zarr may not
        support.
        """
        path = "/" + (self._group or "").strip("/")
        for name in session.workspace.children(path):
            node = session.workspace.node(join(path, name))
            if node is None or find_axis(node, self._dim) is None:
                continue
            if get_chunk_shape(json.loads(node.user_data)) is None:
                raise make_misfit_error(f"{node.path} has a rectilinear chunk grid")

    def _is_after_stored_labels(self, stored: xr.Dataset) -> bool:
        """Return True if all new labels come after the stored labels, so that no stored row is affected."""
        if self._dim not in stored.coords:
            return True
        old, new = stored.indexes[self._dim], self._ds.indexes[self._dim]
        return not len(old) or bool(old.is_monotonic_increasing and old[-1] < new[0])

    def _check(self, stored: xr.Dataset) -> None:
        """Raise an error if the dataset does not match the stored arrays."""
        dim, ds = self._dim, self._ds
        unknown = [str(name) for name in ds.variables if name not in stored.variables]
        if unknown:
            raise make_misfit_error(f"no array {unknown[0]} is stored; create it before appending to it")
        if (dim in ds.coords) != (dim in stored.coords):
            where = "the dataset" if dim in ds.coords else "the stored group"
            raise make_misfit_error(f"only {where} has a coordinate {dim}")
        for name, variable in ds.variables.items():
            known = stored.variables[name]
            if variable.dims != known.dims:
                raise make_misfit_error(
                    f"{name} has the dimensions {variable.dims}, but is stored with {known.dims}"
                )
            if dim not in variable.dims:
                if not _equals(variable, known):
                    raise make_misfit_error(
                        f"{name} differs from the stored {name}, but has no dimension {dim}"
                    )
                continue
            for axis, size in variable.sizes.items():
                if axis != dim and size != known.sizes[axis]:
                    raise make_misfit_error(
                        f"{axis} has {size} elements in {name}, but {known.sizes[axis]} are stored"
                    )
            units = variable.attrs.get("units")
            if units is not None and units != known.attrs.get("units", units):
                raise make_misfit_error(
                    f"{name} has the units {units}, but is stored in {known.attrs['units']}"
                )
            if name != dim and not _has_same_dtype(variable, known):
                raise make_misfit_error(
                    f"{name} has the data type {variable.dtype}, but is stored as {known.dtype}; convert it"
                )
        check_coding(ds, stored, dim)


def _has_same_dtype(variable: xr.Variable, known: xr.Variable) -> bool:
    """Return True if a variable has the stored data type. Times, strings and packed values only need to be of
    the same kind, because they are converted.
    """
    kinds = (variable.dtype.kind, known.dtype.kind)
    if not set(kinds) <= set("biufc"):
        return kinds[0] == kinds[1] or "O" in kinds
    is_packed = bool({"scale_factor", "add_offset"} & set(known.encoding))
    return kinds[0] == kinds[1] if is_packed else bool(variable.dtype == known.dtype)


def _equals(one: Any, other: Any) -> bool:
    return bool(one.equals(other))
