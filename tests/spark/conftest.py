"""One Spark session for all tests that need one: a Java virtual machine takes half a minute to get going."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from icefloe.spark import QUICK_START, local_session

    session = local_session("icefloe tests", cores=2, settings=QUICK_START)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("icefloe.spark.sql_scans.FEW_ROWS", 0)  # the arrays of tests are small
        yield session
    session.stop()
