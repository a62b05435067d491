"""The command `icefloe serve`: the URL that it prints, and combinations of options that it rejects."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import httpx
import pytest

from icefloe.cli.commands.serve import _check_origin, _get_typed_location
from icefloe.cli.main import main
from tests.support.serve import sample_repository, serve_command


def test_printed_url_opens_the_page(tmp_path: Path) -> None:
    sample_repository(tmp_path)

    with serve_command(str(tmp_path / "repo")) as (url, _):
        with httpx.Client(follow_redirects=True) as client:
            found = client.get(url)
        refused = httpx.get(url.partition("?")[0])

    assert url.startswith("http://127.0.0.1:")
    assert len(url.partition("token=")[2]) >= 43  # 32 bytes
    assert (found.status_code, found.history[0].status_code) == (200, 303)
    assert "token" not in str(found.url)
    assert refused.status_code == 401


def test_containers_named_with_authorize_are_read(tmp_path: Path) -> None:
    sample_repository(tmp_path)
    repo = str(tmp_path / "repo")

    with serve_command(repo, "--no-token") as (url, _):
        refused = httpx.get(f"{url}zarr/v1/virtual/c/0/0")
    with serve_command(repo, "--no-token", "--authorize", "all") as (url, _):
        allowed = httpx.get(f"{url}zarr/v1/virtual/c/0/0")

    assert refused.status_code == 502
    assert "--authorize" in refused.text
    assert allowed.status_code == 200


def test_snippets_name_the_absolute_path_of_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with click.Context(click.Command("serve")) as context:
        context.params["repo"] = "data/repo"
        typed = _get_typed_location()
        context.params["repo"] = "s3://bucket/repo"

        assert typed == str(tmp_path / "data" / "repo")
        assert _get_typed_location() == "s3://bucket/repo"


def test_missing_packages_are_named_with_the_command_that_installs_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sample_repository(tmp_path)
    monkeypatch.delitem(sys.modules, "icefloe.serve.app", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)

    code = main(["serve", str(tmp_path / "repo")])

    assert code == 1
    assert "pip install 'uvicorn" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="signals are another matter there")
def test_signal_ends_the_server(tmp_path: Path) -> None:
    sample_repository(tmp_path)

    with serve_command(str(tmp_path / "repo")) as (_, process):
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=120)

    assert process.returncode == 130
    assert "Traceback" not in errors


INTERRUPTED_START = """
import os, signal, sys, weakref
import click
from icefloe.cli.main import run

class Lock: pass

def echo(*args, **kwargs):
    print_line(*args, **kwargs)
    lock = Lock()
    kept.append(weakref.ref(lock, lambda _: os.kill(os.getpid(), signal.SIGINT)))

kept, print_line, click.echo = [], click.echo, echo
run()
"""


def test_interrupt_while_a_module_is_imported_ends_the_server(tmp_path: Path) -> None:
    """Python ignores exceptions in the callbacks of weak references, with which it releases module locks."""
    sample_repository(tmp_path)
    words = ["serve", str(tmp_path / "repo"), "--port", "0", "--no-browser"]

    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_START, *words], capture_output=True, text=True, timeout=120
    )

    assert done.returncode == 130
    assert done.stderr.endswith("stopped\n")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--no-token", "--host", "0.0.0.0"], "--no-token requires a loopback address"),
        (["--cors", "*"], "requires --no-token"),
        (["--cors", "viewer.example"], "--cors viewer.example: expected an origin"),
        (["--cors", "https://viewer.example/map"], "expected an origin"),
        (["--cors", "https://me@viewer.example"], "expected an origin"),
        (["--cors", "null"], "expected an origin"),
        (["--port", "70000"], "70000"),
        (["--authorize", "s3://nothing"], "no virtual chunk container"),
    ],
)
def test_unsafe_and_wrong_options_are_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], problem: str
) -> None:
    sample_repository(tmp_path)

    code = main(["serve", str(tmp_path / "repo"), "--no-browser", *options])

    assert code == 2
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("https://Viewer.example/", "https://viewer.example"),
        ("http://localhost:3000", "http://localhost:3000"),
        ("http://[::1]:8080", "http://[::1]:8080"),
        ("*", "*"),
    ],
)
def test_cors_origins_are_normalized_as_browsers_send_them(text: str, origin: str) -> None:
    assert _check_origin(text) == origin
