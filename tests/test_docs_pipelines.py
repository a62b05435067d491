"""The pipeline of docs/how-to/pipelines.md runs under spark-pipelines, twice."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import icefloe
from icefloe.spark.java import find_java_home
from tests.support.source_tree import ROOT
from tests.support.spark.weather import repository, weather

pytestmark = pytest.mark.docs

PAGE = (ROOT / "docs" / "how-to" / "pipelines.md").read_text(encoding="utf-8")
COMMAND = re.compile(r"^\$ spark-pipelines (.+)$", re.MULTILINE)
FILES = re.compile(r'^```\w+ title="(?P<name>[^"]+)"\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL)


def run_pipeline(folder: Path) -> str:
    """Run the pipeline in a folder, and return its output."""
    commands = Path(sys.executable).parent
    environment = os.environ | {
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "PYSPARK_PYTHON": sys.executable,
        "JAVA_HOME": str(find_java_home()),
        "SPARK_TESTING": "1",  # the Connect server takes a free port instead of 15002
    }
    command = [str(commands / "spark-pipelines"), *COMMAND.findall(PAGE)[0].split()]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    return output


def read(folder: Path) -> xr.Dataset:
    repo = icefloe.Repository.open(icefloe.local_filesystem_storage(str(folder / "data" / "celsius")))
    dataset: xr.Dataset = xr.open_zarr(repo.readonly_session("main").store, consolidated=False)
    return dataset.load()


def test_pipeline_of_the_guide_runs_and_continues(tmp_path: Path) -> None:
    (tmp_path / "transformations").mkdir()
    for found in FILES.finditer(PAGE):
        text = found["text"].replace("/data/", f"{tmp_path}/data/")
        (tmp_path / found["name"]).write_text(text, encoding="utf-8")
    days = weather(4, (2, 3)).drop_vars("rain")
    source = icefloe.local_filesystem_storage(str(tmp_path / "data" / "era5"))
    repo = repository(days.isel(time=slice(3)), source, {"t2m": {"chunks": (1, 2, 3)}})
    icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path / "data" / "celsius")))

    assert "Run is COMPLETED" in run_pipeline(tmp_path)
    first = read(tmp_path)
    icefloe.append(days.isel(time=[3]), repo, "time")
    assert "Run is COMPLETED" in run_pipeline(tmp_path)
    second = read(tmp_path)

    expected = (days.t2m.sortby("lat") - 273.15).astype("f4")
    for stored, length in ((first, 3), (second, 4)):
        assert stored.sizes["time"] == length
        values = stored.t2m.sortby("lat").values
        np.testing.assert_allclose(values, expected.values[:length], atol=1e-4)
