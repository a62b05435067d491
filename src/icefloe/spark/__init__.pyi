# The public names of the package. `__init__.py` imports each from its module on first use.
from icefloe.spark.executor import SparkExecutor as SparkExecutor
from icefloe.spark.ingest_files import ingest as ingest
from icefloe.spark.ingest_files import rechunk as rechunk
from icefloe.spark.run_sql import sql as sql
from icefloe.spark.scan_tables import Scan as Scan
from icefloe.spark.scan_tables import scan as scan
from icefloe.spark.session import QUICK_START as QUICK_START
from icefloe.spark.session import local_session as local_session
from icefloe.spark.session import session_at as session_at
from icefloe.spark.shuffle_write import write as write
from icefloe.spark.views import register as register
