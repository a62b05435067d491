"""Lists of FlatBuffers tables, kept as rows, columns or encoded blocks, and converted on demand.

Rows suit short lists, columns long ones. Encoded blocks suit small changes to long lists: a commit that adds
an entry to a list of thousands copies the bytes of all existing entries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from icefloe.encoding.columns import I64
from icefloe.encoding.flatbuffers import schema as fb
from icefloe.encoding.flatbuffers.builder import build_column_blocks
from icefloe.encoding.flatbuffers.reader import Payload, VTables, read_tables
from icefloe.encoding.flatbuffers.row_builder import Blocks, build_blocks
from icefloe.encoding.flatbuffers.tables import Tables, from_rows, to_rows

FEW: Final = 32
"""Lists of up to this many tables are read and written one by one."""

Row = Mapping[str, Any]


class Records:
    """An immutable list of FlatBuffers records (tables of one type), kept as rows, columns or encoded
    blocks.
    """

    __slots__ = ("_blocks", "_columns", "_rows", "place", "table")

    def __init__(
        self,
        table: fb.TableSchema,
        place: str,
        *,
        rows: Sequence[Row] | None = None,
        columns: Tables | None = None,
        blocks: Blocks | None = None,
    ) -> None:
        self.table = table
        self.place = place
        self._rows = rows
        self._columns = columns
        self._blocks = blocks

    def __len__(self) -> int:
        for form in (self._rows, self._columns, self._blocks):
            if form is not None:
                return len(form)
        return 0

    @property
    def few(self) -> bool:
        """True if the list is kept as rows."""
        return self._rows is not None

    @property
    def columns(self) -> Tables:
        """The list as columns."""
        if self._columns is None:
            if self._rows is None and self._blocks is not None:
                payload = Payload(self._blocks.buffer, self.place)
                self._columns = read_tables(payload, self.table, self._blocks.positions)
            else:
                self._columns = from_rows(self.table, self._rows or ())
        return self._columns

    @property
    def blocks(self) -> Blocks:
        """The list as encoded FlatBuffers tables."""
        if self._blocks is None:
            if self._rows is not None:
                self._blocks = build_blocks(self.table, self._rows, self.place)
            else:
                self._blocks = build_column_blocks(self.table, self.columns, self.place)
        return self._blocks

    def rows(self) -> Sequence[Row]:
        """Return the list as one dict per record."""
        return self._rows if self._rows is not None else to_rows(self.table, self.columns, self.place)

    def row(self, row: int) -> Row:
        """Return one record as a dict."""
        if self._rows is not None:
            return self._rows[row]
        if self._columns is None and self._blocks is not None:
            payload = Payload(self._blocks.buffer, self.place)
            one = read_tables(payload, self.table, self._blocks.positions[row : row + 1])
        else:
            one = self.columns.take(slice(row, row + 1))
        return to_rows(self.table, one, self.place)[0]

    def insert(self, at: int, row: Row) -> Records:
        """Return a copy of the list with one more record, inserted before a row."""
        rows = blocks = None
        if self._rows is not None and len(self._rows) < FEW:
            rows = [*self._rows[:at], row, *self._rows[at:]]
        if rows is None or self._blocks is not None:
            blocks = self.blocks.insert(at, self.table, row, self.place)
        return Records(self.table, self.place, rows=rows, blocks=blocks)

    def first(self, count: int) -> Records:
        """Return the first records of the list, in the form in which they are kept."""
        return self._slice(slice(0, count))

    def without_first(self) -> Records:
        """Return the list without its first record, still encoded."""
        return self._slice(slice(1, None))

    def _slice(self, which: slice) -> Records:
        if self._rows is not None:
            return Records(self.table, self.place, rows=self._rows[which])
        if self._columns is None and self._blocks is not None:
            kept = self._blocks.take(which)
            if kept.dropped <= len(kept):
                return Records(self.table, self.place, blocks=kept)
        return Records(self.table, self.place, columns=self.columns.take(which))

    def with_every(self, name: str) -> Records:
        """Return a copy of the list in which every record stores a field explicitly. Some writers omit
        default values.
        """
        if self._columns is None or name not in self._columns.present:
            return self
        present = {each: mask for each, mask in self._columns.present.items() if each != name}
        return Records(self.table, self.place, columns=Tables(len(self), self._columns.columns, present))

    def number_positions(self, name: str) -> I64:
        """Return the byte positions of one numeric field in the encoded blocks."""
        blocks = self.blocks
        if not len(blocks):
            return blocks.positions
        field = self.table.fields[name]
        payload = Payload(blocks.buffer, self.place)
        positions, where = VTables(payload, self.table, blocks.positions).locate(field.slot)
        if positions is None or where is not None:
            raise TypeError(f"{self.table.name}.{name} is not a number, which builders always write")
        return positions
