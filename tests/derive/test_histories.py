"""Incremental runs against full runs, after random histories."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import icefloe
from tests.support.derive_history import check_history, open_here

SEEDS = range(int(os.environ.get("ICEFLOE_DERIVATIONS", "1")))


@pytest.mark.parametrize("seed", SEEDS)
def test_incremental_runs_equal_full_runs_after_any_history(tmp_path: Path, seed: int) -> None:
    config = icefloe.RepositoryConfig.default()
    if seed % 2:
        config.inline_chunk_threshold_bytes = 0

    check_history(tmp_path, seed, [open_here], times=100 if seed % 5 == 4 else 16, config=config)
