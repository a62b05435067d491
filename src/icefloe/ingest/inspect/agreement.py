"""Compare the schemas of files, and report disagreements by file and variable before any data is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import xarray as xr

from icefloe.errors import Hint
from icefloe.ingest.bad_files import BadFile
from icefloe.ingest.discover.sources import IngestSource
from icefloe.ingest.inspect.packing import make_signature
from icefloe.ingest.records import FileSchema, VariableSchema

Severity = Literal["error", "note"]
_KINDS = {"i": "a number", "u": "a number", "f": "a number", "M": "a time", "m": "a span of time"}
_TOLD_ATTRIBUTES = ("standard_name", "cell_methods", "positive", "grid_mapping")
_CFTIME = "cftime"
_MAX_SHOWN = 5
_CONCATENATION_NOTE = ", and files are concatenated along this coordinate"
_SORT = Hint(
    "sort the labels and remove repeated ones, or concatenate along another dimension with {concat_dim}",
    concat_dim=None,
)
LEAVE_OUT = Hint(
    "leave one of them out, or name the dimension to concatenate along with {concat_dim}",
    concat_dim=None,
)
_OTHER_TARGET = Hint(
    "concatenate along another dimension with {concat_dim}, or use another group with {group}",
    concat_dim=None,
    group=None,
)
_GAP = 1.5
"""The multiple of the usual step size above which a larger step is reported as a gap."""


@dataclass(frozen=True, slots=True)
class FileFinding:
    """A finding from comparing the schemas of files: an error, a warning or a note."""

    source: str
    variable: str
    text: str
    severity: Severity
    hint: Hint | None = None

    @property
    def sentence(self) -> str:
        """The finding as a sentence with the file and the variable, without the hint."""
        return ": ".join(filter(None, (self.source, self.variable, self.text)))

    def __str__(self) -> str:
        return self.sentence if self.hint is None else f"{self.sentence}; {self.hint}"


def collect_bad_files(findings: Iterable[FileFinding], files: Iterable[FileSchema]) -> list[BadFile]:
    """Convert all findings with the severity "error" to bad files."""
    sources = {file.source.url: file.source for file in files}
    nowhere = IngestSource("", 0, 0)
    wrong = dict.fromkeys(each for each in findings if each.severity == "error")
    return [
        BadFile(sources.get(each.source, nowhere), each.text, each.hint or "", variable=each.variable)
        for each in wrong
    ]


def compare_variables(
    files: Sequence[FileSchema], existing: FileSchema | None, concat_dim: str | None
) -> Iterator[FileFinding]:
    """Compare each variable with the existing array, or else with the same variable in most files."""
    usual = _find_usual(files, concat_dim)
    if existing is not None:
        usual |= {each.name: (existing, each) for each in existing.variables}
    often = Counter(each.name for file in files for each in file.variables)
    common = {each.name for each in existing.variables} if existing is not None else set()
    common |= {name for name, count in often.items() if 2 * count > len(files)}
    for file in files:
        found = {each.name: each for each in file.variables}
        if concat_dim is not None:
            for name in sorted(common - found.keys()):
                yield FileFinding(file.source.url, name, "is missing, but other files have it", "note")
        for name, variable in found.items():
            if usual[name][0] is not file:
                yield from _find_differences(file, variable, *usual[name], concat_dim)
            if concat_dim is not None and name not in common:
                yield FileFinding(file.source.url, name, "is missing from other files", "note")


def _find_usual(
    files: Sequence[FileSchema], concat_dim: str | None
) -> dict[str, tuple[FileSchema, VariableSchema]]:
    """Return the most common schema of each variable, with a file that has it. The first schema wins ties."""
    counts: dict[str, Counter[Any]] = {}
    firsts: dict[tuple[str, Any], tuple[FileSchema, VariableSchema]] = {}
    for file in files:
        for each in file.variables:
            unlabelled = [
                file.sizes[dim] for dim in each.dims if dim not in file.values and dim != concat_dim
            ]
            way = (each.dims, each.dtype, _get_calendar(each), str(each.attrs.get("units")), *unlabelled)
            counts.setdefault(each.name, Counter())[way] += 1
            firsts.setdefault((each.name, way), (file, each))
    return {name: firsts[name, variants.most_common(1)[0][0]] for name, variants in counts.items()}


def _find_differences(
    file: FileSchema,
    one: VariableSchema,
    reference: FileSchema,
    other: VariableSchema,
    concat_dim: str | None,
) -> Iterator[FileFinding]:
    def finding(text: str, severity: Severity = "error") -> FileFinding:
        return FileFinding(file.source.url, one.name, text, severity)

    # xarray adds the concatenation dimension to variables that lack it.
    if not (set(one.dims) <= set(other.dims) or set(other.dims) <= set(one.dims)):
        yield finding(f"has the dimensions {_format(one.dims)}, others have {_format(other.dims)}")
        return
    for dim in one.dims:
        here, there = file.sizes[dim], reference.sizes.get(dim, file.sizes[dim])
        if here != there and dim != concat_dim and dim not in file.values:
            yield finding(f"has {here} cells along {dim}, others have {there}")
        elif here < min(there, 1) and concat_dim is None:  # xarray cannot determine where the file belongs
            yield finding(f"has no cells along {dim}")
    if one is other:  # the usual case
        return
    calendars = _get_calendar(one), _get_calendar(other)
    if None not in calendars and calendars[0] != calendars[1]:
        # Calendars of datetime64 values differ only before 1582, and xarray has already decoded the values.
        is_cftime = _CFTIME in (_name_kind(one), _name_kind(other))
        problem = "has the calendar {}, others have {}".format(*calendars)
        yield finding(problem, "error" if is_cftime else "note")
    elif _name_kind(one) != _name_kind(other):
        yield finding(
            f"is of type {_name_type(one)}, others are of {_name_type(other)}{_explain_dates(one, other)}"
        )
    elif one.dtype != other.dtype:
        yield finding(f"is of type {_name_type(one)}, others are of {_name_type(other)}", "note")
    if one.attrs.get("units") != other.attrs.get("units"):
        units = [str(each.attrs.get("units", "no units")) for each in (one, other)]
        is_known = (
            "units" in one.attrs and "units" in other.attrs and _normalize(units[0]) != _normalize(units[1])
        )
        yield finding("is in {}, others are in {}".format(*units), "error" if is_known else "note")
    if (
        one.name not in file.values
        and make_signature(one) != make_signature(other)
        and one.raw_dtype[1:] != one.dtype[1:]
    ):
        yield finding("has other packing or time units than in most files, and is re-encoded", "note")
    for name in _TOLD_ATTRIBUTES:
        if one.attrs.get(name) != other.attrs.get(name):
            yield finding(f"has {name} {one.attrs.get(name)!r}, others {other.attrs.get(name)!r}", "note")


def _normalize(units: str) -> str:
    """Normalize the spelling of units: `m s**-1` and `m.s^-1` are equal."""
    return " ".join(units.replace("**", "").replace("^", "").replace(".", " ").split())


def _name_kind(variable: VariableSchema) -> str:
    return _CFTIME if _is_cftime(variable) else _KINDS.get(np.dtype(variable.dtype).kind, "text")


def _name_type(variable: VariableSchema) -> str:
    if _is_cftime(variable):
        return _CFTIME
    return "text" if variable.dtype == "O" else str(np.dtype(variable.dtype))


def _is_cftime(variable: VariableSchema) -> bool:
    return variable.dtype == "O" and _get_calendar(variable) is not None


def _explain_dates(one: VariableSchema, other: VariableSchema) -> str:
    if None in (_get_calendar(one), _get_calendar(other)):
        return ""
    return ": some times are before 1678 or after 2262; ingest those files separately"


def _get_calendar(variable: VariableSchema) -> str | None:
    calendar = variable.packing.get("calendar")
    if calendar is None and " since " in str(variable.packing.get("units", "")):
        return "standard"
    return {"gregorian": "standard"}.get(str(calendar), str(calendar)) if calendar is not None else None


def _format(dims: Sequence[str]) -> str:
    return "(" + ", ".join(dims) + ")"


def find_label_problems(
    files: Sequence[FileSchema], existing: FileSchema | None, concat_dim: str | None
) -> Iterator[FileFinding]:
    """Yield findings for labels along a concatenated dimension that are repeated or unsorted."""
    schemas = [*files, *([existing] if existing is not None else [])]
    dims = {dim for file in files for dim in file.sizes} if concat_dim is None else {concat_dim}
    for dim in sorted(dims):
        labels = [each.values[dim] for each in schemas if dim in each.sizes and dim in each.values]
        if len(labels) < (2 if concat_dim is None else 1):
            continue  # a single file may have any order, unless `concat_dim` implies more files
        if _has_same_labels(labels, several=concat_dim is None):
            continue
        for file in files:
            if dim in file.sizes and (wrong := _find_disorder(dim, file.values.get(dim), "in the file")):
                yield FileFinding(file.source.url, dim, wrong + _CONCATENATION_NOTE, "error", _SORT)
        if existing is not None and (
            wrong := _find_disorder(dim, existing.values.get(dim), "in the repository")
        ):
            yield from (
                FileFinding(file.source.url, dim, f"cannot be appended to: {wrong}", "error", _OTHER_TARGET)
                for file in files
                if dim in file.values and not np.array_equal(file.values[dim], existing.values[dim])
            )


def _has_same_labels(labels: Sequence[Any], *, several: bool) -> bool:
    """Return True if all files have the same labels. Unless `several` is set, each file must have exactly one
    label.
    """
    first = labels[0]
    if several:
        return all(each is first or np.array_equal(each, first) for each in labels)
    return all(each.size and bool((each == first.reshape(-1)[0]).all()) for each in labels)


def _find_disorder(dim: str, labels: Any, where: str) -> str:
    """Describe the first label that is repeated or out of order. Return "" if the labels are in order."""
    if labels is None or labels.ndim != 1 or labels.size < 2:
        return ""
    if labels.dtype.kind in "iufmM":
        later = labels[1:] > labels[:-1]
        if later.all() or (labels[1:] < labels[:-1]).all():
            return ""
    index: Any = xr.Variable(dim, labels).to_index()
    if not index.is_unique:
        twice = index[index.duplicated()][0]
        return f"{twice} appears twice {where}"
    if is_strictly_monotonic(index):
        return ""
    rises = index[1] > index[0]
    row = next(at for at in range(len(index) - 1) if (index[at + 1] > index[at]) != rises)
    return f"{index[row + 1]} follows {index[row]} {where}"


def find_order_problems(
    dataset: xr.Dataset,
    side_by_side: Sequence[str],
    boxes: Mapping[int, Mapping[str, tuple[int, int]]],
    names: Mapping[int, str],
) -> Iterator[FileFinding]:
    """Yield findings for concatenated coordinates that are not monotonic or have gaps."""
    for dim in side_by_side:
        if dim not in dataset.indexes:
            continue
        values = dataset.indexes[dim]
        if len(values) > 1 and values.nunique() == 1:
            yield FileFinding(
                "", dim, f"is {values[0]} in all files; the files are concatenated in the given order", "note"
            )
            continue
        if not is_strictly_monotonic(values):
            yield _describe_overlap(dim, values, boxes, names)
            continue
        yield from _find_gaps(dim, values, boxes, names)


def is_strictly_monotonic(index: Any) -> bool:
    """Return True if the labels of a dimension are strictly monotonic.

    Text labels only have to be unique.
    """
    is_monotonic = index.is_monotonic_increasing or index.is_monotonic_decreasing
    return bool(index.is_unique and (is_monotonic or is_text_index(index)))


def is_text_index(index: Any) -> bool:
    """Return True if an index has text labels."""
    return index.inferred_type in ("string", "bytes")


def format_label(value: Any) -> str:
    """Format a label for messages. Trailing zeros in nanosecond times are dropped."""
    return str(value.astype("M8[us]").item()) if isinstance(value, np.datetime64) else str(value)


def _describe_overlap(
    dim: str, values: Any, boxes: Mapping[int, Mapping[str, tuple[int, int]]], names: Mapping[int, str]
) -> FileFinding:
    spans = sorted((box[dim], number) for number, box in boxes.items() if dim in box)
    for ((start, stop), one), ((begin, end), other) in pairwise(spans):
        if one != other and (start, stop) != (begin, end) and not values[stop - 1] < values[begin]:
            last = values[stop - 1]
            text = f"begins at {values[begin]}, but {names[one]} extends to {last}: the files overlap"
            return FileFinding(names[other], dim, text, "error", LEAVE_OUT)
    first = int(np.flatnonzero(values.duplicated())[0]) if not values.is_unique else 0
    text = f"{values[first]} appears twice or is not in order{_CONCATENATION_NOTE}"
    return FileFinding("", dim, text, "error", _SORT)


def _find_gaps(
    dim: str, values: Any, boxes: Mapping[int, Mapping[str, tuple[int, int]]], names: Mapping[int, str]
) -> Iterator[FileFinding]:
    if len(values) < 3 or values.dtype == object or is_text_index(values):
        return
    steps = np.abs(np.diff(values.to_numpy()).astype(float))
    for row in np.flatnonzero(steps > _GAP * np.median(steps))[:_MAX_SHOWN].tolist():
        after = next((names[n] for n, box in boxes.items() if dim in box and box[dim][0] == row + 1), "")
        yield FileFinding(after, dim, f"has a gap between {values[row]} and {values[row + 1]}", "note")
