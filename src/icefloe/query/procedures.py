"""Maintenance procedures that SQL queries call as table functions, such as `icefloe_expire`.

The first parameter of a procedure is the repository. The types of the other parameters determine how
arguments are parsed: a `datetime` is a time or an age, and a `Version` is resolved to a snapshot id.
Arguments are parsed once, before the procedure runs. Procedures are idempotent: running the same call twice
has the same effect as running it once.
"""

from __future__ import annotations

import inspect
import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, Literal, NewType, TypeAlias, get_args, get_origin, get_type_hints

import pyarrow as pa

from icefloe.errors import ConflictError, ErrorKind, InvalidInputError, RefNotFoundError
from icefloe.history.versions import parse_duration, parse_time, resolve_version
from icefloe.maintenance.integrity.findings import VerifyLevel
from icefloe.maintenance.rewrite_manifests import rewrite_manifests
from icefloe.query.schema import make_unknown_name_error
from icefloe.query.write.idempotency import CommitRequest
from icefloe.repository import Repository

MAX_SNAPSHOTS: Final = 20_000
MAX_REFERENCES: Final = 2_000_000
"""The maximum number of chunk references in a repository that a procedure handles in a single worker."""
MAX_CHUNKS: Final = 100_000
"""The maximum number of chunks that a procedure reads or checks individually."""

Version = NewType("Version", str)
"""A version, such as a branch, a tag or a snapshot id. It is resolved to a snapshot id before a procedure
runs."""
Row: TypeAlias = tuple[Any, ...]
Run: TypeAlias = Callable[..., Iterator[Row]]


@dataclass(frozen=True, slots=True)
class ProcedureCall:
    """A procedure call with parsed arguments: ages and versions are resolved to absolute times and snapshot
    ids. It contains no secrets.
    """

    repo: str
    """The name of the repository."""
    arguments: Mapping[str, Any]
    key: str
    """A unique key for the call. A retried task uses it to detect that the call has already run."""
    tip: str | None
    """The tip of the target branch at the time the call was analyzed."""


@dataclass(frozen=True, slots=True)
class Procedure:
    """A SQL procedure: its function, its parameters, and the columns of its result."""

    name: str
    run: Run
    schema: pa.Schema
    method: str | None
    """The corresponding `Repository` method, which can run on Spark if the repository is too large for one
    worker.
    """

    def prepare(
        self,
        repos: Mapping[str, Repository],
        positional: Sequence[Any],
        named: Mapping[str, Any],
        now: datetime | None = None,
    ) -> ProcedureCall:
        """Validate the arguments of a procedure call, and resolve times and versions.

        This reads refs but makes no changes.
        """
        given = dict(zip(self._list_parameters(positional), positional, strict=False))
        for name, value in named.items():
            if name in given:
                raise self._make_error(f"the argument {name} is given twice")
            given[name] = value
        repo_name = given.pop("repo", None)
        if repo_name is None:
            raise self._make_error(
                f"the first argument must be the name of a repository, one of: {', '.join(repos)}"
            )
        repo = _get_repository(repos, repo_name)
        arguments = self._convert(repo, given, now or datetime.now(UTC))
        branch = arguments.get("into", arguments.get("branch"))
        tip = repo.lookup_branch(branch) if branch in repo.list_branches() else None
        return ProcedureCall(repo_name, MappingProxyType(arguments), uuid.uuid4().hex, tip)

    def execute(self, repos: Mapping[str, Repository], call: ProcedureCall) -> Iterator[Row]:
        """Run a call returned by `prepare`, and yield the result rows."""
        repo = _get_repository(repos, call.repo)
        arguments = dict(call.arguments)
        self._check_size(repo, reads_chunks=arguments.get("level") in ("objects", "sources", "chunks"))
        known = inspect.signature(self.run).parameters
        extra = {"key": call.key, "tip": call.tip}
        arguments |= {name: value for name, value in extra.items() if name in known}
        yield from self.run(repo, **arguments)

    def _list_parameters(self, positional: Sequence[Any]) -> list[str]:
        names = [name for name in inspect.signature(self.run).parameters if name not in _HIDDEN]
        if len(positional) > len(names):
            raise self._make_error(f"it takes at most {len(names)} arguments: {', '.join(names)}")
        return names

    def _convert(self, repo: Repository, given: Mapping[str, Any], now: datetime) -> dict[str, Any]:
        hints = get_type_hints(self.run)
        found: dict[str, Any] = {}
        parameters = inspect.signature(self.run).parameters
        names = [name for name in parameters if name not in (*_HIDDEN, "repo")]
        for name in given:
            if name not in names:
                raise make_unknown_name_error("argument", name, names, f"of icefloe_{self.name}")
        for name in names:
            value = given.get(name)
            if value is not None:
                found[name] = _convert_argument(repo, self, name, value, hints[name], now)
            elif (default := parameters[name].default) is not inspect.Parameter.empty:
                found[name] = (
                    resolve_version(repo, default) if default and _is_version(hints[name]) else default
                )
            else:
                raise self._make_error(f"the argument {name} is missing")
        return found

    def _make_error(self, text: str) -> InvalidInputError:
        return InvalidInputError(f"icefloe_{self.name}: {text}", kind=ErrorKind.NOT_ALLOWED)

    def _check_size(self, repo: Repository, *, reads_chunks: bool) -> None:
        """Raise an error if a repository is too large to be processed by a single worker."""
        if self.method is None:
            return
        most = MAX_CHUNKS if reads_chunks or self.name == "statistics" else MAX_REFERENCES
        snapshots = len(repo._history(self.name).snapshots)
        references = 0 if snapshots > MAX_SNAPSHOTS else _count_references(repo)
        if snapshots > MAX_SNAPSHOTS or references > most:
            raise self._make_error(
                f"the repository has {snapshots} snapshots and {references} chunk references, and one worker"
                f" handles at most {MAX_SNAPSHOTS} and {most}; run"
                f" icefloe.spark.maintenance.on_spark(spark, repo).{self.method}(...), which uses all"
                " executors"
            )


