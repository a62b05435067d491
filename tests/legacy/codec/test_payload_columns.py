"""References that look as expected become columns in bulk, and say the same as one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe._internal.ids import ChunkId
from icefloe.format.manifest import ArrayManifest
from icefloe.legacy.codec.manifest import _payload
from icefloe.legacy.codec.payload_columns import usual_columns
from icefloe.legacy.codec.structures import Findings

U64 = st.integers(0, 2**63 - 1)
BYTES = st.binary(min_size=12, max_size=12)
TEXTS = BYTES.map(lambda raw: str(ChunkId(raw)))
TUPLES = BYTES.map(lambda raw: (raw, ()))
URLS = st.sampled_from(["s3://a/b", "s3://a/é", "file:///x"])
CHECKS = st.one_of(
    st.none(),
    st.fixed_dictionaries({"ETag": st.text(min_size=1, max_size=3)}),
    st.fixed_dictionaries({"LastModified": st.integers(1, 2**32 - 1)}),
)
INLINE = st.binary(max_size=5).map(lambda data: {"Inline": data})


def lists_of(ids: st.SearchStrategy[Any], locations: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    native = st.tuples(ids, U64, U64).map(lambda ref: {"Ref": ref})
    checked = st.tuples(locations, U64, U64, CHECKS).map(lambda ref: {"Virtual": ref})
    plain = st.tuples(locations, U64, U64).map(lambda ref: {"Virtual": ref})
    return st.lists(st.one_of(INLINE, native, checked, plain), min_size=1, max_size=12)


@given(
    st.one_of(
        lists_of(TEXTS, URLS),
        lists_of(TUPLES, URLS),
        lists_of(TEXTS, URLS.map(lambda url: {"Absolute": url})),
    )
)
def test_columns_say_the_same_as_single_references(payloads: list[Any]) -> None:
    columns = usual_columns(payloads)

    assert columns is not None
    coords = np.arange(len(payloads), dtype=np.uint32)[:, None]
    single: dict[tuple[int, ...], Any] = {
        (at,): _payload(payload, "m", Findings()) for at, payload in enumerate(payloads)
    }
    assert ArrayManifest.of(coords, **columns) == ArrayManifest.from_refs(single, 1)


ODD: dict[str, Callable[[], Any]] = {
    "a list": lambda: {"Ref": ["65C2772WK3CDTTQBF43G", 0, 1]},
    "a long id": lambda: {"Ref": ("0" * 26, 0, 1)},
    "no id": lambda: {"Ref": ("U" * 20, 0, 1)},
    "a negative offset": lambda: {"Ref": ("0" * 20, -1, 1)},
    "a huge length": lambda: {"Ref": ("0" * 20, 0, 2**64)},
    "an end beyond": lambda: {"Ref": ("0" * 20, 2**64 - 1, 2)},
    "a truth for a number": lambda: {"Ref": ("0" * 20, True, 2)},
    "a fourth field": lambda: {"Ref": ("0" * 20, 0, 2, None)},
    "inline numbers": lambda: {"Inline": (1, 2)},
    "an unknown kind": lambda: {"Other": 1},
    "an unknown location": lambda: {"Virtual": ({"Relative": "x"}, 0, 1)},
    "an unknown checksum": lambda: {"Virtual": ("s3://x", 0, 1, {"Md5": "x"})},
    "two kinds": lambda: {"Inline": b"", "Ref": ("0" * 20, 0, 1)},
}


@pytest.mark.parametrize("what", ODD)
def test_what_looks_odd_gets_a_closer_look(what: str) -> None:
    assert usual_columns([{"Inline": b"x"}, ODD[what]()]) is None
