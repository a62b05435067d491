"""Results as tables: columns of numpy, for pyarrow, pandas and Spark to take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.extras import pip_install
from icefloe._internal.printable import printable

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Table"]

_SHOWN = 20


class Table:
    """Named columns of one length: numbers, texts, times in UTC. Nothing in it changes."""

    __slots__ = ("_columns", "_length")

    def __init__(self, columns: Mapping[str, NDArray[Any] | Sequence[Any]]) -> None:
        """Times are `datetime64[us]`; a list of texts becomes a column of objects. ValueError for columns
        that differ in length.
        """
        self._columns = {name: _column(values) for name, values in columns.items()}
        lengths = {len(column) for column in self._columns.values()}
        if len(lengths) > 1:
            raise ValueError(f"columns of a table have {sorted(lengths)} rows")
        self._length = lengths.pop() if lengths else 0

    @property
    def names(self) -> list[str]:
        """The names of the columns, in order."""
        return list(self._columns)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, name: str) -> NDArray[Any]:
        """One column."""
        return self._columns[name]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Table):
            return NotImplemented
        return self.names == other.names and all(
            np.array_equal(self[name], other[name]) for name in self.names
        )

    __hash__ = None  # type: ignore[assignment]

    def take(self, rows: Any) -> Table:
        """Some rows, by number or by a column of booleans."""
        return Table({name: column[rows] for name, column in self._columns.items()})

    def rows(self) -> Iterator[dict[str, Any]]:
        """Row by row, as plain Python values."""
        lists = [column.tolist() for column in self._columns.values()]
        return (dict(zip(self._columns, values, strict=True)) for values in zip(*lists, strict=True))

    def to_arrow(self) -> pa.Table:
        """Return the table as a pyarrow table. Times get the zone UTC.

        Raises
        ------
        ImportError
            If pyarrow is not installed.
        """
        try:
            import pyarrow as pa
        except ImportError as error:
            raise ImportError(
                f"tables need pyarrow to become Arrow data: {pip_install('pyarrow')}"
            ) from error

        return pa.table({name: _arrow(column) for name, column in self._columns.items()})

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Export the table through the Arrow C stream interface, for pandas, Polars and DuckDB.

        Raises
        ------
        ImportError
            If pyarrow is not installed.
        """
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def to_pandas(self) -> Any:
        """The table as a pandas DataFrame."""
        return self.to_arrow().to_pandas()

    def __repr__(self) -> str:
        shown = [printable(" ".join(map(str, row.values()))) for row in self.take(slice(_SHOWN)).rows()]
        more = [f"and {len(self) - _SHOWN} more"] if len(self) > _SHOWN else []
        return "\n".join([printable(f"<{len(self)} rows: {', '.join(self.names)}>"), *shown, *more])


def _column(values: NDArray[Any] | Sequence[Any]) -> NDArray[Any]:
    if isinstance(values, np.ndarray):
        column = values.view()
    else:
        column = np.empty(len(values), object)
        column[:] = values
    column.flags.writeable = False
    return column


def _arrow(column: NDArray[Any]) -> Any:
    import pyarrow as pa

    if column.dtype.kind == "M":
        return pa.array(column).cast(pa.timestamp("us", "UTC"))
    if column.dtype.kind == "O":
        return pa.array(column.tolist(), pa.string())
    return pa.array(column)
