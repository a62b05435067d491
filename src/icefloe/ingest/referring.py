"""Virtual and hybrid ingest: what of a file can stay where it is, and references to it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr

from icefloe.distributed import receipt
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.ingest.pieces import PieceArray
from icefloe.ingest.sources import Source, refuse_changed
from icefloe.ingest.survey import (
    BadFile,
    FileSchema,
    Reading,
    SurveyOrder,
    VariableSchema,
    quiet,
    reason,
    survey,
)
from icefloe.ingest.targets import Target
from icefloe.ingest.writing import Written
from icefloe.repository import Repository
from icefloe.session import ForkSession
from icefloe.virtual import VirtualChunkContainer, virtualize
from icefloe.virtual.opening import default_credential
from icefloe.virtual.schema import differences, document_of, properties_of
from icefloe.virtual.sources import container_of, location_of


def survey_for_references(order: SurveyOrder) -> FileSchema | BadFile:
    """Look into one file, and at what of it can be referred to."""
    found = survey(order)
    return found if isinstance(found, BadFile) else with_documents(found, order.reading)


def with_documents(schema: FileSchema, reading: Reading) -> FileSchema:
    """What a survey found, and how each variable would be referred to, or why it cannot be."""
    try:
        with quiet():
            dataset = virtualize(schema.source.url, group=reading.group)
        refused = {each.variable: each.sentence for each in dataset.refused}
    except Exception as error:  # noqa: BLE001 - what cannot be parsed can still be copied
        known = tuple(replace(each, refusal=reason(error)) for each in schema.variables)
        return replace(schema, variables=known)
    found = []
    for variable in schema.variables:
        virtual = dataset.variables.get(variable.name)
        if virtual is None or virtual.loaded:
            text = refused.get(variable.name, "its values are not in chunks that can be referred to")
            found.append(replace(variable, refusal=text))
        else:
            found.append(replace(variable, document=json.dumps(document_of(virtual))))
    return replace(schema, variables=tuple(found))


@dataclass(frozen=True, slots=True)
class Referral:
    """Which variables of which files are referred to, and why others are not."""

    chosen: frozenset[tuple[int, str]]
    reasons: tuple[tuple[str, str, str], ...]
    """File, variable and reason."""


def refer(
    targets: Sequence[Target], dataset: xr.Dataset, files: Sequence[FileSchema], documents: Mapping[str, Any]
) -> Referral:
    """Decide it for every piece: type, codecs and chunks must be the array's, and borders those of chunks."""
    chosen: set[tuple[int, str]] = set()
    reasons = []
    for target in targets:
        array = dataset.variables[target.name].data
        for number, why in _misfits(target, array, files, _Fits(documents.get(target.name))):
            if why:
                reasons.append((files[number].source.url, target.name, why))
            else:
                chosen.add((number, target.name))
    return Referral(frozenset(chosen), tuple(reasons))


def _misfits(
    target: Target, array: PieceArray, files: Sequence[FileSchema], fits: _Fits
) -> Iterator[tuple[int, str]]:
    pieces = array.pieces
    chunks = np.array(target.chunks, np.int64)
    stops = pieces.stops
    ends = (stops % chunks == 0) | (stops == target.shape) if target.dims else np.ones((len(pieces), 0), bool)
    aligned = ((pieces.starts % chunks == 0) & ends).all(axis=1)
    straight = (pieces.axes == np.arange(len(target.dims))).all(axis=1)
    for row, number in enumerate(pieces.source.tolist()):
        if number < 0:
            continue
        variable = files[number].variable(target.name)
        if variable is None or variable.document is None:
            yield number, variable.refusal if variable is not None else "it is not there"
        elif fits.document is None or not target.dims:
            yield number, "the array is not stored in a way that can be referred to"
        elif not straight[row]:
            yield number, "its dimensions are not those of the array"
        elif wrong := fits.differences(variable.document):
            yield number, wrong
        else:
            yield number, "" if aligned[row] else "it does not begin and end with chunks of the array"


