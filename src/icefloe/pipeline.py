"""Run pipelines on Spark or another executor: ingest files, and keep derived arrays up to date."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

from icefloe._internal.executor import Executor, Progress
from icefloe.default_executor import start_default_executor
from icefloe.derive.job import Job, OpenRepository
from icefloe.derive.lineage import stored_recipe
from icefloe.derive.recipe import load_recipe
from icefloe.derive.report import DeriveReport
from icefloe.ingest.options import DEFAULT_CHECKS, DEFAULT_MEMORY_BYTES, Check, parse_arguments
from icefloe.repository import Repository
from icefloe.storage import storage_from_url

if TYPE_CHECKING:
    from icefloe.credentials import AnyCredential
    from icefloe.ingest.report import IngestReport

__all__ = ["derive_arrays", "ingest_files"]


def ingest_files(
    sources: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    repo: Repository | str | os.PathLike[str],
    *,
    executor: Executor | AbstractContextManager[Executor] | None = None,
    concat_dim: str | None = None,
    chunks: Mapping[str, int] | None = None,
    shards: Mapping[str, int] | None = None,
    codec: str = "zstd",
    mode: Literal["native", "virtual", "hybrid"] = "native",
    group: str = "",
    branch: str = "main",
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    variables: str | Sequence[str] = (),
    engine: str | None = None,
    source_group: str | None = None,
    open_options: Mapping[str, Any] | None = None,
    compat: str | None = None,
    data_vars: str | None = None,
    coords: str | None = None,
    join: str | None = None,
    commit_every: int | None = None,
    on_bad_file: Literal["stop", "skip"] = "stop",
    on_change: Literal["report", "ingest"] = "report",
    append_order: Literal["commit", "sorted", "strict"] | None = None,
    checks: Sequence[str | Check] = DEFAULT_CHECKS,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    manifest_references: int = 500_000,
    dry_run: bool = False,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
    source_options: Mapping[str, Any] | None = None,
) -> IngestReport:
    """Ingest files into a repository in parallel, each file exactly once.

    Data is written to a staging branch. The target branch moves only after everything has been written and
    checked, and not at all if anything fails. Each step is logged at INFO under the name `icefloe.ingest`.

    Parameters
    ----------
    sources
        Paths, glob patterns, folders, URLs, or text files that list them.
    repo
        A repository, or the path or URL of one, which is created if it does not exist.
    executor
        The executor that runs the tasks; a context manager that yields an executor is entered only if there
        is work to do. By default the active Spark session, otherwise Spark in local mode, otherwise (if
        pyspark or Java is not available) processes on this machine.
    concat_dim
        The dimension along which to concatenate files. By default it is inferred from their coordinates.
    chunks
        The chunk size in cells by dimension; -1 for the whole dimension. By default as in the files, with
        very small chunks enlarged.
    shards
        The shard size in cells by dimension. By default there are no shards.
    codec
        `zstd`, `zstd:9`, `blosc:lz4:5`, `gzip:6` or `none`.
    mode
        `native` copies data, `virtual` refers to chunks of the files, and `hybrid` refers to chunks where
        possible and copies the rest.
    group
        The path of the group that receives the arrays. By default the root.
    branch
        The branch to publish to.
    message
        The message of the commits.
    metadata
        Metadata of the commits.
    variables
        The data variables to ingest. By default all.
    engine
        The xarray engine that opens the files. By default xarray chooses.
    source_group
        The group of the files to read.
    open_options
        Keyword arguments passed to `xarray.open_dataset`.
    compat, data_vars, coords, join
        As in `xarray.open_mfdataset`.
    commit_every
        The number of files per commit. By default there is one commit for all files, or several if one would
        change more than 40 million chunks.
    on_bad_file
        "stop" to make the ingest fail if a file is unreadable, or "skip" to skip and report the file.
    on_change
        "report" to only report files that changed since they were ingested, or "ingest" to ingest them again.
    append_order
        If other writers extended the same arrays during the ingest, append its rows to theirs by moving
        references: by label ("sorted"), after their rows ("commit"), or only if all labels follow theirs
        ("strict"). By default, and for rows that cannot be appended, the files are ingested again.
    checks
        Conditions for publishing: names, or `Check` objects.
    memory_bytes
        The memory limit of a task in bytes, in addition to the interpreter and its modules.
    manifest_references
        The number of references above which a virtual array is split into several manifests.
    dry_run
        Report what would be done without writing anything.
    progress
        A callback that receives a label, the number of items done and the total number.
    storage_options
        Keyword arguments for `storage_from_url` to open the repository, if `repo` is a path or URL.
    source_options
        Keyword arguments for `storage_from_url` to open remote sources.

    Returns
    -------
    IngestReport
        The files that were ingested, already known, changed or skipped, and the results of the checks.

    Raises
    ------
    InvalidInputError
        If an option is invalid, or files cannot be read or combined.
    ConflictError
        If other writers kept changing the same arrays.
    """
    options = parse_arguments(locals())
    # These are not needed for derived arrays, and a run with nothing to do should start quickly.
    from icefloe.ingest.discover.sources import discover
    from icefloe.ingest.job import ingest
    from icefloe.ingest.publish.audit import refuse_unrunnable
    from icefloe.ingest.target_repository import open_target

    if isinstance(executor, Executor):
        refuse_unrunnable(options.checks, on_spark=executor.has_sql)
        executor = executor if progress is None else executor.with_progress(progress)
    found = discover(sources, options.reading.storage_options, skip=options.on_bad_file == "skip")
    with open_target(repo, storage_options, dry_run=dry_run) as target:
        return ingest(target, found, options, executor or start_default_executor(progress), dry_run=dry_run)


def derive_arrays(
    recipe: str | os.PathLike[str] | Mapping[str, Any] | Repository,
    *,
    executor: Executor | None = None,
    full: bool = False,
    strict: bool = False,
    dry_run: bool = False,
    allow_module: str | Sequence[str] = (),
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    progress: Progress | None = None,
    authorize_virtual_chunk_access: Mapping[str, AnyCredential | None] | None = None,
) -> DeriveReport:
    """Update derived arrays: recompute the chunks whose inputs changed, and keep all others.

    Everything is computed and audited before one commit makes it visible. If nothing changed, no executor
    starts and nothing is committed.

    Parameters
    ----------
    recipe
        The path of a YAML file, or a mapping of the same form. Relative paths are relative to the folder of
        the file, or to the current folder. If it is a repository, or the path or URL of one, all derived
        arrays on its branch `main` are updated.
    executor
        The executor that runs the tasks. By default the active Spark session, otherwise Spark in local mode,
        otherwise (if pyspark or Java is not available) processes on this machine.
    full
        Compute all chunks, even if their inputs did not change.
    strict
        Raise an error instead of recomputing all chunks of an existing output.
    dry_run
        Report what would be done without writing anything.
    allow_module
        Modules whose functions may run even if only the repository names them. Functions named by a recipe
        file or mapping may always run.
    memory_bytes
        The memory limit of a task in bytes, in addition to the interpreter and its modules.
    progress
        A callback that receives a label, the number of items done and the total number.
    authorize_virtual_chunk_access
        The containers whose virtual chunks may be read, with credentials, as in `Repository.open`. A
        repository that is passed as an object uses the authorization that it was opened with.

    Returns
    -------
    DeriveReport
        The numbers of chunks that were recomputed, moved and kept.

    Raises
    ------
    InvalidInputError
        If the recipe is invalid, a function fails, or the audit finds a difference.
    NodeNotFoundError
        If an input does not exist.
    ConflictError
        If other writers kept changing the same arrays.

    Examples
    --------
    >>> import icefloe
    >>> report = icefloe.derive_arrays("recipe.yaml")  # doctest: +SKIP
    >>> report.recomputed, report.kept  # doctest: +SKIP
    (4, 292)
    """

    def open_repository(location: str, options: Mapping[str, Any]) -> Repository:
        storage = storage_from_url(location, **options)
        return Repository.open(storage, authorize_virtual_chunk_access=authorize_virtual_chunk_access)

    return run_recipe(
        recipe,
        open_repository,
        executor=executor,
        full=full,
        strict=strict,
        dry_run=dry_run,
        allow_module=allow_module,
        memory_bytes=memory_bytes,
        progress=progress,
    )


def run_recipe(
    recipe: str | os.PathLike[str] | Mapping[str, Any] | Repository,
    open_repository: OpenRepository,
    *,
    executor: Executor | None = None,
    full: bool = False,
    strict: bool = False,
    dry_run: bool = False,
    allow_module: str | Sequence[str] = (),
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    progress: Progress | None = None,
) -> DeriveReport:
    """Run the pipeline of `derive_arrays` for a recipe. `open_repository` opens its repositories."""
    if executor is not None and progress is not None:
        executor = executor.with_progress(progress)
    if not isinstance(recipe, Mapping | Repository):
        recipe = os.fspath(recipe)
        if "://" in recipe or os.path.isdir(recipe):
            recipe = open_repository(recipe, {})
    if isinstance(recipe, Repository):
        allowed = (allow_module,) if isinstance(allow_module, str) else allow_module
        loaded, repo = stored_recipe(recipe, allowed), recipe
    else:
        loaded = load_recipe(recipe)
        repo = open_repository(loaded.repository, loaded.storage_options)
    job = Job(
        loaded,
        repo,
        open_repository,
        lambda: start_default_executor(progress) if executor is None else nullcontext(executor),
        memory_bytes,
        full,
        strict,
        dry_run,
    )
    return job.run()
