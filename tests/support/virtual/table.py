"""Describe what becomes of each variable of the sample files of other packages (reference/virtual-files.md).

    python -m tests.support.virtual.table FOLDER           compare with the library of each format, and write
    python -m tests.support.virtual.table --check FOLDER   compare, and fail if the document differs

FOLDER has a folder per package, as the document lists them; scripts/fetch-samples makes one. The tests check
the packages that are installed.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import eccodes
import netCDF4
import numpy as np
import tifffile
import zarr

from icefloe._internal.amounts import counted
from icefloe.virtual import CannotVirtualizeError, VirtualDataset, virtualize
from icefloe.virtual.decoders.grib import decode_grib
from icefloe.virtual.parsers import recognize
from icefloe.virtual.sources import open_file, to_location
from icefloe.virtual.values import open_store
from tests.support.source_tree import ROOT

DOCUMENT = ROOT / "docs" / "reference" / "virtual-files.md"
FOLDERS = {
    "iris": "iris-sample-data 2.5.2",
    "cmip6": "ESMValTool-sample-data 0.0.4",
    "cfgrib": "cfgrib 0.9.15.1, source",
    "netcdf4py": "netCDF4 1.7.5.1, source",
    "geotiff": "geotiff 0.2.10, source",
    "zarr2": "ESMValCore 2.15.0, compliance-checker 6.1.0 and earthkit-data 1.3.0, source",
}
HEADER = """# Sample files of other packages

What [`virtualize`][icefloe.virtual.virtualize] makes of every variable in the sample files of packages
on PyPI.

