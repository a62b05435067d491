"""Start Python programs in processes of their own, in milliseconds.

They are forked from a server that has imported the large packages, and share nothing else with the test: a
program that starts a new interpreter spends a second on imports. The environment is that of the first start.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Final, TextIO

from tests.support.source_tree import ROOT

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

_HANGS_S: Final = 900
"""Longer than any program takes on a busy machine."""
_PRELOADED: Final = ("icefloe", "zarr", "tests.support.ingest.files", "icefloe.ingest", "dask.array")
"""Missing packages are passed over. Readers of file formats are not among them: some tests hide those."""

_METHODS = multiprocessing.get_all_start_methods()
_CONTEXT: Any = multiprocessing.get_context("forkserver" if "forkserver" in _METHODS else "spawn")


@dataclass(frozen=True, slots=True)
class Program:
    """A running program."""

    process: BaseProcess
    stdout: TextIO
    """With the traceback of a program that fails. Ends when the program and all that it forked have ended."""

    def kill(self) -> None:
        """End the program with SIGKILL."""
        self.process.kill()

    def wait(self) -> int:
        """Return the exit code, negative for the number of a signal."""
        self.process.join(_HANGS_S)
        code = self.process.exitcode
        assert code is not None, f"still running after {_HANGS_S} s"
        return code


@contextmanager
def started(code: str, *arguments: object) -> Iterator[Program]:
    """Run a program in a new process, and kill it at the end of the block if it is still running."""
    multiprocessing.set_forkserver_preload(list(_PRELOADED))
    reader, writer = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_execute, args=(code, tuple(map(str, arguments)), writer))
    process.start()
    writer.close()
    with reader, open(os.dup(reader.fileno()), encoding="utf-8") as stdout:
        try:
            yield Program(process, stdout)
        finally:
            process.kill()
            process.join()
            process.close()


def run(code: str, *arguments: object) -> tuple[int, str]:
    """Run a program to its end; return its exit code and its output."""
    with started(code, *arguments) as program:
        printed = program.stdout.read()
        return program.wait(), printed


def _execute(code: str, arguments: tuple[str, ...], stdout: Connection) -> None:
    """Run the program in this process."""
    os.dup2(stdout.fileno(), 1)
    os.dup2(stdout.fileno(), 2)
    stdout.close()
    warnings.simplefilter("ignore")
    sys.argv = ["-c", *arguments]
    sys.stdout = open(1, "w", 1, encoding="utf-8", closefd=False)  # noqa: SIM115 - open to the end
    os.chdir(ROOT)
    exec(compile(code, "<program>", "exec"), {"__name__": "__main__"})
