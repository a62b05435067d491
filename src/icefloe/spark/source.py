"""`spark.read.format("icechunk")`: a Python data source that reads the arrays of a repository as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.query.metadata_tables import View, get_metadata_table
from icefloe.query.options import QueryOptions, open_version, parse_options
from icefloe.query.scan.read import read_partition
from icefloe.query.spark_types import to_ddl, to_spark_type
from icefloe.spark.worker import VERSION, check_version, hide_tracebacks

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from icefloe.query.scan.plan import ScanPlan
    from icefloe.query.schema import ArrayTable
    from icefloe.session import Session

NAME = "icechunk"


class IcechunkSource(DataSource):
    """The Spark data source `icechunk` (`spark.read.format`). Spark discovers it automatically if icefloe is
    installed.
    """

    @classmethod
    def name(cls) -> str:
        # docstring inherited
        return NAME

    def schema(self) -> str:
        # docstring inherited
        with hide_tracebacks():
            chosen = parse_options(self.options)
            if chosen.is_stream:
                from icefloe.spark.stream_source import describe_stream

                return describe_stream(chosen)
            if name := chosen.text("table"):
                return to_ddl(get_metadata_table(name).schema)
            return chosen.scan().table.ddl

    def reader(self, schema: StructType) -> DataSourceReader:
        # docstring inherited
        with hide_tracebacks():
            chosen = parse_options(self.options)
            if chosen.is_stream:
                raise InvalidInputError(
                    "grain, startingVersion and other stream options require spark.readStream; spark.read"
                    " has the metadata tables snapshots, chunks and diff instead",
                    kind=ErrorKind.NOT_ALLOWED,
                )
            if name := chosen.text("table"):
                return MetadataReader(name, chosen, schema.names)
            scan = chosen.scan().select(schema.names)
            _check_types(scan.table, schema)
            return TableReader(scan.session, scan.plan(), chosen.batch_rows)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        # docstring inherited
        from icefloe.spark.batch_sink import IcechunkWriter

        with hide_tracebacks():
            return IcechunkWriter(parse_options(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802 - as in Spark
        # docstring inherited
        from icefloe.spark.stream_sink import IcechunkStreamWriter

        with hide_tracebacks():
            return IcechunkStreamWriter(parse_options(self.options), schema, overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - as in Spark
        # docstring inherited
        from icefloe.spark.stream_source import IcechunkStreamReader

        with hide_tracebacks():
            return IcechunkStreamReader(parse_options(self.options), schema.names)


class ReadPart(InputPartition):
    """The input partition of one read task: a partition of a scan, or one unit of work of a metadata
    table.
    """

    def __init__(self, item: Any) -> None:
        super().__init__(item)
        self.item = item


class TableReader(DataSourceReader):
    """A reader of array tables for the Spark data source `icechunk`.

    It is pickled together with its plan and a session that contains no secrets.
    """

    def __init__(self, session: Session, plan: ScanPlan, batch_rows: int) -> None:
        self._session = session
        self._plan = plan
        self._batch_rows = batch_rows
        self._version = VERSION

    def partitions(self) -> Sequence[InputPartition]:
        # docstring inherited
        return [ReadPart(number) for number in range(self._plan.partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # docstring inherited
        with hide_tracebacks():
            check_version(self._version)
            if isinstance(partition, ReadPart):  # without partitions, Spark would create one itself
                yield from read_partition(self._session, self._plan, partition.item, self._batch_rows)


class MetadataReader(DataSourceReader):
    """A reader of metadata tables for the Spark data source `icechunk`."""

    def __init__(self, name: str, options: QueryOptions, columns: Sequence[str]) -> None:
        self._name = name
        self._columns = list(columns)
        repo = options.open()
        start = options.text("fromVersion")
        earlier = open_version(repo, start) if start else None
        self._view = View(repo, options.session(repo), earlier)
        self._version = VERSION

    def partitions(self) -> Sequence[InputPartition]:
        # docstring inherited
        return [ReadPart(item) for item in get_metadata_table(self._name).tasks(self._view)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # docstring inherited
        with hide_tracebacks():
            check_version(self._version)
            if isinstance(partition, ReadPart):
                for batch in get_metadata_table(self._name).read(self._view, partition.item):
                    yield batch.select(self._columns)


def _check_types(table: ArrayTable, schema: StructType) -> None:
    """Check that a schema given by the user contains only columns of the table, with the table's types."""
    for column, field in zip(table.columns, schema.fields, strict=True):
        found, asked = to_spark_type(column.arrow), field.dataType.simpleString()
        if _strip_spaces(found) != _strip_spaces(asked):
            raise InvalidInputError(
                f"column {column.name} is of type {found}, not {asked}; cast it after reading",
                kind=ErrorKind.INVALID_ARRAY_METADATA,
            )


def _strip_spaces(name: str) -> str:
    return name.replace(" ", "")
