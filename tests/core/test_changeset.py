"""The changed chunks of an array, compared with a plain dict."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icefloe.core.changeset import ArrayDelta
from icefloe.format.manifest import ArrayManifest, InlineRef

coords = st.tuples(st.integers(0, 3), st.integers(0, 3))
written = st.dictionaries(coords, st.binary(min_size=1, max_size=3).map(InlineRef), min_size=1, max_size=5)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), coords, st.binary(min_size=1, max_size=3).map(InlineRef)),
        st.tuples(st.just("delete"), coords),
        st.tuples(st.just("put many"), written),
        st.tuples(st.just("delete many"), st.lists(coords, min_size=1, max_size=5)),
        st.tuples(st.just("resolve")),
    ),
    max_size=12,
)


@given(steps)
def test_last_change_of_a_chunk_wins(steps: list[tuple[object, ...]]) -> None:
    delta = ArrayDelta("/a", 2)
    model: dict[tuple[int, int], InlineRef | None] = {}
    for step in steps:
        match step:
            case ("put", (int(i), int(j)), InlineRef() as ref):
                delta.put((i, j), ref)
                model[i, j] = ref
            case ("delete", (int(i), int(j))):
                delta.put((i, j), None)
                model[i, j] = None
            case ("put many", dict() as refs):
                delta.put_many(ArrayManifest.from_refs(refs, 2))
                model |= refs
            case ("delete many", list() as places):
                delta.delete_many(np.array(places, np.uint32))
                model |= dict.fromkeys(places)
            case ("resolve",):
                delta.resolve()

    for i in range(4):
        for j in range(4):
            assert delta.find((i, j)) == ((i, j) in model, model.get((i, j)))
    kept, gone = delta.resolve()
    refs = (
        {} if kept is None else {tuple(kept.coords[row].tolist()): kept.ref(row) for row in range(len(kept))}
    )
    assert refs == {at: ref for at, ref in model.items() if ref is not None}
    assert [tuple(row) for row in gone.tolist()] == sorted(at for at, ref in model.items() if ref is None)
    assert [tuple(row) for row in delta.coords().tolist()] == sorted(model)


def test_repeated_lookups_keep_the_number_of_segments_small() -> None:
    delta = ArrayDelta("/a", 1)
    for number in range(50):
        delta.put((number % 7,), InlineRef(bytes([number])))
        delta.put((number % 5,), None)
        delta.resolve()

    assert len(delta.segments) <= 2
