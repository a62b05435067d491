"""A Spark session on this machine alone, with settings that suit a laptop, a demonstration and tests."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession as _SparkSession

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.spark.java import find_java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MASTER = re.compile(r"local(\[(\*|[1-9]\d*)(\s*,\s*[1-9]\d*)?\])?|local-cluster\[.+\]|yarn|(spark|k8s)://.+")
_LOOPBACK = "127.0.0.1"
_FOLDER = "icefloe-spark-"
_LOCK = "lock"
_ATTEMPTS = 4
"""For a task, as on clusters. A machine that is short of memory kills workers, too."""

QUICK_START: Mapping[str, str] = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
}
"""Settings for short jobs: the JVM compiles quickly rather than well, and takes half the CPU to get going."""


def local_session(
    app_name: str = "icefloe", cores: int | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A Spark session in this process, on so many `cores`, all of them by default.

    It listens on the loopback interface only, has no web page, keeps its files in a temporary folder, and its
    workers run the Python that runs this. `settings` are Spark's and come last. What the JVM has to say goes
    to `spark.log` in the folder that the setting `spark.local.dir` names, which is removed when this process
    ends. RuntimeError without Java.

    A session that runs already is given back as it is.
    """
    return session_at(f"local[{cores or '*'}]", app_name, settings)


def session_at(
    master: str, app_name: str = "icefloe", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A Spark session with a master: `local[2]`, `spark://host:7077`, `yarn`; one that runs is given back.

    With a local master it is as quiet as `local_session`, and tries a task whose worker was killed up to four
    times, as clusters do; `local[2,1]` gives up at once. InvalidInputError for what is no master;
    RuntimeError where Spark does not start.
    """
    if _MASTER.fullmatch(master) is None:
        raise InvalidInputError(
            f"{master!r} is no master of Spark: write local[2], local[*], spark://host:7077, yarn or k8s://...",
            kind=ErrorKind.NOT_ALLOWED,
        )
    running = _SparkSession.getActiveSession()
    if running is not None:
        return running
    folder = _new_folder()
    builder: Any = _SparkSession.builder
    options = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.shuffle.partitions": "4",
    }
    if master.startswith("local"):
        options |= {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
    builder = builder.master(_patient(master)).appName(app_name)
    for name, value in {**options, **(settings or {})}.items():
        builder = builder.config(name, value)
    _prepare_from_env(local=master.startswith("local"))
    log = folder / "spark.log"
    try:
        with _stderr_into(log):
            session: SparkSession = builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        raise RuntimeError(
            f"Spark did not start on {master}: {_reason(error, log)}; {log} may tell more"
        ) from error
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    session.sparkContext.setLogLevel("ERROR")
    return session


@contextmanager
def session_for_now(master: str, settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A Spark session with a master for as long as it is needed; one that ran before goes on."""
    running = _SparkSession.getActiveSession()
    quick = QUICK_START if master.startswith("local") else {}
    session = session_at(master, settings={**quick, **(settings or {})})
    try:
        yield session
    finally:
        if running is None:
            session.stop()


def _new_folder() -> Path:
    """A folder for the files of a session. Those that killed processes have left are removed."""
    for lock in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*/{_LOCK}"):
        with suppress(OSError, ImportError), lock.open("ab") as file:  # somebody else's, or at work
            _lock(file)
            shutil.rmtree(lock.parent, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_FOLDER))
    file = (folder / _LOCK).open("ab")
    atexit.register(file.close)
    with suppress(OSError, ImportError):  # a place without locks
        _lock(file)
    return folder


def _lock(file: IO[bytes]) -> None:
    """Until the file is closed or its process ends; OSError if another one has locked it."""
    import fcntl  # not on every platform

    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _reason(error: Exception, log: Path) -> str:
    """What the JVM says, without where it says it; if it did not come so far, how its log ends."""
    if "JAVA_GATEWAY_EXITED" in str(error):
        return " ".join(log.read_text(errors="replace").split("\n")[-4:]).strip() or "Java ended at once"
    if "stopped SparkContext" in str(error):
        return "nobody answers there"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if re.match(r"(Caused by: |: )?[\w.]+(Exception|Error): ", line)]
    text = (causes or lines or [type(error).__name__])[0]
    return re.sub(r"^(Caused by: |: )?([\w.]+(Exception|Error): )+", "", text)


def _patient(master: str) -> str:
    """A local master with several attempts for each task, where it does not say how many."""
    plain = re.fullmatch(r"local(?:\[([^,\]]+)\])?", master)
    return f"local[{plain[1] or 1},{_ATTEMPTS}]" if plain else master


def _prepare_from_env(*, local: bool) -> None:
    """Tell Spark where Java and Python are; what the user has chosen stays."""
    os.environ["JAVA_HOME"] = str(find_java_home())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)


@contextmanager
def _stderr_into(file: Path) -> Iterator[None]:
    """Processes started meanwhile write their errors into a file: the JVM greets with several warnings."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(file, "ab") as log:
            os.dup2(log.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
