"""Secrets in URLs and options: no command, error, log, repr or stored file contains them."""

from __future__ import annotations

import http.server
import io
import logging
import pickle
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe._internal import logs
from icefloe._internal.redaction import redact
from icefloe.cli import main as app
from icefloe.cli.terminal import run_with_streams
from icefloe.virtual import virtualize
from tests.support.cli_calls import CALLS
from tests.support.servers.loopback import LoopbackServer

SECRET = "hunter2TOPSECRET"


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    """Yield a web server that lets nobody in."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(401)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - names of http.server

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with LoopbackServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


URLS = [
    f"http://user:{SECRET}@HOST/x.nc",
    f"http://{SECRET}@HOST/x.nc",
    f"http://user:{SECRET}/x@HOST/x.nc",
    f"http://user:a@{SECRET}@HOST/x.nc",
    f"http://HOST/x.nc?X-Amz-Signature={SECRET}&sig={SECRET}&access_token={SECRET}",
    f"s3://KEY:{SECRET}@bucket/x.nc",
    f"s3://KEY:{SECRET}/x@bucket/x.nc",
    f"gs://KEY:{SECRET}@bucket/x.nc",
    f"r2://KEY:{SECRET}@bucket/x.nc",
    f"az://KEY:{SECRET}@container/x.nc",
    f"ftp://user:{SECRET}@example.org/x.nc",
    f"s3://bucket/x.nc?secret_access_key={SECRET}",
    f"user:{SECRET}@HOST/x.nc",
]


@pytest.fixture
def url(request: pytest.FixtureRequest, host: str) -> str:
    """Return a location with a secret."""
    text: str = request.param
    return text.replace("HOST", host)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a repository without secrets."""
    folder = str(tmp_path_factory.mktemp("plain") / "repo")
    repo = icefloe.Repository.create(icefloe.storage_from_url(folder, sync=False))
    with repo.transaction("main", message="data") as store:
        zarr.create_array(store, name="a", data=np.arange(3))
    return folder


@pytest.mark.parametrize("url", URLS, indirect=True)
def test_no_command_prints_a_secret_of_a_url(
    url: str, local: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = tmp_path / "r.yaml"
    recipe.write_text(f"sources: '{url}'\nrepository: '{url}'\n")
    as_repository = dict.fromkeys(("REPO", "FILE", "FILE2"), url) | {"NEW": "new", "RECIPE": str(recipe)}
    as_target = {"REPO": local, "FILE": url, "NEW": url, "NEW.nc": url, "RECIPE": str(recipe)}
    as_target["PNG"] = as_repository["PNG"] = "p.png"
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    logger = logging.getLogger("icefloe")
    before = (logger.level, logger.propagate, list(logger.handlers))
    icefloe.set_logs_filter("trace")
    try:
        for command, calls in CALLS.items():
            if command in ("completion", "sql"):
                continue
            for words, options in ((as_repository, []), (as_target, ["--json"])):
                app.main([*command.split(), *(words.get(word, word) for word in calls[0]), *options])
        run_with_streams(lambda: app.main(["--debug", "info", url]))
        app.main(["sql", f"r={url}", "SELECT 1 FROM r"])
        app.main(["repair", local, "--from", url])
        app.main(["migrate", local, "--to", url])
    finally:
        logger.level, logger.propagate, logger.handlers = before
        logs._handler = None

    assert len(err.getvalue()) > 1000
    for stream in (out, err):
        assert SECRET not in stream.getvalue(), [
            line for line in stream.getvalue().splitlines() if SECRET in line
        ]
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path != recipe)
    assert SECRET.encode() not in stored


def _virtual(url: str) -> Any:
    return virtualize(url)


def _ingested(url: str) -> Any:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    return icefloe.ingest_files([url], repo, executor=icefloe.ThreadExecutor(1))


def _opened(url: str) -> Any:
    return icefloe.open(url)


def _created(url: str) -> Any:
    return icefloe.Repository.create(icefloe.storage_from_url(url))


