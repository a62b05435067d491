"""Exceptions of icefloe: the class tells a caller how to react, and `kind` tells exactly what happened.

    IcechunkError
    ├── ConflictError
    │   └── RebaseFailedError
    ├── NotFoundError                 also a KeyError
    │   ├── NodeNotFoundError
    │   ├── SnapshotNotFoundError
    │   ├── RefNotFoundError
    │   └── RepositoryNotFoundError
    ├── AlreadyExistsError
    ├── ReadOnlyError
    ├── InvalidInputError             also a ValueError
    ├── SessionStateError
    ├── StorageError
    ├── FormatError
    └── InternalError

Names, attributes, kinds and reprs match those of the official package, so handlers written for it keep
working. All exceptions can be pickled, because they are sent between Spark processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from icefloe._internal.printable import escape_control_in_lines
from icefloe._internal.redaction import redact

PACKAGE = "icefloe"
"""The package name shown in reprs. It changes when icefloe is installed as icechunk."""


class ErrorKind(StrEnum):
    """Stable error codes, for comparison with `IcechunkError.kind`.

    Codes are never renamed or removed, but later releases may add new ones. The comments name the exception
    class of each group.
    """

    # ConflictError
    COMMIT_CONFLICT = "commit-conflict"
    BRANCH_UPDATE_CONFLICT = "branch-update-conflict"
    REBASE_FAILED = "rebase-failed"
    CONFIG_UPDATED = "config-updated"
    REPO_INFO_UPDATED = "repo-info-updated"
    UPDATE_ATTEMPTS_EXHAUSTED = "update-attempts-exhausted"
    GC_DELETES_FAILING = "gc-deletes-failing"

    # NotFoundError and its children
    NODE_NOT_FOUND = "node-not-found"
    ANCESTOR_NODE_NOT_FOUND = "ancestor-node-not-found"
    CHUNK_NOT_FOUND = "chunk-not-found"
    KEY_NOT_FOUND = "key-not-found"
    SNAPSHOT_NOT_FOUND = "snapshot-not-found"
    NO_SNAPSHOT_AT_TIME = "no-snapshot-at-time"
    REF_NOT_FOUND = "ref-not-found"
    BRANCH_NOT_FOUND = "branch-not-found"
    TAG_NOT_FOUND = "tag-not-found"
    REPOSITORY_NOT_FOUND = "repository-not-found"
    MANIFEST_INFO_NOT_FOUND = "manifest-info-not-found"  # raised as a FormatError

    # AlreadyExistsError
    NODE_ALREADY_EXISTS = "node-already-exists"
    BRANCH_ALREADY_EXISTS = "branch-already-exists"
    TAG_ALREADY_EXISTS = "tag-already-exists"
    TAG_PREVIOUSLY_DELETED = "tag-previously-deleted"
    MOVE_WONT_OVERWRITE = "move-wont-overwrite"

    # ReadOnlyError
    READ_ONLY_SESSION = "read-only-session"
    READ_ONLY_STORE = "read-only-store"
    READ_ONLY_STORAGE = "read-only-storage"
    READ_ONLY_REPOSITORY = "read-only-repository"

    # InvalidInputError
    INVALID_KEY = "invalid-key"
    INVALID_CHUNK_INDEX = "invalid-chunk-index"
    ZERO_LENGTH_CHUNK = "zero-length-chunk"
    INVALID_MANIFEST_SPLIT_INDEX = "invalid-manifest-split-index"
    INVALID_REF_TYPE = "invalid-ref-type"
    INVALID_REF_NAME = "invalid-ref-name"
    INVALID_SNAPSHOT_ID = "invalid-snapshot-id"
    INVALID_PATH = "invalid-path"
    BAD_KEY_PREFIX = "bad-key-prefix"
    BAD_METADATA = "bad-metadata"
    BAD_PREFIX = "bad-prefix"
    NOT_AN_ARRAY = "not-an-array"
    NOT_A_GROUP = "not-a-group"
    INVALID_BYTE_RANGE = "invalid-byte-range"
    INVALID_COMMIT_CONFIGURATION = "invalid-commit-configuration"
    INVALID_ARRAY_METADATA = "invalid-array-metadata"
    INVALID_FEATURE_FLAG = "invalid-feature-flag"
    INVALID_VIRTUAL_REF = "invalid-virtual-ref"
    INVALID_CREDENTIALS = "invalid-credentials"
    NO_CONTAINER_FOR_VIRTUAL_CHUNK = "no-container-for-virtual-chunk"
    UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER = "unauthorized-virtual-chunk-container"
    EMPTY_PREFIX_CREATION = "empty-prefix-creation"
    PARENT_DIRECTORY_NOT_CLEAN = "parent-directory-not-clean"
    BAD_SNAPSHOT_CHAIN_FOR_DIFF = "bad-snapshot-chain-for-diff"

    # SessionStateError
    COMMIT_NOT_ALLOWED = "commit-not-allowed"
    MERGE_NOT_ALLOWED = "merge-not-allowed"
    CANNOT_FORK_READ_ONLY_SESSION = "cannot-fork-read-only-session"
    REARRANGE_SESSION_ONLY = "rearrange-session-only"
    NON_REARRANGE_SESSION = "non-rearrange-session"
    MOVE_INTO_SELF_OR_DESCENDANT = "move-into-self-or-descendant"
    MOVE_DESTINATION_PARENT_MISSING = "move-destination-parent-missing"
    MOVE_DESTINATION_PARENT_NOT_GROUP = "move-destination-parent-not-group"
    NO_CHANGES_TO_COMMIT = "no-changes-to-commit"
    NO_AMEND_FOR_INITIAL_COMMIT = "no-amend-for-initial-commit"
    NOT_ON_BRANCH = "not-on-branch"
    NO_SNAPSHOT = "no-snapshot"
    CANNOT_DELETE_MAIN = "cannot-delete-main"
    UNCOMMITTED_CHANGES = "uncommitted-changes"
    MERGE_FAILED = "merge-failed"
    NOT_ALLOWED = "not-allowed"
    UNIMPLEMENTED = "unimplemented"
    REBASE_TX_LOG_PRUNED = "rebase-tx-log-pruned"
    FEATURE_FLAG_DISABLED = "feature-flag-disabled"
    TAG_ERROR = "tag-error"
    INVALID_REPOSITORY_MIGRATION = "invalid-repository-migration"

    # StorageError
    OBJECT_NOT_FOUND = "object-not-found"
    OBJECT_STORE = "object-store"
    IO = "io"
    STORAGE_CONFIG = "storage-config"
    CANNOT_PARSE_URL = "cannot-parse-url"
    BAD_REDIRECT = "bad-redirect"
    SEMAPHORE_ACQUIRE = "semaphore-acquire"
    THROTTLED = "throttled"
    STORAGE_OTHER = "storage-other"
    VIRTUAL_CHUNK_FETCH = "virtual-chunk-fetch"
    VIRTUAL_CHUNK_MODIFIED = "virtual-chunk-modified"
    INVALID_OBJECT_SIZE = "invalid-object-size"

    # FormatError
    SERIALIZATION = "serialization"
    DESERIALIZATION = "deserialization"
    CONFIG_DESERIALIZATION = "config-deserialization"
    INVALID_FILE_FORMAT = "invalid-file-format"
    UNSUPPORTED_SPEC_VERSION = "unsupported-spec-version"
    UNSUPPORTED_OPERATION_FOR_VERSION = "unsupported-operation-for-version"
    SNAPSHOT_TIMESTAMP = "snapshot-timestamp"
    DUPLICATE_SNAPSHOT_ID = "duplicate-snapshot-id"

    # InternalError
    CONCURRENCY = "concurrency"
    FLUSH = "flush"
    PARTIAL_VALUES_PANIC = "partial-values-panic"
    CONFLICTING_PATH_NOT_FOUND = "conflicting-path-not-found"
    INCONSISTENT_MANIFESTS = "inconsistent-manifests"
    POISON_LOCK = "poison-lock"
    PICKLE = "pickle"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, init=False)
class Hint:
    """A hint that says how to fix an error: a sentence with placeholders for the options that it mentions.

    Options are stored as data, so that each interface can name them in its own way. `str(hint)` uses the
    Python form, such as `on_change="ingest"`, and the command line prints options as they are typed.

    Parameters
    ----------
    text
        The sentence, such as `"{on_change} ingests changed files again"`.
    **options
        The value of each option in the sentence; None if the sentence only names the option. The name
        `function` stands for a function of this package, such as `"Repository.create"`.

    Examples
    --------
    >>> str(Hint("{on_change} ingests changed files again", on_change="ingest"))
    'on_change="ingest" ingests changed files again'
    """

    text: str
    options: tuple[tuple[str, Any], ...] = field(hash=False)

    def __init__(self, text: str, /, **options: Any) -> None:
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "options", tuple(options.items()))

    def __str__(self) -> str:
        return self.render(_python_option)

    def render(self, name_option: Callable[[str, Any], str]) -> str:
        """Return the hint as a sentence in which options are named for a particular interface, without
        secrets.

        Parameters
        ----------
        name_option
            A function that turns the name and value of an option into text.

        Returns
        -------
        str
            One printable line.
        """
        text = self.text
        for name, value in self.options:
            text = text.replace(f"{{{name}}}", name_option(name, value))
        return escape_control_in_lines(redact(text))

    @staticmethod
    def any_of(*hints: Hint) -> Hint | None:
        """Combine alternative hints into one.

        Parameters
        ----------
        *hints
            The alternatives. Duplicates are mentioned once.

        Returns
        -------
        Hint or None
            One sentence with all alternatives; None if there are none.
        """
        distinct = [hint for at, hint in enumerate(hints) if hint not in hints[:at]]
        options = {name: value for hint in distinct for name, value in hint.options}
        return Hint(", or ".join(hint.text for hint in distinct), **options) if distinct else None


def _python_option(name: str, value: Any) -> str:
    if value is None:
        return name
    if name == "function":
        return str(value)
    if isinstance(value, Mapping):
        items = ", ".join(f'"{key}": {each}' for key, each in value.items())
        return f"{name}={{{items}}}"
    return f'{name}="{value}"' if isinstance(value, str) else f"{name}={value!r}"


class IcechunkError(Exception):
    """Base class of all exceptions that icefloe raises intentionally.

    Parameters
    ----------
    message
        The error message. Secrets in URLs and control characters are removed.
    kind
        Usually an `ErrorKind`. Other strings are also accepted, so that codes of newer releases are
        preserved.

    Attributes
    ----------
    message
        The message without the hint.
    kind
        The code of the error.
    hint
        A remedy, which `str(error)` appends to the message.
    """

    message: str
    kind: str
    hint: Hint | None = None

    def __init__(self, message: str, kind: str | None = None) -> None:
        self.message = escape_control_in_lines(redact(message))
        super().__init__(self.message)
        self.kind = ErrorKind.UNKNOWN.value if kind is None else str(kind)
        self.add_note(f"kind: {self.kind}")  # tracebacks show it below the message

    def with_hint(self, hint: Hint | None) -> Self:
        """Attach a hint to the error, and return the error.

        Parameters
        ----------
        hint
            The remedy, if there is one.

        Returns
        -------
        IcechunkError
            This error, so that `raise SomeError(...).with_hint(...)` fits into one statement.
        """
        self.hint = hint
        return self

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}; {self.hint}"

    def __repr__(self) -> str:
        return f'{PACKAGE}.{type(self).__name__}(message="{self.message}", kind="{self.kind}")'


_FAILED = {ErrorKind.BRANCH_UPDATE_CONFLICT.value: "branch update conflict"}


class ConflictError(IcechunkError):
    """Raised when another writer changed the branch or the repository first. Rebase or retry.

    Parameters
    ----------
    expected_parent
        The id of the snapshot that the change was based on.
    actual_parent
        The id of the snapshot that was found instead.
    message
        The error message. By default, a sentence with both parents.
    kind
        An `ErrorKind`, by default COMMIT_CONFLICT.
    """

    expected_parent: str | None
    actual_parent: str | None

    def __init__(
        self,
        expected_parent: str | None = None,
        actual_parent: str | None = None,
        message: str | None = None,
        kind: str | None = None,
    ) -> None:
        if message is None:
            expected, actual = _format_rust_option(expected_parent), _format_rust_option(actual_parent)
            failed = _FAILED.get(str(kind), "Failed to commit")
            message = f"{failed}, expected parent: {expected}, actual parent: {actual}"
        super().__init__(message, ErrorKind.COMMIT_CONFLICT if kind is None else kind)
        self.expected_parent = expected_parent
        self.actual_parent = actual_parent
        self.args = (expected_parent, actual_parent, message, self.kind)

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"{PACKAGE}.{name}(expected_parent={self.expected_parent}, actual_parent={self.actual_parent})"


class RebaseFailedError(ConflictError):
    """Raised when the changes of a session conflict with changes committed in the meantime.

    Parameters
    ----------
    snapshot
        The id of the snapshot that the session reached before the rebase failed.
    conflicts
        The conflicts, a sequence of `Conflict`.
    """

    snapshot: str
    conflicts: list[Any]  # of Conflict, which is defined in a higher layer

    def __init__(self, snapshot: str, conflicts: Sequence[Any]) -> None:
        message = f"Rebase failed on snapshot {snapshot}: {len(conflicts)} conflicts found"
        super().__init__(message=message, kind=ErrorKind.REBASE_FAILED)
        self.snapshot = snapshot
        self.conflicts = list(conflicts)
        self.args = (snapshot, self.conflicts)

    def __repr__(self) -> str:
        return f'{PACKAGE}.{type(self).__name__}(snapshot="{self.snapshot}", conflicts={self.conflicts!r})'


class NotFoundError(IcechunkError, KeyError):
    """Raised when a requested object does not exist."""


class NodeNotFoundError(NotFoundError):
    """Raised when an array, group, chunk or store key does not exist."""


class SnapshotNotFoundError(NotFoundError):
    """Raised when a snapshot does not exist, or when no snapshot is as old as the requested time."""


class RefNotFoundError(NotFoundError):
    """Raised when a branch or tag does not exist."""


class RepositoryNotFoundError(NotFoundError):
    """Raised when a location contains no repository."""


class AlreadyExistsError(IcechunkError):
    """Raised when the name of a new object is already in use, or was used by a deleted tag."""


class ReadOnlyError(IcechunkError):
    """Raised on an attempt to change a read-only session, store, storage or repository."""


class InvalidInputError(IcechunkError, ValueError):
    """Raised when an argument is invalid, either in general or for this repository."""


class SessionStateError(IcechunkError):
    """Raised when the current state of the session or repository does not allow an operation."""


class StorageError(IcechunkError):
    """Raised when the object store, the file system or the source of a virtual chunk fails."""


class FormatError(IcechunkError):
    """Raised when stored bytes violate the specification, or require a newer release."""


class InternalError(IcechunkError):
    """Raised because of a bug in icefloe."""


def _format_rust_option(value: str | None) -> str:
    # Programs match the official wording of this message, including Rust's notation.
    return "None" if value is None else f'Some("{value}")'
