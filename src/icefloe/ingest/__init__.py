"""From a folder of files to arrays in a repository: what of it needs no Spark.

Sources are found, surveyed, combined and checked; the plan says which part of which file goes into which
chunks; tasks write them; a ledger in the repository keeps what came from where. Whoever runs the job hands in
an executor: `icefloe.spark.ingest` takes Spark's, a test may take threads.
"""

from icefloe.ingest.job import ingest
from icefloe.ingest.options import Options, make_options
from icefloe.ingest.rechunk.job import RechunkReport, rechunk
from icefloe.ingest.recovery import LedgerChunks
from icefloe.ingest.report import Report

__all__ = ["LedgerChunks", "Options", "RechunkReport", "Report", "ingest", "make_options", "rechunk"]
