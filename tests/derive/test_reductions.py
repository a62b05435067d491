from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from icefloe.derive.reductions import (
    REDUCTIONS,
    combine_parts,
    finish,
    reduce_parts,
    reduce_values,
    select_values,
)
from icefloe.errors import InvalidInputError

TIMES = 24


def values(dtype: str, seed: int) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    rng = np.random.default_rng(seed)
    numbers = rng.normal(100, 30, (TIMES, 3, 4)).astype(dtype)
    if numbers.dtype.kind == "f":
        numbers[rng.random(numbers.shape) < 0.2] = np.nan
    return numbers


@pytest.mark.parametrize("function", REDUCTIONS)
@pytest.mark.parametrize("dtype", ["f4", "f8", "i2", "u1"])
def test_group_reductions_equal_xarray(function: str, dtype: str) -> None:
    data = values(dtype, 1)
    codes = np.arange(TIMES) % 5
    grouped = xr.DataArray(data, dims=("time", "y", "x")).groupby(xr.DataArray(codes, dims="time", name="g"))
    expected = getattr(grouped, function)()

    found = reduce_values(function, data, [codes, None, None], [5, 3, 4])

    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-6 if dtype == "f4" else 1e-12)


@pytest.mark.parametrize("function", REDUCTIONS)
@given(seed=st.integers(0, 1000), cut=st.integers(1, TIMES - 1))
def test_combined_partial_aggregates_equal_the_total(function: str, seed: int, cut: int) -> None:
    data = values("f8", seed)
    zeros = np.zeros(TIMES, np.int64)
    parts = [
        reduce_parts(function, part, [zeros[: len(part)], None, None], [1, 3, 4])
        for part in (data[:cut], data[cut:])
    ]

    combined = finish(function, combine_parts(function, np.stack(parts, axis=1)), data.dtype)

    whole = reduce_values(function, data, [zeros, None, None], [1, 3, 4])
    np.testing.assert_allclose(combined, whole, rtol=1e-12)


def test_integer_sum_overflow_raises_an_error() -> None:
    data = np.full((4, 1), 2**62, np.int64)

    with pytest.raises(InvalidInputError, match="does not fit into int64"):
        reduce_values("sum", data, [np.zeros(4, np.int64), None], [1, 1])


def test_cells_without_a_group_are_ignored() -> None:
    data = np.array([1.0, 2.0, 4.0])

    assert reduce_values("sum", data, [np.array([0, -1, 0])], [1]).tolist() == [5.0]


def test_unsigned_sums_use_all_64_bits() -> None:
    data = np.full((3, 1), 2**62, np.uint64)

    found = reduce_values("sum", data, [np.zeros(3, np.int64), None], [1, 1])

    assert found.item() == 3 * 2**62


def test_mode_of_an_empty_group_is_missing() -> None:
    data = np.array([7.0, np.nan, 7.0])  # the groups have two cells and one cell

    assert np.isnan(select_values("mode", data, [np.array([0, 1, 0])], [2])[1])
