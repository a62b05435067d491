"""Output to terminals and pipes, signals, and progress."""

from __future__ import annotations

import io
import logging
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.cli import main as app
from icefloe.cli.execution import _stop_quietly
from icefloe.cli.output import CommandOutput
from icefloe.cli.progress import Meter, format_duration
from icefloe.cli.terminal import CLOSED, run_with_streams


class Screen(io.StringIO):
    """A terminal that records its output."""

    def isatty(self) -> bool:
        """Return True."""
        return True


@pytest.fixture
def place(tmp_path: Path) -> str:
    """Create a repository with two branches and a message with control characters."""
    folder = str(tmp_path / "repo")
    repo = icefloe.Repository.create(icefloe.storage_from_url(folder, sync=False))
    with repo.transaction("main", message="red \x1b[31m alert\nand more") as store:
        zarr.create_array(store, name="a", data=np.arange(24.0).reshape(4, 6))
    repo.create_branch("dev", repo.lookup_branch("main"))
    for branch in ("dev", "main"):
        with repo.transaction(branch, message="snow ❄") as store:
            zarr.open_array(store, path="a")[0] = 7
    return folder


@pytest.mark.parametrize(
    "words", [["log", "--graph"], ["plot", "a"], ["log"], ["plot", "a", "--isel", "0=0"]]
)
def test_characters_outside_the_encoding_become_ascii(
    place: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))

    code = run_with_streams(lambda: app.main([words[0], place, *words[1:]]))

    text = written.getvalue().decode("latin-1")
    assert code == 0
    assert text.isascii()
    if "--graph" in words:
        assert "*-/" in text
        assert "snow ?" in text


def test_control_characters_in_messages_are_escaped(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["log", place],
        ["show", place, "-r", "main~1"],
        ["log", place, "--graph"],
        ["storage", place],
    ):
        assert app.main(words) == 0
        assert "\x1b" not in capsys.readouterr().out


def test_closed_pipe_is_not_an_error(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

        def fileno(self) -> int:
            return spare.fileno()

    with open(place + ".out", "w") as spare:
        monkeypatch.setattr(sys, "stdout", Closed())
        monkeypatch.setattr(sys, "stderr", io.StringIO())  # click puts wrappers around both

        assert run_with_streams(lambda: app.main(["log", place])) == CLOSED


def test_closed_streams_are_not_an_error(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)

    assert run_with_streams(lambda: app.main(["log", place])) == 0
    sys.stdout.close()
    sys.stderr.close()


@pytest.mark.parametrize(("colours", "wanted"), [("1", False), (None, True)])
def test_colours_are_used_only_in_capable_terminals(
    place: str, colours: str | None, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    if colours is not None:
        monkeypatch.setenv("NO_COLOR", colours)
    monkeypatch.setenv("TERM", "xterm-256color")
    for words in (["log", place, "--graph"], ["plot", place, "a"]):
        screen = Screen()
        monkeypatch.setattr(sys, "stdout", screen)

        assert app.main(words) == 0

        assert ("38;" in screen.getvalue()) is wanted


def test_maps_are_shaded_on_terminals_with_few_colours(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")  # 16 colours: neighbouring values would look alike or unrelated
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)

    assert app.main(["plot", place, "a"]) == 0

    assert "\x1b[" not in screen.getvalue()


@pytest.mark.parametrize(("columns", "folded"), [(30, False), (60, True), (200, False)])
def test_ids_are_not_folded_in_narrow_terminals(
    columns: int, folded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", str(columns))
    message = "word " * 12

    CommandOutput(as_json=False).table(
        [{"id": "A4MBT043E9YZPNA00GQ0", "message": message}], ["id", "message"]
    )

    lines = screen.getvalue().splitlines()
    assert "A4MBT043E9YZPNA00GQ0" in lines[1]
    assert (len(lines) > 2) is folded


def test_ctrl_c_on_spark_prints_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """Without our handler, py4j would log the failed attempt to cancel jobs."""
    before = signal.signal(signal.SIGINT, lambda *_: logging.error("cancelling jobs"))
    try:
        with _stop_quietly():
            logging.getLogger().error("KeyboardInterrupt while sending command.")
            logging.getLogger("py4j.clientserver").error("Exception occurred while shutting down connection")
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)

    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_signals_end_a_command_cleanly(name: str) -> None:
    """The command cleans up even after repeated signals, and prints one word."""
    program = (
        "import os, signal, sys; from icefloe import Repository; from icefloe.cli import main as app\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it\n"
        "def opened(*_, **__):\n"
        "    try: signal.raise_signal(number)\n"
        "    finally: number == signal.SIGINT or signal.raise_signal(number); print('closed')\n"
        "number = getattr(signal, sys.argv.pop()); Repository.open = opened\n"
        "app.run()"
    )
    words = [program, "log", "anywhere", name]
    number = getattr(signal, name)

    done = subprocess.run([sys.executable, "-c", *words], capture_output=True, text=True, check=False)

    assert done.returncode == 128 + number
    assert (done.stdout.split(), done.stderr.split()) == (["closed"], ["stopped"])


def test_unfinished_asyncio_tasks_are_not_reported() -> None:
    """For example tasks of zarr that were running when another one failed."""
    program = (
        "import asyncio, sys; from icefloe.cli import main as app\n"
        "def left(_):\n"
        "    loop = asyncio.new_event_loop(); loop.create_task(asyncio.sleep(1)); return 1\n"
        "app.run_with_streams = left; sys.argv = ['icefloe', *sys.argv[1:]]; app.run()"
    )
    command = [sys.executable, "-W", "ignore", "-c", program]

    quiet = subprocess.run(command, capture_output=True, text=True, check=False)
    loud = subprocess.run([*command, "--debug"], capture_output=True, text=True, check=False)

    assert (quiet.returncode, quiet.stderr) == (1, "")
    assert "Task was destroyed but it is pending" in loud.stderr


def test_progress_bar_appears_after_two_seconds_and_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.0, 1.0, 4.0, 4.1, 8.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    bar = Meter()

    for done in (0, 10, 20, 21):
        bar("chunks", done, 40)
    drawn = screen.getvalue()
    bar.say("written")

    assert drawn == "\r\x1b[2K[############............] chunks: 20 of 40, 5/s, 4 s left"
    assert screen.getvalue() == drawn + "\r\x1b[2Kwritten\n"


def test_waiting_message_is_shown_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)

    with Meter().waiting("starting Spark"):
        assert screen.getvalue() == "\r\x1b[2Kstarting Spark ..."

    assert screen.getvalue().endswith("...\r\x1b[2K")


def test_progress_is_printed_as_lines_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock: Any = iter([0.0, 0.0, 9.0, 11.0, 12.0, 22.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    told = Meter()

    for done in (0, 30, 55, 60, 110):
        told("files", done, 110)
    told.close()

    assert capsys.readouterr().err.splitlines() == [
        "files: 55 of 110, 5/s, 11 s left",
        "files: 110 of 110, 5/s",
    ]
    assert [format_duration(seconds) for seconds in (3, 119, 120, 7300, 200_000)] == [
        "3 s",
        "119 s",
        "2 min",
        "2 h",
        "2 d",
    ]
