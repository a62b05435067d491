"""Whether all that was given is in what it makes together: where two begin alike xarray keeps one of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import xarray as xr

from icefloe.ingest.combine.pieces import EXISTING, PieceArray, Pieces
from icefloe.ingest.inspect.agreement import Finding
from icefloe.ingest.records import FileSchema, VariableSchema

_HERE = "the repository"


@dataclass(frozen=True, slots=True)
class Given:
    """A file, or a part of what the repository has."""

    number: int
    schema: FileSchema
    box: Mapping[str, tuple[int, int]]
    """Where a part of the repository is in it."""

    @property
    def name(self) -> str:
        """What it is called in sentences."""
        return _HERE if self.number == EXISTING else self.schema.source.url

    @property
    def names(self) -> frozenset[str]:
        """The variables that are in it."""
        return frozenset(each.name for each in self.schema.variables if not each.is_coordinate)


def losses(
    dataset: xr.Dataset, given: Sequence[Given], digests: Mapping[tuple[int, str], str]
) -> Iterator[Finding]:
    """What of that which was given is not in a dataset, nor equal to something in it."""
    along = set(_along(dataset, given))
    by_name = {name: _Found(name, pieces, digests) for name, pieces in _pieces(dataset)}
    for each in given:
        for variable in each.schema.variables:
            if not _counts(each.schema, variable, along) or variable.name not in by_name:
                continue
            found = by_name[variable.name]
            if not found.has(each, variable) and not found.has_equal(each.number):
                yield _told(each, given, along)
                break


class _Found:
    """What a variable is made of."""

    def __init__(self, name: str, pieces: Pieces, digests: Mapping[tuple[int, str], str]) -> None:
        self._name, self._pieces, self._digests = name, pieces, digests
        self._numbers = set(np.unique(pieces.source).tolist())
        self._here = pieces.taken(pieces.source == EXISTING)

    def has(self, given: Given, variable: VariableSchema) -> bool:
        if given.number != EXISTING:
            return given.number in self._numbers
        met = np.ones(len(self._here), bool)
        for axis, dim in enumerate(variable.dims):
            if dim in given.box:
                start, stop = given.box[dim]
                begin = self._here.source_starts[:, axis]
                met &= (begin < stop) & (begin + self._here.shape[:, axis] > start)
        return bool(met.any())

    def has_equal(self, number: int) -> bool:
        """Whether the values of a source were found equal to those of one that is there."""
        digest = self._digests.get((number, self._name))
        return digest is not None and any(
            self._digests.get((other, self._name)) == digest for other in self._numbers
        )


def _pieces(dataset: xr.Dataset) -> Iterator[tuple[str, Pieces]]:
    for name, variable in dataset.variables.items():
        if isinstance(variable.data, PieceArray):
            yield str(name), variable.data.pieces


def _along(dataset: xr.Dataset, given: Sequence[Given]) -> Iterator[str]:
    """The dimensions along which what was given is not all of the dataset."""
    for dim, size in ((str(dim), size) for dim, size in dataset.sizes.items()):
        index = dataset.indexes.get(dim)
        labels = None if index is None else index.to_numpy()
        there = [each.schema for each in given if dim in each.schema.sizes]
        mine = {id(schema.values[dim]): schema.values[dim] for schema in there if dim in schema.values}
        if any(schema.sizes[dim] != size for schema in there) or (
            labels is not None and any(not np.array_equal(labels, each) for each in mine.values())
        ):
            yield dim


def _counts(schema: FileSchema, variable: VariableSchema, along: set[str]) -> bool:
    """Whether a variable is one of cells that lie somewhere, rather than the same in all files."""
    sizes = [schema.sizes[dim] for dim in variable.dims]
    return variable.name not in schema.values and bool(along & set(variable.dims)) and 0 not in sizes


def _told(lost: Given, given: Sequence[Given], along: set[str]) -> Finding:
    for dim in sorted(along):
        mine = lost.schema.values.get(dim)
        if mine is None or not mine.size:
            continue
        for other in given:
            theirs = other.schema.values.get(dim)
            if other is not lost and theirs is not None and theirs.size and theirs[0] == mine[0]:
                one, two = (other, lost) if lost.number == EXISTING else (lost, other)
                return Finding(
                    one.name, dim, f"begins at {mine[0]}, as that of {two.name}: they overlap", "error"
                )
    return Finding(
        lost.name, "", "is not in what the files make together: leave out what others repeat", "error"
    )


def place_of(schema: FileSchema, dataset: xr.Dataset) -> dict[str, tuple[int, int]]:
    """Where the labels of a file are in a dataset, for one whose values others have too."""
    found = {}
    for dim, size in ((str(dim), size) for dim, size in dataset.sizes.items() if dim in schema.sizes):
        index, mine = dataset.indexes.get(dim), schema.values.get(dim)
        at = index.get_indexer(mine) if index is not None and mine is not None and index.is_unique else ()
        found[dim] = (int(min(at)), int(max(at)) + 1) if len(at) else (0, size)
    return found


def overlap(given: Sequence[Given]) -> Finding | None:
    """Two that overlap along a dimension in which all have labels, or in all of those, if any do."""
    labelled: list[str] = []
    places: list[list[Any]] = [[] for _ in given]
    for dim in sorted({dim for each in given for dim in each.schema.sizes}):
        labels = [each.schema.values[dim] for each in given if dim in each.schema.values]
        if len(labels) < len(given) or any(mine.ndim != 1 or not mine.size for mine in labels):
            continue
        spans = [(min(mine[0], mine[-1]), max(mine[0], mine[-1])) for mine in labels]
        order = sorted(range(len(given)), key=lambda number: spans[number])
        for one, other in pairwise(order):
            (first, last), (begin, end) = spans[one], spans[other]
            if begin <= last and (first, last) != (begin, end):
                text = f"begins at {begin}, but that of {given[one].name} goes on to {last}: they overlap"
                return Finding(given[other].name, dim, text, "error")
        labelled.append(dim)
        for place, span in zip(places, spans, strict=True):
            place.append(span)
    known: dict[Any, Given] = {}
    for each, place in zip(given, places, strict=True):
        if place and (twin := known.setdefault((each.names, *place), each)) is not each:
            text = (
                f"has the labels of {twin.name} along {', '.join(labelled)}: leave one out, or name the "
                "dimension that they follow each other along (--concat-dim)"
            )
            return Finding(each.name, "", text, "error")
    return None
