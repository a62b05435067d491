"""The examples of docs/how-to/procedures.md run on Spark."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import xarray as xr

from tests.support.source_tree import ROOT
from tests.support.spark.weather import opened

pytestmark = [
    pytest.mark.docs,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j closes its sockets late
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]


def test_examples_of_the_guide_run(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/how-to/procedures.md").read_text(encoding="utf-8")
    page = page.replace('"path": "stations"', f'"path": "{tmp_path}/stations"')  # for workers, which stay
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"spark": spark}

    for example in re.findall(r"```(python|sql)\n(.*?)```", page, re.DOTALL):
        if example[0] == "python":
            exec(compile(example[1], "procedures.md", "exec"), names)
            continue
        for statement in re.sub(r"--.*", "", example[1]).split(";"):
            if statement.strip():
                spark.sql(statement).collect()

    repo = names["repo"]
    assert {"v1", "main", "fixes"} <= repo.list_tags() | repo.list_branches()
    xr.testing.assert_equal(opened(repo.readonly_session("main"))["t2m"].max(), xr.DataArray(280.0))
