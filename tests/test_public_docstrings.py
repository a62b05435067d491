"""Every parameter and return value of a public name is described in its docstring, in numpydoc sections."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from icefloe._internal.lazy import list_public_names
from tests.support.docstrings import undocumented

MODULES = ["", "ingest", "spark", "virtual", "export", "xarray", "dask", "feeds", "storage"]
NAMES = [
    (f"{module}.{name}".lstrip("."), getattr(package, name))
    for module in MODULES
    for package in [importlib.import_module(f"icefloe.{module}".rstrip("."))]
    for name in (
        list_public_names("icefloe", str(package.__file__)) if not module else sorted(package.__all__)
    )
    if not name.startswith("__")
]


@pytest.mark.parametrize(("name", "value"), NAMES, ids=[name for name, _ in NAMES])
def test_public_name_is_documented(name: str, value: Any) -> None:
    assert list(undocumented(name, value)) == []


class _Sample:
    """A sample.

    Parameters
    ----------
    first, second
        Two numbers.
    """

    def __init__(self, first: int, second: int, third: int = 3) -> None:
        self.sum = first + second + third

    @property
    def half(self) -> float:
        return self.sum / 2

    def add(self, *numbers: int) -> int:
        """Add numbers.

        Parameters
        ----------
        *numbers
            The numbers.
        """
        return self.sum + sum(numbers)


def test_undocumented_parameters_properties_and_results_are_found() -> None:
    found = list(undocumented("Sample", _Sample))

    assert found == [
        "Sample: parameter third is not documented",
        "Sample.half has no docstring",
        "Sample.add returns int, which has no Returns section",
    ]
