"""Arguments that many commands share."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

import icefloe
from icefloe._internal.executor import Executor
from icefloe.cli import revisions
from icefloe.cli.complete import complete_place, complete_revision
from icefloe.cli.output import Output
from icefloe.cli.pairs import storage_options
from icefloe.errors import RepositoryNotFoundError
from icefloe.repository import Repository
from icefloe.storage.base import Storage

F = TypeVar("F", bound=Callable[..., Any])

revision_option = click.option(
    "-r",
    "--revision",
    default=revisions.DEFAULT,
    show_default="main",
    help=revisions.HELP,
    shell_complete=complete_revision,
)


def target_argument(function: F) -> F:
    """TARGET, another place, and its options: the function gets `target`."""

    @click.argument("target", metavar="TARGET", shell_complete=complete_place)
    @click.option(
        "--target-option", "target_options", multiple=True, metavar="NAME=VALUE", help="One of the target."
    )
    @functools.wraps(function)
    def wrapped(*args: Any, target: str, target_options: tuple[str, ...], **kwargs: Any) -> Any:
        place: Storage = icefloe.storage_from_url(target, **storage_options(target_options))
        return function(*args, target=place, **kwargs)

    return wrapped  # type: ignore[return-value]


def storage_argument(function: F) -> F:
    """REPO and its options: the function gets `storage`."""

    @click.argument("repo", metavar="REPO", shell_complete=complete_place)
    @click.option(
        "-o", "--option", "options", multiple=True, metavar="NAME=VALUE", help="An option of the storage."
    )
    @functools.wraps(function)
    def wrapped(*args: Any, repo: str, options: tuple[str, ...], **kwargs: Any) -> Any:
        storage: Storage = icefloe.storage_from_url(repo, **storage_options(options))
        return function(*args, storage=storage, **kwargs)

    return wrapped  # type: ignore[return-value]


def repo_argument(function: F) -> F:
    """REPO and its options: the function gets `repo`, opened."""

    @storage_argument
    @functools.wraps(function)
    def wrapped(*args: Any, storage: Storage, **kwargs: Any) -> Any:
        return function(*args, repo=opened(storage), **kwargs)

    return wrapped  # type: ignore[return-value]


def repo_at_argument(function: F) -> F:
    """REPO[@REVISION] and its options: the function gets `repo`, opened, and `revision`."""

    @click.argument("repo", metavar="REPO[@REVISION]", shell_complete=complete_place)
    @click.option(
        "-o", "--option", "options", multiple=True, metavar="NAME=VALUE", help="An option of the storage."
    )
    @functools.wraps(function)
    def wrapped(*args: Any, repo: str, options: tuple[str, ...], **kwargs: Any) -> Any:
        folder, slash, name = repo.rpartition("/")
        name, _, revision = name.partition("@")
        storage: Storage = icefloe.storage_from_url(f"{folder}{slash}{name}", **storage_options(options))
        return function(*args, repo=opened(storage), revision=revision or revisions.DEFAULT, **kwargs)

    return wrapped  # type: ignore[return-value]


def opened(storage: Storage) -> Repository:
    """The repository at a place."""
    try:
        return Repository.open(storage)
    except RepositoryNotFoundError as error:
        if not is_file(storage):
            raise
        path = storage.describe()["path"]
        raise RepositoryNotFoundError(f"{path} is a file, and a repository is a folder", error.kind) from None


def is_file(storage: Storage) -> bool:
    """Whether there is a file where a folder is expected."""
    return os.path.isfile(storage.describe().get("path", ""))


def spark_option(function: F) -> F:
    """`--spark MASTER`: the function's `repo` works there. Stands below `repo_argument`."""

    @executor_option
    @functools.wraps(function)
    def wrapped(*args: Any, repo: Repository, executor: Executor | None, **kwargs: Any) -> Any:
        return function(*args, repo=repo if executor is None else repo.with_executor(executor), **kwargs)

    return wrapped  # type: ignore[return-value]


def executor_option(function: F) -> F:
    """`--spark MASTER`: the function gets `executor`, or None without it."""

    @click.option(
        "--spark", "master", metavar="MASTER", help="Work on Spark: local[2], spark://host:7077, yarn."
    )
    @click.option("--tasks", type=click.IntRange(min=1), help="At most so many tasks on Spark.")
    @functools.wraps(function)
    def wrapped(*args: Any, master: str | None, tasks: int | None, **kwargs: Any) -> Any:
        if master is None:
            return function(*args, executor=None, **kwargs)
        from icefloe.cli.execution import SparkChoice, running_spark

        with running_spark(SparkChoice(master), "; without --spark this works on threads") as session:
            from icefloe.spark import SparkExecutor

            return function(*args, executor=SparkExecutor(session, tasks or _tasks(session)), **kwargs)

    return wrapped  # type: ignore[return-value]


def _tasks(session: Any) -> int:
    """Some per core, so that all are busy to the end."""
    return 4 * int(session.sparkContext.defaultParallelism)


def output_option(function: F) -> F:
    """`--json`: the function gets `out`."""

    @click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
    @functools.wraps(function)
    def wrapped(*args: Any, as_json: bool, **kwargs: Any) -> Any:
        out = Output(as_json=as_json)
        click.get_current_context().call_on_close(out.progress.close)
        return function(*args, out=out, **kwargs)

    return wrapped  # type: ignore[return-value]
