"""The executor of a command: Spark, processes of this machine, or threads."""

from __future__ import annotations

import functools
import logging
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import click

from icefloe._internal.executor import Executor, ProcessExecutor, ThreadExecutor
from icefloe._internal.extras import SPARK, pip_install
from icefloe.cli.output import Output
from icefloe.cli.params import pairs_option
from icefloe.cli.progress import Meter
from icefloe.repository import Repository

F = TypeVar("F", bound=Callable[..., Any])

_FORM = re.compile(r"spark(:.+)?|processes(:[1-9]\d*)?|threads")
_LOCAL_SPARK = "local[*]"
_WITHOUT_SPARK = "; --executor processes works without it"
_THREADS = 64
_SPARK_TASKS_PER_CORE = 4
"""Several, so that all cores are busy to the end."""
_SILENT = logging.CRITICAL + 1


@dataclass(frozen=True, slots=True)
class ExecutorChoice:
    """An executor as it is typed: `spark[:MASTER]`, `processes[:N]` or `threads`; empty for the default."""

    text: str = ""
    spark_conf: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_spark(self) -> bool:
        """True if the user chose Spark."""
        return self.text.startswith("spark")

    @property
    def argument(self) -> str:
        """The master of Spark, or the number of processes; empty for the default."""
        return self.text.partition(":")[2]

    def or_default(self, out: Output) -> ExecutorChoice:
        """Choose Spark if nothing was chosen, or processes if pyspark or Java is missing; say which."""
        if self.text:
            return self
        from icefloe.spark.java import missing_for_spark

        missing = missing_for_spark()
        if missing is None:
            return replace(self, text="spark")
        out.progress.say(f"Spark is not available ({missing})")
        return replace(self, text="processes")


class ExecutorType(click.ParamType[str]):
    """An argument that names an executor."""

    name = "executor"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        # docstring inherited
        if _FORM.fullmatch(str(value)) is None:
            self.fail(f"{value!r} is not spark[:MASTER], processes[:N] or threads", param, ctx)
        return str(value)


_spark_conf = pairs_option("--spark-conf", help="A setting of Spark, such as spark.executor.memory=4g.")


def executor_option(function: F) -> F:
    """Add `--executor` to a command of the pipeline: the function gets `executor`, an ExecutorChoice."""

    @click.option(
        "--executor",
        type=ExecutorType(),
        show_default="spark, or processes where pyspark or Java is missing",
        help="Where to run: spark[:MASTER], such as spark:local[2] or spark:spark://host:7077; "
        "processes[:N] on this machine; or threads: one task at a time, in this process.",
    )
    @_spark_conf
    @functools.wraps(function)
    def wrapped(*args: Any, executor: str | None, spark_conf: Mapping[str, str], **kwargs: Any) -> Any:
        return function(*args, executor=ExecutorChoice(executor or "", spark_conf), **kwargs)

    return wrapped  # type: ignore[return-value]


def maintenance_executor_option(function: F) -> F:
    """Add `--executor` to a command of maintenance: the function gets `executor`, or None for threads."""

    @click.option(
        "--executor",
        type=ExecutorType(),
        default="threads",
        show_default=True,
        help="Where to run: threads, processes[:N] on this machine, or spark[:MASTER], such as "
        "spark:local[2] or spark:yarn.",
    )
    @_spark_conf
    @click.option("--tasks", type=click.IntRange(min=1), help="The largest number of Spark tasks per step.")
    @functools.wraps(function)
    def wrapped(
        *args: Any, executor: str, spark_conf: Mapping[str, str], tasks: int | None, **kwargs: Any
    ) -> Any:
        choice = ExecutorChoice(executor, spark_conf)
        with _maintenance_executor(choice, tasks) as running:
            return function(*args, executor=running, **kwargs)

    return wrapped  # type: ignore[return-value]


