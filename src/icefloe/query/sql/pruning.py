"""Prune scans: drop the columns, rows and chunks that a SQL query does not need."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from icefloe.query.scan.plan import TableScan
from icefloe.query.schema import ArrayTable
from icefloe.query.sql.analysis import TableNeeds
from icefloe.query.sql.predicates import find_masks
from icefloe.query.sql.value_conditions import translate_filter


def prune_scan(scan: TableScan, needs: TableNeeds, utc: bool) -> TableScan:
    """Prune a scan to the columns and indices that a SQL query needs."""
    return replace(prune_rows(scan, needs, utc), table=keep_columns(scan.table, needs))


def prune_rows(scan: TableScan, needs: TableNeeds, utc: bool) -> TableScan:
    """Prune a scan to the rows for which the conditions of a SQL query can hold."""
    selection = scan.selection
    for axis, mask in find_masks(scan.coordinates, needs.conditions, utc).items():
        selection = selection.narrow(axis, np.flatnonzero(mask))
    table = scan.coordinates.table
    filters = (translate_filter(condition, table, utc) for condition in needs.conditions)
    return replace(scan, selection=selection, filters=tuple(each for each in filters if each is not None))


def keep_columns(table: ArrayTable, needs: TableNeeds) -> ArrayTable:
    """Prune a table to the columns that a SQL query needs, but at least one."""
    folded = [column.name.lower() for column in table.columns]
    if needs.columns is None or len(set(folded)) < len(folded):
        return table
    names = [column.name for column in table.columns if column.name.lower() in needs.columns]
    return table.select_columns(
        names or [table.columns[len(table.dims) - 1].name if table.dims else table.columns[0].name]
    )
