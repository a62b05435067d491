"""What a user may say about an ingest."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.ingest.plan.arrays import Layout
from icefloe.ingest.plan.tasks import DEFAULT_MEMORY_BYTES
from icefloe.ingest.publish.checks import DEFAULT_CHECKS, Check
from icefloe.ingest.records import Combining, Reading

Mode = Literal["native", "virtual", "hybrid"]
OnBadFile = Literal["stop", "skip"]
OnChange = Literal["report", "ingest"]

_TEXTS = frozenset(
    {"message", "engine", "source_group", "concat_dim", "compat", "data_vars", "coords", "join", "codec"}
)
_DECODING = (
    *("decode_cf", "decode_times", "decode_timedelta", "decode_coords"),
    *("mask_and_scale", "use_cftime", "concat_characters"),
)
_MAPPINGS = frozenset({"metadata", "open_options", "storage_options"})


@dataclass(frozen=True, slots=True)
class Options:
    """How files become arrays of a repository."""

    group: str = ""
    """The path of the group that the arrays are in; the root by default."""
    branch: str = "main"
    message: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """For the commits, beside what the ingest has to say itself."""
    reading: Reading = field(default_factory=Reading)
    combining: Combining = field(default_factory=Combining)
    layout: Layout = field(default_factory=Layout)
    mode: Mode = "native"
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    """What a task may hold, beside the interpreter and its modules."""
    manifest_references: int = 500_000
    """Virtual arrays with more references have several manifests, and tasks write them."""
    commit_every: int | None = None
    """Make a commit for so many files, rather than one for all."""
    on_bad_file: OnBadFile = "stop"
    """Whether a file that cannot be read ends the job, or is left out and reported."""
    on_change: OnChange = "report"
    """Whether a file that is not what was ingested is only reported, or ingested again."""
    checks: tuple[Check, ...] = tuple(map(Check, DEFAULT_CHECKS))
    """What must be true before the branch moves; what fails leaves it where it was."""

    def __post_init__(self) -> None:
        for name, kind in (("mode", Mode), ("on_bad_file", OnBadFile), ("on_change", OnChange)):
            if getattr(self, name) not in get_args(kind):
                raise _wrong(f"{name} is one of {', '.join(get_args(kind))}, not {getattr(self, name)!r}")
        for name in ("memory_bytes", "commit_every", "manifest_references"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise _wrong(f"{name} must be a whole number of at least 1, not {value!r}")
        for name in ("group", "branch"):
            if not isinstance(getattr(self, name), str):
                raise _wrong(f"{name} must be a name, not {getattr(self, name)!r}")
        _refuse_group(self.group)
        _refuse_decoding(self.reading.open_options)
        if self.mode == "virtual" and (self.layout.chunks or self.layout.shards):
            raise _wrong(
                "virtual arrays keep the chunks of the files; mode hybrid copies what is to have other ones"
            )
        try:
            json.dumps(dict(self.metadata))
        except TypeError as error:  # a date of YAML, say
            raise _wrong(f"metadata must be what JSON can hold, text and numbers: {error}") from error


def _wrong(text: str) -> InvalidInputError:
    return InvalidInputError(text, ErrorKind.INVALID_COMMIT_CONFIGURATION)


def _refuse_decoding(open_options: Mapping[str, Any]) -> None:
    """What would be said here about decoding would change nothing, and nobody would notice."""
    for name in _DECODING:
        if name in open_options:
            raise _wrong(
                f"{name} is no option of an ingest: it takes what files store, and who reads the arrays says "
                "how to decode them; the option drop_variables leaves out what xarray cannot decode"
            )


def _refuse_group(group: str) -> None:
    parts = [part for part in group.split("/") if part]
    if any(part in (".", "..") for part in parts):
        raise _wrong(f"the group {group!r} has . or .. in its path: give its whole path, as in air/surface")
    if parts[:1] == ["_icefloe"]:
        raise _wrong("the group _icefloe is where ingests keep their ledger: choose another one")


_PARTS: Mapping[str, Any] = {"reading": Reading, "combining": Combining, "layout": Layout}
_RENAMED = {"group": "reading_group"}


def known_options() -> frozenset[str]:
    """The names that `make_options` takes."""
    inside = {each.name for kind in _PARTS.values() for each in fields(kind)} - set(_RENAMED)
    return frozenset(inside | {each.name for each in fields(Options)} - set(_PARTS) | {"source_group"})


def make_options(**given: Any) -> Options:
    """Options by their flat names: those of `Options`, `Reading`, `Combining` and `Layout` in one.

    `group` is that of the repository, `source_group` that of the files.
    """
    for name, value in given.items():
        if name in _TEXTS and value is not None and not isinstance(value, str):
            raise _wrong(f"{name} must be text, not {value!r}")
        if name in _MAPPINGS and not isinstance(value, Mapping):
            raise _wrong(f"{name} must be names with values, not {value!r}")
    if "source_group" in given:
        given["reading_group"] = given.pop("source_group")
    parts: dict[str, Any] = {}
    for part, kind in _PARTS.items():
        names = {_RENAMED.get(each.name, each.name): each.name for each in fields(kind)}
        mine = {names[name]: given.pop(name) for name in list(given) if name in names}
        if "variables" in mine:
            mine["variables"] = _names(mine["variables"])
        parts[part] = kind(**mine)
    known = known_options()
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}"
            raise _wrong(f"an ingest has no option {name}; {hint}")
    return Options(**parts, **given)


def _names(given: Any) -> tuple[str, ...]:
    """One name, or several."""
    names = tuple(given or ()) if isinstance(given, list | tuple | None) else (given,)
    if not all(isinstance(name, str) and name for name in names):
        raise _wrong(f"variables must be names, not {given!r}")
    return names
