"""Measure `icefloe serve`: time until ready, CPU per chunk beside nginx, 500 connections, a large chunk map.

`python benchmarks/serving.py`; needs Linux, nginx and wrk (`apt-get install nginx-light wrk`). The time of
pictures and of slider steps is measured in Chromium by `make test-web`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import zarr

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from icefloe import Repository, local_filesystem_storage, serve
from icefloe.format.manifest import ArrayManifest
from icefloe.testing.storages import PassingStorage

SECONDS = 8
_DELAY_S = 0.5
WITHOUT_UVLOOP = "import sys; sys.modules['uvloop'] = sys.modules['httptools'] = None"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        repo = _make_repository(Path(folder) / "repo")
        id = repo.lookup_branch("main")
        keys = _chunk_files(repo)
        print(f"{len(keys)} chunks of {sum(size for _, _, size in keys) // len(keys)} bytes")
        with _served(repo) as (url, process, ready_s):
            print(f"ready after {ready_s:.1f} s")
            paths = [f"/zarr/{id}/a/{key}" for key, _, _ in keys]
            ours = _cpu_per_request(url, paths, [process.pid], Path(folder))
            many = _wrk(url, _script(paths, Path(folder)), connections=500)
            print(f"500 connections: {many['rate']:.0f} requests/s, {many['errors']} errors")
        with _served(repo, WITHOUT_UVLOOP) as (url, process, _):
            plain = _cpu_per_request(url, paths, [process.pid], Path(folder))
        with _nginx(Path(folder)) as (url, pids):
            static = _cpu_per_request(url, [f"/{path}" for _, path, _ in keys], pids, Path(folder))
        print(f"CPU per chunk: nginx {static:.0f} us, icefloe {ours:.0f} us ({ours / static:.1f} x), "
              f"without uvloop and httptools {plain:.0f} us ({plain / static:.1f} x)")  # fmt: skip
        large = _make_million(Path(folder) / "large")
        with _served(large) as (url, _, _):
            start = time.perf_counter()
            with urllib.request.urlopen(f"{url}api/chunks/main/a?by=kind") as response:
                size = len(response.read()) + len(str(response.headers))
            print(f"map of a million chunks: {time.perf_counter() - start:.1f} s cold, {size / 1000:.0f} kB")
        print(f"history beside a bucket that takes {_DELAY_S * 1000:.0f} ms per read: {_slow_bucket(repo)}")


class _Bucket(PassingStorage):
    """A storage that is far away."""

    def reading(self) -> None:
        time.sleep(_DELAY_S)

    @property
    def answers_at_once(self) -> bool:
        return False


def _slow_bucket(repo: Repository) -> str:
    """Measure requests for the first page, once it was shown."""
    with serve.show(Repository.open(_Bucket(repo.storage))) as page:
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        start = time.perf_counter()
        opener.open(page.url).close()
        first = time.perf_counter() - start
        taken = []
        for _ in range(300):
            start = time.perf_counter()
            opener.open(page.url.partition("?")[0]).close()
            taken.append(time.perf_counter() - start)
            time.sleep(0.02)
    half, most = (1000 * np.quantile(taken, share) for share in (0.5, 0.99))
    return f"first {first:.1f} s, then p50 {half:.0f} ms, p99 {most:.0f} ms"


def _make_repository(folder: Path) -> Repository:
    """Create 292 chunks that hardly compress."""
    repo = Repository.create(local_filesystem_storage(str(folder)))
    with repo.transaction("main", message="chunks") as store:
        array = zarr.create_array(store, name="a", shape=(365, 180, 360), chunks=(5, 90, 180), dtype="f4")
        array[...] = np.random.default_rng(0).normal(size=array.shape).astype("f2").astype("f4")
    return repo


def _make_million(folder: Path) -> Repository:
    """Create an array with a million references; their chunks do not exist."""
    repo = Repository.create(local_filesystem_storage(str(folder)))
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(1000, 1000), chunks=(1, 1), dtype="f4")
    workspace = session._workspace
    coords = np.stack(np.divmod(np.arange(1_000_000), 1000), axis=1).astype(np.uint32)
    ids = np.random.default_rng(0).integers(0, 255, (1_000_000, 12), dtype=np.uint8)
    workspace.put_refs(workspace.array("/a"), ArrayManifest.native(coords, ids, np.full(1_000_000, 4)))
    session.commit("a million chunks")
    return repo


def _chunk_files(repo: Repository) -> list[tuple[str, str, int]]:
    """List the key, the file and the size of each chunk."""
    workspace = repo.readonly_session("main")._workspace
    refs = workspace.refs(workspace.array("/a"))
    found = []
    for row in range(len(refs)):
        ref: Any = refs.ref(row)
        key = "/".join(["c", *map(str, refs.coords[row].tolist())])
        found.append((key, f"chunks/{ref.chunk_id}", ref.length))
    return found


@contextmanager
def _served(repo: Repository, before: str = "") -> Iterator[tuple[str, subprocess.Popen[str], float]]:
    """Start the server; yield its URL, its process, and the seconds until it answered."""
    location = repo.storage.describe()["path"]
    code = f"{before}\nfrom icefloe.cli.main import run\nrun()"
    command = [sys.executable, "-c", code, "serve", location, "--port", "0", "--no-token", "--no-browser"]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        urllib.request.urlopen(url).close()
        yield url, process, time.perf_counter() - start
    finally:
        process.terminate()
        process.wait()


@contextmanager
def _nginx(folder: Path) -> Iterator[tuple[str, list[int]]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = folder / "nginx.conf"
    config.write_text(
        f"worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log stderr; user root;"
        "events { worker_connections 2048; }"
        f"http {{ access_log off; sendfile on; server {{ listen 127.0.0.1:{port}; root {folder}/repo; }} }}"
    )
    process = subprocess.Popen(
        [shutil.which("nginx") or "nginx", "-c", str(config)], stderr=subprocess.DEVNULL
    )
    try:
        time.sleep(1)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        yield f"http://127.0.0.1:{port}/", [process.pid, *map(int, children)]
    finally:
        process.terminate()
        process.wait()


def _cpu_per_request(url: str, paths: list[str], pids: list[int], folder: Path) -> float:
    """Return microseconds of CPU per request: the best of three rounds."""
    script = _script(paths, folder)
    _wrk(url, script, seconds=2)
    found: list[float] = []
    for _ in range(3):
        before = sum(map(_cpu_seconds, pids))
        result = _wrk(url, script)
        assert not result["errors"], result
        found.append((sum(map(_cpu_seconds, pids)) - before) / result["requests"] * 1e6)
    return min(found)


def _script(paths: list[str], folder: Path) -> Path:
    file = folder / "paths.lua"
    listed = json.dumps(paths)[1:-1]
    file.write_text(
        f"local paths = {{{listed}}}\nlocal at = 0\n"
        "request = function() at = at % #paths + 1; return wrk.format('GET', paths[at]) end\n"
    )
    return file


def _wrk(url: str, script: Path, *, connections: int = 8, seconds: int = SECONDS) -> dict[str, Any]:
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "10s", "-s", str(script), url]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    failed = [int(each) for each in re.findall(r"(?:connect|read|write|timeout) (\d+)", text)]
    other = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    requests = re.search(r"(\d+) requests in", text)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    assert requests is not None
    assert rate is not None
    return {
        "requests": int(requests[1]),
        "rate": float(rate[1]),
        "errors": sum(failed) + (int(other[1]) if other else 0),
    }


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
