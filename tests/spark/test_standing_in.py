"""Import icefloe as icechunk in the workers of a Spark session."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.interpreters import run

pytestmark = [pytest.mark.spark, pytest.mark.cluster]  # it starts its own Spark

# In a separate program, because workers of the session that other tests share are already running.
PROGRAM = """
import icefloe
icefloe.install_as_icechunk()
from icefloe.spark import QUICK_START, local_session
from worker import work
spark = local_session("standing in", cores=1, settings=QUICK_START)
print(*spark.sparkContext.parallelize([0], 1).map(work).collect()[0])
spark.stop()
"""


@pytest.mark.needs("pyspark")
def test_spark_workers_import_icechunk(tmp_path: Path) -> None:
    assert run(tmp_path, PROGRAM).splitlines()[-1] == "icefloe.repository icefloe.storage 2.3.0"
