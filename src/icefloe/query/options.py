"""Parse the options of the Spark data source, ignoring case and underscores, and open the repository."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final, TypeAlias, TypeVar

from icefloe.credentials import AnyCredential, make_credential_from_env
from icefloe.errors import ErrorKind, InvalidInputError, RefNotFoundError
from icefloe.history import versions
from icefloe.query.scan.plan import BATCH_ROWS, PARTITION_BYTES, TableScan, scan_table
from icefloe.query.schema import find_tables, make_unknown_name_error
from icefloe.repository import Repository
from icefloe.session import Session
from icefloe.storage import factories
from icefloe.storage.external.trusted_endpoints import is_same_endpoint
from icefloe.storage.memory import MemoryStorage
from icefloe.storage.urls import SECRETS, storage_from_url

_STREAM_NAMES: Final = (
    *("grain", "startingVersion", "maxCommitsPerTrigger", "maxBytesPerTrigger", "bookmark", "onLostBase"),
)
_NAMES: Final = (
    *("path", "group", "variables", "branch", "tag", "snapshot", "versionAsOf", "timestampAsOf"),
    *("sel", "isel", "table", "fromVersion", "maxPartitionBytes", "batchRows", "statistics"),
    *("commitMessage", "userMetadata", "txnAppId", "txnVersion", "solver", "dims", "chunks", "dtype"),
    *("fillValue", "appendDim", "late", "maxFragmentBytes", "virtualChunks", "credentialsProvider"),
    *("create", "diskCache"),
    *_STREAM_NAMES,
)
_ALIASES: Final = {
    "snapshotid": "snapshot",
    "url": "path",
    "uri": "path",
    "columns": "variables",
    "asoftimestamp": "timestampAsOf",
    "startsnapshotid": "fromVersion",
    "fromref": "fromVersion",
    "endsnapshotid": "snapshot",
    "toversion": "versionAsOf",
    "toref": "versionAsOf",
    "message": "commitMessage",
    "metadata": "userMetadata",
    "endpoint": "endpoint_url",
    "chunksizes": "chunks",
}
_REFS: Final = ("branch", "tag", "snapshot", "versionAsOf")
_SECRET_WORDS: Final = ("secret", "password", "token", "accesskey", "sastoken", "credentials")
_BEFORE_ENDPOINT: Final = re.compile(r"@(?=https?://)")
_MEANT_FOR_SPARK: Final = ("checkpointlocation", "queryname")
"""Options that Spark sets for its own use and that icefloe ignores."""
_NO_CATALOG: Final = (
    "Spark's catalog does not pass the options of a table to Python sources; create views with"
    " icefloe.spark.register, or with CREATE TEMPORARY VIEW ... USING icechunk OPTIONS (path '...')"
)


@dataclass(frozen=True, slots=True)
class QueryOptions:
    """The parsed options of a read or write through the Spark data source."""

    given: Mapping[str, str]
    """The options that the user set, keyed by canonical name."""
    storage: Mapping[str, str] = field(default_factory=dict)
    """Keyword arguments passed to the storage factory."""
    repo: Repository | None = None
    """An open repository to use instead of the `path` option."""

    def text(self, name: str) -> str | None:
        """Return a data source option as a string, or None if it is not set."""
        return self.given.get(name)

    def names(self, name: str) -> list[str] | None:
        """Return a data source option as a list of names, given as JSON or comma-separated. Return None if
        the option is not set.
        """
        value = self.given.get(name)
        if value is None:
            return None
        if value.lstrip().startswith("["):
            listed = _parse_json(name, value)
            return [str(each) for each in listed]
        return [each.strip() for each in value.split(",") if each.strip()]

    def mapping(self, name: str) -> dict[str, Any]:
        """Return a data source option given as a JSON object, or an empty dictionary if it is not set."""
        value = self.given.get(name)
        if value is None:
            return {}
        found = _parse_json(name, value)
        if not isinstance(found, dict):
            raise _make_invalid_option_error(
                name, value, 'a JSON object, such as {"lat": {"start": 40, "stop": 50}}'
            )
        return found

    def value(self, name: str) -> Any:
        """Return a data source option given as a JSON object or plain string, or None if it is not set."""
        text = self.text(name)
        return self.mapping(name) if text is not None and text.lstrip().startswith("{") else text

    def count(self, name: str, default: int) -> int:
        """Return a data source option as a number of bytes or rows. Suffixes such as `64m` are allowed."""
        value = self.given.get(name)
        if value is None:
            return default
        match = re.fullmatch(r"(\d+)\s*([kmg]?)i?b?", value.strip().lower())
        if match is None or int(match[1]) == 0:
            raise _make_invalid_option_error(name, value, "a positive number such as 65536 or 64m")
        return int(match[1]) * {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}[match[2]]

    @property
    def is_stream(self) -> bool:
        """True if any option that only streaming reads support is set."""
        return any(name in self.given for name in _STREAM_NAMES)

    @property
    def group(self) -> str:
        """The path of the group that a query reads or writes."""
        return "/" + (self.text("group") or "").strip("/")

    @property
    def partition_bytes(self) -> int:
        """The approximate number of bytes that each task reads."""
        return self.count("maxPartitionBytes", PARTITION_BYTES)

    @property
    def batch_rows(self) -> int:
        """The number of rows per batch passed to Spark."""
        return self.count("batchRows", BATCH_ROWS)

    @property
    def uses_statistics(self) -> bool:
        """True unless the `statistics` option is turned off."""
        return self._is_on("statistics", default="on")

    def _is_on(self, name: str, default: str) -> bool:
        word = (self.text(name) or default).lower()
        if word not in ("on", "off", "true", "false"):
            raise _make_invalid_option_error(name, word, "true or false")
        return word in ("on", "true")

    def open(self, *, to_write: bool = False) -> Repository:
        """Open the repository named by the query options. A write may create it."""
        if self.repo is not None:
            return self.repo
        path = self.text("path")
        if not path:
            raise InvalidInputError(
                f"no repository given; pass its path or URL with the option path. {_NO_CATALOG}",
                kind=ErrorKind.STORAGE_CONFIG,
            )
        extra = dict(self.storage)
        provider = self.text("credentialsProvider")
        storage = storage_from_url(path, **extra, **_import_provider(provider))
        creates = self._is_on("create", default="off") and to_write
        open_storage = Repository.open_or_create if creates else Repository.open
        repo = open_storage(
            storage,
            authorize_virtual_chunk_access=self._find_credentials(),
            disk_cache=self.text("diskCache"),
        )
        withheld = repo._assets.virtual.withheld
        named = {prefix.rstrip("/"): endpoint for prefix, endpoint in self._parse_containers().items()}
        trusted = [
            each for each in withheld if is_same_endpoint(named.get(each.rstrip("/"), ""), withheld[each])
        ]
        return repo._reopen(None, None, frozenset(trusted)) if trusted else repo

    def _parse_containers(self) -> dict[str, str]:
        """Return the virtual chunk containers to authorize, as a mapping from URL prefix to the endpoint
        given after `@` (an empty string if there is none).
        """
        pairs = [_BEFORE_ENDPOINT.split(text, maxsplit=1) for text in self.names("virtualChunks") or []]
        return {prefix: "".join(endpoint) for prefix, *endpoint in pairs}

    def _find_credentials(self) -> dict[str, AnyCredential | None]:
        prefixes = self._parse_containers()
        anonymous = self.storage.get("anonymous", "").lower() in ("true", "1", "yes")
        return {prefix: make_credential_from_env(prefix, anonymous=anonymous) for prefix in prefixes}

    def scan(self) -> TableScan:
        """Return a scan of the table and version selected by the query options."""
        session = self.session(self.open())
        table = find_tables(session, self.group).choose(self.names("variables"))
        scan = scan_table(session, table, statistics=self.uses_statistics)
        if labels := self.mapping("sel"):
            scan = scan.sel(labels)
        if positions := self.mapping("isel"):
            scan = scan.isel(positions)
        return replace(scan, partition_bytes=self.partition_bytes, batch_rows=self.batch_rows)

    def session(self, repo: Repository) -> Session:
        """Open a read-only session on the version selected by the query options, by default the tip of
        `main`.
        """
        return open_session(repo, {name: self.given[name] for name in self.given if name in _REF_WORDS})


_REF_WORDS: Final = (*_REFS, "timestampAsOf")
S = TypeVar("S", bound=TableScan)
AnyRepository: TypeAlias = Repository | Session | str | os.PathLike[str]
"""A repository, one of its sessions, or its path or URL."""


def open_repository(
    repo: Repository | str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> Repository:
    """Open a repository from its path or URL.

    A `Repository` that is already open is returned unchanged.
    """
    if isinstance(repo, Repository):
        return repo
    words = {name: str(value) for name, value in (storage_options or {}).items()}
    return parse_options({"path": os.fspath(repo), **words}).open()


def resolve_session(
    repo: AnyRepository,
    version: Mapping[str, Any],
    open_at: Callable[[Repository, Mapping[str, Any]], Session],
    storage_options: Mapping[str, Any] | None = None,
) -> tuple[Session, str]:
    """Open a read-only session on the version selected by the arguments of a query.

    Return the session, and a description of it for display in titles.
    """
    if isinstance(repo, Session):
        if version:
            raise InvalidInputError(
                "A session is pinned to one snapshot. Pass a Repository to select a version.",
                kind=ErrorKind.NOT_ALLOWED,
            )
        return repo, "session"
    opened = open_repository(repo, storage_options)
    return open_at(opened, version), f"{describe_location(opened)} {next(iter(version.values()), 'main')}"


def open_scan(
    kind: type[S],
    repo: AnyRepository,
    *,
    group: str,
    variables: Iterable[str] | str | None,
    version: Mapping[str, Any],
    storage_options: Mapping[str, Any] | None,
    statistics: bool,
    **fields: Any,
) -> S:
    """Open a scan of the given class over the table formed by a group's variables, from the arguments of
    `icefloe.scan`.
    """
    chosen = {name: value for name, value in version.items() if value is not None}
    if chosen.keys() <= {"as_of"} and not isinstance(repo, Session):
        chosen = {"branch": "main", **chosen}
    session, location = resolve_session(repo, chosen, _open_chosen, storage_options)
    names = [variables] if isinstance(variables, str) else variables
    table = find_tables(session, group).choose(None if names is None else list(names))
    found = scan_table(session, table, location, statistics=statistics)
    parts = (session, table, found.coordinates, found.selection, location)
    return kind(*parts, statistics=found.statistics, **fields)


def _open_chosen(repo: Repository, version: Mapping[str, Any]) -> Session:
    return repo.readonly_session(**version)


def describe_location(repo: Repository) -> str:
    """Return the location of a repository without secrets, for display in titles."""
    shown = repo.storage.describe()
    parts = [shown[key] for key in ("bucket", "container", "path", "prefix") if key in shown]
    return "/".join(parts) or repo.storage.place


def refuse_memory(repo: Repository) -> None:
    """Raise an error if the repository is in-memory, because Spark executors cannot read it."""
    if isinstance(repo.storage, MemoryStorage):
        raise InvalidInputError(
            "a repository in memory exists only in this process and cannot be read by Spark's workers;"
            " use a folder",
            kind=ErrorKind.NOT_ALLOWED,
        )


def parse_options(options: Mapping[str, str]) -> QueryOptions:
    """Parse the options that Spark passes to the data source."""
    known = _list_known_names()
    given: dict[str, str] = {}
    storage: dict[str, str] = {}
    if "owner" in options:  # Spark passes the table properties for CREATE TABLE, but not for SELECT
        raise InvalidInputError(_NO_CATALOG, kind=ErrorKind.NOT_ALLOWED)
    for spelled, value in options.items():
        folded = _fold_name(spelled)
        if folded in _MEANT_FOR_SPARK:
            continue
        name = known.get(folded)
        if name is None or name in SECRETS:
            _refuse_secret(folded, spelled)
            names = sorted({*_NAMES, *_list_storage_names().values()})
            raise make_unknown_name_error("option", spelled, names, kind=ErrorKind.STORAGE_CONFIG)
        target = given if name in _NAMES else storage
        if target.get(name, value) != value:
            raise InvalidInputError(
                f"the option {name} is given twice with different values", kind=ErrorKind.STORAGE_CONFIG
            )
        target[name] = value
    return QueryOptions(given, storage)


def open_session(repo: Repository, version: Mapping[str, str]) -> Session:
    """Open a read-only session on the version given by `branch`, `tag`, `snapshot`, `versionAsOf` or
    `timestampAsOf`.
    """
    refs = [name for name in _REFS if version.get(name)]
    moment = version.get("timestampAsOf")
    if len(refs) > 1 or (moment and refs not in ([], ["branch"])):
        both = ", ".join([*refs, *(["timestampAsOf"] if moment else [])])
        raise InvalidInputError(
            f"{both} each select a version; pass only one, or branch together with timestampAsOf",
            kind=ErrorKind.INVALID_REF_NAME,
        )
    if moment:
        return repo.readonly_session(version.get("branch") or "main", as_of=parse_time(moment))
    match refs:
        case ["tag"]:
            return repo.readonly_session(tag=version["tag"])
        case ["snapshot"]:
            return repo.readonly_session(snapshot_id=version["snapshot"])
        case ["versionAsOf"]:
            return open_version(repo, version["versionAsOf"])
    return repo.readonly_session(version.get("branch") or "main")


def open_version(repo: Repository, name: str) -> Session:
    """Open a read-only session on the named version (see `resolve_version`)."""
    try:
        return repo.readonly_session(snapshot_id=versions.resolve_version(repo, name))
    except RefNotFoundError:
        known = ", ".join(sorted(repo.list_branches() | repo.list_tags()))
        raise RefNotFoundError(
            f"there is no branch, tag or snapshot {name!r}; branches and tags are {known}",
            kind=ErrorKind.REF_NOT_FOUND,
        ) from None


def parse_time(text: str) -> datetime:
    """Parse a timestamp option, given as ISO 8601 or as milliseconds since 1970."""
    if re.fullmatch(r"\d{9,}", text.strip()):
        return datetime.fromtimestamp(int(text) / 1000, UTC)
    return versions.parse_time(text)


def _fold_name(name: str) -> str:
    return re.sub(r"[-_.]", "", name).lower()


@cache
def _list_known_names() -> Mapping[str, str]:
    return {
        **_list_storage_names(),
        **_ALIASES,
        **{_fold_name(name): name for name in _NAMES},
    }


@cache
def _list_storage_names() -> Mapping[str, str]:
    """Return the plain (non-object) argument names of all storage factories, keyed by normalized name."""
    makers = (
        factories.s3_storage,
        factories.gcs_storage,
        factories.azure_storage,
        factories.r2_storage,
        factories.tigris_storage,
    )
    names = {
        name
        for maker in makers
        for name, parameter in inspect.signature(maker).parameters.items()
        if str(parameter.annotation).split(" ")[0] in ("str", "bool", "int")
    }
    plain = names - {"bucket", "prefix", "container"} - SECRETS | {"sync"}
    return {_fold_name(name): name for name in plain}


def _refuse_secret(folded: str, spelled: str) -> None:
    """Raise an error if an option holds a secret, because Spark displays options in plans and logs. The
    message omits the value."""
    if folded in {_fold_name(name) for name in SECRETS} or any(word in folded for word in _SECRET_WORDS):
        raise InvalidInputError(
            f"{spelled} is a secret, which Spark would show in plans and logs; set it in the environment of"
            " the executors, or pass a function that returns credentials with the option credentialsProvider",
            kind=ErrorKind.INVALID_CREDENTIALS,
        )


def _parse_json(name: str, value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError as error:
        raise _make_invalid_option_error(name, value, f"JSON ({error})") from None


def _make_invalid_option_error(name: str, value: str, expected: str) -> InvalidInputError:
    return InvalidInputError(
        f"the option {name} must be {expected}, not {value!r}", kind=ErrorKind.STORAGE_CONFIG
    )


def _import_provider(provider: str | None) -> dict[str, Any]:
    """Import a credential provider given as `package.module:function`."""
    if provider is None:
        return {}
    module, colon, name = provider.partition(":")
    try:
        function = getattr(importlib.import_module(module), name) if colon else None
    except (ImportError, AttributeError) as error:
        raise InvalidInputError(
            f"the function {provider} of the option credentialsProvider cannot be imported: {error}",
            kind=ErrorKind.INVALID_CREDENTIALS,
        ) from None
    if not callable(function):
        raise _make_invalid_option_error("credentialsProvider", provider, "package.module:function")
    return {"get_credentials": function}
