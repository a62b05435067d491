"""Modes of an ingest for tests that expect the same result in each of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest

MODES = ("native", "virtual", "hybrid")
_IN_EVERY_MODE = bool(os.environ.get("ICEFLOE_EVERY_MODE"))


def modes(*usual: str) -> pytest.MarkDecorator:
    """Run a test in the given modes, and in every mode under `make torture`."""
    return pytest.mark.parametrize("mode", MODES if _IN_EVERY_MODE else usual or MODES)


def modes_in_turn(names: str, cases: Sequence[Any]) -> pytest.MarkDecorator:
    """Run a test once for each case, in alternating modes, and under `make torture` in every mode."""
    pairs = (
        product(cases, MODES)
        if _IN_EVERY_MODE
        else ((case, MODES[number % len(MODES)]) for number, case in enumerate(cases))
    )
    rows = [(*(case if isinstance(case, tuple) else (case,)), mode) for case, mode in pairs]
    return pytest.mark.parametrize(f"{names},mode", rows, ids=_name_case)


def _name_case(value: object) -> str | None:
    return getattr(value, "__name__", None)