class _Fits:
    """How arrays of files differ from one of the repository. Most files have the same to say."""

    def __init__(self, document: Mapping[str, Any] | None) -> None:
        self.document = document
        self._known: dict[str, str] = {}

    def differences(self, of_file: str) -> str:
        """In words; nothing where a file's chunks fit."""
        if of_file not in self._known:
            mine = properties_of(json.loads(of_file), loaded=False)
            found = differences(properties_of(self.document or {}, loaded=False), mine)
            words = (f"its {name} is {now}, the array's {was}" for name, was, now in found)
            self._known[of_file] = "; ".join(words)
        return self._known[of_file]


def as_document(target: Target, schema: VariableSchema) -> Target:
    """The array as the first file stores it, so that its chunks can be referred to."""
    if schema.document is None or schema.dims != target.dims:
        return target  # or it got the dimension along which files follow each other
    document = json.loads(schema.document)
    chunks = tuple(document["chunk_grid"]["configuration"]["chunk_shape"])
    attrs = {**target.attrs, **document["attributes"]}
    return replace(target, chunks=chunks, shards=None, attrs=attrs, document=json.dumps(document))


@dataclass(frozen=True, slots=True)
class ReferOrder:
    """Files to refer to: each with the names of its variables and where it goes."""

    fork: ForkSession
    group: str
    files: tuple[tuple[int, Source, tuple[str, ...], Mapping[str, tuple[int, int]]], ...]
    reading: Reading
    windows: Mapping[str, tuple[range, ...]]
    """Arrays whose manifests are written by the task, and its part of their chunk grids."""


def write_references(order: ReferOrder) -> Written:
    """Set references through the fork: an executor's part."""
    bad: dict[int, str] = {}
    for number, source, names, box in order.files:
        try:
            with quiet():
                dataset = virtualize(source.url, group=order.reading.group).drop_refused()
            refuse_changed(source)
        except Exception as error:  # noqa: BLE001 - parsers raise whatever they like about a damaged file
            bad[number] = reason(error)
            continue
        others = [name for name in dataset.variables if name not in names]
        chosen = replace(dataset.drop_variables(*others), attributes={}, groups={})
        region = {dim: slice(*span) for dim, span in box.items()}
        chosen.to_icechunk(order.fork.store, group=order.group or None, region=region)
    for name, window in order.windows.items():
        order.fork.write_manifests(f"/{order.group.strip('/')}/{name}".replace("//", "/"), window)
    return Written(receipt(order.fork), 0, bad)


def with_containers(repo: Repository, sources: Sequence[Source]) -> Repository:
    """The repository, allowed to refer to the places of the sources, as its configuration then says."""
    config = repo.config
    known = config.virtual_chunk_containers or {}
    new: dict[str, VirtualChunkContainer] = {}
    for source in sources:
        location = location_of(source.url)
        if not any(location.startswith(prefix) for prefix in (*known, *new)):
            container = container_of(location)
            new[container.url_prefix] = container
    for container in new.values():
        config.set_virtual_chunk_container(container)
    missing = set(config.virtual_chunk_containers or {}) - repo.authorized_virtual_container_prefixes
    if not new and not missing:
        return repo
    prefixes = config.virtual_chunk_containers or {}
    opened = repo.reopen(config, {prefix: default_credential(prefix) for prefix in prefixes})
    if new:
        opened.save_config()
    return opened


def refuse_misfits(referral: Referral) -> None:
    """Purely virtual: whatever cannot be referred to is an error."""
    if referral.reasons:
        source, name, why = referral.reasons[0]
        more = f"; and {len(referral.reasons) - 1} more" if len(referral.reasons) > 1 else ""
        raise InvalidInputError(
            f"{source}: {name} cannot be referred to: {why}{more}; --hybrid copies what does not fit",
            ErrorKind.INVALID_VIRTUAL_REF,
        )
