"""Statistics files: their bytes, damage, garbage collection, clones and verification."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import icefloe
from icefloe._internal.ids import NodeId
from icefloe.errors import FormatError
from icefloe.maintenance.statistics.files import FOLDER, Rows, decode_rows, encode_rows
from icefloe.maintenance.statistics.lookup import load_statistics
from icefloe.maintenance.statistics.meaning import Meaning, find_meaning
from icefloe.maintenance.statistics.summarize import summarize, to_statistics

NODE = NodeId(b"12345678")
TYPES = ("float32", "float64", "int16", "int64", "uint64", "bool", "complex64", "string")


def _make_meaning(dtype: str, **attributes: Any) -> Meaning:
    contents: dict[str, Any] = {}
    store = zarr.storage.MemoryStore(contents)
    zarr.create_array(store, shape=(4,), dtype=dtype, attributes=attributes)
    meaning = find_meaning(contents["zarr.json"].to_bytes())
    assert meaning is not None
    return meaning


def _make_rows(meaning: Meaning, count: int) -> Rows:
    values = np.arange(count * 3).reshape(count, 3).astype(meaning.coding.stored)
    if values.dtype.kind in "if":
        values -= 4  # negative and positive sums
    statistics = to_statistics([summarize(part, meaning) for part in values], meaning)
    clips = np.tile(np.array([[3]], np.uint32), (count, 1))
    return Rows(np.arange(count, dtype=np.uint64) << np.uint64(40), clips, clips, statistics)


@given(st.sampled_from(TYPES), st.integers(0, 5))
@settings(max_examples=20)
def test_a_statistics_file_keeps_all_columns(dtype: str, count: int) -> None:
    meaning = _make_meaning(dtype)
    rows = _make_rows(meaning, count)

    found = decode_rows(encode_rows([NODE], (9,), meaning, rows), "path", NODE, meaning, 1)

    assert found is not None
    assert np.array_equal(found.keys, rows.keys)
    assert np.array_equal(found.clips, rows.clips)
    for name in ("minimum", "maximum", "nulls", "total", "high", "low", "m2"):
        assert np.array_equal(getattr(found.statistics, name), getattr(rows.statistics, name)), name


def test_a_statistics_file_of_another_array_or_encoding_is_not_used() -> None:
    meaning, other = _make_meaning("float32"), _make_meaning("float32", scale_factor=2.0)
    data = encode_rows([NODE], (9,), meaning, _make_rows(meaning, 2))

    assert decode_rows(data, "path", NodeId(b"87654321"), meaning, 1) is None
    assert decode_rows(data, "path", NODE, other, 1) is None
    assert decode_rows(data, "path", NODE, meaning, 2) is None


def test_truncated_and_flipped_bytes_raise_format_errors() -> None:
    meaning = _make_meaning("float32")
    data = encode_rows([NODE], (9,), meaning, _make_rows(meaning, 3))

    for at in range(len(data)):
        flipped = data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]
        for damaged in (data[:at], flipped):
            with pytest.raises(FormatError):
                decode_rows(damaged, "path", NODE, meaning, 1)


def test_integer_sums_beyond_64_bits_are_exact() -> None:
    meaning = _make_meaning("int64")
    values = np.array([2**63 - 1, 2**63 - 1, 2**63 - 5, -7], np.int64)

    row = summarize(values, meaning)

    assert row[4] == sum(map(int, values))


def _create_repository(spec: int = 2) -> icefloe.Repository:
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=spec)
    session = repo.writable_session("main", collect_statistics=True)
    array = zarr.create_array(session.store, name="t2m", shape=(20, 10), chunks=(10, 10), dtype="f4")
    array[:] = np.arange(200, dtype="f4").reshape(20, 10)
    session.commit("write")
    return repo


def _list_statistics(repo: icefloe.Repository) -> list[str]:
    return sorted(info.key for info in repo.storage.list_prefix(f"{FOLDER}/"))


@pytest.mark.parametrize("spec", [1, 2])
def test_garbage_collection_deletes_statistics_of_deleted_manifests_only(spec: int) -> None:
    repo = _create_repository(spec)
    first = _list_statistics(repo)
    session = repo.writable_session("main", collect_statistics=True)
    array: Any = zarr.open_array(session.store, path="t2m")
    array[:10] = 7
    session.commit("overwrite")
    both = _list_statistics(repo)
    repo.expire_snapshots(datetime.now(UTC) + timedelta(hours=1))
    later = datetime.now(UTC) + timedelta(days=1)

    expected = repo.garbage_collect(later, dry_run=True)
    summary = repo.garbage_collect(later)

    assert len(first) == 1
    assert len(both) == 2
    assert _list_statistics(repo) == [path for path in both if path not in first]
    assert summary.statistics_deleted == expected.statistics_deleted == 1


def test_ledgers_and_records_have_no_statistics() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    with repo.transaction("main", message="values", collect_statistics=True) as store:
        for path in ("a", "_icefloe/ledger/b"):
            zarr.create_array(store, name=path, shape=(4,), chunks=(2,), dtype="f4")[:] = 1

    assert repo.collect_statistics().known == 2
    assert repo.collect_statistics().chunks == 0


def test_a_clone_has_the_statistics_of_its_manifests() -> None:
    repo = _create_repository()
    target = icefloe.in_memory_storage()

    repo.clone_to(target)

    copy = icefloe.Repository.open(target)
    assert _list_statistics(copy) == _list_statistics(repo) != []
    found = load_statistics(copy.readonly_session("main"), "/t2m")
    assert found is not None
    assert found.known.all()
    assert found.rows.maximum.max() == 199


def test_verification_reports_a_damaged_statistics_file() -> None:
    repo = _create_repository()
    (path,) = _list_statistics(repo)
    assert repo.verify("objects").statistics == 1
    repo.storage.put(path, repo.storage.get(path)[0][:-3])

    report = repo.verify("objects")

    assert [(found.kind, found.object) for found in report.findings] == [("unreadable", path)]


def test_damaged_statistics_are_ignored_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    repo = _create_repository()
    (path,) = _list_statistics(repo)
    repo.storage.put(path, b"nothing")

    found = load_statistics(repo.readonly_session("main"), "/t2m")

    assert found is not None
    assert not found.known.any()
    assert "ignored a statistics file" in caplog.text


def test_statistics_of_version_1_survive_the_upgrade() -> None:
    repo = _create_repository(1)

    upgraded = icefloe.upgrade_icechunk_repository(repo, dry_run=False)

    found = load_statistics(upgraded.readonly_session("main"), "/t2m")

    assert found is not None
    assert found.known.all()
