# The public names of the package. `__init__.py` imports each from its module on first use.
from icefloe.ingest.options import Options as Options
from icefloe.ingest.options import make_options as make_options
from icefloe.ingest.rechunk_job import RechunkReport as RechunkReport
from icefloe.ingest.rechunk_job import rechunk as rechunk
from icefloe.ingest.recovery import LedgerChunks as LedgerChunks
from icefloe.ingest.report import IngestReport as IngestReport
