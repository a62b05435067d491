"""Generate statements that change an array table, and apply each to a pandas data frame as well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd  # type: ignore[import-untyped]

DIMS: Final = ["time", "lat", "lon"]
CONDITIONS: Final[Mapping[str, Any]] = {
    "t.rain % 2 = 0": lambda both: both.rain % 2 == 0,
    "s.v > 10": lambda both: both.v > 10,
    "t.t2m IS NULL": lambda both: both.t2m.isna(),
    "t.lat > 45 AND s.r < 50": lambda both: (both.lat > 45) & (both.r < 50),
    "coalesce(t.t2m, 0) + s.v > 290": lambda both: both.t2m.fillna(0) + both.v.fillna(np.nan) > 290,
}
VALUES: Final[Mapping[str, Mapping[str, Any]]] = {
    "t2m": {
        "s.v": lambda both: both.v,
        "t.t2m + s.v": lambda both: both.t2m + both.v,
        "CASE WHEN t.rain > 50 THEN NULL ELSE t.lon END": lambda both: both.lon.where(~(both.rain > 50)),
    },
    "rain": {
        "r": lambda both: both.r,
        "t.rain * 2": lambda both: both.rain * 2,
        "7": lambda both: both.r * 0 + 7,
    },
}
"""Expressions by variable, each with the same computation in pandas."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A MERGE statement, its source, and the table that it should produce."""

    text: str
    source: pd.DataFrame
    expected: pd.DataFrame


def make_merge(random: np.random.Generator, table: pd.DataFrame) -> Statement:
    """Generate a MERGE with one to three clauses, and apply it to the rows of a table.

    The first clause that applies to a row counts, as in Spark and Delta Lake.
    """
    count = int(random.integers(1, 60))
    source = table[DIMS].sample(min(count, len(table)), random_state=int(random.integers(2**31)))
    source = source.assign(
        v=np.where(random.random(len(source)) < 0.1, np.nan, random.integers(0, 20, len(source))),
        r=random.integers(0, 100, len(source)),
    )
    off = source.sample(frac=0.2, random_state=1).assign(lon=lambda rows: rows.lon + 1000)
    source = pd.concat([source, off], ignore_index=True)
    both = table.reset_index().merge(source, on=DIMS).set_index("index")
    left = pd.Series(True, index=both.index)
    expected, clauses = table.copy(), []
    for _ in range(int(random.integers(1, 4))):
        condition = str(random.choice([*CONDITIONS, ""]))
        fits = left & CONDITIONS[condition](both).fillna(False).astype(bool) if condition else left.copy()
        left &= ~fits
        text, chosen = _make_action(random, both[fits])
        expected.loc[chosen.index, chosen.columns] = chosen.astype(expected.dtypes[chosen.columns])
        clauses.append(f"WHEN MATCHED{f' AND {condition}' if condition else ''} THEN {text}")
    unmatched = table.index.difference(both.index)
    if random.random() < 0.3:
        clauses.append(
            "WHEN NOT MATCHED BY SOURCE AND t.lat < 40 AND t.rain > 20 THEN UPDATE SET rain = t.rain + 1"
        )
        rows = table.loc[unmatched]
        rows = rows[(rows.lat < 40) & (rows.rain > 20)]
        expected.loc[rows.index, "rain"] = (rows.rain + 1).astype(expected.rain.dtype)
    on = " AND ".join(f"t.{dim} = s.{dim}" for dim in random.permutation(DIMS))
    return Statement(f"MERGE INTO w AS t USING src AS s ON {on} {' '.join(clauses)}", source, expected)


def _make_action(random: np.random.Generator, rows: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    names = random.permutation(["t2m", "rain"])[: random.integers(1, 3)]
    chosen = {str(name): str(random.choice(list(VALUES[name]))) for name in names}
    found = pd.DataFrame({name: VALUES[name][text](rows) for name, text in chosen.items()}, index=rows.index)
    return "UPDATE SET " + ", ".join(f"{name} = {text}" for name, text in chosen.items()), found


UPDATES: Final[Mapping[str, Any]] = {
    "lat BETWEEN 40 AND 50 AND time >= '2020-01-02'": lambda rows: (
        rows.lat.between(40, 50) & (rows.time >= "2020-01-02")
    ),
    "t2m > 285 OR rain = 3": lambda rows: (rows.t2m > 285) | (rows.rain == 3),
    "month(time) = 12 AND lon < 8": lambda rows: (rows.time.dt.month == 12) & (rows.lon < 8),
    "t2m > (SELECT avg(t2m) FROM w)": lambda rows: rows.t2m > rows.t2m.mean(),
}
"""Conditions of UPDATE and DELETE, each with the same computation in pandas."""


def make_update(random: np.random.Generator, table: pd.DataFrame) -> Statement:
    """Generate an UPDATE or a DELETE of one array, and apply it to the rows of a table."""
    text = str(random.choice(list(UPDATES)))
    rows, expected = UPDATES[text](table), table.copy()
    if random.random() < 0.5:
        expected.loc[rows, "t2m"] = np.nan
        return (
            Statement(f"DELETE FROM w.t2m WHERE {text.replace('rain', 'lat')}", table[:0], expected)
            if ("rain" not in text)
            else Statement(f"UPDATE w SET t2m = NULL WHERE {text}", table[:0], expected)
        )
    expected.loc[rows, "rain"] = (table.rain[rows] + 1).astype(table.rain.dtype)
    return Statement(f"UPDATE w SET rain = rain + 1 WHERE {text}", table[:0], expected)
