"""Who does the work of a command: Spark, its options and its session, or processes of this machine."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from icefloe.cli.output import Output
from icefloe.cli.watching import Watched
from icefloe.concurrency import FanOut, ProcessFanOut, ThreadFanOut

F = TypeVar("F", bound=Callable[..., Any])

_WITHOUT_SPARK = re.compile(r"none(?:\[(\*|[1-9]\d*)\])?")


@dataclass(frozen=True, slots=True)
class SparkChoice:
    """What the user said about Spark."""

    master: str
    settings: dict[str, str]


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
def running_fan_out(choice: SparkChoice, out: Output) -> Iterator[tuple[FanOut, int]]:
    """A fan-out of the user's choice, and how many tasks it runs at once; stopped at the end."""
    without = _WITHOUT_SPARK.fullmatch(choice.master)
    if without is not None:
        processes = (os.cpu_count() or 1) if without[1] == "*" else int(without[1] or 1)
        # In this process one after the other: libraries that read files do not all bear threads.
        with ProcessFanOut(processes) if processes > 1 else nullcontext(ThreadFanOut(1)) as fan_out:
            yield Watched(fan_out, out), processes
        return
    spark = _session(choice)
    from icefloe.spark.pipeline import IngestFanOut, cores

    try:
        yield IngestFanOut(spark, cores(spark), lambda *done: out.progress("tasks", *done)), cores(spark)
    finally:
        spark.stop()


def _session(choice: SparkChoice) -> Any:
    try:
        from icefloe.spark.local import QUICK_START, session_at
    except ImportError as error:
        raise click.ClickException(
            f"this needs Spark ({error}): pip install 'icefloe[spark]', or work without it with --master none"
        ) from None
    quick = QUICK_START if choice.master.startswith("local") else {}
    try:
        return session_at(choice.master, settings={**quick, **choice.settings})
    except RuntimeError as error:
        raise click.ClickException(f"{error}; --master none works without it") from None