_HIDDEN: Final = ("key", "tip")
PROCEDURES: Final[dict[str, Procedure]] = {}
"""All procedures, keyed by name without the `icefloe_` prefix."""


def _procedure(name: str, method: str | None = None, /, **columns: pa.DataType) -> Callable[[Run], Run]:
    """Return a decorator that registers a generator of result rows as a procedure."""

    def register(run: Run) -> Run:
        PROCEDURES[name] = Procedure(name, run, pa.schema(list(columns.items())), method)
        return run

    return register


def _get_repository(repos: Mapping[str, Repository], name: str) -> Repository:
    if name not in repos:
        raise make_unknown_name_error(
            "registered repository", name, list(repos), kind=ErrorKind.REPOSITORY_NOT_FOUND
        )
    return repos[name]


def _is_version(hint: Any) -> bool:
    return hint in (Version, Version | None)


def _convert_argument(
    repo: Repository, procedure: Procedure, name: str, value: Any, hint: Any, now: datetime
) -> Any:
    if _is_version(hint) and isinstance(value, str):
        return resolve_version(repo, value)
    if hint is datetime:
        moment = _convert_time(value, now)
        if moment is not None and moment <= now:
            return moment
        raise procedure._make_error(
            f"{name} must be a time in the past such as '2024-05-01', or an age such as '30d', not {value}"
        )
    choices = get_args(hint) if get_origin(hint) is Literal else ()
    expected = {bool: "true or false", int: "a positive number"}.get(hint, ", ".join(choices) or "text")
    fits = {
        bool: isinstance(value, bool),
        int: isinstance(value, int) and not isinstance(value, bool) and value > 0,
    }.get(hint, value in choices if choices else isinstance(value, str))
    if fits:
        return value
    raise procedure._make_error(f"{name} must be {expected}, not {value!r}")


def _convert_time(value: Any, now: datetime) -> datetime | None:
    if isinstance(value, str):
        age = parse_duration(value)
        return parse_time(value) if age is None else now - age
    if isinstance(value, timedelta):
        return now - value
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    return None


def _count_references(repo: Repository) -> int:
    """Count the chunk references at the tips of all branches and tags."""
    tips = {repo.lookup_branch(each) for each in repo.list_branches()}
    tips |= {repo.lookup_tag(each) for each in repo.list_tags()}
    files = {each.id: each.num_chunk_refs for tip in sorted(tips) for each in repo.list_manifest_files(tip)}
    return sum(files.values())


_TEXT: Final = pa.string()
_NUMBER: Final = pa.int64()
_INSTANT: Final = pa.timestamp("us", tz="UTC")


@_procedure(
    "expire", "expire_snapshots", snapshot_id=_TEXT, written_at=_INSTANT, message=_TEXT, dry_run=pa.bool_()
)
def _expire(
    repo: Repository,
    older_than: datetime,
    dry_run: bool = False,
    delete_expired_branches: bool = False,
    delete_expired_tags: bool = False,
) -> Iterator[Row]:
    """Expire old snapshots from the history, and yield their ids."""
    report = repo.retain(
        older_than,
        delete_expired_branches=delete_expired_branches,
        delete_expired_tags=delete_expired_tags,
        dry_run=dry_run,
    )
    table = report.table.to_arrow()
    for row in table.filter(pa.compute.invert(table["kept"])).to_pylist():
        yield str(row["snapshot"]), row["written_at"], row["message"], dry_run


_GC: Final = ("bytes", "chunks", "manifests", "snapshots", "transaction_logs", "statistics")


@_procedure(
    "gc",
    "garbage_collect",
    **{f"{each}_deleted": _NUMBER for each in _GC},
    objects_failed_to_delete=_NUMBER,
    dry_run=pa.bool_(),
)
def _gc(repo: Repository, older_than: datetime, dry_run: bool = False) -> Iterator[Row]:
    """Delete unreferenced objects that were written before the given time, and report what was deleted."""
    found = repo.garbage_collect(older_than, dry_run=dry_run)
    counts = [getattr(found, f"{each}_deleted") for each in _GC]
    yield *counts, found.objects_failed_to_delete, dry_run


