"""The common methods of reports, and tables as Arrow data."""

from __future__ import annotations

import sys
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
import zarr

import icefloe
from icefloe._internal.report import Report
from icefloe._internal.table import Table

REPORTS = [value for name in dir(icefloe) if isinstance(value := getattr(icefloe, name), type)]


@pytest.mark.parametrize("report", [each for each in REPORTS if issubclass(each, Report)])
def test_reports_are_frozen_dataclasses(report: type) -> None:
    assert is_dataclass(report)
    assert report.__dataclass_params__.frozen  # type: ignore[attr-defined]


def test_report_converts_to_plain_values() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())

    verified = repo.verify().to_dict()
    retained = repo.retain(datetime.now(UTC), dry_run=True)

    assert verified["level"] == "graph"
    assert verified["findings"] == []
    assert [row["kept"] for row in retained.to_dict()["table"]] == [True]
    assert "1 snapshots kept, 0 would be removed" in repr(retained)
    assert {field.name for field in fields(retained)} == {"table", "dry_run", "ops_log"}


def test_comparisons_convert_to_plain_values() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    first = repo.readonly_session("main")
    session = repo.writable_session("main")
    array = zarr.create_array(session.store, name="a", shape=(2,), chunks=(2,), dtype="i4")
    array[:] = 1
    session.commit("write")
    last = repo.readonly_session("main")

    changed = icefloe.compare(first, last).to_dict()
    references = icefloe.chunk_references(last, "/a").to_dict()
    written = icefloe.blame(repo, "/a").to_dict()

    assert changed["new_arrays"] == ["/a"]
    assert changed["chunks"]["/a"]["added"] == [[0]]
    assert [row["kind"] for row in references["chunks"]] == ["inline"]
    assert [row["message"] for row in written["chunks"]] == ["write"]
    assert "added" in icefloe.compare(first, last).chunks["/a"]._repr_html_()


def test_table_is_an_arrow_stream() -> None:
    table = Table({"name": ["a", "b"], "bytes": np.array([1, 2])})

    assert pa.table(table).to_pylist() == [{"name": "a", "bytes": 1}, {"name": "b", "bytes": 2}]


def test_error_names_pyarrow_if_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(ImportError, match="pyarrow"):
        Table({"name": ["a"]}).__arrow_c_stream__()
