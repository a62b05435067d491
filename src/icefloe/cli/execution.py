"""Who does the work of a command: Spark, its options and its session, or processes of this machine."""

from __future__ import annotations

import functools
import logging
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import click

from icefloe._internal.executor import Executor, ProcessExecutor, ThreadExecutor
from icefloe._internal.extras import SPARK, pip_install
from icefloe.cli.output import Output
from icefloe.cli.progress import Meter

F = TypeVar("F", bound=Callable[..., Any])

_SILENT = logging.CRITICAL + 1
_WITHOUT_SPARK = re.compile(r"none(?:\[(\*|[1-9]\d*)\])?")


@dataclass(frozen=True, slots=True)
class SparkChoice:
    """What the user said about Spark."""

    master: str
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_spark(self) -> bool:
        """Whether it is Spark at all, and not processes of this machine."""
        return _WITHOUT_SPARK.fullmatch(self.master) is None


def spark_options(function: F) -> F:
    """`--master` and `--spark-conf`: the function gets `spark`."""

    @click.option(
        "--master",
        default="local[*]",
        show_default=True,
        help="The Spark to work on: local[2], spark://host:7077, ...; none: in this process; "
        "none[4], none[*]: in so many processes.",
    )
    @click.option("--spark-conf", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of Spark.")
    @functools.wraps(function)
    def wrapped(*args: Any, master: str, settings: tuple[str, ...], **kwargs: Any) -> Any:
        pairs = {}
        for text in settings:
            name, equals, value = text.partition("=")
            if not equals or not name:
                raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--spark-conf")
            pairs[name] = value
        return function(*args, spark=SparkChoice(master, pairs), **kwargs)

    return wrapped  # type: ignore[return-value]


@contextmanager
def running_executor(choice: SparkChoice, out: Output) -> Iterator[tuple[Executor, int]]:
    """Start the executor that the user chose, and stop it at the end."""
    without = _WITHOUT_SPARK.fullmatch(choice.master)
    if without is not None:
        processes = (os.cpu_count() or 1) if without[1] == "*" else int(without[1] or 1)
        # In this process one after the other: libraries that read files do not all bear threads.
        alone = nullcontext(ThreadExecutor(1, progress=out.progress))
        with ProcessExecutor(processes, out.progress) if processes > 1 else alone as executor:
            yield executor, processes
        return
    with running_spark(choice, "; --master none works without it") as spark:
        from icefloe.spark.executor import SparkExecutor

        on_spark = SparkExecutor(spark, progress=out.progress)
        yield on_spark, on_spark.parallelism


@contextmanager
def running_spark(choice: SparkChoice, way_out: str = "") -> Iterator[Any]:
    """A session of the user's choice, stopped at the end unless it ran before; what is in its way is told."""
    try:
        from icefloe.spark.session import temporary_session
    except ModuleNotFoundError:
        raise click.ClickException(f"this needs Spark: {pip_install(*SPARK)}{way_out}") from None
    with ExitStack() as stack:
        try:
            with Meter().waiting(f"starting Spark on {choice.master}"):
                session = stack.enter_context(temporary_session(choice.master, choice.settings))
        except RuntimeError as error:
            raise click.ClickException(f"{error}{way_out}") from None
        stack.enter_context(_stopped_quietly())
        yield session


@contextmanager
def _stopped_quietly() -> Iterator[None]:
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