@contextmanager
def _maintenance_executor(choice: ExecutorChoice, tasks: int | None) -> Iterator[Executor | None]:
    if choice.is_spark:
        with running_spark(choice, _WITHOUT_SPARK) as session:
            from icefloe.spark.executor import SparkExecutor

            cores = SparkExecutor(session).parallelism
            yield SparkExecutor(session, tasks or _SPARK_TASKS_PER_CORE * cores)
    elif choice.text.startswith("processes"):
        with ProcessExecutor(int(choice.argument or 0) or None) as processes:
            yield processes
    else:
        yield None


def repo_executor_option(function: F) -> F:
    """Add `--executor`: the function's `repo` uses it. Goes below `repo_argument`."""

    @maintenance_executor_option
    @functools.wraps(function)
    def wrapped(*args: Any, repo: Repository, executor: Executor | None, **kwargs: Any) -> Any:
        return function(*args, repo=repo if executor is None else repo.with_executor(executor), **kwargs)

    return wrapped  # type: ignore[return-value]


def with_progress(repo: Repository, out: Output, *, reads_only: bool = False) -> Repository:
    """Return the repository with an executor that reports progress.

    `reads_only`: the operation only reads small files, which one thread does faster on a local disk.
    """
    alone = reads_only and repo.storage.answers_at_once
    executor = repo.executor or ThreadExecutor(1 if alone else _THREADS)
    return repo.with_executor(executor.with_progress(out.progress))


@contextmanager
def running_executor(choice: ExecutorChoice, out: Output) -> Iterator[Executor]:
    """Start the executor that was chosen, say which it is, and stop it at the end."""
    if choice.is_spark:
        with running_spark(choice, _WITHOUT_SPARK) as session:
            from icefloe.spark.executor import SparkExecutor

            executor = SparkExecutor(session, progress=out.progress)
            out.progress.say(f"running on Spark ({choice.argument or _LOCAL_SPARK})")
            yield executor
    elif choice.text.startswith("processes"):
        with ProcessExecutor(int(choice.argument or 0) or None, out.progress) as processes:
            out.progress.say(f"running in {processes.parallelism} processes of this machine")
            yield processes
    else:
        # One task at a time: libraries that read files do not all tolerate threads.
        out.progress.say("running in this process")
        yield ThreadExecutor(1, progress=out.progress)


@contextmanager
def running_spark(choice: ExecutorChoice, advice: str = "") -> Iterator[Any]:
    """Start a Spark session, and stop it at the end unless it ran before. `advice` ends its errors."""
    try:
        from icefloe.spark.session import temporary_session
    except ModuleNotFoundError:
        raise click.ClickException(f"this needs Spark: {pip_install(*SPARK)}{advice}") from None
    master = choice.argument or _LOCAL_SPARK
    with ExitStack() as stack:
        try:
            with Meter().waiting(f"starting Spark on {master}"):
                session = stack.enter_context(temporary_session(master, choice.spark_conf))
        except RuntimeError as error:
            raise click.ClickException(f"{error}{advice}") from None
        stack.enter_context(_stop_quietly())
        yield session


@contextmanager
def _stop_quietly() -> Iterator[None]:
    """Let Ctrl-C end the work and nothing else.

    PySpark's handler asks the JVM to cancel the jobs, over the connection that waits for them, and py4j logs
    what comes of that. Jobs end with the session, too.
    """
    root, before = logging.getLogger(), signal.getsignal(signal.SIGINT)
    py4j = logging.getLogger("py4j")
    level = py4j.level
    mine = threading.current_thread() is threading.main_thread() and before is not signal.SIG_IGN
    if mine:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    root.addFilter(_is_not_of_py4j)
    py4j.setLevel(_SILENT)
    try:
        yield
    finally:
        root.removeFilter(_is_not_of_py4j)
        py4j.setLevel(level)
        if mine:
            signal.signal(signal.SIGINT, before)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return "while sending command" not in str(record.msg)
