"""Without an installed engine, our own parsers read the file, or the message says what to install."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest

from icefloe import InvalidInputError
from tests.support import processes
from tests.support.ingest.files import archive, new_repo, run
from tests.support.virtual import formats

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

_WITHOUT = """
import sys
for name in {hidden!r}:
    assert name not in sys.modules, name
    sys.modules[name] = None
from icefloe.cli.main import main
sys.exit(main({arguments!r}))
"""


def ingest_without(hidden: list[str], file: str, place: Path, *words: str) -> tuple[int, str]:
    """Run the command in a process that lacks some modules; its exit code and what it printed."""
    arguments = ["ingest", file, str(place), "--executor", "threads", *words]
    return processes.run(_WITHOUT.format(hidden=hidden, arguments=arguments))


@pytest.mark.parametrize("kind", ["NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA"])
def test_netcdf3_is_read_without_an_engine(tmp_path: Path, kind: Any) -> None:
    file = tmp_path / "a.nc"
    with netCDF4.Dataset(file, "w", format=kind) as dataset:
        dataset.createDimension("time", None)
        dataset.createVariable("a", "f4", ("time",))[:] = np.arange(5)

    code, printed = ingest_without(["netCDF4", "scipy"], str(file), tmp_path / "repo")

    assert code == 0, printed
    assert "1 file ingested" in printed


def test_grib_is_read_without_cfgrib(tmp_path: Path) -> None:
    formats.grib(2)(tmp_path)

    code, printed = ingest_without(["cfgrib"], str(tmp_path / "f.grib"), tmp_path / "repo")

    assert code == 0, printed
    assert "1 file ingested" in printed


@pytest.mark.parametrize("mode", ["--native", "--virtual", "--hybrid"])
def test_error_for_missing_reader_contains_the_package(tmp_path: Path, mode: str) -> None:
    (file,) = archive(tmp_path, (3,))
    hidden = ["netCDF4", "scipy", "h5netcdf", "h5py"]

    for words in ([], ["--on-bad-file", "skip"]):
        code, printed = ingest_without(hidden, file, tmp_path / "repo", mode, *words)

        assert code == 2
        assert "this needs h5py: pip install 'h5py>=" in printed
        assert "skip" not in printed
        assert "repair" not in printed
        assert not (tmp_path / "repo").exists()


@pytest.mark.parametrize(
    ("engine", "hidden", "said"),
    [
        ("cfgrib", ["cfgrib"], "the engine cfgrib is not installed: pip install 'cfgrib>="),
        ("netcdf4", ["netCDF4"], "the engine netcdf4 is not installed: pip install 'netcdf4>="),
        ("pydap", [], "the engine pydap is not installed: pip install 'pydap'"),
    ],
)
def test_missing_engine_names_the_package(tmp_path: Path, engine: str, hidden: list[str], said: str) -> None:
    (file,) = archive(tmp_path, (3,))

    code, printed = ingest_without(hidden, file, tmp_path / "repo", "--engine", engine)

    assert code == 2
    assert said in printed
    assert "skip" not in printed


@pytest.mark.parametrize(
    ("engine", "said"),
    [("NetCDF4", "did you mean netcdf4?"), ("quux", "installed engines are cfgrib, h5netcdf")],
)
def test_unknown_engine_is_refused(tmp_path: Path, engine: str, said: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        run(new_repo(tmp_path), archive(tmp_path), engine=engine)

    assert f"xarray has no engine {engine!r}: {said}" in str(caught.value)
