"""Settings shared by all tests."""

import gc
import os
import sqlite3  # noqa: F401 - loaded before ecCodes, which brings an older one that would take its place
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

with suppress(ModuleNotFoundError):
    import pyproj  # noqa: F401 - loaded before ecCodes, too, which brings another PROJ

pytest_plugins = ["tests.support.missing_packages"]

# A slow machine is not a failure: time limits belong to benchmarks. Under CI=true hypothesis starts from its
# own "ci" profile, which has no deadline either and always draws the same examples.
settings.register_profile(
    "icefloe",
    settings.get_profile(settings.get_current_profile_name()),
    deadline=None,
    max_examples=int(os.environ.get("ICEFLOE_EXAMPLES", "20")),
)
if settings.get_current_profile_name() in ("default", "ci"):
    settings.load_profile("icefloe")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Skip the compat tests if the official package is not installed; `make compat` installs it."""
    is_compat = collection_path.name == "compat" or collection_path.name.endswith("_compat.py")
    return True if is_compat and not _has_official_package() else None


def pytest_collection() -> None:
    """Pause garbage collection while thousands of test items are created."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Exempt modules and test items from garbage collection, which would traverse them repeatedly."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """Start Spark once for all tests, because starting it takes half a minute."""
    from icefloe.spark import QUICK_START, local_session

    session = local_session("icefloe tests", cores=2, settings=QUICK_START)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("icefloe.query.sql.relations.FEW_ROWS", 0)  # the arrays of tests are small
        yield session
    session.stop()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """Start one S3 server per test process."""
    from tests.support.servers.moto import moto_server

    with moto_server() as url:
        yield url


def _has_official_package() -> bool:
    try:
        metadata.distribution("icechunk")
    except metadata.PackageNotFoundError:
        return False
    return True


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the totals of the tests in tests/proof."""
    sums: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            ran = getattr(report, "when", "") == "call"
            for name, value in report.user_properties if ran else ():
                if name.startswith("proof "):
                    sums[name.removeprefix("proof ")] += value
    if sums:
        figures = ", ".join(f"{number} {name}" for name, number in sorted(sums.items()))
        terminalreporter.write_line(f"proof: {figures}")