`python -m tests.support.virtual.table FOLDER` writes this page. It compares the values that references
decode to with the values that netCDF4, ecCodes, tifffile and zarr read from the file itself, element by
element. Of GRIB variables with more than 24 messages, it compares 24. The tests do the same with the first
two packages, and `make test-samples` with all packages that pip can download.
"""
_SAMPLED = 24
_SUFFIXES = (".nc", ".grib", ".grib2", ".tif")


def files_in(folder: Path) -> Iterator[Path]:
    """List the files of a package by name. A Zarr store counts as one file."""
    for path in sorted(folder.iterdir(), key=lambda each: each.name):
        if (path / ".zgroup").exists() or path.suffix in _SUFFIXES:
            yield path
        elif path.is_dir():
            yield from files_in(path)


def rows_of(path: Path) -> list[tuple[str, str]]:
    """Describe each variable of a file. Raises AssertionError if values differ from those of its library."""
    try:
        dataset = virtualize(path)
    except CannotVirtualizeError as error:
        return [("", f"not virtualised: {str(error).partition(path.name)[2].strip(' :')}")]
    with warnings.catch_warnings():  # about data types that are not in the core specification
        warnings.simplefilter("ignore")
        _compare(path, dataset)
    rows = []
    for prefix, group in dataset.walk():
        for name, variable in group.variables.items():
            found = "loaded" if variable.loaded else counted(len(variable.references), "chunk")
            if not variable.loaded and variable.references.inline:
                found += f", {len(variable.references.inline)} of them inline"
            rows.append((f"{prefix}/{name}".lstrip("/"), found))
    rows += [(each.variable, f"refused ({each.reason}): {each.sentence}") for each in dataset.all_refused()]
    return rows


def _compare(path: Path, dataset: VirtualDataset) -> None:
    store = open_store(dataset)
    if path.is_dir():
        expected: Any = dict(_zarr_arrays(path))
    else:
        match recognize(open_file(to_location(path))):
            case "grib":
                _compare_grib(path, dataset, store)
                return
            case "tiff":
                expected = {"image": tifffile.imread(path)}
            case _:
                expected = dict(_netcdf_variables(path))
    names = {f"{prefix}/{name}".lstrip("/") for prefix, group in dataset.walk() for name in group.variables}
    names -= {"x", "y"} - expected.keys()  # coordinates and grid mapping of a GeoTIFF
    refused = {each.variable for each in dataset.all_refused()}
    assert names | refused == expected.keys(), (names | refused) ^ expected.keys()
    for name in names:
        found = np.asarray(zarr.open_array(store, path=name, mode="r")[...])
        np.testing.assert_array_equal(found, expected[name], err_msg=f"{path.name}: {name}")


def _zarr_arrays(path: Path) -> Iterator[tuple[str, Any]]:
    group = zarr.open_group(path, mode="r")
    for name, array in group.arrays():
        yield name, array[...]


def _netcdf_variables(path: Path) -> Iterator[tuple[str, Any]]:
    with netCDF4.Dataset(path) as file:
        file.set_auto_maskandscale(False)
        file.set_auto_chartostring(False)
        pending = [("", file)]
        while pending:
            prefix, group = pending.pop()
            pending += [(f"{prefix}{name}/", each) for name, each in group.groups.items()]
            for name, variable in group.variables.items():
                yield prefix + name, np.asarray(variable[...])


def _compare_grib(path: Path, dataset: VirtualDataset, store: Any) -> None:
    data = path.read_bytes()
    for prefix, group in dataset.walk():
        for name, variable in group.variables.items():
            if variable.loaded or variable.codecs[0]["configuration"]["key"] != "values":
                continue
            array: Any = zarr.open_array(store, path=f"{prefix}/{name}".lstrip("/"), mode="r")
            references = variable.references
            field = variable.codecs[0]["configuration"]["field"]
            for row in np.linspace(0, len(references) - 1, min(len(references), _SAMPLED)).astype(int):
                start, length = int(references.offsets[row]), int(references.lengths[row])
                found = array.blocks[tuple(references.coords[row].tolist())]
                message = data[start : start + length]
                expected = decode_grib(message, variable.chunk_shape, "values", field)
                np.testing.assert_array_equal(found, expected.astype("f4"), err_msg=f"{path.name}: {name}")
                _compare_sorted(message, field, found)


def _compare_sorted(message: bytes, field: int, found: Any) -> None:
    """Check that the values equal those of ecCodes, in any order."""
    if field:
        return
    handle = eccodes.codes_new_from_message(message)
    eccodes.codes_set(handle, "missingValue", 1e36)
    values = eccodes.codes_get_values(handle)
    eccodes.codes_release(handle)
    values[values == 1e36] = np.nan
    np.testing.assert_array_equal(np.sort(found.reshape(-1)), np.sort(values.astype("f4")))


def section(name: str, folder: Path) -> str:
    """Write the section of one package."""
    lines = [f"## {name}: {FOLDERS[name]}", "", "| file | variable | result |", "| --- | --- | --- |"]
    files = sorted(files_in(folder), key=lambda each: each.name)
    return "\n".join([*lines, *(line for path in files for line in _lines(path))])


def _lines(path: Path) -> list[str]:
    return [f"| {path.name} | {variable or '(all)'} | {result} |" for variable, result in rows_of(path)]


def documented(name: str) -> dict[str, list[str]]:
    """Return the lines of the document per file of a package."""
    text = DOCUMENT.read_text(encoding="utf-8").partition(f"## {name}: ")[2].partition("\n## ")[0]
    found: dict[str, list[str]] = {}
    for line in text.splitlines()[4:]:
        if line:
            found.setdefault(line.split(" | ")[0].removeprefix("| "), []).append(line)
    return found


def compared(name: str, folder: Path) -> tuple[list[str], list[str]]:
    """List files whose lines in the document are wrong, and files that are missing from the folder."""
    files = {path.name: path for path in files_in(folder)}
    said = documented(name)
    wrong = [file for file in said if file in files and said[file] != _lines(files[file])]
    return wrong, [file for file in said if file not in files]


def main() -> None:
    """Write the document, or check it."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--check", action="store_true")
    given = arguments.parse_args()
    if not given.check:
        parts = [section(name, given.folder / name) for name in FOLDERS]
        DOCUMENT.write_text("\n\n".join([HEADER.rstrip(), *parts]) + "\n", encoding="utf-8")
        return
    wrong: list[str] = []
    for name in FOLDERS:
        if (given.folder / name).is_dir():
            false, missing = compared(name, given.folder / name)
            wrong += false
            sys.stdout.write(
                f"{name}: {len(documented(name)) - len(missing)} files, {len(missing)} not there\n"
            )
        else:
            sys.stdout.write(f"{name}: not there\n")
    if wrong:
        sys.exit(f"docs/reference/virtual-files.md does not say what is, of {', '.join(wrong)}")


if __name__ == "__main__":
    main()
