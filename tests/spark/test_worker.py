"""Test the behaviour of tasks in a Python worker, in a separate process without Spark."""

from __future__ import annotations

import pytest

from tests.support import processes

pytestmark = pytest.mark.needs("pyspark", "sqlglot")

TASK = """
from icefloe.spark.worker import hide_tracebacks

with hide_tracebacks():
    pass
"""
FAN_OUT = """
import pickle, pyarrow
from icefloe.spark.executor import _run

numbers = pyarrow.RecordBatch.from_pydict({"number": [0]})
(batch,) = _run(str, [pickle.dumps(7)], iter([numbers]))
assert pickle.loads(batch.column(1)[0].as_py()) == (False, "7")
"""
FROZEN = "\nimport gc; print(gc.get_freeze_count())"


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(TASK, id="task"),
        pytest.param(FAN_OUT, id="fan-out", marks=pytest.mark.needs("pyarrow")),
    ],
)
def test_gc_is_frozen_after_task(task: str) -> None:
    code, printed = processes.run(task + FROZEN)

    assert code == 0, printed
    assert int(printed) > 10_000


def test_gc_freeze_happens_only_once() -> None:
    code, printed = processes.run(TASK + FROZEN + "\nmore = [[] for _ in range(1000)]" + TASK + FROZEN)

    assert code == 0, printed
    first, second = printed.split()
    assert first == second
