"""The table of sample files says what is."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from tests.virtual.table import DOCUMENT, section


def test_the_rows_of_the_package_that_is_installed_are_true() -> None:
    folder = Path(str(resources.files("iris_sample_data"))) / "sample_data"
    assert folder.is_dir()

    assert section("iris", folder) in DOCUMENT.read_text(encoding="utf-8")
