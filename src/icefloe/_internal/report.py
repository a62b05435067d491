"""The base class of reports."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any


class Report:
    """The result of an operation. Subclasses are frozen dataclasses."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain dictionaries and lists; tables become lists of rows.

        Returns
        -------
        dict
            One entry per field.
        """
        return _plain_fields(self)


def _plain_fields(value: Any) -> dict[str, Any]:
    return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}


def _plain(value: Any) -> Any:
    if hasattr(value, "__arrow_c_stream__"):  # a table
        return list(value.rows())
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return _plain_fields(value)
    if isinstance(value, Collection) and not isinstance(value, str | bytes):
        return [_plain(each) for each in value]
    return value
