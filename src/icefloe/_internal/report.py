"""The base class of reports."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any


class Report:
    """The base class of reports, which are frozen dataclasses with the result of an operation."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Convert the report to plain dictionaries and lists. Tables become lists of rows.

        Returns
        -------
        dict
            One entry per field.
        """
        return _to_plain_fields(self)

    def _repr_html_(self) -> str:
        from icefloe._internal import html

        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        tables = {name: value for name, value in values.items() if hasattr(value, "to_html")}
        rows = getattr(self, "table", None)
        if callable(rows):
            tables["findings" if "findings" in values else "rows"] = rows()
        parts = [
            html.render_section(name.capitalize(), len(table), table.to_html())
            for name, table in tables.items()
        ]
        facts = {name: value for name, value in values.items() if not _is_detail(value) and value != ()}
        note = "dry run" if values.get("dry_run") else ""
        return html.render_card(
            "icefloe", type(self).__name__, note, self._render_verdict(), html.render_facts(facts), *parts
        )

    def _render_verdict(self) -> str:
        """Return the outcome as one line of HTML; an empty string for reports without an outcome."""
        return ""


def _is_detail(value: Any) -> bool:
    """Return True for tables, arrays and collections of records, which are not shown among the facts."""
    return (
        hasattr(value, "to_html")
        or hasattr(value, "__array__")
        or (isinstance(value, tuple | list) and any(not isinstance(each, str | int) for each in value))
    )


def _to_plain_fields(value: Any) -> dict[str, Any]:
    return {field.name: _to_plain(getattr(value, field.name)) for field in fields(value)}


def _to_plain(value: Any) -> Any:
    if hasattr(value, "__arrow_c_stream__"):  # a table
        return list(value.rows())
    if isinstance(value, Enum):
        return value.value
    if hasattr(value, "tolist"):  # a numpy array or scalar
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: _to_plain(each) for name, each in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return _to_plain_fields(value)
    if isinstance(value, Collection) and not isinstance(value, str | bytes):
        return [_to_plain(each) for each in value]
    return value
