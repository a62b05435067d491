"""The error tree: what handlers written for the official package rely on."""

from __future__ import annotations

import copy
import pickle

import pytest

from icefloe import errors
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    FormatError,
    Hint,
    IcechunkError,
    InvalidInputError,
    NodeNotFoundError,
    NotFoundError,
    RebaseFailedError,
)

PLAIN = [
    errors.IcechunkError,
    errors.NotFoundError,
    errors.NodeNotFoundError,
    errors.SnapshotNotFoundError,
    errors.RefNotFoundError,
    errors.RepositoryNotFoundError,
    errors.AlreadyExistsError,
    errors.ReadOnlyError,
    errors.InvalidInputError,
    errors.SessionStateError,
    errors.StorageError,
    errors.FormatError,
    errors.InternalError,
]


@pytest.mark.parametrize("cls", PLAIN)
def test_plain_errors_show_message_and_kind(cls: type[IcechunkError]) -> None:
    error = cls("chunk is gone", ErrorKind.CHUNK_NOT_FOUND)

    assert str(error) == error.message == "chunk is gone"
    assert error.kind == "chunk-not-found"
    assert repr(error) == f'icefloe.{cls.__name__}(message="chunk is gone", kind="chunk-not-found")'
    assert cls("chunk is gone").kind == "unknown"


@pytest.mark.parametrize("cls", PLAIN)
def test_plain_errors_need_a_message(cls: type[IcechunkError]) -> None:
    with pytest.raises(TypeError):
        cls()  # type: ignore[call-arg]


def test_some_errors_also_derive_from_builtin_exceptions() -> None:
    assert issubclass(NodeNotFoundError, NotFoundError)
    assert issubclass(NotFoundError, KeyError)
    assert issubclass(InvalidInputError, ValueError)
    assert issubclass(RebaseFailedError, ConflictError)


def test_conflict_error_names_both_parents() -> None:
    error = ConflictError("AAAA", "BBBB")

    assert (error.expected_parent, error.actual_parent) == ("AAAA", "BBBB")
    assert error.kind == ErrorKind.COMMIT_CONFLICT
    assert str(error) == 'Failed to commit, expected parent: Some("AAAA"), actual parent: Some("BBBB")'
    assert repr(error) == "icefloe.ConflictError(expected_parent=AAAA, actual_parent=BBBB)"


def test_conflict_without_parents_has_a_message() -> None:
    assert str(ConflictError()) == "Failed to commit, expected parent: None, actual parent: None"
    assert str(ConflictError(message="repo info changed")) == "repo info changed"
    assert ConflictError(kind=ErrorKind.REPO_INFO_UPDATED).kind == "repo-info-updated"


def test_rebase_failure_keeps_its_conflicts() -> None:
    error = RebaseFailedError("AAAA", ["one", "two"])

    assert (error.snapshot, error.conflicts) == ("AAAA", ["one", "two"])
    assert (error.expected_parent, error.actual_parent) == (None, None)
    assert error.kind == "rebase-failed"
    assert str(error) == "Rebase failed on snapshot AAAA: 2 conflicts found"
    assert repr(error) == "icefloe.RebaseFailedError(snapshot=\"AAAA\", conflicts=['one', 'two'])"


@pytest.mark.parametrize(
    "error",
    [
        *(cls("text", "some-newer-kind") for cls in PLAIN),
        FormatError(message="text", kind="deserialization"),
        ConflictError("AAAA", None, "text", "config-updated"),
        ConflictError(actual_parent="BBBB"),
        RebaseFailedError(snapshot="AAAA", conflicts=["one"]),
    ],
    ids=repr,
)
def test_errors_survive_pickle_and_copy(error: IcechunkError) -> None:
    error.add_note("seen in transit")

    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is type(error)
        assert (repr(twin), str(twin), twin.kind) == (repr(error), str(error), error.kind)
        assert twin.__dict__ == error.__dict__
        assert twin.__notes__ == [f"kind: {error.kind}", "seen in transit"]


def test_error_kinds_are_spelled_like_their_names() -> None:
    assert len(ErrorKind) == 100
    for kind in ErrorKind:
        assert kind.value == kind.name.lower().replace("_", "-")


def test_kinds_compare_with_plain_strings() -> None:
    error = FormatError("text", kind=ErrorKind.DESERIALIZATION)

    assert error.kind == ErrorKind.DESERIALIZATION
    assert error.kind == "deserialization"
    assert type(error.kind) is str


HINT = Hint("{on_change} or {overwrite}, see {group}", on_change="ingest", overwrite=True, group=None)


def test_hints_name_options_as_python_does() -> None:
    assert str(HINT) == 'on_change="ingest" or overwrite=True, see group'
    assert (
        str(Hint("{function} creates one", function="Repository.create")) == "Repository.create creates one"
    )
    assert str(Hint("did you mean {this}?")) == "did you mean {this}?"


def test_hints_can_be_rendered_for_other_interfaces() -> None:
    shouted = HINT.render(lambda name, value: f"{name.upper()}:{value}")

    assert shouted == "ON_CHANGE:ingest or OVERWRITE:True, see GROUP:None"


def test_hints_contain_no_secrets_or_control_characters() -> None:
    hint = Hint("use {target}\x1b[2J", target="https://me:secret@host/?sig=secret")

    assert "secret" not in str(hint)
    assert "\x1b" not in str(hint)


def test_alternative_hints_are_combined_without_duplicates() -> None:
    one, other = Hint("leave it out"), Hint("use {mode}", mode="hybrid")

    assert str(Hint.any_of(one, other, one)) == 'leave it out, or use mode="hybrid"'
    assert Hint.any_of() is None


@pytest.mark.parametrize("cls", [*PLAIN, ConflictError])
def test_errors_append_their_hint_to_the_message(cls: type[IcechunkError]) -> None:
    error = cls(message="it is there already").with_hint(Hint("replace it with {overwrite}", overwrite=True))

    again = pickle.loads(pickle.dumps(error))

    assert str(again) == str(error) == "it is there already; replace it with overwrite=True"
    assert again.message == "it is there already"
    assert again.hint == error.hint
