"""Code snippets that reproduce the current view of an array: Python, HTTP clients, SQL and the command
line.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import quote

from icefloe._internal.paths import ROOT, get_name, get_parent
from icefloe.serve.array_plot import PlotLayout
from icefloe.serve.windows import ArrayView

_MAX_PRINTED: Final = 1000
"""The number of rows that `icefloe sql` prints by default."""


class Snippet(NamedTuple):
    """A code snippet that reproduces a view, for users to copy."""

    name: str
    text: str
    note: str = ""
    """A note for users to read before they run the code."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The current view of an array, from which code snippets are generated."""

    view: ArrayView
    layout: PlotLayout
    snapshot_id: str
    location: str
    base_url: str
    has_token: bool

    @property
    def at(self) -> dict[str, int]:
        """The positions along the dimensions that are not drawn."""
        drawn = (self.layout.y, self.layout.x)
        return {self.view.dims[axis]: place for axis, place in enumerate(self.layout.at) if axis not in drawn}

    @property
    def index(self) -> str:
        """The index of the drawn window, such as `120, :, :`."""
        drawn = (self.layout.y, self.layout.x)
        return ", ".join(":" if axis in drawn else str(place) for axis, place in enumerate(self.layout.at))

    def snippets(self) -> list[Snippet]:
        """Generate snippets that reproduce the view, for Python, HTTP clients, SQL and the command line."""
        found = [Snippet("Python", self._python()), Snippet("Zarr over HTTP", self._http())]
        own = get_name(self.view.path)
        if (
            self._has_names()
            and self.view.is_numeric
            and all(dim.isidentifier() for dim in self.view.dims)
            and get_parent(self.view.path) == ROOT
            and own.isidentifier()
        ):
            query = sql_text(self.view, self.layout, self.at, own, self.snapshot_id)
            command = f"icefloe sql r={shlex.quote(self._where())} {_quote(query)}"
            found.append(Snippet("SQL", command, self._note_rows()))
        return [*found, Snippet("Command line", self._command())]

    def _note_rows(self) -> str:
        """Return a note if the SQL query selects more rows than the command prints; otherwise an empty
        string.
        """
        drawn = (self.layout.y, self.layout.x)
        rows = math.prod(size for axis, size in enumerate(self.view.shape) if axis in drawn)
        if rows <= _MAX_PRINTED:
            return ""
        return f"Selects {rows:,} rows and prints the first {_MAX_PRINTED:,}; --limit {rows} prints all."

    def _where(self) -> str:
        return self.location or "REPO"

    def _has_names(self) -> bool:
        names = self.view.document.get("dimension_names") or []
        return bool(names) and all(names)

    def _select(self) -> str:
        """Format the selection in the syntax of xarray or zarr."""
        if not self._has_names():
            return f"[{self.index}]" if self.index else "[()]"
        if not self.at:
            return ""
        if all(key.isidentifier() for key in self.at):
            return f".isel({', '.join(f'{key}={place}' for key, place in self.at.items())})"
        return f".isel({self.at!r})"

    def _python(self) -> str:
        path = self.view.path.strip("/")
        head = f"repo = icefloe.Repository.open(icefloe.storage_from_url({self._where()!r}))"
        store = f"store = repo.readonly_session(snapshot_id={self.snapshot_id!r}).store"
        if self._has_names():
            group, _, own = path.rpartition("/")
            inside = f", group={group!r}" if group else ""
            opened = f"xr.open_zarr(store{inside}, consolidated=False, chunks=None)"
            read = f"values = {opened}[{own!r}]{self._select()}"
            return f"import icefloe\nimport xarray as xr\n\n{head}\n{store}\n{read}"
        read = f'values = zarr.open_array(store, path={path!r}, mode="r"){self._select()}'
        return f"import icefloe\nimport zarr\n\n{head}\n{store}\n{read}"

    def _http(self) -> str:
        path, url = self.view.path.strip("/"), f"{self.base_url}/zarr/{self.snapshot_id}"
        array = f"{url}/{quote(path)}"
        token = ', storage_options={"headers": {"Authorization": "Bearer TOKEN"}}' if self.has_token else ""
        if self._has_names():
            group, _, own = path.rpartition("/")
            inside = f", group={group!r}" if group else ""
            read = f"xr.open_zarr({url!r}{inside}, chunks=None{token})[{own!r}]{self._select()}"
            return f"import xarray as xr\n\nvalues = {read}"
        return f'import zarr\n\nvalues = zarr.open_array({array!r}, mode="r"{token}){self._select()}'

    def _command(self) -> str:
        repo, array = shlex.quote(self._where()), shlex.quote(self.view.path)
        region = f" {shlex.quote(self.index.replace(' ', ''))}" if self.index else ""
        command = f"icefloe cat {repo} {array}{region} -r {self.snapshot_id}"
        if self.layout.kind in ("none", "table"):
            return command
        choose = "".join(f" --isel {shlex.quote(f'{key}={place}')}" for key, place in self.at.items())
        return f"{command}\nicefloe plot {repo} {array}{choose} -r {self.snapshot_id}"


