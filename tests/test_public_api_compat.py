"""The recording of the official API is what the official package has."""

from __future__ import annotations

import importlib
import json
from typing import Any

import pytest

from tests.support.api_description import MODULES, describe_module
from tests.support.source_tree import ROOT

icechunk: Any = pytest.importorskip("icechunk")

pytestmark = pytest.mark.compat

OFFICIAL = json.loads((ROOT / "tests" / "data" / "official_api.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", MODULES)
def test_recorded_api_is_up_to_date(name: str) -> None:
    if icechunk.__version__ != OFFICIAL["version"]:
        pytest.skip(f"the recording is of {OFFICIAL['version']}, and {icechunk.__version__} is installed")
    try:
        importlib.import_module(f"icechunk.{name}" if name else "icechunk")
    except ModuleNotFoundError as missing:
        pytest.skip(f"icechunk.{name} needs {missing.name}")

    assert describe_module("icechunk", name) == OFFICIAL["modules"][name]
