"""Run a recipe: plan each output, compute and audit the changed chunks, and commit all outputs together."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import zarr
from numpy.typing import NDArray

from icefloe._internal.amounts import counted, format_bytes
from icefloe._internal.executor import Executor, Task
from icefloe._internal.paths import ROOT, get_parent, join
from icefloe._internal.warnings import ignore_warnings
from icefloe.conflicts import ConflictDetector
from icefloe.core.commit.limits import check_changed_chunks
from icefloe.derive.arrays import StoredArray, array_document, find_array, get_array
from icefloe.derive.compute import Computed, compute_chunks, make_tasks
from icefloe.derive.lineage import METADATA, digest_input, find_attributes, list_derived
from icefloe.derive.outputs import (
    Coordinate,
    Output,
    check_location,
    locate_output,
    read_partials,
    resolve_output,
)
from icefloe.derive.plan import OutputPlan, check_inputs, check_memory, describe_meaning, make_plan
from icefloe.derive.pyramid import describe_pyramid, make_levels
from icefloe.derive.recipe import DeriveRecipe, InputSpec, OutputSpec, describe_output, order_outputs
from icefloe.derive.records import (
    DerivedRecords,
    read_records,
    records_group,
    set_document,
    software_versions,
    write_records,
)
from icefloe.derive.report import DerivedArray, DeriveReport
from icefloe.encoding.columns import Blobs
from icefloe.errors import ConflictError, ErrorKind, InvalidInputError, RebaseFailedError
from icefloe.format.manifest import INLINE, NATIVE, ArrayManifest
from icefloe.maintenance.statistics.collect import Collected, record_statistics
from icefloe.repository import Repository
from icefloe.session import Session

LOGGER: Final = logging.getLogger("icefloe.derive")
_ATTEMPTS: Final = 5
_AUDITED: Final = 3
"""The number of chunks per output that are audited, that is, computed a second time."""
_TASKS_PER_CORE: Final = 4

StartExecutor = Callable[[], AbstractContextManager[Executor]]
OpenRepository = Callable[[str, Mapping[str, Any]], Repository]


@dataclass(frozen=True)
class Job:
    """A job that updates the derived arrays of a recipe."""

    recipe: DeriveRecipe
    repo: Repository
    open_repository: OpenRepository
    start_executor: StartExecutor
    memory_bytes: int
    full: bool = False
    strict: bool = False
    dry_run: bool = False

    def run(self) -> DeriveReport:
        """Bring all derived arrays of the recipe up to date, in one commit per branch."""
        reports = [
            self._run_branch(branch) for branch in dict.fromkeys(o.branch for o in self.recipe.outputs)
        ]
        outputs = tuple(each for report in reports for each in report.outputs)
        return replace(
            reports[-1],
            outputs=outputs,
            is_current=all(each.is_current for each in reports),
            recomputed=sum(each.recomputed for each in outputs),
            moved=sum(each.moved for each in outputs),
            kept=sum(each.kept for each in outputs),
            bytes_read=sum(each.bytes_read for each in reports),
            input_snapshots=tuple(dict.fromkeys(id for each in reports for id in each.input_snapshots)),
            commit=next((each.commit for each in reversed(reports) if each.commit is not None), None),
        )

    def _run_branch(self, branch: str) -> DeriveReport:
        outputs = [each for each in self.recipe.outputs if each.branch == branch]
        for _ in range(_ATTEMPTS):
            run = _Run(self, branch, self.repo.writable_session(branch))
            try:
                return run.execute(outputs)
            except RebaseFailedError as error:
                paths = ", ".join(dict.fromkeys(conflict.path for conflict in error.conflicts))
                LOGGER.info("%s was changed concurrently on %s; starting again", paths, branch)
        raise ConflictError(
            message=f"other writers changed derived arrays on {branch} in each of {_ATTEMPTS} attempts;"
            " run the recipe again when they have finished"
        )


@dataclass
class _Run:
    """One attempt to update all outputs on a branch."""

    job: Job
    branch: str
    session: Session
    reports: list[DerivedArray] = field(default_factory=list)
    bytes_read: int = 0
    statistics: list[Collected] = field(default_factory=list)
    changed: bool = False
    _sessions: dict[Any, Session] = field(default_factory=dict)

    def execute(self, specs: Sequence[OutputSpec]) -> DeriveReport:
        paths = self._locate_outputs(specs)
        executors: list[Executor] = []
        context: AbstractContextManager[Executor] | None = None

        def executor() -> Executor:
            nonlocal context
            if not executors:
                context = self.job.start_executor()
                executors.append(context.__enter__())
            return executors[0]

        try:
            for spec in order_outputs(specs, paths):
                self._derive(spec, paths, executor)
            return self._commit()
        finally:
            if context is not None:
                context.__exit__(None, None, None)

    def _locate_outputs(self, specs: Sequence[OutputSpec]) -> dict[str, str]:
        """Return the path of each output. Outputs that other outputs read come first."""
        paths: dict[str, str] = {each.name: each.path for each in specs if each.path is not None}
        waiting = [each for each in specs if each.path is None]
        while waiting:
            names = {each.name for each in waiting}
            ready = [
                each for each in waiting if each.inputs[0].array.strip("/") not in names - {each.name}
            ] or waiting
            for spec in ready:
                first = spec.inputs[0]
                known = paths.get(first.array.strip("/"), first.array)
                array = find_array(self._session_of(first), known)
                stand_in = array or _make_placeholder(self.session, known)
                keep = first.repository is None and first.version is None
                paths[spec.name] = locate_output(spec, stand_in, same_repository=keep)
            waiting = [each for each in waiting if each not in ready]
        doubled = [name for name, path in paths.items() if list(paths.values()).count(path) > 1]
        if doubled:
            raise _make_error(f"the outputs {', '.join(doubled)} would be stored at the same path; set path")
        return paths

    def _derive(self, spec: OutputSpec, paths: Mapping[str, str], executor: Callable[[], Executor]) -> None:
        arrays = {each.name: self._resolve_input(each, spec, paths) for each in spec.inputs}
        path = paths[spec.name]
        if spec.function == "pyramid":
            given = next(iter(arrays.values()))
            resolved = replace(spec, path=path, inputs=(replace(spec.inputs[0], array=given.path),))
            self._derive_pyramid(resolved, path, given, executor)
            return
        total = DerivedArray(spec.name, path, 0, 0, 0)
        for output in resolve_output(spec, path, arrays, str(self.job.recipe.folder), self.session):
            if not output.inputs:
                partials = get_array(self.session, f"{records_group(path)}/partial", spec.name)
                output = read_partials(output, partials)
            total = self._bring_up_to_date(output, total, executor)
        self.reports.append(total)

    def _derive_pyramid(
        self, spec: OutputSpec, group: str, array: StoredArray, executor: Callable[[], Executor]
    ) -> None:
        if find_array(self.session, group) is not None:
            raise _make_error(f"output {spec.name}: an array already exists at {group}; choose another path")
        levels = make_levels(spec, group, array)
        for level in levels:
            self._derive(level, {level.name: str(level.path)}, executor)
        workspace = self.session._workspace
        for child in workspace.children(group):
            name = child.rpartition("/")[2]
            records = records_group(join(group, name))
            if name.isdigit() and int(name) >= len(levels) and workspace.has_nodes_below(records):
                workspace.delete_node(join(group, name))
                workspace.delete_node(records)
                self.changed = True
        arrays = [get_array(self.session, str(level.path), spec.name) for level in levels]
        self._set_attributes(group, describe_pyramid(spec, arrays))

    def _set_attributes(self, group: str, attributes: Mapping[str, Any]) -> None:
        """Set attributes of a group, leaving its other attributes unchanged."""
        node = self.session._workspace.node(group)
        document: dict[str, Any] = json.loads(node.user_data) if node is not None else {}
        known = document.get("attributes") or {}
        if {**known, **attributes} != known:
            set_document(self.session, group, {**document, "attributes": {**known, **attributes}})
            self.changed = True

    def _bring_up_to_date(
        self, output: Output, total: DerivedArray, executor: Callable[[], Executor]
    ) -> DerivedArray:
        existing = find_array(self.session, output.path)
        records = read_records(self.session, output.records, len(output.dims))
        is_derived = output.is_internal or records is not None
        check_location(output, existing, self.session, is_derived=is_derived)
        self._check_neighbours(output)
        check_inputs(output)
        check_memory(output, self.job.memory_bytes)
        current = existing.fingerprints() if existing is not None else None
        if existing is not None and _get_form(existing.document) != _get_form(output.document):
            current = None  # another writer replaced the array, or its chunk layout changed
        plan = make_plan(output, records, current, full=self.job.full)
        if self.job.strict and plan.reason and not output.is_internal:
            raise _make_error(
                f"output {output.spec.name}: all {len(plan.recomputed)} chunks would be computed again "
                f"because {plan.reason}"
            )
        changed = len(plan.recomputed) + len(plan.moved_to)
        check_changed_chunks([(changed, len(output.dims))], "choose larger chunks for the output")
        self._apply_metadata(output, existing)
        self._move_chunks(output, existing, plan)
        copied = len(plan.recomputed) if output.is_by_reference else 0
        if copied:
            self._put_references(output, output.inputs[0].array, plan.recomputed, plan.recomputed)
        elif len(plan.recomputed):
            self._compute(output, plan, executor)
        self._store_record(output, plan, records)
        if output.is_internal:
            return replace(total, partials=len(plan.recomputed))
        versions = software_versions()
        other = 0
        if records is not None:
            names = list(records.attributes.get("versions", []))
            here = tuple(slice(0, n) for n in np.minimum(records.grid, plan.kept.shape))
            codes = records.versions[here][plan.kept[here]]
            other = sum(int((codes == code).sum()) for code, each in enumerate(names) if each != versions)
        report = replace(
            total,
            recomputed=len(plan.recomputed) - copied,
            moved=len(plan.moved_to) + copied,
            kept=int(plan.kept.sum()),
            other_versions=other,
            reason=plan.reason,
        )
        LOGGER.info(
            "%s: %s computed, %s moved, %s kept", output.path, report.recomputed, report.moved, report.kept
        )
        return report

    def _check_neighbours(self, output: Output) -> None:
        """Raise InvalidInputError if the output's dimension sizes conflict with other arrays in its group, so
        that xarray could no longer open it."""
        group, done = get_parent(output.path) or ROOT, [each.path for each in self.reports]
        paths = [join(group, name) for name in self.session._workspace.children(group)]
        arrays = [find_array(self.session, path) for path in paths if path != output.path]
        sizes: dict[str, set[int]] = {}
        for array in arrays:
            # Arrays written by earlier runs may still have the size of an earlier input version.
            if array is not None and (array.path in done or array.path not in self._derived_paths):
                for dim, size in zip(array.dims, array.shape, strict=True):
                    sizes.setdefault(dim, set()).add(size)
        if any(len(each) > 1 for each in sizes.values()):
            return  # xarray already cannot open the group
        for own in output.dims:
            for size in sizes.get(own.name, {own.size}) - {own.size}:
                raise _make_error(
                    f"output {output.spec.name}: {output.path} would have {own.size} cells along {own.name}, "
                    f"where other arrays in {group} have {size}, so xarray could not open the group; choose "
                    "another path"
                )

    @cached_property
    def _derived_paths(self) -> set[str]:
        """The paths of all arrays that earlier runs have written, including coordinates."""
        derived = list_derived(self.session)
        described = [find_attributes(self.session, path) or {} for path in derived]
        return {*derived, *(path for each in described for path in each.get("coordinates", []))}

    # Inputs

    def _resolve_input(self, given: InputSpec, spec: OutputSpec, paths: Mapping[str, str]) -> StoredArray:
        session = self._session_of(given)
        path = given.array
        if session is self.session and path.strip("/") in paths and path.strip("/") != spec.name:
            path = paths[path.strip("/")]
        return get_array(session, path, f"output {spec.name}, input {given.name}")

    def _session_of(self, given: InputSpec) -> Session:
        if given.repository is None and given.version is None:
            return self.session
        key = (given.repository, given.version)
        if key not in self._sessions:
            repo = self.job.repo
            if given.repository is not None:
                repo = self.job.open_repository(given.repository, given.storage_options)
            kind, name = given.version or ("branch", "main" if given.repository else self.branch)
            chosen: dict[str, Any] = {kind: name}
            self._sessions[key] = repo.readonly_session(**chosen)
        return self._sessions[key]

    # Changes

    def _apply_metadata(self, output: Output, existing: StoredArray | None) -> None:
        workspace = self.session._workspace
        if existing is not None and _get_form(existing.document) != _get_form(output.document):
            workspace.delete_node(output.path)
            existing = None
        if existing is None or dict(existing.document) != dict(output.document):
            set_document(self.session, output.path, output.document)
            self.changed = True
        for path, coordinate in output.coordinates.items():
            self._write_coordinate(output, path, coordinate)

    def _write_coordinate(self, output: Output, path: str, coordinate: Coordinate) -> None:
        values = np.asarray(coordinate.values)
        existing = find_array(self.session, path)
        if existing is not None:
            same = existing.dims == coordinate.dims and _equal(existing.values, values)
            if same and dict(existing.attributes) == dict(coordinate.attributes):
                return
            if not self._is_owned(path):
                raise _make_error(
                    f"output {output.spec.name}: {path} already exists with other values and was not"
                    " derived; choose another path"
                )
            self.session._workspace.delete_node(path)
        self.changed = True
        text = values.dtype.kind in "OUT"
        document = array_document(
            values.shape,
            tuple(max(1, each) for each in values.shape),
            str if text else values.dtype,
            coordinate.dims,
            coordinate.attributes,
            np.nan if values.dtype.kind == "f" else None,
            "none" if self.job.dry_run else None,
        )
        set_document(self.session, path, document)
        if self.job.dry_run and not text:  # in memory, because a dry run stores nothing
            inline = Blobs.from_list([np.ascontiguousarray(values).tobytes()])
            origin = np.zeros((1, values.ndim), np.uint32)
            if values.size:
                node = self.session._workspace.array(path)
                self.session._workspace.put_refs(node, ArrayManifest.of_sorted(origin, INLINE, inline=inline))
            return
        with ignore_warnings():
            array: Any = zarr.open_array(self.session.store, path=path, mode="r+")
            array[...] = values.astype(object) if text else values

    def _is_owned(self, path: str) -> bool:
        """Return True if an earlier run wrote the coordinate array at a path."""
        derived = (find_attributes(self.session, each) for each in list_derived(self.session))
        return any(path in (about or {}).get("coordinates", []) for about in derived)

    def _move_chunks(self, output: Output, existing: StoredArray | None, plan: OutputPlan) -> None:
        """Copy the references of moved chunks from their old chunk coordinates."""
        node = self.session._workspace.array(output.path)
        if existing is None or existing.node.id != node.id or not len(plan.moved_to):
            return
        self._put_references(output, existing, plan.moved_from, plan.moved_to)

    def _put_references(
        self, output: Output, array: StoredArray, source: NDArray[np.int64], target: NDArray[np.int64]
    ) -> None:
        """Copy chunk references from an array to an output."""
        self.changed = True
        refs, order = array.refs, _sort_rows(target)
        row_of = np.full(array.grid, -1, np.int64)
        if len(refs):
            row_of[tuple(refs.coords.T.astype(np.intp))] = np.arange(len(refs))
        rows = row_of[tuple(source[order].T)]
        coords, there = target[order].astype(np.uint32), rows >= 0
        taken = replace(refs.take(rows[there]), coords=coords[there])
        node = self.session._workspace.array(output.path)
        self.session._workspace.replace_chunks(node, taken, coords[~there])

    def _compute(self, output: Output, plan: OutputPlan, executor: Callable[[], Executor]) -> None:
        self.changed = True
        if self.job.dry_run:
            self._set_placeholders(output, plan)
            return
        running = executor()
        count = len(plan.recomputed)
        audited = sorted(set(np.linspace(0, count - 1, min(_AUDITED, count)).astype(int).tolist()))
        tasks = list(
            make_tasks(
                output,
                self.session.fork(),
                plan.recomputed,
                running.parallelism * _TASKS_PER_CORE,
                audited=audited,
                own=self.session,
                cache_bytes=self.job.memory_bytes // 4,
            )
        )
        done: list[Computed] = list(running.map(Task(compute_chunks, f"tasks of {output.spec.name}"), tasks))
        for each in done:
            if each.problem is not None:
                raise _make_error(f"output {output.spec.name}: the audit failed: {each.problem}")
        self.session._merge_receipts([each.receipt for each in done])
        self.statistics += [found for each in done for found in each.statistics]
        self.bytes_read += sum(each.bytes_read for each in done)

    def _set_placeholders(self, output: Output, plan: OutputPlan) -> None:
        """Set placeholder references for the chunks that are not computed in a dry run, because plans of
        other outputs depend on these references.
        """
        order = _sort_rows(plan.recomputed)
        rows = plan.recomputed[order]
        refs = ArrayManifest.of(rows.astype(np.uint32), NATIVE)
        digests = np.ascontiguousarray(plan.digests[tuple(rows.T)]).view(np.uint8).reshape(-1, 16)
        node = self.session._workspace.array(output.path)
        self.session._workspace.put_refs(node, replace(refs, chunk_ids=digests[:, :12].copy()))

    def _store_record(self, output: Output, plan: OutputPlan, before: DerivedRecords | None) -> None:
        """Store the records of an output if they changed."""
        if self.job.dry_run and self.changed:
            return
        array = get_array(self.session, output.path, output.spec.name)
        attributes = self._describe(output, array, before)
        names = attributes["versions"]
        code = names.index(software_versions())
        versions = np.full(output.grid, code, np.uint8)
        if before is not None:
            old = tuple(slice(0, n) for n in np.minimum(before.grid, output.grid))
            versions[old] = np.where(plan.kept[old], before.versions[old], versions[old])
            source = tuple(plan.moved_from.T)
            versions[tuple(plan.moved_to.T)] = before.versions[source]
        complete = before is not None and before.grid == output.grid
        untouched = complete and plan.kept.all() and dict(before.attributes) == attributes  # type: ignore[union-attr]
        if untouched:
            return
        if not self.changed and complete and plan.kept.all() and _is_same_recipe(before, attributes):
            return
        self.changed = True
        if not self.job.dry_run:
            found = DerivedRecords(plan.digests, array.fingerprints(), versions, attributes)
            write_records(self.session, output.records, found)

    def _describe(self, output: Output, array: StoredArray, before: DerivedRecords | None) -> dict[str, Any]:
        now = software_versions()
        names = list(before.attributes.get("versions", [])) if before is not None else []
        names = names if now in names else [*names, now]
        spec = output.spec
        described = {
            "name": (spec.pyramid or spec).name,
            "path": output.path,
            "function": spec.function,
            "recipe": describe_output(spec.pyramid or self._resolve_recipe(output)),
            "level": None if spec.pyramid is None else int(spec.name.rpartition("/")[2]),
            "inputs": [
                {
                    "name": given.name,
                    "array": given.array.path,
                    "repository": each.repository,
                    "snapshot": given.array.session.snapshot_id,
                    "pinned": each.version is not None,
                    "digest": digest_input(given.array),
                }
                for given, each in zip(output.sources or output.inputs, spec.inputs, strict=False)
            ],
            "own": digest_input(array),
            "coordinates": sorted(output.coordinates),
            "meaning": describe_meaning(output),
            "versions": names,
        }
        found: dict[str, Any] = json.loads(json.dumps(described, default=str))
        return found

    def _resolve_recipe(self, output: Output) -> OutputSpec:
        """Return the recipe of an output, with the absolute paths of all arrays."""
        paths = {each.name: each.array.path for each in output.sources or output.inputs}
        inputs = tuple(replace(each, array=paths.get(each.name, each.array)) for each in output.spec.inputs)
        return replace(output.spec, path=output.path, inputs=inputs)

    def _commit(self) -> DeriveReport:
        outputs = tuple(self.reports)
        snapshots = (self.session.snapshot_id, *(each.snapshot_id for each in self._sessions.values()))
        report = DeriveReport(
            outputs,
            not self.changed,
            sum(each.recomputed for each in outputs),
            sum(each.moved for each in outputs),
            sum(each.kept for each in outputs),
            self.bytes_read,
            snapshots,
            dry_run=self.job.dry_run,
        )
        if self.job.dry_run or not self.changed or not self.session.has_uncommitted_changes:
            return report
        about = {
            "outputs": [
                {"path": e.path, "recomputed": e.recomputed, "moved": e.moved, "kept": e.kept}
                for e in outputs
            ],
            "inputs": list(snapshots),
            "versions": software_versions(),
        }
        names = ", ".join(dict.fromkeys(each.name.rpartition("/")[0] or each.name for each in outputs))
        commit = self.session.commit(
            f"Derive {names}", {METADATA: about}, rebase_with=ConflictDetector(), rebase_tries=1
        )
        record_statistics(self.session, self.statistics)
        LOGGER.info(
            "commit %s: %s computed from %s",
            commit,
            counted(report.recomputed, "chunk"),
            format_bytes(self.bytes_read),
        )
        return replace(report, commit=commit)


def _sort_rows(coords: NDArray[np.int64]) -> NDArray[np.intp]:
    return np.lexsort(coords.T[::-1]) if coords.shape[1] else np.arange(len(coords))


def _is_same_recipe(before: DerivedRecords | None, attributes: Mapping[str, Any]) -> bool:
    """Return True if the recipe and the input digests match the stored ones, so that no commit is needed."""
    if before is None or any(
        before.attributes.get(key) != attributes[key] for key in ("recipe", "coordinates")
    ):
        return False
    digests = [[each.get("digest") for each in known["inputs"]] for known in (before.attributes, attributes)]
    return digests[0] == digests[1]


def _get_form(document: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the metadata that determines the chunk layout. Only arrays with the same layout can share
    chunks."""
    keys = ("data_type", "codecs", "fill_value", "chunk_grid", "chunk_key_encoding")
    return (len(document["shape"]), *(json.dumps(document.get(key), sort_keys=True) for key in keys))


def _equal(one: NDArray[Any], other: NDArray[Any]) -> bool:
    if one.shape != other.shape or (one.dtype != other.dtype and one.dtype.kind not in "OUT"):
        return False
    if one.dtype.kind in "OUT":
        return bool((one.astype(object) == other.astype(object)).all())
    return one.tobytes() == other.tobytes()


def _make_placeholder(session: Session, path: str) -> StoredArray:
    """Create a placeholder for an input array that another output of the recipe will create."""
    from icefloe._internal.ids import NodeId
    from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot

    group = get_parent(path) or ROOT
    node = NodeSnapshot(NodeId.random(), join(group, path.rpartition("/")[2]), b"", ArrayNodeData(()))
    return StoredArray(session, node, {"shape": [], "dimension_names": []})


def _make_error(text: str) -> InvalidInputError:
    return InvalidInputError(text, ErrorKind.INVALID_COMMIT_CONFIGURATION)
