"""The number of calls of a warm read, as a measure of the complexity of the code."""

from __future__ import annotations

from pathlib import Path

from benchmarks.call_paths import read_one_chunk


def test_warm_read_of_one_chunk_makes_few_calls(tmp_path: Path) -> None:
    calls = read_one_chunk(tmp_path)

    assert calls.codes.total() <= 45
    assert len(calls.modules) <= 8
