"""Result tables: numpy columns that can be converted to Arrow and pandas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.extras import format_install_command
from icefloe._internal.printable import escape_control

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Table"]

_MAX_SHOWN = 20


class Table:
    """An immutable table with columns of numbers, strings and UTC times.

    Parameters
    ----------
    columns
        Arrays or lists of equal lengths, by name. Times are `datetime64[us]`.

    Raises
    ------
    ValueError
        If columns have different lengths.
    """

    __slots__ = ("_columns", "_length")

    def __init__(self, columns: Mapping[str, NDArray[Any] | Sequence[Any]]) -> None:
        self._columns = {name: _to_column(values) for name, values in columns.items()}
        lengths = {len(column) for column in self._columns.values()}
        if len(lengths) > 1:
            raise ValueError(f"the columns of a table have different lengths: {sorted(lengths)}")
        self._length = lengths.pop() if lengths else 0

    @property
    def names(self) -> list[str]:
        """The names of the columns of the table."""
        return list(self._columns)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a column of the table as a numpy array."""
        return self._columns[name]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Table):
            return NotImplemented
        return self.names == other.names and all(
            np.array_equal(self[name], other[name]) for name in self.names
        )

    __hash__ = None  # type: ignore[assignment]

    def take(self, rows: Any) -> Table:
        """Select rows of the table.

        Parameters
        ----------
        rows
            A slice, an array of row numbers, or a boolean mask.

        Returns
        -------
        Table
        """
        return Table({name: column[rows] for name, column in self._columns.items()})

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield each row of the table as a dictionary of Python values.

        Returns
        -------
        Iterator of dict
        """
        lists = [column.tolist() for column in self._columns.values()]
        return (dict(zip(self._columns, values, strict=True)) for values in zip(*lists, strict=True))

    def to_arrow(self) -> pa.Table:
        """Return the table as a pyarrow Table, with times in UTC.

        Returns
        -------
        pyarrow.Table

        Raises
        ------
        ImportError
            If pyarrow is not installed.
        """
        try:
            import pyarrow as pa
        except ImportError as error:
            raise ImportError(
                f"converting a table to Arrow needs pyarrow: {format_install_command('pyarrow')}"
            ) from error

        return pa.table({name: _to_arrow(column) for name, column in self._columns.items()})

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Export the table through the Arrow C stream interface, for pandas, Polars and DuckDB.

        Raises
        ------
        ImportError
            If pyarrow is not installed.
        """
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def to_pandas(self) -> Any:
        """Return the table as a pandas DataFrame.

        Returns
        -------
        pandas.DataFrame
        """
        return self.to_arrow().to_pandas()

    def to_html(self) -> str:
        """Return the first rows of the table as HTML.

        Returns
        -------
        str
        """
        from icefloe._internal import html

        rows = (list(row.values()) for row in self.take(slice(100)).rows())
        return html.render_table(self.names, rows, len(self))

    def _repr_html_(self) -> str:
        from icefloe._internal import html

        return html.render_card("icefloe", "Table", f"{len(self)} rows", self.to_html())

    def __repr__(self) -> str:
        shown = [
            escape_control(" ".join(map(str, row.values()))) for row in self.take(slice(_MAX_SHOWN)).rows()
        ]
        more = [f"and {len(self) - _MAX_SHOWN} more"] if len(self) > _MAX_SHOWN else []
        return "\n".join([escape_control(f"<{len(self)} rows: {', '.join(self.names)}>"), *shown, *more])


def _to_column(values: NDArray[Any] | Sequence[Any]) -> NDArray[Any]:
    if isinstance(values, np.ndarray):
        column = values.view()
    else:
        column = np.empty(len(values), object)
        column[:] = values
    column.flags.writeable = False
    return column


def _to_arrow(column: NDArray[Any]) -> Any:
    import pyarrow as pa

    if column.dtype.kind == "M":
        return pa.array(column).cast(pa.timestamp("us", "UTC"))
    if column.dtype.kind == "O":
        return pa.array(column.tolist(), pa.string())
    return pa.array(column)
