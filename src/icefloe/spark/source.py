"""`spark.read.format("icechunk")`: arrays of a repository as tables, over Spark's Python data sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.query.decode import ddl, spark_type
from icefloe.query.metadata_tables import View, metadata_table
from icefloe.query.options import Options, any_version, parse
from icefloe.query.scan.read import read_partition
from icefloe.spark.worker import VERSION, check_version, readable_errors

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from icefloe.query.scan.plan import Plan
    from icefloe.query.schema import Table
    from icefloe.session import Session

NAME = "icechunk"


class IcechunkSource(DataSource):
    """Tables of a repository. Spark finds it by itself where icefloe is installed."""

    @classmethod
    def name(cls) -> str:
        # docstring inherited
        return NAME

    def schema(self) -> str:
        # docstring inherited
        with readable_errors():
            chosen = parse(self.options)
            if name := chosen.text("table"):
                return ddl(metadata_table(name).schema)
            return chosen.scan().table.ddl

    def reader(self, schema: StructType) -> DataSourceReader:
        # docstring inherited
        with readable_errors():
            chosen = parse(self.options)
            if name := chosen.text("table"):
                return MetadataReader(name, chosen, schema.names)
            scan = chosen.scan().select(schema.names)
            _check_types(scan.table, schema)
            return TableReader(scan.session, scan.plan(), chosen.batch_rows)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        # docstring inherited
        from icefloe.spark.sink import IcechunkWriter

        with readable_errors():
            return IcechunkWriter(parse(self.options), schema, overwrite)


class Part(InputPartition):
    """What one task does: the number of a partition of the plan that the reader holds, or another order."""

    def __init__(self, order: Any) -> None:
        super().__init__(order)
        self.order = order


class TableReader(DataSourceReader):
    """Reads the partitions of a plan. Pickled as a session without secrets and the plan."""

    def __init__(self, session: Session, plan: Plan, batch_rows: int) -> None:
        self._session = session
        self._plan = plan
        self._batch_rows = batch_rows
        self._version = VERSION

    def partitions(self) -> Sequence[InputPartition]:
        # docstring inherited
        return [Part(number) for number in range(self._plan.partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # docstring inherited
        with readable_errors():
            check_version(self._version)
            if isinstance(partition, Part):  # Spark makes one partition of its own where there is none
                yield from read_partition(self._session, self._plan, partition.order, self._batch_rows)


class MetadataReader(DataSourceReader):
    """Reads a table about the repository itself."""

    def __init__(self, name: str, options: Options, columns: Sequence[str]) -> None:
        self._name = name
        self._columns = list(columns)
        repo = options.open()
        start = options.text("fromVersion")
        earlier = any_version(repo, start) if start else None
        self._view = View(repo, options.session(repo), earlier)
        self._version = VERSION

    def partitions(self) -> Sequence[InputPartition]:
        # docstring inherited
        return [Part(order) for order in metadata_table(self._name).orders(self._view)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # docstring inherited
        with readable_errors():
            check_version(self._version)
            if isinstance(partition, Part):
                for batch in metadata_table(self._name).read(self._view, partition.order):
                    yield batch.select(self._columns)


def _check_types(table: Table, schema: StructType) -> None:
    """A schema given by the user may leave out columns, and no more."""
    for column, field in zip(table.columns, schema.fields, strict=True):
        found, asked = spark_type(column.arrow), field.dataType.simpleString()
        if _plain(found) != _plain(asked):
            raise InvalidInputError(
                f"column {column.name} is of type {found}, not {asked}; cast it after reading",
                kind=ErrorKind.INVALID_ARRAY_METADATA,
            )


def _plain(spark_type: str) -> str:
    return spark_type.replace(" ", "")
