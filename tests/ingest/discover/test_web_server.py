"""Web servers without ranges, lengths or HEAD, with transient errors, and with passwords."""

from __future__ import annotations

import base64
import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from icefloe import InvalidInputError, StorageError
from icefloe.ingest.discover import web_server
from icefloe.ingest.discover.sources import find_sources
from icefloe.ingest.discover.urls import redact
from icefloe.ingest.ledger import read_ledger
from tests.support.ingest.files import archive, assert_same, expected, new_repo, read, run
from tests.support.servers.loopback import LoopbackServer

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
Answer = Callable[["Handler", bytes], None]


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers as the test says; what is asked for is kept."""

    root: Path
    how: ClassVar[tuple[Answer]]
    asked: ClassVar[list[tuple[str, str, dict[str, str]]]]

    def do_GET(self) -> None:  # the name http.server calls
        sent = {name.lower(): value for name, value in self.headers.items()}
        self.asked.append((self.command, self.path, sent))
        file = self.root / self.path.partition("?")[0].strip("/")
        if not file.is_file():
            self.send_error(404)
            return
        self.how[0](self, file.read_bytes())

    def do_HEAD(self) -> None:
        self.do_GET()

    def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(folder: Path, answer: Answer) -> Iterator[tuple[str, list[Any]]]:
    """The URL of a server, and what it was asked for."""

    class Mine(Handler):
        root = folder
        how = (answer,)
        asked: ClassVar[list[Any]] = []

    server = LoopbackServer(("127.0.0.1", 0), Mine)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", Mine.asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_server, "_BACKOFF_S", 0.001)


def plainly(handler: Handler, data: bytes) -> None:
    handler.reply(200, data, Content_Length=str(len(data)), ETag=f'"{hash(data)}"')


def test_response_without_content_length_is_read(tmp_path: Path) -> None:
    files = archive(tmp_path / "files", (2,))
    repo = new_repo(tmp_path)

    with serving(tmp_path / "files", lambda handler, data: handler.reply(200, data)) as (url, _):
        run(repo, f"{url}/000.nc")

    assert_same(read(repo), expected(files))
    assert read_ledger(repo.readonly_session("main"), "")[0].size_bytes == -1


def test_urls_signed_for_get_only_are_looked_up(tmp_path: Path) -> None:
    """They are looked up with a GET of one byte."""

    def answer(handler: Handler, data: bytes) -> None:
        if handler.command == "HEAD":
            handler.reply(403)
        elif handler.headers.get("Range") == "bytes=0-0":
            handler.reply(206, data[:1], Content_Range=f"bytes 0-0/{len(data)}", ETag='"one"')
        else:
            plainly(handler, data)

    archive(tmp_path, (2,))
    with serving(tmp_path, answer) as (url, _):
        (found,) = find_sources(f"{url}/000.nc?Expires=17&Signature=hunter2&AWSAccessKeyId=me&part=1")

    assert found.url == f"{url}/000.nc?part=1"
    assert (found.size_bytes, found.etag) == ((tmp_path / "000.nc").stat().st_size, "one")


def test_interrupted_download_is_resumed(tmp_path: Path) -> None:
    files = archive(tmp_path / "files", (2, 2))
    repo = new_repo(tmp_path)
    begun: list[int] = []

    def answer(handler: Handler, data: bytes) -> None:
        rest = handler.headers.get("Range")
        if handler.command == "HEAD" or (rest and not rest.endswith("-")):
            plainly(handler, data)
        elif rest:
            begin = int(rest.removeprefix("bytes=").removesuffix("-"))
            begun.append(begin)
            assert handler.headers["If-Range"] == f'"{hash(data)}"'
            where = f"bytes {begin}-{len(data) - 1}/{len(data)}"
            handler.reply(206, data[begin:], Content_Length=str(len(data) - begin), Content_Range=where)
        else:
            handler.reply(200, data[:1000], Content_Length=str(len(data)), ETag=f'"{hash(data)}"')

    with serving(tmp_path / "files", answer) as (url, _):
        run(repo, [f"{url}/{Path(file).name}" for file in files])

    assert_same(read(repo), expected(files))
    assert set(begun) == {1000}


def test_transient_server_errors_are_retried(tmp_path: Path) -> None:
    files = archive(tmp_path / "files", (2,))
    repo, busy = new_repo(tmp_path), iter([503, 429, 500])

    def answer(handler: Handler, data: bytes) -> None:
        status = next(busy, None)
        if status is None:
            plainly(handler, data)
        else:
            handler.reply(status, Content_Length="0")

    with serving(tmp_path / "files", answer) as (url, _):
        run(repo, f"{url}/000.nc")
        busy = iter([503] * 9)
        with pytest.raises(StorageError, match=r"000\.nc: the web server answered 503"):
            run(repo, f"{url}/000.nc?token=hunter2")

    assert_same(read(repo), expected(files))


def test_missing_and_forbidden_files_of_a_list_are_skipped(tmp_path: Path) -> None:
    files = archive(tmp_path / "files", (2, 2, 2, 2))
    Path(files[3]).unlink()
    listed = tmp_path / "files.txt"

    def answer(handler: Handler, data: bytes) -> None:
        if handler.path == "/002.nc":
            handler.reply(403, Content_Length="0")
        else:
            plainly(handler, data)

    with serving(tmp_path / "files", answer) as (url, _):
        listed.write_text("\n".join(f"{url}/{Path(file).name}" for file in files))
        repo = new_repo(tmp_path)
        with pytest.raises(
            StorageError, match=r"002\.nc: the web server answered 403 .*: pass the required headers"
        ):
            run(repo, listed)
        report = run(repo, listed, on_bad_file="skip")

    assert [Path(each.source.url).name for each in report.bad] == ["002.nc", "003.nc"]
    assert_same(read(repo), expected(files[:2]))


def test_password_is_sent_only_to_its_server_and_never_stored(tmp_path: Path) -> None:
    files = archive(tmp_path / "files", (2,))
    repo = new_repo(tmp_path)

    with serving(tmp_path / "files", plainly) as (far, there):

        def lead_on(handler: Handler, data: bytes) -> None:
            handler.reply(302, Location=f"{far}{handler.path}", Content_Length="0")

        with serving(tmp_path / "files", lead_on) as (near, here):
            url = near.replace("//", "//me:hunter%202@")
            options = {"headers": '{"X-Token": "hunter3"}'}
            report = run(repo, f"{url}/000.nc", storage_options=options)
            with pytest.raises(InvalidInputError, match="references cannot contain the password") as caught:
                run(repo, f"{url}/000.nc", storage_options=options, mode="virtual", group="v")

    basic = "Basic " + base64.b64encode(b"me:hunter 2").decode()
    assert here
    assert there
    assert all((sent["authorization"], sent["x-token"]) == (basic, "hunter3") for _, _, sent in here)
    assert not any({"authorization", "x-token"} & set(sent) for _, _, sent in there)
    assert_same(read(repo), expected(files))
    stored = b"".join(repo.storage.get(info.key)[0] for info in repo.storage.list_prefix())
    for secret in ("hunter", basic):
        assert secret not in repr(report) + str(report.to_dict()) + str(caught.value)
        assert secret.encode() not in stored


def test_file_changed_within_a_second_is_detected_by_its_etag(tmp_path: Path) -> None:
    """Size and time are equal; the etag differs."""
    archive(tmp_path / "files", (2,))
    repo = new_repo(tmp_path)
    etag = "one"

    def answer(handler: Handler, data: bytes) -> None:
        same = {"Last_Modified": "Mon, 16 Nov 2026 16:00:00 GMT", "Content_Length": str(len(data))}
        handler.reply(200, data, ETag=f'"{etag}"', **same)

    with serving(tmp_path / "files", answer) as (url, _):
        run(repo, f"{url}/000.nc")
        known = run(repo, f"{url}/000.nc")
        etag = "two"
        changed = run(repo, f"{url}/000.nc", on_change="ingest")

    assert len(known.outcome.sources.known) == len(changed.outcome.sources.changed) == 1
    assert [row.etag for row in read_ledger(repo.readonly_session("main"), "")] == ["two"]


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://h/a.nc?sv=1&se=2&sr=b&sig=x&page=2", "https://h/a.nc?page=2"),
        ("https://h/a.nc?se=2&st=3", "https://h/a.nc?se=2&st=3"),
        ("https://me:x@h:8/a.nc", "https://h:8/a.nc"),
        ("https://h/a.nc?X-Amz-Credential=a/b&X-Amz-Date=1", "https://h/a.nc"),
        ("s3://key:x@b/a.nc?region=r", "s3://b/a.nc?region=r"),
        ("abfs://c@account.dfs.core.windows.net/a", "abfs://c@account.dfs.core.windows.net/a"),
    ],
)
def test_secrets_are_removed_from_urls(url: str, kept: str) -> None:
    assert redact(url) == kept


def test_keys_in_bucket_urls_are_refused() -> None:
    with pytest.raises(
        InvalidInputError, match=r"s3://bucket/a\.nc: the URL of a bucket must not contain access keys"
    ) as caught:
        find_sources("s3://AKIA:hunter2@bucket/a.nc")

    assert "hunter2" not in str(caught.value)
