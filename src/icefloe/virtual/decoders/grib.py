"""Decode GRIB messages with ecCodes."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

END: Final = b"7777"
"""The end marker of a GRIB message."""
_MISSING: Final = 3.4028234663852886e38
"""The missing-value marker during decoding. The ecCodes default, 9999, may be a valid value."""


def decode_grib(message: bytes, shape: tuple[int, ...], key: str = "values", field: int = 0) -> Any:
    """Decode the values of a GRIB message into an array whose last dimensions are the grid dimensions."""
    import eccodes

    handle = eccodes.codes_new_from_message(split_fields(message)[field])
    try:
        if key != "values":
            return to_rows(eccodes.codes_get_array(handle, key), handle, shape, is_coordinate=True)
        eccodes.codes_set(handle, "missingValue", _MISSING)
        values = eccodes.codes_get_array(handle, "values")
        values[values == _MISSING] = np.nan
        return to_rows(values, handle, shape)
    finally:
        eccodes.codes_release(handle)


def to_rows(values: Any, handle: Any, shape: tuple[int, ...], *, is_coordinate: bool = False) -> Any:
    """Arrange the decoded values of a GRIB message in rows along x, for any scanning mode.

    Pass `is_coordinate` for latitudes and longitudes, because ecCodes never reverses alternate rows of these.
    """
    import eccodes

    def flag(name: str) -> bool:
        return bool(eccodes.codes_is_defined(handle, name) and eccodes.codes_get(handle, name))

    *_, rows, columns = (1, 1, *shape)
    if rows == 1 or columns == 1:
        return values.reshape(shape)
    by_columns = flag("jPointsAreConsecutive")
    grid = values.reshape((columns, rows) if by_columns else (rows, columns))
    if not is_coordinate and flag("alternativeRowScanning"):
        grid = grid.copy()
        grid[1::2] = grid[1::2, ::-1]
    return (grid.T if by_columns else grid).reshape(shape)


def split_fields(message: bytes) -> list[bytes]:
    """Split a GRIB 2 message with several fields into one message per field, so that each can be decoded."""
    if message[7] != 2:
        return [message]
    shared: dict[int, bytes] = {}
    fields: list[bytes] = []
    position = 16
    while message[position : position + 4] != END:
        length, number = int.from_bytes(message[position : position + 4]), message[position + 4]
        if length < 5 or position + length > len(message):
            raise ValueError(f"a section of {length} bytes at byte {position} of a GRIB message")
        shared[number] = message[position : position + length]
        position += length
        if number == 7:
            fields.append(b"".join(shared[each] for each in sorted(shared)) + END)
    if len(fields) == 1:
        return [message]
    return [message[:8] + (16 + len(body)).to_bytes(8) + body for body in fields]
