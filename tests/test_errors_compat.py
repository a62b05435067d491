"""The error tree beside that of the official package (the tree is as of its release 2.3)."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from icefloe import errors

pytestmark = pytest.mark.compat

official: Any = pytest.importorskip("icechunk")
if not hasattr(official, "ErrorKind"):
    pytest.skip("this release of icechunk has no ErrorKind yet", allow_module_level=True)

CLASSES = [
    name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)
]


def test_kinds_have_the_official_order() -> None:
    theirs = [(kind.name, kind.value) for kind in official.ErrorKind]

    assert [(kind.name, kind.value) for kind in errors.ErrorKind] == theirs


@pytest.mark.parametrize("name", CLASSES)
def test_classes_have_the_official_bases(name: str) -> None:
    ours, theirs = getattr(errors, name), getattr(official, name)

    assert [base.__name__ for base in ours.__mro__] == [base.__name__ for base in theirs.__mro__]


def test_no_official_class_is_missing() -> None:
    theirs = {
        name
        for name, value in vars(official).items()
        if isinstance(value, type) and issubclass(value, official.IcechunkError)
    }

    assert theirs == set(CLASSES)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("IcechunkError", ("text",)),
        ("NodeNotFoundError", ('with "quotes"\nand lines', "node-not-found")),
        ("ConflictError", ()),
        ("ConflictError", ("A", "B")),
        ("ConflictError", (None, "B", "text")),
        ("ConflictError", (None, "B", "text", "config-updated")),
        ("RebaseFailedError", ("A", [])),
    ],
)
def test_instances_equal_the_official_ones(name: str, arguments: tuple[Any, ...]) -> None:
    for ours, theirs in zip(_twins(errors, name, arguments), _twins(official, name, arguments), strict=True):
        assert repr(ours) == repr(theirs).replace("icechunk.", "icefloe.", 1)
        assert str(ours) == str(theirs)
        assert ours.message == theirs.message
        assert ours.kind == theirs.kind


def _twins(module: Any, name: str, arguments: tuple[Any, ...]) -> list[Any]:
    error = getattr(module, name)(*arguments)
    return [error, pickle.loads(pickle.dumps(error))]
