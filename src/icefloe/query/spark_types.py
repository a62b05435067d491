"""Generate Spark SQL column types, DDL and quoted identifiers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from icefloe.query.decode import INTERVAL, TIMESTAMP, WIDENED

_SPARK_TYPES: Final[Mapping[pa.DataType, str]] = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.decimal128(20, 0): "decimal(20,0)",
    pa.decimal128(38, 0): "decimal(38,0)",
    TIMESTAMP: "timestamp_ntz",
    pa.timestamp("us", tz="UTC"): "timestamp",
    INTERVAL: "interval day to second",
    WIDENED["complex64"]: "struct<real: float, imag: float>",
    WIDENED["complex128"]: "struct<real: double, imag: double>",
}


def to_spark_type(arrow: pa.DataType) -> str:
    """Return the Spark SQL type for an Arrow type."""
    if pa.types.is_list(arrow):
        return f"array<{to_spark_type(arrow.value_type)}>"
    return _SPARK_TYPES[arrow]


def to_ddl(schema: pa.Schema) -> str:
    """Convert an Arrow schema to Spark SQL DDL."""
    return ", ".join(f"{quote_name(field.name)} {to_spark_type(field.type)}" for field in schema)


def quote_name(name: str) -> str:
    """Quote an identifier for use in Spark SQL DDL."""
    return "`" + name.replace("`", "``") + "`"
