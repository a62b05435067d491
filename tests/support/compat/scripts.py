"""Scripts of edits that two sessions carry out, for either package."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st

import icefloe
from icefloe import ConflictType
from tests.support.compat.official import KNOWS_V2
from tests.support.edits import (
    CreateArray,
    CreateGroup,
    Delete,
    Edit,
    Erase,
    SetAttribute,
    Write,
    make,
    resize,
)

START: list[Edit] = [
    CreateGroup("/"),
    CreateArray("/a"),
    CreateGroup("/g"),
    CreateArray("/g/c"),
    CreateGroup("/g/h"),
    *(Write(path, (n,)) for path in ("/a", "/g/c") for n in range(4)),
]


OFFICIAL_KINDS = ConflictType.MoveOperationCannotBeRebased


places = st.integers(0, 3).map(lambda n: (n,))


arrays = st.sampled_from(["/a", "/g/c", "/n", "/g/n", "/g/h/n"])


groups = st.sampled_from(["/g", "/g/h", "/m"])


edits = st.one_of(
    st.builds(Write, arrays, places, st.binary(min_size=1, max_size=1)),
    st.builds(Erase, arrays, places),
    st.builds(SetAttribute, arrays | groups, st.integers(0, 99)),
    st.builds(lambda path, size: resize(path, size), arrays, st.integers(4, 9)),
    st.builds(Delete, arrays | groups),
    st.builds(CreateArray, arrays),
    st.builds(CreateGroup, groups),
)


scripts = st.lists(edits, min_size=1, max_size=5)


def possible(script: list[Edit]) -> list[Edit]:
    """Return the edits of a script that are possible, given the edits before them."""
    session = started(icefloe).writable_session("main")
    kept = []
    for edit in script:
        try:
            make(session, [edit])
        except (icefloe.IcechunkError, AttributeError):  # the node is missing, or another one exists there
            continue
        kept.append(edit)
    return kept


def started(package: Any) -> Any:
    spec = {"spec_version": 1} if KNOWS_V2 or package is icefloe else {}
    repo = package.Repository.create(package.in_memory_storage(), **spec)
    session = repo.writable_session("main")
    make(session, START)
    session.commit("start")
    return repo
