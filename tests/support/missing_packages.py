"""The pytest option `--only-installed`: skip tests that need a package that is not installed.

`make test-core` uses it in an environment that has the core dependencies only. A test belongs to the core if
none of its imports fails, nor those of a program whose output it shows. A test that needs a package without
either says so with `@pytest.mark.needs("package")`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Generator
from importlib.util import find_spec
from typing import Any, TypeAlias, TypeVar

import pytest

Report = TypeVar("Report")
Wrapper: TypeAlias = Generator[None, Report, Report]

_FAILED_IMPORT = re.compile(r"(?:No module named '|\bthis needs )(\w+)")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--only-installed",
        action="store_true",
        help="leave out tests that need missing packages",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(package): needs a package that the test does not import")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Wrapper[pytest.CollectReport]:
    """Skip a module whose imports fail."""
    report = yield
    package = _missing_package(collector.config, str(report.longrepr)) if report.failed else None
    if package is not None:
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 0, f"Skipped: needs {package}")
    return report


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that is marked as needing a missing package."""
    if item.config.option.only_installed:
        for mark in item.iter_markers("needs"):
            for package in mark.args:
                if find_spec(package) is None:
                    pytest.skip(f"needs {package}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Wrapper[pytest.TestReport]:
    """Skip a test or fixture that imports a missing package, or shows the output of a program that does."""
    report = yield
    if report.failed and call.excinfo is not None:
        error: BaseException | None = call.excinfo.value
        while error is not None:
            is_about_import = isinstance(error, ImportError | AssertionError)
            package = _missing_package(item.config, str(error)) if is_about_import else None
            if package is not None:
                report.outcome = "skipped"
                report.longrepr = (str(item.path), 0, f"Skipped: needs {package}")
                break
            error = error.__cause__ or error.__context__
    return report


def _missing_package(config: pytest.Config, text: str) -> str | None:
    if not config.option.only_installed:
        return None
    missing = [name for name in _FAILED_IMPORT.findall(text) if find_spec(name) is None]
    return missing[-1] if missing else None


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the number of skipped files and tests, by package."""
    if not config.option.only_installed:
        return
    counts: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", ()):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        if found := re.search(r"needs (\w+)$", reason):
            kind = "file" if isinstance(report, pytest.CollectReport) else "test"
            counts[f"{found[1]} ({kind}s)"] += 1
    text = ", ".join(f"{name}: {number}" for name, number in counts.most_common())
    terminalreporter.write_line(f"left out because a package is not installed: {text or 'nothing'}")
