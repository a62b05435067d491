"""The examples of guides that need Spark run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import xarray as xr

import icefloe
from tests.support.source_tree import ROOT
from tests.support.spark.weather import opened

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j closes its sockets late
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]


def run_examples(name: str, folder: Path, names: dict[str, Any]) -> None:
    """Run the Python examples of a guide. Paths are absolute, because Spark's processes start elsewhere."""
    page = (ROOT / "docs" / "how-to" / name).read_text(encoding="utf-8")
    for found in re.finditer(r"^( *)```python\n(.*?)^\1```$", page, re.DOTALL | re.MULTILINE):
        lines = [line.removeprefix(found[1]) for line in found[2].splitlines()]
        text = "\n".join(lines).replace('"data/', f'"{folder}/data/')
        exec(compile(text, name, "exec"), names)


def read(folder: Path, name: str) -> xr.Dataset:
    repo = icefloe.Repository.open(icefloe.local_filesystem_storage(str(folder / "data" / name)))
    return opened(repo.readonly_session("main"))


def test_examples_of_the_streaming_guide_run(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_examples("streaming.md", tmp_path, {"spark": spark})

    assert "|2024-03-04 00:00:00|-60.0| 0.0|272.0|written|" in capsys.readouterr().out
    stations = read(tmp_path, "stations")
    assert stations["t2m"].values.tolist() == [[280.0, 281.0], [281.0, 282.0], [282.0, 283.0]]


def test_examples_of_the_extraction_guide_run(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"spark": spark}

    run_examples("extract.md", tmp_path, names)

    assert names["frame"].count() == 2
    means = {row.zone: row.t2m_max for row in names["means"].collect()}
    assert means == {"north": 270.5}
