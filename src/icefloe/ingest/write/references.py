"""Write references to the chunks of files, in the tasks of a virtual or hybrid ingest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from icefloe._internal.warnings import ignore_warnings
from icefloe.distributed import receipt
from icefloe.ingest.bad_files import explain
from icefloe.ingest.discover.sources import IngestSource, check_unchanged
from icefloe.ingest.inspect.open import virtualize_source
from icefloe.ingest.inspect.reference_spill import ParsedReferences, read_spilled
from icefloe.ingest.read_options import ReadOptions
from icefloe.ingest.records import SpillRange
from icefloe.ingest.write.chunks import TaskResult
from icefloe.session import ForkSession
from icefloe.virtual.write import Placed, write_placed

_FILES_AT_ONCE = 64
"""The number of files whose references are written in one call."""


@dataclass(frozen=True, slots=True)
class ReferencedFile:
    """A file to reference: its variables, and the region that it fills."""

    number: int
    source: IngestSource
    names: tuple[str, ...]
    box: Mapping[str, tuple[int, int]]
    lacking: Mapping[str, tuple[int, ...]]
    """The axes of the target array that each variable of the file lacks."""
    spilled: SpillRange | None


@dataclass(frozen=True, slots=True)
class ReferenceTask:
    """An executor task that writes references to the chunks of files."""

    fork: ForkSession
    group: str
    files: tuple[ReferencedFile, ...]
    reading: ReadOptions
    dims: Mapping[str, tuple[str, ...]]
    """The dimension names of each array."""
    chunks: Mapping[str, tuple[int, ...]]
    """The chunk shape of each array."""
    windows: Mapping[str, tuple[range, ...]]
    """The region of the chunk grid for each array whose manifests the task writes."""

    @property
    def sources(self) -> dict[int, IngestSource]:
        """The sources of the task, by number."""
        return {file.number: file.source for file in self.files}


def write_references(task: ReferenceTask) -> TaskResult:
    """Write the references of a task through a fork of the session, and return a receipt."""
    bad: dict[int, str] = {}
    for start in range(0, len(task.files), _FILES_AT_ONCE):
        bad |= _set_references(task.files[start : start + _FILES_AT_ONCE], task)
    for name, window in task.windows.items():
        task.fork.write_manifests(_make_path(task.group, name), window)
    return TaskResult(receipt(task.fork), bad)


def _set_references(files: Sequence[ReferencedFile], task: ReferenceTask) -> dict[int, str]:
    """Write the references of all files, array by array. Return the unreadable files with the reasons."""
    spilled = read_spilled(
        (each.spilled for each in files if each.spilled), task.fork._workspace.assets.storage
    )
    bad: dict[int, str] = {}
    placed: dict[str, list[Placed]] = {}
    for file in files:
        try:
            found = None if file.spilled is None else spilled.get(file.spilled)
            parsed = found or _parse_source(file.source, task.reading)
            check_unchanged(file.source, task.reading.storage_options)
            mine = {name: parsed.variables[name] for name in file.names}
        except Exception as error:  # noqa: BLE001 - parsers raise whatever they like about a damaged file
            bad[file.number] = explain(error)
            continue
        for name, variable in mine.items():
            box, chunks = [file.box[dim] for dim in task.dims[name]], task.chunks[name]
            sizes = [stop - start for start, stop in box]
            cut = variable.fit_to(chunks, file.lacking.get(name, ()), sizes)
            step = tuple(start // size for (start, _), size in zip(box, chunks, strict=True))
            placed.setdefault(name, []).append(Placed(cut.chunks, parsed.sources, step, cut.grid_shape))
    for name, parts in placed.items():
        write_placed(task.fork.store, _make_path(task.group, name), parts)
    return bad


def _parse_source(source: IngestSource, reading: ReadOptions) -> ParsedReferences:
    with ignore_warnings():
        return ParsedReferences.of(virtualize_source(source, reading))


def _make_path(group: str, name: str) -> str:
    return f"/{group.strip('/')}/{name}".replace("//", "/")
