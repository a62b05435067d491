"""The options for opening the sources of an ingest with xarray."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from icefloe.errors import InvalidInputError
from icefloe.ingest.discover.sources import IngestSource
from icefloe.ingest.discover.urls import get_origin, make_reference_url
from icefloe.storage.external.access import Access, get_access

if TYPE_CHECKING:
    from icefloe.virtual.sources import FindAccess, StoreAccess


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options for opening the sources of an ingest with xarray."""

    engine: str | None = None
    """The name of an xarray engine. None lets xarray choose."""
    group: str | None = None
    """The group to read in each file."""
    variables: tuple[str, ...] = ()
    """The data variables to ingest. If empty, all are ingested."""
    open_options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments passed to `xarray.open_dataset`."""
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Options for remote files, passed to `storage_from_url`. They may contain secrets."""

    def for_source(self, source: IngestSource) -> ReadOptions:
        """Return the read options for one source, which may select its own group of the file."""
        return replace(self, group=source.group) if source.group else self

    def find_access(self, source: IngestSource) -> Access | None:
        """Return the store configuration and credentials for a remote source. Return None for a
        local source.
        """
        return get_access(source.address, self.storage_options) if source.is_remote else None

    def find_access_at(self, location: str) -> Access | None:
        """Return the store configuration and credentials for a file that a source references.

        Options that apply to another kind of storage are ignored.
        """
        if location.startswith("file:"):
            return None
        try:
            return get_access(location, self.storage_options)
        except InvalidInputError:
            return None

    def make_access_finder(self, source: IngestSource) -> FindAccess:
        """Return a function that looks up the store configuration and credentials for a location."""
        known: dict[str, StoreAccess] = {}
        if source.is_remote:
            access = get_access(source.address, self.storage_options)
            known[get_origin(make_reference_url(source.address))] = access.store, access.credential

        def find_access(location: str) -> StoreAccess:
            origin = "file:" if location.startswith("file:") else get_origin(location)
            if origin not in known:
                found = self.find_access_at(location)
                known[origin] = (None, None) if found is None else (found.store, found.credential)
            return known[origin]

        return find_access
