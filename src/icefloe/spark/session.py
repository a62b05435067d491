"""Start Spark sessions. Local sessions are configured for laptops, demos and tests."""

from __future__ import annotations

import atexit
import os
import re
import shlex
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
"""The number of attempts per task. Local sessions also need retries, because the operating system may kill
workers if memory runs out.
"""

QUICK_START: Mapping[str, str] = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
}
"""Settings for short jobs. The JVM starts in half the CPU time, but then runs more slowly."""


def local_session(
    app_name: str = "icefloe", cores: int | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Start a Spark session in this process, or return the active one.

    The session listens only on the loopback interface, has no web UI, stores its files in a temporary folder,
    and runs its workers with the current Python interpreter. The JVM logs to `spark.log` in the folder
    `spark.local.dir`, which is removed at exit.

    Parameters
    ----------
    app_name
        Application name.
    cores
        Number of cores. All by default.
    settings
        Spark settings. They take precedence over the defaults.

    Returns
    -------
    SparkSession
        The session.

    Raises
    ------
    RuntimeError
        If Java is missing, or Spark does not start.
    """
    return session_at(f"local[{cores or '*'}]", app_name, settings)


def session_at(
    master: str, app_name: str = "icefloe", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Start a Spark session on the given master, or return the active session.

    Parameters
    ----------
    master
        Master URL, such as `local[2]`, `spark://host:7077` or `yarn`. A local session is configured as in
        `local_session`, with up to four attempts per task; `local[2,1]` allows only one.
    app_name
        Application name.
    settings
        Spark settings. They take precedence over the defaults.

    Returns
    -------
    SparkSession
        The session.

    Raises
    ------
    InvalidInputError
        If the master URL is invalid.
    RuntimeError
        If Spark does not start.
    """
    if _MASTER.fullmatch(master) is None:
        raise InvalidInputError(
            f"{master!r} is not a Spark master: use local[2], local[*], spark://host:7077, yarn or k8s://...",
            kind=ErrorKind.NOT_ALLOWED,
        )
    running = _SparkSession.getActiveSession()
    if running is not None:
        return running
    folder = _create_folder()
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
    builder = builder.master(_add_attempts(master)).appName(app_name)
    for name, value in {**options, **(settings or {})}.items():
        builder = builder.config(name, value)
    _prepare_from_env(folder, local=master.startswith("local"))
    log = folder / "spark.log"
    try:
        with _redirect_stderr(log):
            session: SparkSession = builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        raise RuntimeError(
            f"Spark did not start on {master}: {_find_reason(error, log)}; see {log}"
        ) from error
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    session.sparkContext.setLogLevel("ERROR")
    return session


@contextmanager
def open_temporary_session(master: str, settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Open a Spark session for a `with` block, and stop it afterwards. A session that was already active
    stays open.
    """
    running = _SparkSession.getActiveSession()
    quick = QUICK_START if master.startswith("local") else {}
    session = session_at(master, settings={**quick, **(settings or {})})
    try:
        yield session
    finally:
        if running is None:
            session.stop()


@contextmanager
def open_default_session() -> Iterator[SparkSession | None]:
    """Yield the active Spark session, or a temporary local one. Yield None if Java is missing."""
    if _SparkSession.getActiveSession() is None:
        try:
            find_java_home()
        except RuntimeError:
            yield None
            return
    with open_temporary_session("local[*]") as session:
        yield session


def _create_folder() -> Path:
    """Create a folder for a session's files, and remove the folders left behind by killed processes."""
    for lock in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*/{_LOCK}"):
        with suppress(OSError, ImportError), lock.open("ab") as file:  # owned by another user, or in use
            _lock(file)
            shutil.rmtree(lock.parent, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_FOLDER))
    file = (folder / _LOCK).open("ab")
    atexit.register(file.close)
    with suppress(OSError, ImportError):  # a file system without lock support
        _lock(file)
    return folder


def _lock(file: IO[bytes]) -> None:
    """Lock a file until it is closed or the process ends. Raise OSError if it is already locked."""
    import fcntl  # not available on every platform

    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _find_reason(error: Exception, log: Path) -> str:
    """Extract the reason from a JVM error. If the JVM did not start, return the end of its log."""
    if "JAVA_GATEWAY_EXITED" in str(error):
        return " ".join(log.read_text(errors="replace").split("\n")[-4:]).strip() or "Java exited immediately"
    if "stopped SparkContext" in str(error):
        return "there is no response"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if re.match(r"(Caused by: |: )?[\w.]+(Exception|Error): ", line)]
    text = (causes or lines or [type(error).__name__])[0]
    return re.sub(r"^(Caused by: |: )?([\w.]+(Exception|Error): )+", "", text)


def _add_attempts(master: str) -> str:
    """Add the number of attempts per task to a local master URL that does not specify it."""
    plain = re.fullmatch(r"local(?:\[([^,\]]+)\])?", master)
    return f"local[{plain[1] or 1},{_ATTEMPTS}]" if plain else master


def _prepare_from_env(folder: Path, *, local: bool) -> None:
    """Set the environment variables that tell Spark where Java and Python are, unless the user has set
    them.
    """
    os.environ["JAVA_HOME"] = str(find_java_home())
    python = sys.executable
    if local and " " in python and "PYSPARK_PYTHON" not in os.environ:
        python = _write_launcher(folder, python)
    os.environ.setdefault("PYSPARK_PYTHON", python)
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)


def _write_launcher(folder: Path, python: str) -> str:
    """Write a launcher script for Python. Without it, Spark finds no data sources if the path of Python
    contains a space.

    `DataSourceManager.shouldLoadPythonDataSources` in Spark runs `command -v PATH` without quotes.
    """
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(python)} "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    return str(script)


@contextmanager
def _redirect_stderr(file: Path) -> Iterator[None]:
    """Redirect the stderr of child processes to a file, because the JVM prints several warnings at
    startup.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(file, "ab") as log:
            os.dup2(log.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
