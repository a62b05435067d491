"""The `--executor` option, which runs a command on Spark, in local processes or in threads."""

from __future__ import annotations

import logging
import re
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import click

from icefloe._internal.executor import Executor, ProcessExecutor, ThreadExecutor
from icefloe._internal.extras import SPARK, format_install_command
from icefloe.cli.output import CommandOutput
from icefloe.cli.params import DescribedDefault, adapt, pairs_option
from icefloe.cli.progress import Meter
from icefloe.repository import Repository

_FORM = re.compile(r"spark(:.+)?|processes(:[1-9]\d*)?|threads")
_LOCAL_SPARK = "local[*]"
_WITHOUT_SPARK = "; --executor processes works without it"
_THREADS = 64
_SPARK_TASKS_PER_CORE = 4
"""More than one task per core keeps all cores busy while the slowest task finishes."""
_SILENT = logging.CRITICAL + 1


@dataclass(frozen=True, slots=True)
class ExecutorChoice:
    """The value of `--executor`: `spark[:MASTER]`, `processes[:N]`, `threads`, or empty for the default."""

    text: str = ""
    spark_conf: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_spark(self) -> bool:
        """True if this selects Spark."""
        return self.text.startswith("spark")

    @property
    def argument(self) -> str:
        """The Spark master or the number of processes; empty for the default."""
        return self.text.partition(":")[2]

    def or_default(self, out: CommandOutput) -> ExecutorChoice:
        """Return this choice or, if it is empty, Spark, or processes if pyspark or Java is missing."""
        if self.text:
            return self
        from icefloe.spark.java import describe_missing

        missing = describe_missing()
        if missing is None:
            return replace(self, text="spark")
        out.progress.say(f"Spark is not available ({missing})")
        return replace(self, text="processes")


class ExecutorType(click.ParamType[str]):
    """The parameter type of the `--executor` option."""

    name = "executor"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        # docstring inherited
        if _FORM.fullmatch(str(value)) is None:
            self.fail(f"{value!r} is not spark[:MASTER], processes[:N] or threads", param, ctx)
        return str(value)


_spark_conf = pairs_option(
    "--spark-conf", help="A Spark setting, such as spark.executor.memory=4g; can be repeated."
)
executor_option = adapt(
    lambda executor, spark_conf: {"executor": ExecutorChoice(executor or "", spark_conf)},
    click.option(
        "--executor",
        type=ExecutorType(),
        cls=DescribedDefault,
        show_default="spark, or processes if pyspark or Java is missing",
        help="Where to run: spark[:MASTER], such as spark:local[2] or spark:spark://host:7077; "
        "processes[:N] on this machine; or threads: one task at a time, in this process.",
    ),
    _spark_conf,
)
"""Add `--executor` to an ingest command. The command receives the argument `executor`, an ExecutorChoice."""


def _start_for_maintenance(
    executor: str, spark_conf: Mapping[str, str], tasks: int | None
) -> dict[str, Executor | None]:
    started = _start(ExecutorChoice(executor, spark_conf), tasks, tasks_per_core=_SPARK_TASKS_PER_CORE)
    return {"executor": click.get_current_context().with_resource(started)}


maintenance_executor_option = adapt(
    _start_for_maintenance,
    click.option(
        "--executor",
        type=ExecutorType(),
        default="threads",
        show_default=True,
        help="Where to run: threads, processes[:N] on this machine, or spark[:MASTER], such as "
        "spark:local[2] or spark:yarn.",
    ),
    _spark_conf,
    click.option(
        "--tasks",
        type=click.IntRange(min=1),
        help="The maximum number of Spark tasks per step; by default proportional to the number of cores.",
    ),
)
"""Add `--executor` to a maintenance command. The command receives the argument `executor`, or None for
threads."""
repo_executor_option = adapt(
    lambda repo, executor: {"repo": repo if executor is None else repo.with_executor(executor)},
    maintenance_executor_option,
)
"""Add `--executor` to a command, whose argument `repo` then uses the executor. Apply it below
`repo_argument`.
"""


def with_progress(repo: Repository, out: CommandOutput, *, reads_only: bool = False) -> Repository:
    """Return a command's repository with the chosen executor, which reports progress.

    With `reads_only`, the operation only reads small files. On a local disk, one thread is then faster than
    several.
    """
    alone = reads_only and repo.storage.answers_at_once
    executor = repo.executor or ThreadExecutor(1 if alone else _THREADS)
    return repo.with_executor(executor.with_progress(out.progress))


@contextmanager
def start_executor(choice: ExecutorChoice, out: CommandOutput) -> Iterator[Executor]:
    """Start the executor chosen with `--executor`, report it, and stop it at the end of the block."""
    with _start(choice) as started:
        # One task at a time, because some libraries that read files are not thread-safe.
        executor = started or ThreadExecutor(1)
        where = "in this process"
        if choice.is_spark:
            where = f"on Spark ({choice.argument or _LOCAL_SPARK})"
        elif started is not None:
            where = f"in {executor.parallelism} processes of this machine"
        out.progress.say(f"running {where}")
        yield executor.with_progress(out.progress)


@contextmanager
def _start(
    choice: ExecutorChoice, tasks: int | None = None, *, tasks_per_core: int = 0
) -> Iterator[Executor | None]:
    """Start Spark or processes, and stop them at the end of the block. Yield None for threads."""
    if choice.is_spark:
        with start_spark(choice, _WITHOUT_SPARK) as session:
            from icefloe.spark.executor import SparkExecutor

            most = tasks_per_core * SparkExecutor(session).parallelism if tasks_per_core else None
            yield SparkExecutor(session, tasks or most)
    elif choice.text.startswith("processes"):
        with ProcessExecutor(int(choice.argument or 0) or None) as processes:
            yield processes
    else:
        yield None


@contextmanager
def start_spark(choice: ExecutorChoice, advice: str = "") -> Iterator[Any]:
    """Start a Spark session, and stop it at the end of the block unless it already existed.

    `advice` is added to the error message if Spark is not available.
    """
    try:
        from icefloe.spark.session import open_temporary_session
    except ModuleNotFoundError:
        raise click.ClickException(
            f"this command requires Spark: {format_install_command(*SPARK)}{advice}"
        ) from None
    master = choice.argument or _LOCAL_SPARK
    with ExitStack() as stack:
        try:
            with Meter().waiting(f"starting Spark on {master}"):
                session = stack.enter_context(open_temporary_session(master, choice.spark_conf))
        except RuntimeError as error:
            raise click.ClickException(f"{error}{advice}") from None
        stack.enter_context(_stop_quietly())
        yield session


@contextmanager
def _stop_quietly() -> Iterator[None]:
    """Keep pyspark and py4j from printing tracebacks when the user presses Ctrl-C.

    PySpark's signal handler tries to cancel the jobs over a busy connection, and py4j logs the failure. The
    jobs end with the session anyway.
    """
    root, before = logging.getLogger(), signal.getsignal(signal.SIGINT)
    py4j = logging.getLogger("py4j")
    level = py4j.level
    is_main = threading.current_thread() is threading.main_thread() and before is not signal.SIG_IGN
    if is_main:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    root.addFilter(_is_unrelated_to_py4j)
    py4j.setLevel(_SILENT)
    try:
        yield
    finally:
        root.removeFilter(_is_unrelated_to_py4j)
        py4j.setLevel(level)
        if is_main:
            signal.signal(signal.SIGINT, before)


def _is_unrelated_to_py4j(record: logging.LogRecord) -> bool:
    return "while sending command" not in str(record.msg)
