"""Looking into files, some at a time: what they have in common is sent home once.

Those that may be referred to are opened once, for their schema and their references.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from icefloe.ingest.discover.sources import Source
from icefloe.ingest.discover.urls import reference_location
from icefloe.ingest.inspect.contents import refuse_without_data
from icefloe.ingest.inspect.plain_hdf5 import Known, is_plain, plain_schema
from icefloe.ingest.inspect.reference_spill import Parsed, Putting
from icefloe.ingest.inspect.schema import (
    BadFile,
    FileSchema,
    Reading,
    SurveyOrder,
    VariableSchema,
    content_id,
    quiet,
    reason,
    shared,
    survey,
    virtualized,
)
from icefloe.storage.base import Storage
from icefloe.virtual import VirtualDataset
from icefloe.virtual.parsers.hdf5.file import Members
from icefloe.virtual.sources import container_prefix, location_of
from icefloe.virtual.variables import VirtualVariable, document_of

_NOT_IN_CHUNKS = "its values are not in chunks that can be referred to"
_MADE_UP = "phony_dim_"
_TEXT = "it is text of any length, which is not in its chunks"


@dataclass(frozen=True, slots=True)
class LookOrder:
    """Files to look at."""

    sources: tuple[Source, ...]
    reading: Reading
    storage: Storage | None = None
    """Where references are put aside; None where nobody will want them."""


def survey_some(order: LookOrder) -> list[FileSchema | BadFile]:
    """Look into some files. Whatever goes wrong with one is an answer, not an exception."""
    found = [
        refuse_without_data(survey(SurveyOrder(source, order.reading)), order.reading)
        for source in order.sources
    ]
    files = iter(shared([each for each in found if isinstance(each, FileSchema)]))
    return [each if isinstance(each, BadFile) else next(files) for each in found]


def survey_for_references(order: LookOrder) -> list[FileSchema | BadFile]:
    """Look into some files, and at what of them can be referred to; each is parsed once."""
    putting = Putting(order.storage)
    known, shared = Known(), _Shared()
    found: list[FileSchema | BadFile] = []
    for number, source in enumerate(order.sources):
        schema, dataset, why = _looked(source, order.reading, known)
        schema = refuse_without_data(schema, order.reading)
        if isinstance(schema, BadFile):
            found.append(schema)
            continue
        if dataset is not None:
            putting.put(number, Parsed.of(dataset))
            schema = replace(schema, places=_places(source, dataset))
        found.append(shared.with_documents(schema, dataset, why))
    putting.done()
    return [
        replace(each, aside=putting.places.get(number)) if isinstance(each, FileSchema) else each
        for number, each in enumerate(found)
    ]


def _places(source: Source, dataset: VirtualDataset) -> tuple[str, ...]:
    """A location in each place that references lead to, other than the file or the store itself."""
    own = location_of(reference_location(source.address) if source.is_remote else source.url)
    found: dict[str, str] = {}
    for each in dataset.sources:  # of Zarr stores each is a chunk, and begins as the store does
        if not each.location.startswith(own):
            found.setdefault(container_prefix(each.location), each.location)
    return tuple(found.values())


def _looked(
    source: Source, reading: Reading, known: Known
) -> tuple[FileSchema | BadFile, VirtualDataset | None, str]:
    """What a survey finds, what a parser finds, and why that is nothing."""
    seen: list[FileSchema | None] = []

    def witness(members: Members) -> None:
        try:
            seen.append(plain_schema(members, source, reading, content_id(source, reading), known))
        except Exception:  # noqa: BLE001 - xarray will look, and say what is wrong
            seen.append(None)

    dataset, why = None, ""
    try:
        with quiet():
            dataset = virtualized(source, reading, witness if is_plain(reading) else None)
    except Exception as error:  # noqa: BLE001 - what cannot be parsed can still be copied
        why = reason(error)
    schema = seen[0] if dataset is not None and seen else None
    return schema or survey(SurveyOrder(source, reading)), dataset, why


def _named_alike(
    virtual: VirtualVariable, variable: VariableSchema, sizes: Mapping[str, int]
) -> VirtualVariable:
    """With the engine's names for dimensions that have none in the file: each counts in its own way."""
    names = variable.raw_dims
    is_made_up = all(dim.startswith(_MADE_UP) for dim in (*virtual.dimensions, *names))
    if is_made_up and virtual.shape == tuple(sizes.get(dim, -1) for dim in names):
        return replace(virtual, dimensions=names)
    return virtual


class _Shared:
    """Says of variables how they would be referred to; what files have alike is one object, sent as one."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str | None, str], VariableSchema] = {}
        self._alive: list[VariableSchema] = []

    def with_documents(self, schema: FileSchema, dataset: VirtualDataset | None, why: str) -> FileSchema:
        """What a survey found, and how each variable would be referred to, or why it cannot be."""
        refused = {} if dataset is None else {each.variable: each.sentence for each in dataset.refused}
        found = []
        for variable in schema.variables:
            virtual = None if dataset is None else dataset.variables.get(variable.name)
            if virtual is None or virtual.loaded:
                told = _TEXT if variable.dtype == "O" and virtual is not None else _NOT_IN_CHUNKS
                text = why or refused.get(variable.name, told)
                found.append(self._one(variable, None, text))
            else:
                named = _named_alike(virtual, variable, schema.sizes)
                found.append(self._one(variable, json.dumps(document_of(named)), ""))
        return replace(schema, variables=tuple(found))

    def _one(self, variable: VariableSchema, document: str | None, refusal: str) -> VariableSchema:
        key = (id(variable), document, refusal)
        if key not in self._known:
            self._alive.append(variable)  # so that nothing else gets its number
            self._known[key] = replace(variable, document=document, refusal=refusal)
        return self._known[key]
