"""Parse FITS, HDF4 and DMR++ files with VirtualiZarr.

VirtualiZarr needs a local file. A remote file is copied temporarily for parsing, but the references point to
the remote file.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

import numpy as np

from icefloe._internal.extras import find_missing_package
from icefloe._internal.private_imports import get_manifest_group
from icefloe._internal.warnings import ignore_warnings
from icefloe.storage.object_store.clients import make_local_object_store
from icefloe.virtual.dataset import VirtualDataset, with_sources
from icefloe.virtual.errors import DAMAGE, CannotVirtualizeError, RefusalReason, Refused
from icefloe.virtual.parsers import ParseOptions
from icefloe.virtual.sources import (
    FindAccess,
    SourceFile,
    check_ends,
    check_reference,
    check_sources,
    to_location,
)
from icefloe.virtual.virtualizarr import from_manifest_group

_COPIED_BYTES: Final = 1 << 24
_DEFLATE: Final = 8
_DAP4_GROUP: Final = "{http://xml.opendap.org/ns/DAP/4.0#}Group"
_TO_SKIP: Final = re.compile(r"Pass skip_variables=\['(.*?)'\]")


class _Parser(NamedTuple):
    title: str
    class_name: str
    since: str
    """The oldest supported release of VirtualiZarr."""


_PARSERS: Final = {
    # Earlier releases read only the first extension, and used the reciprocal of BSCALE.
    "fits": _Parser("FITS", "FITSParser", "2.8"),
    "hdf4": _Parser("HDF4", "HDF4Parser", "2.7.1"),
    "dmrpp": _Parser("DMR++", "DMRPPParser", "2.0"),
}


def parse_with_virtualizarr(
    file: SourceFile, format: str, options: ParseOptions, access: FindAccess
) -> VirtualDataset:
    """Parse a FITS, HDF4 or DMR++ file with the matching VirtualiZarr parser."""
    parser = _PARSERS[format]
    with _provide_local_copy(file) as path:
        refused: list[Refused] = []
        while True:
            skipped = {*options.drop_variables, *(each.variable for each in refused)}
            try:
                found = _parse_groups(parser, path, file.location, options.group, sorted(skipped))
            except ModuleNotFoundError as error:
                if find_missing_package(error) is None:
                    raise CannotVirtualizeError(
                        f"{file.location}: parsing {parser.title} requires {error.name}"
                    ) from None
                raise
            except CannotVirtualizeError:
                raise
            except (*DAMAGE, SyntaxError) as error:  # malformed XML raises SyntaxError
                unsupported = _TO_SKIP.search(str(error))
                if unsupported is None or unsupported[1] in skipped:
                    raise _make_error(file, parser, error) from None
                name, why = unsupported[1], " ".join(str(error)[: unsupported.start()].split())
                refused.append(Refused(name, RefusalReason.UNSUPPORTED_LAYOUT, f"{name}: {why}"))
                continue
            dataset = from_manifest_group(found)
            wrong = list(_find_other_compressions(dataset, file)) if format == "hdf4" else []
            wrong += _find_unreadable_images(path) if format == "fits" else []
            if not (wrong := [each for each in wrong if each.variable not in skipped]):
                break
            refused += wrong
        for name, variable in dataset.variables.items():
            own = [each.location == to_location(path) for each in dataset.sources]
            here = np.array(own, bool)[variable.references.sources]
            check_ends(file, name, variable.references.offsets[here], variable.references.lengths[here])
        if format == "hdf4":
            dataset = _to_big_endian(dataset)
    return replace(_set_locations(dataset, file, path, access), refused=tuple(refused))


def _make_error(file: SourceFile, parser: _Parser, error: BaseException) -> CannotVirtualizeError:
    reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if parser.title == "HDF4":
        reason += (
            "; kerchunk, which VirtualiZarr uses, reads only deflated data in one or two dimensions: convert "
            "the file to NetCDF"
        )
    return CannotVirtualizeError(f"{file.location} cannot be read as {parser.title}: {reason}")


def _find_other_compressions(dataset: VirtualDataset, file: SourceFile) -> Iterator[Refused]:
    """Yield HDF4 variables that are compressed but not deflated. kerchunk assumes that all of them are
    deflated.
    """
    for name, variable in dataset.variables.items():
        starts = variable.references.offsets[:1].tolist()
        if any(codec["name"] != "bytes" for codec in variable.codecs) and starts:
            header = int.from_bytes(file.read(starts[0], starts[0] + 2))
            if header >> 8 & 15 != _DEFLATE or header % 31:  # RFC 1950
                why = "its chunks are not deflated; convert the file to NetCDF"
                yield Refused(name, RefusalReason.UNSUPPORTED_LAYOUT, f"{name}: {why}")


def _find_unreadable_images(path: str) -> Iterator[Refused]:
    """Yield FITS images that VirtualiZarr would misread. It treats compressed tiles as values, and stores
    64-bit integers with an offset as floats.
    """
    from astropy.io import fits

    with ignore_warnings(), fits.open(path, do_not_scale_image_data=True) as hdus:
        names: list[str] = []
        for number, hdu in enumerate(hdus):
            name = hdu.name or str(number)
            names.append(f"{name}_{number}" if name in names else name)
            if isinstance(hdu, fits.CompImageHDU):
                why = "its tiles are compressed; decompress the file with funpack or astropy"
            elif isinstance(hdu, fits.GroupsHDU):
                why = "it has random groups"
            elif hdu.is_image and hdu.header["BITPIX"] == 64 and hdu.header.get("BZERO"):
                why = "it has 64-bit integers with an offset"
            else:
                continue
            yield Refused(names[-1], RefusalReason.UNSUPPORTED_LAYOUT, f"{names[-1]}: {why}")


def _to_big_endian(dataset: VirtualDataset) -> VirtualDataset:
    """Set the byte order of HDF4 variables to big-endian, because kerchunk reports floats as little-endian.

    HDF4 files with little-endian numbers have different type codes, which kerchunk rejects.
    """
    return dataset.map_variables(
        lambda _, variable: replace(variable, codecs=tuple(map(_make_big_endian_codec, variable.codecs)))
    )


def _make_big_endian_codec(codec: Mapping[str, Any]) -> Mapping[str, Any]:
    is_ordered = codec["name"] == "bytes" and "endian" in (codec.get("configuration") or {})
    return {"name": "bytes", "configuration": {"endian": "big"}} if is_ordered else codec


def _parse_groups(parser: _Parser, path: str, shown: str, group: str | None, skipped: list[str]) -> Any:
    """Parse a file into a manifest group. The DMR++ parser omits subgroups, so each group is parsed
    separately.
    """
    if group or parser.title != "DMR++":
        return _parse_manifests(parser, path, shown, group, skipped)

    def parse_below(element: ElementTree.Element, here: str) -> _Group:
        below = {str(child.get("name")): child for child in element.iterfind(_DAP4_GROUP)}
        own: Any = SimpleNamespace(arrays={}, metadata=SimpleNamespace(attributes={}))
        if len(below) < len(element):
            own = _parse_manifests(parser, path, shown, here or None, skipped)
        groups = {name: parse_below(child, f"{here}/{name}") for name, child in below.items()}
        return _Group(own.arrays, groups, own.metadata)

    return parse_below(ElementTree.parse(path).getroot(), "")


class _Group(NamedTuple):
    """A manifest group with its subgroups."""

    arrays: Mapping[str, Any]
    groups: Mapping[str, _Group]
    metadata: Any


def _parse_manifests(parser: _Parser, path: str, shown: str, group: str | None, skipped: list[str]) -> Any:
    """Parse a file with VirtualiZarr, and return its manifest group."""
    import virtualizarr.parsers
    from obspec_utils.registry import ObjectStoreRegistry

    found: Any = getattr(virtualizarr.parsers, parser.class_name, None)
    if found is None or _parse_release(_get_installed()) < _parse_release(parser.since):
        raise CannotVirtualizeError(
            f"{shown} is {parser.title}, which requires VirtualiZarr {parser.since} or newer, and "
            f"{_get_installed()} is installed: pip install 'virtualizarr>={parser.since}' "
            "(Python 3.12 and newer)"
        )
    registry = ObjectStoreRegistry({"file://": make_local_object_store()})
    store = found(group=group, skip_variables=skipped)(f"file://{path}", registry)
    return get_manifest_group(store)


def _get_installed() -> str:
    from importlib.metadata import version

    return version("virtualizarr")


def _parse_release(release: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", release)[:3])


@contextmanager
def _provide_local_copy(file: SourceFile) -> Iterator[str]:
    """Provide a local path for a file. A remote file is copied to a temporary file with the same name."""
    if file.local_path is not None:
        yield file.local_path
        return
    with tempfile.TemporaryDirectory(prefix="icefloe-") as folder:
        path = os.path.join(folder, unquote(urlsplit(file.location).path).rpartition("/")[2] or "file")
        with open(path, "wb") as copy:
            for start in range(0, file.size_bytes, _COPIED_BYTES):
                copy.write(file.read(start, start + _COPIED_BYTES))
        yield path


def _set_locations(
    dataset: VirtualDataset, file: SourceFile, path: str, access: FindAccess
) -> VirtualDataset:
    """Point references at the original file instead of its temporary copy, and look up the state of all
    referenced files.
    """
    copies, remote = (f"{to_location(os.path.dirname(path))}/", f"{file.location.rpartition('/')[0]}/")
    locations = []
    for source in dataset.sources:
        location = source.location
        if file.local_path is None and location.startswith(copies):
            location = remote + location.removeprefix(copies)
        check_reference(file.location, location)
        locations.append(location)
    others = [location for location in locations if location != file.location]
    seen = {each.location: each for each in check_sources(others, access)}
    seen[file.location] = file.finish()
    sources = tuple(seen[location] for location in locations)
    return with_sources(dataset, sources)
