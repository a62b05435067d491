"""Combine the files of a batch group by group, hashing values where files must be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from icefloe._internal.executor import Executor
from icefloe.errors import ErrorKind, Hint, InvalidInputError, StorageError
from icefloe.ingest.bad_files import BadFile, ProblemsError
from icefloe.ingest.combine.existing import TargetState, find_remaining
from icefloe.ingest.combine.grid import Combined, DigestRequest, Misfits, combine_files
from icefloe.ingest.combine.lost_fields import mark_lost_fields
from icefloe.ingest.combine.pieces import EXISTING
from icefloe.ingest.combine.static_fields import find_static_groups
from icefloe.ingest.discover.sources import IngestSource
from icefloe.ingest.inspect.inspect_files import Inspected, digest_values
from icefloe.ingest.options import Options
from icefloe.ingest.records import FileSchema, StoredGroup, drop_bad_files, split_by_group

_LOST: Final = (ErrorKind.VIRTUAL_CHUNK_MODIFIED, ErrorKind.VIRTUAL_CHUNK_FETCH)
_OVERRIDE: Final = Hint(
    "ingest the changed file with {on_change}, or omit the comparison of static fields with {compat}",
    on_change="ingest",
    compat="override",
)
"""The remedy if static fields in the repository reference changed or deleted files."""


def combine_batch(
    files: Sequence[FileSchema],
    state: TargetState,
    options: Options,
    executor: Executor,
    known: Sequence[BadFile] = (),
) -> tuple[list[Combined], list[BadFile]]:
    """Combine the files of one batch group by group, and return the combined groups and the bad files.

    A file that cannot be combined in one group is excluded from all groups. Unless bad files are skipped,
    raise ProblemsError with these files and the `known` bad files.
    """
    bad: list[BadFile] = []
    while True:
        groups = split_by_group(drop_bad_files(files, bad))
        states = {
            path: mark_lost_fields(state.select_group(path), mine, options) for path, mine in groups.items()
        }
        static = find_static_groups(
            {path: _list_schemas(states[path], mine) for path, mine in groups.items()}, options.combining
        )
        try:
            found = [
                _combine_group(mine, states[path], options, executor, is_static=path in static)
                for path, mine in groups.items()
            ]
        except InvalidInputError as error:
            if not (bad or known) or options.on_bad_file == "skip":
                raise
            named = BadFile(IngestSource("", 0, 0), error.message, error.hint or "")
            raise ProblemsError([*known, *bad, named]) from error
        misfits = [
            replace(each, variable=f"{path}/{each.variable}".strip("/"))
            for path, one in zip(groups, found, strict=True)
            if isinstance(one, Misfits)
            for each in one.bad
        ]
        if not misfits:
            break
        bad += misfits
    if (bad or known) and options.on_bad_file == "stop":
        raise ProblemsError([*known, *bad])
    return [each for each in found if isinstance(each, Combined)], bad


def _list_schemas(state: TargetState, files: Sequence[FileSchema]) -> list[FileSchema]:
    existing = find_remaining(state, files)
    return [*files, *([] if existing is None else [existing.schema])]


def _combine_group(
    files: Sequence[FileSchema],
    state: TargetState,
    options: Options,
    executor: Executor,
    *,
    is_static: bool,
) -> Combined | Misfits:
    digests = _digest_lost_fields(files, state, options, executor)
    while isinstance(
        found := combine_files(files, state, options, digests, is_static=is_static), DigestRequest
    ):
        try:
            more = _digest(found, state, options, executor)
        except StorageError as error:
            if error.kind in _LOST:
                error.with_hint(_OVERRIDE)
            raise
        digests = found.merge_digests(digests, more)
    return found


def _digest(
    request: DigestRequest, state: TargetState, options: Options, executor: Executor
) -> dict[tuple[int, str], str]:
    """Hash the requested values. Lost fields are not read from the repository."""
    readable = tuple(name for name in request.names if name not in state.lost)
    stored = {n: each for n, each in request.sources.items() if isinstance(each, StoredGroup)}
    files = {n: each for n, each in request.sources.items() if n not in stored}
    found = digest_values(request.names, files, options.reading, executor)
    return found | (digest_values(readable, stored, options.reading, executor) if readable else {})


def _digest_lost_fields(
    files: Sequence[FileSchema], state: TargetState, options: Options, executor: Executor
) -> dict[tuple[int, str], str]:
    """Hash the lost static fields in unchanged ingested files, or in new files if none is unchanged."""
    found: dict[tuple[int, str], str] = {}
    for name, unchanged in state.lost.items():
        first = next(file.source for file in files if file.variable(name) is not None)
        found |= digest_values((name,), {EXISTING: unchanged or first}, options.reading, executor)
    return found


def refuse_problems(inspected: Inspected, state: TargetState, options: Options, executor: Executor) -> None:
    """Raise ProblemsError if any file of the whole job is bad, unless bad files are skipped.

    Without this check, a job with several commits would report the problems of one batch at a time.
    """
    if options.on_bad_file == "stop" and (inspected.bad or options.commit_every):
        combine_batch(inspected.files, state, options, executor, inspected.bad)
