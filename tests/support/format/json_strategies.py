"""Hypothesis strategies for JSON-like values, biased towards the borders between widths."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

integers = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.sampled_from([0, 7, 8, 15, 16, 31, 32, 63]).flatmap(
        lambda bits: st.sampled_from([2**bits - 1, 2**bits, -(2**bits), -(2**bits) + 1])
    ),
)
finite_floats = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False), st.floats(width=32, allow_nan=False)
)
floats = finite_floats | st.sampled_from([float("nan"), float("inf"), -float("inf")])
texts = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.integers(240, 270).map("x".__mul__),
    st.just("水" * 100),
)
keys = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)
scalars = st.none() | st.booleans() | integers | floats | texts


def _containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(children, max_size=6) | st.dictionaries(keys, children, max_size=6)


typed_lists = st.one_of(*(st.lists(items, max_size=6) for items in (integers, floats, st.booleans(), texts)))
json_values = st.recursive(scalars | typed_lists, _containers, max_leaves=30)
