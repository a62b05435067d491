"""References of MessagePack manifests as columns, as long as they look the way releases wrote them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.ids import decode_column, text_size
from icefloe.encoding.columns import Blobs
from icefloe.errors import InvalidInputError
from icefloe.format.manifest import INLINE, NATIVE, NO_ETAG, VIRTUAL, factorize
from icefloe.legacy.codec.structures import SHORT_ID

_KINDS: Final = {"Ref": NATIVE, "Inline": INLINE, "Virtual": VIRTUAL}


def usual_columns(payloads: Sequence[Any]) -> dict[str, Any] | None:
    """The columns of an `ArrayManifest`; None where a reference needs a closer look.

    A reference costs a microsecond or two here, and many times that one by one.
    """
    kinds = bytearray()
    ids: list[Any] = []
    ranges: list[Any] = []
    inline: list[bytes] = []
    places: list[Any] = []
    checks: list[Any] = []
    for payload in payloads:
        if type(payload) is not dict or len(payload) != 1:
            return None
        ((name, content),) = payload.items()
        kind = _KINDS.get(name)
        if kind == INLINE:
            if type(content) is not bytes:
                return None
            inline.append(content)
        elif kind is None or type(content) is not tuple or not 3 <= len(content) <= 4:
            return None
        else:
            (ids if kind == NATIVE else places).append(content[0])
            ranges.append(content[1:3])
            if kind == VIRTUAL:
                checks.append(content[3] if len(content) == 4 else None)
            elif len(content) != 3:
                return None
        kinds.append(kind)
    return _columns(np.frombuffer(kinds, np.uint8), ids, ranges, inline, places, checks)


def _columns(
    kind: NDArray[np.uint8],
    ids: list[Any],
    ranges: list[Any],
    inline: list[bytes],
    places: list[Any],
    checks: list[Any],
) -> dict[str, Any] | None:
    count = len(kind)
    found_ids, found_ranges, locations = _ids(ids), _ranges(ranges), _locations(places)
    if found_ids is None or found_ranges is None or locations is None:
        return None
    columns: dict[str, Any] = {"kind": kind}
    if ranges:
        columns["offsets"], columns["lengths"] = (np.zeros(count, np.uint64) for _ in range(2))
        columns["offsets"][kind != INLINE], columns["lengths"][kind != INLINE] = found_ranges
    if ids:
        columns["chunk_ids"] = np.zeros((count, SHORT_ID), np.uint8)
        columns["chunk_ids"][kind == NATIVE] = found_ids
    if inline:
        here = iter(inline)
        columns["inline"] = Blobs.from_list([next(here) if one == INLINE else b"" for one in kind.tolist()])
    if places:
        codes, columns["locations"] = factorize(locations)
        columns["location_codes"] = np.zeros(count, np.uint32)
        columns["location_codes"][kind == VIRTUAL] = codes
        found = _checksums(checks)
        if found is None:
            return None
        etags, seconds = found
        tagged = np.array([etag is not None for etag in etags], np.bool_)
        codes, columns["etags"] = factorize([etag or "" for etag in etags])
        columns["etag_codes"] = np.full(count, NO_ETAG, np.uint32)
        columns["etag_codes"][kind == VIRTUAL] = np.where(tagged, codes, np.uint32(NO_ETAG))
        columns["last_modified"] = np.zeros(count, np.uint32)
        columns["last_modified"][kind == VIRTUAL] = seconds
    return columns


def _ids(ids: list[Any]) -> NDArray[np.uint8] | None:
    types = set(map(type, ids))
    if types == {str}:
        if set(map(len, ids)) != {text_size(SHORT_ID)}:
            return None
        try:
            return decode_column(ids, SHORT_ID)
        except InvalidInputError:
            return None
    if types == {tuple}:  # the bytes, and nothing to say of what they name
        if not all(len(id) == 2 and id[1] == () for id in ids):
            return None
        ids = [id[0] for id in ids]
    if not all(type(id) is bytes and len(id) == SHORT_ID for id in ids):
        return None
    return np.frombuffer(b"".join(ids), np.uint8).reshape(-1, SHORT_ID)


def _ranges(ranges: list[Any]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]] | None:
    offsets, lengths = [pair[0] for pair in ranges], [pair[1] for pair in ranges]
    if not set(map(type, offsets)) | set(map(type, lengths)) <= {int}:
        return None
    try:
        columns = np.array(offsets, np.uint64), np.array(lengths, np.uint64)
    except OverflowError:
        return None
    return None if (columns[0] + columns[1] < columns[0]).any() else columns


def _locations(places: list[Any]) -> list[str] | None:
    types = set(map(type, places))
    if types == {dict}:
        if not all(len(place) == 1 and "Absolute" in place for place in places):
            return None
        places = [place["Absolute"] for place in places]
        types = set(map(type, places))
    return places if types <= {str} else None


def _checksums(checks: list[Any]) -> tuple[list[str | None], NDArray[np.uint32]] | None:
    """An etag or None, and the seconds or 0, of each."""
    etags: list[str | None] = [None] * len(checks)
    seconds = np.zeros(len(checks), np.uint32)
    for row, check in enumerate(checks):
        if check is None:
            continue
        if type(check) is not dict or len(check) != 1:
            return None
        ((name, value),) = check.items()
        if name == "ETag" and type(value) is str:
            etags[row] = value
        elif name == "LastModified" and type(value) is int and 0 <= value < 1 << 32:
            seconds[row] = value
        else:
            return None
    return etags, seconds
