"""`virtualize`: recognise a file, parse it, make sure that it stayed the same meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, Literal, TypeAlias, get_args
from urllib.parse import unquote, urlsplit

from icefloe._internal.extras import missing_package
from icefloe.config.stores import AnyObjectStoreConfig
from icefloe.credentials import AnyCredential
from icefloe.virtual.dataset import VirtualDataset, with_sources
from icefloe.virtual.errors import CannotVirtualizeError
from icefloe.virtual.parsers import ParseOptions
from icefloe.virtual.parsers.zarr.stores import ZIP_MAGIC as ZIP_MAGIC
from icefloe.virtual.sources import Reach, SourceFile, access_by, access_by_default, location_of, open_file

Format: TypeAlias = Literal[
    "hdf5", "netcdf3", "grib", "tiff", "zarr", "kerchunk", "fits", "hdf4", "dmrpp", "icechunk"
]
Parser: TypeAlias = Callable[[SourceFile, ParseOptions], VirtualDataset]

_USERBLOCKS: Final = 16
"""HDF5 looks for its signature at 0, 512, 1024, and so on, doubling."""


def virtualize(
    path_or_url: str | os.PathLike[str],
    *,
    format: Format | None = None,
    group: str | None = None,
    store: AnyObjectStoreConfig | None = None,
    credential: AnyCredential | None = None,
    drop_variables: Iterable[str] = (),
    loadable_variables: Iterable[str] | None = None,
    contiguous_chunk_bytes: int | None = None,
    version: str | None = None,
) -> VirtualDataset:
    """What a file holds, as Zarr arrays whose chunks are references into it.

    The file is one of this machine, or at a `file`, `s3`, `gs`, `az`, `http` or `https` URL; of files
    elsewhere only the parts that say where things are get fetched. `store` and `credential` are what a
    `VirtualChunkContainer` and `authorize_virtual_chunk_access` take. `format` is recognised by the file's
    first bytes where it is not given. `group` is the only group to look at.

    The values of `loadable_variables` are taken along; by default those of the coordinates of dimensions.
    Variables that are stored in one piece are one chunk, or chunks of at most `contiguous_chunk_bytes`.

    An Icechunk repository is read at a `version`, a branch, a tag or a snapshot id, by default the branch
    main; references to its native chunks lead to its chunk objects. One that is not on this machine is not
    recognised: say `format="icechunk"`, or a version.

    Variables that cannot be references are listed in `VirtualDataset.refused`, each with a reason of
    `RefusalReason`. CannotVirtualizeError for files that are damaged or of another kind, StorageError for
    files that cannot be read or that changed meanwhile.
    """
    options = ParseOptions(
        None if group is None or not group.strip("/") else group.strip("/"),
        frozenset(drop_variables),
        None if loadable_variables is None else frozenset(loadable_variables),
        contiguous_chunk_bytes,
        version,
    )
    if version is not None:
        if format not in (None, "icechunk"):
            raise ValueError(f"only Icechunk repositories have versions, not {format} files")
        format = "icechunk"
    if contiguous_chunk_bytes is not None and contiguous_chunk_bytes < 1:
        raise ValueError(f"contiguous_chunk_bytes must be at least 1, not {contiguous_chunk_bytes}")
    if format is not None and format not in get_args(Format):
        raise ValueError(f"unknown format {format!r}; known are {', '.join(get_args(Format))}")
    return parsed(path_or_url, options, format, access_by(store, credential))


def parsed(
    path_or_url: str | os.PathLike[str],
    options: ParseOptions,
    format: Format | None = None,
    reach: Reach = access_by_default,
) -> VirtualDataset:
    """Parse a file with the given options."""
    try:
        return _parsed(path_or_url, options, format, reach)
    except ModuleNotFoundError as error:
        if (missing := missing_package(error)) is None:
            raise
        raise ModuleNotFoundError(f"{path_or_url}: {missing}", name=error.name) from None


def _parsed(
    path_or_url: str | os.PathLike[str], options: ParseOptions, format: Format | None, reach: Reach
) -> VirtualDataset:
    location = location_of(path_or_url)
    if _is_hierarchy(location, format):
        return _loaded(_hierarchy(location, format, options, reach), options, reach)
    file = open_file(path_or_url, *reach(location))
    found = format or recognize(file)
    if found == "kerchunk":
        from icefloe.virtual.parsers.kerchunk import parse_kerchunk_json

        references = parse_kerchunk_json(file, options, reach)
        file.finish()
        return _loaded(references, options, reach)
    if found in ("fits", "hdf4", "dmrpp"):
        from icefloe.virtual.parsers.virtualizarr import parse_with_virtualizarr

        return _loaded(parse_with_virtualizarr(file, found, options, reach), options, reach)
    dataset = with_sources(_parser(found)(file, options), (file.finish(),))
    return _loaded(dataset, options, reach) if found in ("hdf5", "zarr") else dataset


def _is_hierarchy(location: str, format: Format | None) -> bool:
    """Whether what is to be parsed is a folder, or a prefix of a bucket, and not a file."""
    if format == "icechunk":
        return True
    if location.startswith("file:"):
        return os.path.isdir(unquote(urlsplit(location).path)) and format in (None, "zarr", "kerchunk")
    if location.endswith(".zip"):
        return False
    return format == "zarr" or (format is None and location.rstrip("/").endswith(".zarr"))


def _hierarchy(location: str, format: Format | None, options: ParseOptions, reach: Reach) -> VirtualDataset:
    from icefloe.virtual.parsers.kerchunk import is_parquet, parse_kerchunk_parquet
    from icefloe.virtual.parsers.zarr.stores import parse_zarr

    if format == "icechunk" or (format is None and _is_repository(location)):
        from icefloe.virtual.parsers.icechunk import parse_repository

        return parse_repository(location, options, reach)
    if format != "zarr" and location.startswith("file:") and is_parquet(unquote(urlsplit(location).path)):
        return parse_kerchunk_parquet(location, options, reach)
    return parse_zarr(location, options, reach)


def _is_repository(location: str) -> bool:
    from icefloe.virtual.parsers.icechunk import is_repository

    return location.startswith("file:") and is_repository(unquote(urlsplit(location).path))


def _loaded(dataset: VirtualDataset, options: ParseOptions, reach: Reach) -> VirtualDataset:
    """Load the values of the variables that the options name, decoded by zarr."""
    chosen = [
        f"{path}/{name}" if path else name
        for path, group in dataset.walk()
        for name, variable in group.variables.items()
        if not variable.loaded
        and options.loads(f"{path}/{name}" if path else name, variable.dimensions, variable.nbytes)
    ]
    if not chosen:
        return dataset
    from icefloe.virtual.values import open_values
    from icefloe.virtual.variables import loaded_variable

    values = open_values(dataset, chosen, reach)

    def replaced(group: VirtualDataset, path: str) -> VirtualDataset:
        variables = {
            name: loaded_variable(each.dimensions, values[path + name], each.attributes)
            if path + name in values
            else each
            for name, each in group.variables.items()
        }
        groups = {name: replaced(each, f"{path}{name}/") for name, each in group.groups.items()}
        return replace(group, variables=variables, groups=groups)

    return replaced(dataset, "")


def recognize(file: SourceFile) -> Format:
    """The format of a file, by its first bytes."""
    head = file.read(0, 8)
    if head[:4] in (b"CDF\x01", b"CDF\x02", b"CDF\x05"):
        return "netcdf3"
    if head[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        return "tiff"
    if head[:4] == b"GRIB":
        return "grib"
    if head[:4] == b"\x0e\x03\x13\x01":
        return "hdf4"
    if file.read(0, 10) == b"SIMPLE  = ":
        return "fits"
    starts = [0, *(512 << power for power in range(_USERBLOCKS))]
    if any(file.peek(start, start + 8) == b"\x89HDF\r\n\x1a\n" for start in starts):
        return "hdf5"
    if b"GRIB" in file.read(0, 4096):  # some have a line of text in front
        return "grib"
    if head[:4] in ZIP_MAGIC:
        return "zarr"
    if b"http://xml.opendap.org/dap/dmrpp" in file.read(0, 4096):
        return "dmrpp"
    if head[:1] == b"{":
        return "kerchunk"
    if not head:
        raise CannotVirtualizeError(f"{file.location} is empty")
    raise CannotVirtualizeError(
        f"{file.location} begins with {head!r}: that is none of {', '.join(get_args(Format))}; say which "
        "with format="
    )


def _parser(name: Format) -> Parser:
    # A parser is imported with its format: each needs a library that not everybody has.
    match name:
        case "hdf5":
            from icefloe.virtual.parsers.hdf5.file import parse_hdf5

            return parse_hdf5
        case "netcdf3":
            from icefloe.virtual.parsers.netcdf3 import parse_netcdf3

            return parse_netcdf3
        case "grib":
            from icefloe.virtual.parsers.grib.file import parse_grib

            return parse_grib
        case "zarr":
            from icefloe.virtual.parsers.zarr.stores import parse_zarr_zip

            return parse_zarr_zip
        case _:
            from icefloe.virtual.parsers.tiff.file import parse_tiff

            return parse_tiff