@_procedure("verify", "verify", kind=_TEXT, object=_TEXT, referrer=_TEXT, message=_TEXT)
def _verify(
    repo: Repository, level: VerifyLevel = "graph", version: Version | None = None, history: bool = True
) -> Iterator[Row]:
    """Check the integrity of a repository, and yield one row per problem found."""
    for found in repo.verify(level, snapshot_id=version, history=history).findings:
        yield found.kind, found.object, found.where, found.message


@_procedure("rewrite_manifests", "rewrite_manifests", snapshot_id=_TEXT)
def _rewrite_manifests(
    repo: Repository, key: str, branch: str = "main", message: str = "rewrite manifests"
) -> Iterator[Row]:
    """Rewrite all manifests of a branch in one commit."""
    request = CommitRequest(branch, message, app="icefloe_rewrite_manifests", version=key)
    session = repo.writable_session(
        branch
    )  # open the session before the search, so that a commit by a retried task conflicts
    yield (
        request.find_commit(repo)
        or rewrite_manifests(session, repo._handle, repo.executor, message, request.properties, "new_commit"),
    )


@_procedure(
    "merge",
    "merge",
    outcome=_TEXT,
    snapshot_id=_TEXT,
    base_id=_TEXT,
    ours_id=_TEXT,
    theirs_id=_TEXT,
    conflicts=_NUMBER,
)
def _merge(
    repo: Repository,
    source: Version,
    into: str = "main",
    message: str = "merge",
    strategy: Literal["fail", "ours", "theirs"] = "fail",
    dry_run: bool = False,
) -> Iterator[Row]:
    """Merge a version into a branch. Do nothing if it is already merged."""
    made = repo.merge(source, into, message=message, strategy=strategy, dry_run=dry_run)
    yield made.outcome, made.snapshot_id, made.base_id, made.ours_id, made.theirs_id, len(made.conflicts)


_REF: Final = {"name": _TEXT, "snapshot_id": _TEXT}


@_procedure("tag", **_REF)
def _tag(repo: Repository, name: str, version: Version = Version("main")) -> Iterator[Row]:
    """Create a tag, unless it already points to the given snapshot."""
    if name not in repo.list_tags() or repo.lookup_tag(name) != version:
        repo.create_tag(name, version)
    yield name, version


@_procedure("branch", **_REF)
def _branch(repo: Repository, name: str, version: Version = Version("main")) -> Iterator[Row]:
    """Create a branch, unless it already points to the given snapshot."""
    if name not in repo.list_branches() or repo.lookup_branch(name) != version:
        repo.create_branch(name, version)
    yield name, version


@_procedure("rollback", branch=_TEXT, previous_snapshot_id=_TEXT, snapshot_id=_TEXT)
def _rollback(repo: Repository, version: Version, tip: str | None, branch: str = "main") -> Iterator[Row]:
    """Reset a branch to an earlier snapshot, unless there were new commits after the call was analyzed."""
    if tip is None:
        raise RefNotFoundError(f"there is no branch {branch}", kind=ErrorKind.BRANCH_NOT_FOUND)
    if version not in (each.id for each in repo.ancestry(snapshot_id=tip)):
        raise InvalidInputError(
            f"snapshot {version} is not in the history of {branch}; Repository.reset_branch moves a branch to"
            " any snapshot",
            kind=ErrorKind.NOT_ALLOWED,
        )
    try:
        repo.reset_branch(branch, version, from_snapshot_id=tip)
    except ConflictError:
        if (
            repo.lookup_branch(branch) != version
        ):  # otherwise an earlier attempt of this call already reset the branch
            raise
    yield branch, tip, version


@_procedure(
    "statistics",
    "collect_statistics",
    chunks=_NUMBER,
    known=_NUMBER,
    unchecked=_NUMBER,
    files=_NUMBER,
    arrays=pa.list_(_TEXT),
)
def _check_statistics(
    repo: Repository, version: Version | None = None, array: str | None = None
) -> Iterator[Row]:
    """Compute and store the statistics of all chunks that do not have statistics yet."""
    made = repo.collect_statistics(snapshot_id=version, arrays=None if array is None else [array])
    yield made.chunks, made.known, made.unchecked, made.files, list(made.arrays)


@_procedure("history", snapshot_id=_TEXT, parent_id=_TEXT, written_at=_INSTANT, message=_TEXT, metadata=_TEXT)
def _history(repo: Repository, version: Version = Version("main"), limit: int = 1000) -> Iterator[Row]:
    """List the commits of a version, newest first."""
    to_json = partial(json.dumps, ensure_ascii=False, default=str)
    for info in islice(repo.ancestry(snapshot_id=version), limit):
        yield info.id, info.parent_id, info.written_at, info.message, to_json(info.metadata)
