"""Combine the files of a batch, group by group, and compute the hashes that this needs."""

from __future__ import annotations

from collections.abc import Sequence

from icefloe._internal.executor import Executor
from icefloe.errors import InvalidInputError
from icefloe.ingest.combine.existing import TargetState, find_remaining
from icefloe.ingest.combine.grid import Combined, DigestRequest, Misfits, combine_files
from icefloe.ingest.combine.static_fields import find_static_groups
from icefloe.ingest.discover.sources import Source
from icefloe.ingest.inspect.inspect_files import Inspected, digest_values
from icefloe.ingest.options import Options
from icefloe.ingest.records import BadFile, FileSchema, ProblemsError, drop_bad_files, split_by_group


def combine_batch(
    files: Sequence[FileSchema],
    state: TargetState,
    options: Options,
    executor: Executor,
    known: Sequence[BadFile] = (),
) -> tuple[list[Combined], list[BadFile]]:
    """Combine the files of each group. A file that does not fit in one group is excluded from all groups.

    Return the bad files as well. Unless bad files are skipped, raise ProblemsError with them and the `known`
    bad files.
    """
    bad: list[BadFile] = []
    while True:
        groups = split_by_group(drop_bad_files(files, bad))
        states = {path: state.select_group(path) for path in groups}
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
            named = BadFile(Source("", 0, 0), error.message, error.hint or "")
            raise ProblemsError([*known, *bad, named]) from error
        misfits = [each for one in found if isinstance(one, Misfits) for each in one.bad]
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
    digests: dict[tuple[int, str], str] = {}
    while isinstance(
        found := combine_files(files, state, options, digests, is_static=is_static), DigestRequest
    ):
        more = digest_values(found.names, found.sources, options.reading, executor)
        digests = found.merge_digests(digests, more)
    return found


def refuse_problems(inspected: Inspected, state: TargetState, options: Options, executor: Executor) -> None:
    """Raise ProblemsError with the problems of all files, unless bad files are skipped.

    Without this, a job with several commits would report a batch at a time.
    """
    if options.on_bad_file == "stop" and (inspected.bad or options.commit_every):
        combine_batch(inspected.files, state, options, executor, inspected.bad)
