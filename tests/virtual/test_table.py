"""Check the table of sample files against the installed packages."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.virtual.table import compared

PACKAGES = {
    "iris": ("iris_sample_data", "sample_data"),
    "cmip6": ("esmvaltool_sample_data", "data/timeseries/CMIP6"),
}


@pytest.mark.parametrize("name", PACKAGES)
def test_compatibility_table_holds_for_installed_packages(name: str) -> None:
    package, path = PACKAGES[name]
    spec = find_spec(package)  # found without an import, because the second requires other packages
    if spec is None and name != "iris":
        pytest.skip(f"{package} is not installed; scripts/setup-env does that where it can be had")
    assert spec is not None
    assert spec.submodule_search_locations is not None

    wrong, missing = compared(name, Path(spec.submodule_search_locations[0]) / path)

    assert wrong == []
    assert missing == []
