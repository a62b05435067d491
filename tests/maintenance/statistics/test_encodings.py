"""Statistics never change an answer, for random types, encodings, chunk grids and queries."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zarr

import icefloe

CASES = 10 * int(os.environ.get("ICEFLOE_STATISTICS_HISTORIES", "2"))
TYPES = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "?")
FUNCTIONS = (["count", "min", "max"], ["sum"], ["mean", "std"], ["count"], ["var", "sum"])
LATEST = 5e16
"""Microseconds since 1970 up to which Python has dates."""


@pytest.mark.parametrize("part", range(10))
def test_query_results_of_every_encoding_are_the_same_with_and_without_statistics(part: int) -> None:
    for case in range(part, CASES, 10):
        random = np.random.default_rng(case)
        repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=1 + case % 2)
        session = repo.writable_session("main")
        array = _create_array(session.store, random)
        session.commit("values")
        repo.collect_statistics()
        if random.random() < 0.3:
            session = repo.writable_session("main")
            zarr.open_array(session.store, path="v").resize(tuple(int(n) for n in random.integers(1, 14, 2)))
            session.commit("resize", allow_empty=True)
        _check_queries(repo, random, (case, array.dtype, dict(array.attrs), array.fill_value))


def _create_array(store: Any, random: np.random.Generator) -> Any:
    shape = tuple(int(size) for size in random.integers(1, 12, 2))
    dtype = np.dtype(str(random.choice(TYPES)))
    values, attributes = _make_values(dtype, shape, random)
    fill = random.choice([0.0, np.nan, 5.0]) if dtype.kind == "f" else 0
    grid: dict[str, Any] = {"chunks": tuple(int(size) for size in random.integers(1, 5, 2))}
    if random.random() < 0.3:
        grid = {"chunks": (2, 2), "shards": (4, 4)}
    array = zarr.create_array(
        store,
        name="v",
        shape=shape,
        dtype=dtype,
        fill_value=dtype.type(fill),
        dimension_names=("y", "x"),
        attributes=attributes,
        **grid,
    )
    array[...] = values
    if random.random() < 0.4:
        array[:2, :3] = array.fill_value
    return array


def _make_values(dtype: np.dtype[Any], shape: Sequence[int], random: np.random.Generator) -> tuple[Any, Any]:
    """Make values, and attributes that encode them: missing values, packing, times."""
    attributes: dict[str, Any] = {}
    if dtype.kind == "f":
        values = random.normal(0, 10.0 ** random.integers(-3, 4), shape).astype(dtype)
        for special, share in ((np.nan, 0.2), (np.inf, 0.1), (-np.inf, 0.1), (-0.0, 0.3)):
            if random.random() < 0.25:
                values[random.random(shape) < share] = special
        choices: dict[str, list[Any]] = {"scale_factor": [0.01, -0.5]}
    elif dtype.kind == "b":
        return random.random(shape) < 0.5, {}
    else:
        limits = np.iinfo(dtype)
        low, high = (limits.min, limits.max) if random.random() < 0.3 else (max(limits.min, -50), 50)
        values = random.integers(low, high, shape, dtype, endpoint=True)
        choices = {"scale_factor": [0.01, -0.5, 2.0, 0.0], "add_offset": [273.15, -1.0]}
        choices["_Unsigned"] = ["true" if dtype.kind == "i" else "false"]
        choices["_FillValue"] = [int(random.choice(values.ravel()))]
    finite = values[np.isfinite(values)]
    if len(finite):
        choices["missing_value"] = [random.choice(finite).item()]
    attributes = {
        name: each[int(random.integers(len(each)))] for name, each in choices.items() if random.random() < 0.3
    }
    if random.random() < 0.15 and "scale_factor" not in attributes and dtype.str[1:] not in ("i8", "u8"):
        attributes["units"] = str(random.choice(["days since 2000-01-01", "hours since 1900-01-01", "s"]))
    return values, attributes


def _check_queries(repo: icefloe.Repository, random: np.random.Generator, about: Any) -> None:
    try:
        values = icefloe.scan(repo, variables="v", statistics=False).to_arrow().column("v").drop_null()
    except icefloe.InvalidInputError:
        for used in (True, False):
            with pytest.raises(
                icefloe.InvalidInputError, match="contains a time that is infinite or outside"
            ):
                icefloe.scan(repo, variables="v", statistics=used).aggregate(v=["min", "max"])
        return
    if pa.types.is_timestamp(values.type):
        numbers = np.abs(values.cast(pa.int64()).to_numpy())
        if (numbers > LATEST).any():
            return
    there = values.to_pylist()
    total = math.fsum(abs(each) for each in there if isinstance(each, int | float) and math.isfinite(each))
    for _ in range(6):
        options: dict[str, Any] = {}
        if there and not isinstance(there[0], bool) and random.random() < 0.6:
            word = str(random.choice(["<", "<=", ">", ">=", "==", "!="]))
            options["filters"] = [("v", word, there[int(random.integers(len(there)))])]
        box = {"y": slice(int(random.integers(3)), None), "x": slice(0, int(random.integers(1, 9)))}
        functions = FUNCTIONS[int(random.integers(len(FUNCTIONS)))]
        asked = (functions, ["y"] if random.random() < 0.3 else [], box if random.random() < 0.4 else {})
        one, other = (_answer(repo, *asked, statistics=each, **options) for each in (True, False))
        assert _are_same(one, other, total), (about, options, asked, one, other)


def _answer(
    repo: icefloe.Repository, functions: list[str], by: list[str], box: dict[str, slice], **options: Any
) -> Any:
    try:
        scan = icefloe.scan(repo, variables="v", **options).isel(box)
        return sorted(scan.aggregate(by, v=functions).to_pylist(), key=lambda row: row.get("y", 0))
    except icefloe.InvalidInputError as error:  # sums that overflow, means of times
        return str(error)


def _are_same(one: Any, other: Any, total: float) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return bool(one == other)
    return len(one) == len(other) and all(
        row.keys() == same.keys() and all(_is_close(key, row[key], same[key], total) for key in row)
        for row, same in zip(one, other, strict=True)
    )


def _is_close(key: str, one: Any, other: Any, total: float) -> bool:
    if one == other or (one != one and other != other):
        return True
    if key == "v_std" and one is not None and other is not None:
        key, one, other = "v_var", one**2, other**2
    rounded = {"v_sum": total, "v_mean": total, "v_var": total**2}
    if key not in rounded or not isinstance(one, float) or not isinstance(other, float):
        return False
    return abs(one - other) <= 1e-12 * rounded[key]