def _redirected(url: str) -> Any:
    return icefloe.Repository.open(icefloe.redirect_storage(url))


def _web(url: str) -> Any:
    return icefloe.Repository.open(icefloe.http_storage(url))


def _read(url: str) -> Any:
    """Read a virtual chunk at the location."""
    prefix = url.rpartition("/")[0] + "/"
    store = icefloe.http_store() if url.startswith("http") else icefloe.s3_store(region="r", anonymous=True)
    config = icefloe.RepositoryConfig.default()
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(prefix, store))
    allowed = icefloe.containers_credentials({prefix: None})
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), config, allowed)
    session = repo.writable_session("main")
    array = zarr.create_array(session.store, shape=(1,), chunks=(1,), dtype="u1", compressors=None)
    session.store.set_virtual_ref("c/0", url, offset=0, length=1)
    return array[:]


@pytest.mark.parametrize("url", URLS, indirect=True)
@pytest.mark.parametrize(
    "call", [_virtual, _ingested, _opened, _created, _redirected, _web, _read], ids=lambda each: each.__name__
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_no_error_contains_a_secret_of_a_url(call: Callable[[str], Any], url: str) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it is
        call(url)

    error = caught.value
    printed = "".join(traceback.format_exception(error)) + str(error) + repr(error)
    assert SECRET not in printed
    assert SECRET.encode() not in pickle.dumps(error)
    before = error.__cause__ or error.__context__
    while before is not None:  # dask sends these along
        assert SECRET not in str(before) + repr(before)
        before = before.__cause__ or before.__context__


def test_no_repr_contains_a_secret() -> None:
    url = f"https://user:{SECRET}@example.org/data/"
    config = icefloe.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(url, icefloe.http_store({"proxy_url": url}, {"Authorization": SECRET}))
    )
    s3 = icefloe.s3_store(endpoint_url=url)
    web = icefloe.http_storage(url, headers={"Authorization": SECRET})
    values = [
        config,
        *(config.virtual_chunk_containers or {}).values(),
        s3,
        s3.options,
        web,
        web.location,  # type: ignore[attr-defined]  # of storages in object stores
        icefloe.redirect_storage(url),
        icefloe.VirtualChunkSpec([0], f"{url}x", 0, 1),
        icefloe.s3_storage(bucket="b", prefix="p", region="r", endpoint_url=url),
    ]

    for value in values:
        shown = repr(value) + str(value) + getattr(value, "_repr_html_", str)()
        assert SECRET not in shown, type(value)


def test_stored_configuration_is_printed_without_secrets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"https://user:{SECRET}@example.org/data/"
    store = icefloe.http_store({"proxy_url": url}, {"Authorization": SECRET})
    config = icefloe.RepositoryConfig.default()
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(url, store))
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path)), config)
    repo.save_config()

    for words in (["config"], ["config", "--json"], ["info"]):
        assert app.main([words[0], str(tmp_path), *words[1:]]) == 0
        assert SECRET not in capsys.readouterr().out


@pytest.mark.parametrize("option", [SECRET, f"headers={SECRET}", f"secretkey={SECRET}"])
def test_errors_about_options_do_not_print_values(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    app.main(["info", "s3://bucket/x", "-o", option])

    printed = capsys.readouterr()
    assert "error" in printed.err
    assert SECRET not in printed.out + printed.err


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/folder@v1/key",
        "abfs://container@account.dfs.core.windows.net/x",
        "http://host:8080/a@b",
        "https://host/a?region=eu&page=2",
        "mailto:user@example.org",
        "file:///data/12:30@station/x.nc",
        "mail user@example.org, see https://example.org/x",
    ],
)
def test_text_without_secrets_is_unchanged(text: str) -> None:
    assert redact(text) == text


def test_redaction_takes_linear_time() -> None:
    assert SECRET not in redact("a" * 200_000 + "://" * 20_000 + f" https://u:{SECRET}@h" + "://x:y" * 20_000)
    assert SECRET not in redact("(x:y=" * 50_000 + f" u:{SECRET}@h")
