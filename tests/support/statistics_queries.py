"""Generated queries over the arrays of `tests.support.statistics`, and the same data as a Parquet file."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import icefloe
from icefloe.query.local.sql import run_local_query
from tests.support.statistics import read_values

Values = dict[str, np.ma.MaskedArray[Any, Any]]
"""The values of the variables of one table."""


def split_tables(values: Values) -> Iterator[tuple[str, Values]]:
    """Divide the arrays of a repository among its tables, with the letters of their dimensions."""
    yield "yx", {name: each for name, each in values.items() if name != "v"}
    if "v" in values:
        yield "ij", {"v": values["v"]}


def write_parquet(dims: str, values: Values, path: Path) -> Path:
    """Write the cells of arrays as rows, with nulls for missing values, and floats as doubles."""
    shape = next(iter(values.values())).shape
    rows = {dim: place.ravel() for dim, place in zip(dims, np.indices(shape), strict=True)}
    columns = {name: pa.array(each) for name, each in rows.items()}
    for name in values:
        wide = values[name].data.astype("i8" if name == "n" else "f8").ravel()
        columns[name] = pa.array(wide, mask=np.ma.getmaskarray(values[name]).ravel())
    pq.write_table(pa.table(columns), path)
    return path


def make_query(random: np.random.Generator, dims: str, values: Values) -> str:
    """Generate a query with `{t}` for the table: aggregates, in groups or not, or rows; with conditions."""
    where = _make_where(random, dims, values)
    if random.random() < 0.25:
        names = [str(name) for name in random.permutation(list(values))[: random.integers(1, 4)]]
        return f"SELECT {', '.join([*dims, *names])} FROM {{t}}{where}"
    keys = [str(key) for key in random.permutation(list(dims))[: random.integers(0, 3)]]
    found = [_make_aggregate(random, values) for _ in range(int(random.integers(1, 4)))]
    selected = ", ".join([*keys, *(f"{each} AS a{at}" for at, each in enumerate(found))])
    return f"SELECT {selected} FROM {{t}}{where}" + (f" GROUP BY {', '.join(keys)}" if keys else "")


def _make_aggregate(random: np.random.Generator, values: Values) -> str:
    name = str(random.choice(list(values)))
    there = values[name].compressed()
    functions = ["count", "min", "max"]
    if np.isfinite(there).all():
        functions += ["avg", "stddev"]
        if name != "n":  # sums of large integers overflow
            functions.append("sum")
    function = str(random.choice(functions))
    return "count(*)" if random.random() < 0.1 else f"{function}({name})"


def _make_where(random: np.random.Generator, dims: str, values: Values) -> str:
    conditions = [_make_condition(random, dims, values) for _ in range(int(random.integers(0, 4)))]
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


def _make_condition(random: np.random.Generator, dims: str, values: Values) -> str:
    nullable = [name for name in values if name != "n"]
    name = str(random.choice([*dims, *nullable]))
    one, other = (_make_constant(random, name, values) for _ in range(2))
    word = str(random.choice(["<", "<=", ">", ">=", "=", "<>"]))
    found = [
        f"{name} {word} {one}",
        f"{name} {word} {one}",
        f"{one} {word} {name}",
        f"{name} BETWEEN {one} AND {other}",
        f"{name} IN ({one}, {other})",
        f"({name} < {one} OR {name} > {other})",
        f"NOT {name} {word} {one}",
        f"{random.choice(nullable)} IS {random.choice(['', 'NOT '])}NULL",
    ]
    return str(found[int(random.integers(len(found)))])


def _make_constant(random: np.random.Generator, name: str, values: Values) -> str:
    """Choose a position, or a value that occurs, or a number between the values."""
    if name not in values:
        return str(int(random.integers(-1, 10)))
    there = values[name].compressed()
    finite = there[np.isfinite(there)]
    if len(finite) and random.random() < 0.5:
        return repr(float(random.choice(finite)))
    return f"{random.normal(0, 40):.3f}"


def check_rows(found: Sequence[Sequence[Any]], expected: Sequence[Sequence[Any]], text: str) -> None:
    """Check that rows are equal in any order; averages and deviations up to the order of summation."""
    assert len(found) == len(expected), text
    for row, other in zip(sorted(found, key=_order), sorted(expected, key=_order), strict=True):
        assert all(map(_is_same, row, other)), (text, row, other)


def _order(row: Sequence[Any]) -> tuple[Any, ...]:
    """Sort nulls first, and numbers by the digits in which engines agree."""
    return tuple((each is not None, 0 if each is None else float(f"{each:.6g}")) for each in row)


def _is_same(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    if isinstance(one, int) and isinstance(other, int):
        return one == other
    return one == other or math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)


def check_query(repo: icefloe.Repository, query: str, file: Path) -> bool:
    """Compare the answers to a query with those of DuckDB; False if the built-in engine refers to Spark."""
    text = re.sub(r"\d+\.\d+(e[-+]\d+)?", r"\g<0>::DOUBLE", query).format(t=f"'{file}'")
    expected = duckdb.execute(text).fetchall()
    for statistics in (True, False):
        try:
            table = run_local_query(query.format(t="r"), {"r": repo}, statistics=statistics).table
        except icefloe.InvalidInputError as error:
            if error.hint is None:
                raise
            return False
        check_rows([tuple(row.values()) for row in table.to_pylist()], expected, query)
    return True


def check_queries(repo: icefloe.Repository, random: np.random.Generator, folder: Path) -> int:
    """Compare the answers to generated queries over all tables, and return the number of answered ones."""
    tables = dict(split_tables(read_values(repo)))
    answered = 0
    for dims, values in tables.items():
        file = write_parquet(dims, values, folder / f"{dims}.parquet")
        for _ in range(12):
            query = make_query(random, dims, values)
            if len(tables) > 1:  # a query without a column could mean either table
                query = query.replace("count(*)", f"count({dims[0]})")
            answered += check_query(repo, query, file)
    return answered