def _quote(query: str) -> str:
    """Quote a query for a shell, using double quotes if they suffice."""
    return shlex.quote(query) if set('"$`\\\\!') & set(query) else f'"{query}"'


def sql_text(view: ArrayView, layout: PlotLayout, at: Mapping[str, int], own: str, snapshot_id: str) -> str:
    """Generate the SQL query that selects the cells of the current view."""
    drawn = [view.dims[axis] for axis in (layout.y, layout.x) if axis is not None]
    conditions = []
    for key, place in at.items():
        axis = view.dims.index(key)
        coordinate = view.coordinate(axis)
        label = coordinate.labels([place])[0].replace("'", "''")
        is_number = coordinate.values is None or (
            coordinate.values.dtype.kind in "iuf" and not coordinate.is_time
        )
        conditions.append(f"{key} = {label}" if is_number else f"{key} = '{label}'")
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return (
        f"SELECT {', '.join(dict.fromkeys([*drawn, own]))} FROM r.{own} VERSION AS OF '{snapshot_id}'{where}"
    )


def bisect_snippet(
    view: ArrayView, location: str, place: Sequence[int], values: Sequence[float | None]
) -> str:
    """Generate a command that finds the commit at which a cell changed; empty if it did not change.

    Parameters
    ----------
    view
        The array.
    location
        The repository.
    place
        The position of the cell.
    values
        The values of the cell in the newest commits.
    """
    named = [view.coordinate(axis) for axis in range(len(place))]
    numbers = [each for each in values if each is not None]
    other = next((each for each in numbers if each != numbers[0]), None)
    if other is None or any(each.values is None or set(",=") & set(each.name) for each in named):
        return ""
    at = ",".join(f"{each.name}={each.labels([where])[0]}" for each, where in zip(named, place, strict=True))
    condition = f"value {'>' if numbers[0] > other else '<'} {(numbers[0] + other) / 2:.9g}"
    parts = [location or "REPO", view.path, "--at", at, "--when", condition]
    return f"icefloe bisect {shlex.join(parts)}"


def comparison_snippets(location: str, before: str, after: str, path: str) -> list[Snippet]:
    """Generate snippets that compare an array in two snapshots."""
    where = location or "REPO"
    sessions = [f"repo.readonly_session(snapshot_id={each!r})" for each in (before, after)]
    python = (
        "import icefloe\n\n"
        f"repo = icefloe.Repository.open(icefloe.storage_from_url({where!r}))\n"
        f"before = {sessions[0]}\nafter = {sessions[1]}\n"
        f"print(icefloe.compare_values(before, after, {path!r}))\n"
        f"values = icefloe.subtract_values(before, after, {path!r})"
    )
    return [
        Snippet("Python", python),
        Snippet("Command line", f"icefloe diff {shlex.quote(where)} {before} {after} --values"),
    ]
