"""References of all forms that old releases wrote are decoded, and invalid ones are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe._internal.ids import ChunkId
from icefloe.errors import FormatError
from icefloe.format.manifest import NativeRef
from icefloe.legacy.codec.manifest import _parse_payload
from icefloe.legacy.codec.structures import LegacyFindings

SIZES = st.integers(0, 2**63 - 1)


@given(st.binary(min_size=12, max_size=12), SIZES, SIZES)
def test_legacy_ids_of_all_forms_are_decoded(raw: bytes, offset: int, length: int) -> None:
    expected = NativeRef(ChunkId(raw), offset, length)

    for id in (raw, (raw, ()), list(raw), str(ChunkId(raw))):
        assert _parse_payload({"Ref": [id, offset, length]}, "m", LegacyFindings()) == expected


ODD: dict[str, Callable[[], Any]] = {
    "no id": lambda: {"Ref": ("U" * 20, 0, 1)},
    "a negative offset": lambda: {"Ref": ("0" * 20, -1, 1)},
    "a huge length": lambda: {"Ref": ("0" * 20, 0, 2**64)},
    "an end beyond": lambda: {"Ref": ("0" * 20, 2**64 - 1, 2)},
    "a truth for a number": lambda: {"Ref": ("0" * 20, True, 2)},
    "a fourth field": lambda: {"Ref": ("0" * 20, 0, 2, None)},
    "an unknown kind": lambda: {"Other": 1},
    "an unknown location": lambda: {"Virtual": ({"Relative": "x"}, 0, 1)},
    "an unknown checksum": lambda: {"Virtual": ("s3://x", 0, 1, {"Md5": "x"})},
    "two kinds": lambda: {"Inline": b"", "Ref": ("0" * 20, 0, 1)},
}


@pytest.mark.parametrize("what", ODD)
def test_invalid_reference_is_rejected(what: str) -> None:
    stored = ODD[what]()

    with pytest.raises(FormatError):
        _parse_payload(stored, "m", LegacyFindings())
