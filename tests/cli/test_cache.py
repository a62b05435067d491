"""The option `--cache` and the variable ICEFLOE_CACHE."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import DiskCache
from icefloe.cli.main import main
from tests.support.terminal import Terminal

USAGE = 2


def test_cache_option_selects_the_disk_cache(typed: Terminal, tmp_path: Path) -> None:
    folder = tmp_path / "cache"

    for _ in range(2):
        typed("cat", "air/t2m", "--cache", str(folder))

    found = DiskCache(folder).usage()
    assert found.entries == found.misses == found.hits > 0


def test_environment_variable_selects_the_disk_cache_for_all_commands(
    typed: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache"
    monkeypatch.setenv("ICEFLOE_CACHE", f"{folder}:20M")

    before = typed("tree")
    after = typed("tree")

    assert before == after
    assert DiskCache(folder, 20 << 20).usage().hits > 0


def test_worker_processes_use_the_disk_cache(
    typed: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = DiskCache(tmp_path / "cache")
    monkeypatch.setenv("ICEFLOE_CACHE", cache.path)
    typed("statistics", "--executor", "threads")
    seen = cache.usage()

    typed("rewrite-manifests", "--executor", "processes:1")

    assert cache.usage().hits > seen.hits


@pytest.mark.parametrize(
    ("text", "size"),
    [("/x", 10 << 30), ("/x:5M", 5 << 20), ("/x:5g", 5 << 30), ("/x:2TiB", 2 << 40), ("/x:y", 10 << 30)],
)
def test_cache_option_may_contain_a_size(text: str, size: int) -> None:
    from icefloe.cli.params import CacheFolder

    cache = CacheFolder().convert(text, None, None)

    assert cache.max_bytes == size
    assert cache.path == (text if size == 10 << 30 else "/x")


def test_unsuitable_cache_folder_is_reported_by_commands(typed: Terminal, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("text")

    typed("log", "--cache", str(tmp_path), code=USAGE)

    assert "is not empty and not a disk cache" in typed.errors
    assert "choose a new or empty folder" in typed.errors


def test_doctor_reports_size_and_hit_rate(
    typed: Terminal, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "cache")
    for _ in range(2):
        typed("cat", "air/t2m", "--cache", folder)
    capsys.readouterr()

    assert main(["doctor", "--cache", folder]) == 0

    printed = capsys.readouterr().out
    assert f"{folder}: " in printed
    assert "of 10.0 GiB" in printed
    assert "hit rate 50%" in printed


@pytest.mark.needs("pyarrow", "sqlglot", "pandas")
def test_sql_queries_use_the_disk_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache, place = DiskCache(tmp_path / "cache"), str(tmp_path / "repo")
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(place))
    with repo.transaction("main", message="numbers") as store:
        zarr.create_array(store, name="n", data=np.arange(9), chunks=(3,), dimension_names=("x",))

    for expected in (0, 2):
        words = ["sql", f"r={place}", "SELECT max(n) AS most FROM r", "--executor", "threads"]
        assert main([*words, "--cache", cache.path, "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == [{"most": 8}]
        assert cache.usage().hits == expected


def test_spark_data_source_accepts_a_disk_cache(typed: Terminal, tmp_path: Path) -> None:
    from icefloe.query.options import parse_options

    cache = DiskCache(tmp_path / "cache")

    repo = parse_options({"path": typed.repo, "diskcache": cache.path}).open()

    assert isinstance(repo, icefloe.Repository)
    assert repo.disk_cache == cache
