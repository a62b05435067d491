"""Spark for commands: its options, a session, and how far it is."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from icefloe.concurrency import FanOut, ThreadFanOut

F = TypeVar("F", bound=Callable[..., Any])

NO_SPARK = "none"


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
        help="The Spark to work on: local[2], spark://host:7077, ...; none: in this process.",
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


def told(sentence: str) -> None:
    """What the job does, for people who watch."""
    click.echo(sentence, err=True)


@contextmanager
def running_fan_out(choice: SparkChoice) -> Iterator[tuple[FanOut, int]]:
    """A fan-out on the Spark of the user's choice, and how many tasks it runs at once; stopped at the end."""
    if choice.master == NO_SPARK:
        yield ThreadFanOut(1), 1  # libraries that read files do not all bear threads
        return
    try:
        from icefloe.spark.local import QUICK_START, session_at
        from icefloe.spark.pipeline import IngestFanOut, cores
    except ImportError as error:
        raise click.ClickException(
            f"this needs Spark ({error}): pip install 'icefloe[spark]', or work without it with --master none"
        ) from None
    try:
        quick = QUICK_START if choice.master.startswith("local") else {}
        spark = session_at(choice.master, settings={**quick, **choice.settings})
    except RuntimeError as error:
        raise click.ClickException(str(error)) from None
    try:
        with _bar() as progress:
            yield IngestFanOut(spark, cores(spark), progress), cores(spark)
    finally:
        spark.stop()


@contextmanager
def _bar() -> Iterator[Callable[[int, int], None]]:
    """A progress bar on a terminal; elsewhere nothing."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("tasks"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("tasks", total=None)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield show
