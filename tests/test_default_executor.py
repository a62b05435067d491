"""The executor that runs a pipeline if none is given."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from icefloe._internal.executor import ProcessExecutor
from icefloe.default_executor import start_default_executor


def test_processes_replace_spark_without_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "icefloe.spark.executor", None)

    with start_default_executor(None) as executor:
        assert isinstance(executor, ProcessExecutor)


@pytest.mark.spark
def test_active_spark_session_is_the_default(spark: Any) -> None:
    with start_default_executor(None) as executor:
        assert executor.has_sql
    assert spark.range(3).count() == 3
