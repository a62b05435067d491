"""`virtualize`: detect the format of a file, parse it, and check that it did not change during parsing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, get_args
from urllib.parse import unquote, urlsplit

from icefloe._internal.extras import find_missing_package
from icefloe.config.stores import AnyObjectStoreConfig
from icefloe.credentials import AnyCredential
from icefloe.virtual.dataset import VirtualDataset, with_sources
from icefloe.virtual.parsers import Format, ParseOptions, find_parser, recognize
from icefloe.virtual.sources import (
    FindAccess,
    SourceFile,
    make_access,
    make_default_access,
    open_file,
    to_location,
)
from icefloe.virtual.variables import ChunkReferences, make_loaded_variable

if TYPE_CHECKING:
    from icefloe.virtual.parsers.hdf5.file import Members


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
    """Open a file as a virtual dataset: a group of Zarr arrays whose chunks are references into the file.

    For remote files, only the byte ranges that describe the layout are fetched. Variables that cannot be
    expressed as references are listed in `VirtualDataset.refused`, each with a `RefusalReason`.

    Parameters
    ----------
    path_or_url
        A local path, or a URL with the scheme `file`, `s3`, `gs`, `az`, `http` or `https`.
    format
        The format of the file. By default, it is detected from the first bytes.
    group
        The group to parse, including its subgroups. By default, the whole file.
    store
        The object store configuration for a remote file, as in a `VirtualChunkContainer`.
    credential
        The credential for the store, as in `authorize_virtual_chunk_access`.
    drop_variables
        Names or paths of variables to exclude.
    loadable_variables
        Names or paths of variables to load into memory. By default, dimension coordinates are loaded.
    contiguous_chunk_bytes
        Split contiguous variables into chunks of at most this size. By default, each becomes one chunk.
    version
        The version of an Icechunk repository: a branch, a tag, a snapshot id or a prefix of one,
        `BRANCH@TIME`, or any of these followed by `~N` for N commits earlier. By default, the branch `main`.
        References point to the chunk objects of the repository. To open a remote
        repository, which is not detected automatically, pass a version or `format="icechunk"`.

    Returns
    -------
    VirtualDataset
        The variables and groups of the file.

    Raises
    ------
    CannotVirtualizeError
        If the file is damaged, or its format is unknown.
    StorageError
        If the file cannot be read, or it changed during parsing.
    ValueError
        If an argument is invalid.
    """
    if version is not None:
        if format not in (None, "icechunk"):
            raise ValueError(f"version is only valid for Icechunk repositories, not for {format} files")
        format = "icechunk"
    if contiguous_chunk_bytes is not None and contiguous_chunk_bytes < 1:
        raise ValueError(f"contiguous_chunk_bytes must be at least 1, not {contiguous_chunk_bytes}")
    if format is not None and format not in get_args(Format):
        raise ValueError(f"unknown format {format!r}; known formats are {', '.join(get_args(Format))}")
    options = ParseOptions(
        (group or "").strip("/") or None,
        frozenset(drop_variables),
        None if loadable_variables is None else frozenset(loadable_variables),
        contiguous_chunk_bytes,
        version,
    )
    return parse(path_or_url, options, format, make_access(store, credential))


def parse(
    path_or_url: str | os.PathLike[str],
    options: ParseOptions,
    format: Format | None = None,
    access: FindAccess = make_default_access,
) -> VirtualDataset:
    """Parse a file into a virtual dataset. `access` returns the store and the credential for a referenced
    location.
    """
    with parse_and_keep_open(path_or_url, options, format, access) as (dataset, _):
        return dataset


@contextmanager
def parse_and_keep_open(
    path_or_url: str | os.PathLike[str],
    options: ParseOptions,
    format: Format | None = None,
    access: FindAccess = make_default_access,
) -> Iterator[tuple[VirtualDataset, Members | None]]:
    """Parse a file into a virtual dataset. For HDF5, also yield the root group, which stays open.

    Ingest reads the schema of an HDF5 file from the open group, instead of opening the file a second time.
    """
    with ExitStack() as stack:
        try:
            location = to_location(path_or_url)
            members: Members | None = None
            if _is_hierarchy(location, format):
                dataset = _load(_parse_hierarchy(location, format, options, access), options, access)
            else:
                file = open_file(location, *access(location))
                found = format or recognize(file)
                if found == "hdf5":
                    from icefloe.virtual.parsers.hdf5.file import open_hdf5

                    parsed, members = stack.enter_context(open_hdf5(file, options))
                    dataset = _load(with_sources(parsed, (file.finish(),)), options, access)
                else:
                    dataset = _parse_file(file, found, options, access)
        except ModuleNotFoundError as error:
            if (missing := find_missing_package(error)) is None:
                raise
            raise ModuleNotFoundError(f"{path_or_url}: {missing}", name=error.name) from None
        yield dataset, members


def _parse_file(file: SourceFile, found: Format, options: ParseOptions, access: FindAccess) -> VirtualDataset:
    if found == "kerchunk":
        from icefloe.virtual.parsers.kerchunk import parse_kerchunk_json

        references = parse_kerchunk_json(file, options, access)
        file.finish()
        return _load(references, options, access)
    if found in ("fits", "hdf4", "dmrpp"):
        from icefloe.virtual.parsers.virtualizarr import parse_with_virtualizarr

        return _load(parse_with_virtualizarr(file, found, options, access), options, access)
    dataset = with_sources(find_parser(found)(file, options), (file.finish(),))
    return _load(dataset, options, access) if found == "zarr" else dataset


def _is_hierarchy(location: str, format: Format | None) -> bool:
    """Return True if a location is a directory or a bucket prefix, False if it is a file."""
    if format == "icechunk":
        return True
    if location.startswith("file:"):
        return os.path.isdir(unquote(urlsplit(location).path)) and format in (None, "zarr", "kerchunk")
    if location.endswith(".zip"):
        return False
    return format == "zarr" or (format is None and location.rstrip("/").endswith(".zarr"))


def _parse_hierarchy(
    location: str, format: Format | None, options: ParseOptions, access: FindAccess
) -> VirtualDataset:
    from icefloe.virtual.parsers.icechunk import is_repository, parse_repository
    from icefloe.virtual.parsers.kerchunk import is_parquet, parse_kerchunk_parquet
    from icefloe.virtual.parsers.zarr.stores import parse_zarr

    folder = unquote(urlsplit(location).path) if location.startswith("file:") else None
    if format == "icechunk" or (format is None and folder is not None and is_repository(folder)):
        return parse_repository(location, options, access)
    if format != "zarr" and folder is not None and is_parquet(folder):
        return parse_kerchunk_parquet(location, options, access)
    return parse_zarr(location, options, access)


def _load(dataset: VirtualDataset, options: ParseOptions, access: FindAccess) -> VirtualDataset:
    """Load the variables that the options select. zarr decodes their values."""
    chosen = [
        full
        for path, group in dataset.walk()
        for name, variable in group.variables.items()
        if isinstance(variable.chunks, ChunkReferences)
        and options.should_load(
            full := f"{path}/{name}" if path else name, variable.dimensions, variable.nbytes
        )
    ]
    if not chosen:
        return dataset
    from icefloe.virtual.values import open_values  # imports zarr and the repository

    values = open_values(dataset, chosen, access)
    return dataset.map_variables(
        lambda path, each: (
            make_loaded_variable(each.dimensions, values[path], each.attributes) if path in values else each
        )
    )
