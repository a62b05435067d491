"""`df.writeStream.format("icechunk")`: write each micro-batch in one commit, exactly once.

Spark may run a batch again after a failure. The query id and the batch number form the idempotency key of the
commit, and a batch whose key is already on the branch is not committed again. For each batch, Spark creates a
writer on the driver and sends it to the tasks, but commits with another writer in another process. Receipts
therefore carry everything that the commit needs: the query id, and the snapshot from which the tasks started.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import WriterCommitMessage

from icefloe.query.options import QueryOptions
from icefloe.spark.batch_sink import IcechunkWriter, WriteReceipt
from icefloe.spark.worker import hide_tracebacks

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_QUERY: Final = "sql.streaming.queryId"
_BATCH_ROWS: Final = 65536
_HAS_ARROW_WRITER: Final = hasattr(datasource, "DataSourceStreamArrowWriter")  # since Spark 4.1
_StreamWriter: Any = getattr(datasource, "DataSourceStreamArrowWriter", datasource.DataSourceStreamWriter)


@dataclass(frozen=True)
class BatchReceipt(WriterCommitMessage):
    """The receipt of a streaming write task: its changes, and the query and snapshot to which they belong."""

    query: str
    base: str
    """The snapshot from which the tasks of the batch started."""
    written: WriteReceipt


class IcechunkStreamWriter(_StreamWriter):  # type: ignore[misc]
    """The streaming writer of the Spark data source `icechunk`. It commits each micro-batch exactly once."""

    def __init__(self, options: QueryOptions, schema: StructType, overwrite: bool) -> None:
        keys = ("txnAppId", "txnVersion")
        given = {name: value for name, value in options.given.items() if name not in keys}
        self._app = options.text("txnAppId")
        self._writer = IcechunkWriter(replace(options, given=given), schema, overwrite)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        # docstring inherited
        batches = iterator if _HAS_ARROW_WRITER else _to_batches(iterator, self._writer.schema)
        context: Any = TaskContext.get()
        query = self._app or context.getLocalProperty(_QUERY)
        return BatchReceipt(query, self._writer.base, self._writer.write(batches))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        # docstring inherited
        receipts = [message for message in messages if isinstance(message, BatchReceipt)]
        if receipts:
            with hide_tracebacks():
                first, written = receipts[0], [each.written for each in receipts]
                self._writer.commit_from(first.base, written, (first.query, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: garbage collection deletes the chunks of a failed micro-batch."""


def _to_batches(rows: Iterator[Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Convert rows to Arrow record batches. Since version 4.1, Spark does this itself."""
    while part := [row.asDict() for row in islice(rows, _BATCH_ROWS)]:
        yield pa.RecordBatch.from_pylist(part, schema)
