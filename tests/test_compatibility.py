"""icefloe installed as icechunk, in this process and in child processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.interpreters import WORKER, run


@pytest.mark.needs("xarray", "dask")
def test_importing_icechunk_returns_icefloe(tmp_path: Path) -> None:
    code = """
import icefloe
icefloe.install_as_icechunk()
icefloe.install_as_icechunk()
import importlib.metadata, pickle, icechunk, icechunk.config, icechunk.session as session
from icechunk import *
from icechunk._exceptions import NotFoundError
from icechunk._icechunk_python import RepoUpdateRetryConfig, Repository as Native
from icechunk.storage import in_memory_storage
assert icechunk.Repository is icefloe.Repository is Native is Repository
assert session.Session is icefloe.Session and session is icefloe.session
assert icechunk.config is icefloe.config and icefloe.config.__spec__.name == "icefloe.config"
assert NotFoundError is icefloe.NotFoundError
assert importlib.metadata.version("icechunk") == icechunk.__version__ == "2.3.0"
assert importlib.metadata.version("icefloe") == icefloe.__version__
assert {"Repository", "spec_version"} <= set(dir(icechunk))
repo = icechunk.Repository.create(icechunk.in_memory_storage())
assert "<icechunk.Repository (v2)>" in repr(repo) and "icechunk-repr" in repo._repr_html_()
assert icechunk.RepositoryConfig() == eval(repr(icechunk.RepositoryConfig()))
assert icechunk.spec_version() == 2
assert repr(icechunk.StorageError("x")).startswith("icechunk.StorageError(")
try:
    import icechunk.nothing
except ModuleNotFoundError:
    print("done")
"""
    assert run(tmp_path, code) == "done"


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_worker_processes_import_icefloe_as_icechunk(tmp_path: Path, method: str) -> None:
    code = """
import multiprocessing, sys
if __name__ == "__main__":
    import icefloe
    icefloe.install_as_icechunk()
    from worker import work
    with multiprocessing.get_context(sys.argv[1]).Pool(1) as pool:
        print(*pool.map(work, [0])[0])
"""
    assert run(tmp_path, code, method) == "icefloe.repository icefloe.storage 2.3.0"


@pytest.mark.needs("distributed")
def test_dask_workers_import_icefloe_as_icechunk(tmp_path: Path) -> None:
    code = """
if __name__ == "__main__":
    import icefloe
    icefloe.install_as_icechunk()
    import numpy, zarr
    from dask.distributed import Client, LocalCluster
    from worker import work, write
    from icechunk import Repository, local_filesystem_storage
    cluster = LocalCluster(
        n_workers=1, threads_per_worker=1, dashboard_address=None, local_directory="dask"
    )
    with cluster, Client(cluster) as client:
        print(*client.submit(work, 0).result())
        repo = Repository.create(local_filesystem_storage("repo"))
        session = repo.writable_session("main")
        zarr.create_array(session.store, name="a", shape=(4,), chunks=(2,), dtype="i4")
        fork = session.fork()
        session.merge(*client.gather(client.map(write, [fork, fork], [0, 1])))
        session.commit("by the workers")
        print(zarr.open_array(repo.readonly_session("main").store, path="a")[:].tolist())
"""
    written = (
        WORKER
        + """
def write(fork, part):
    import zarr
    zarr.open_array(fork.store, path="a")[2 * part : 2 * part + 2] = part + 1
    return fork
"""
    )
    assert run(tmp_path, code, worker=written).splitlines() == [
        "icefloe.repository icefloe.storage 2.3.0",
        "[1, 1, 2, 2]",
    ]


def test_child_processes_import_icefloe_as_icechunk(tmp_path: Path) -> None:
    code = """
import subprocess, sys, icefloe
icefloe.install_as_icechunk()
child = "from worker import work; print(*work(0))"
print(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout.strip())
"""
    assert run(tmp_path, code) == "icefloe.repository icefloe.storage 2.3.0"


def test_loaded_official_package_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "icechunk.py").write_text("")
    code = """
import icechunk, icefloe
try:
    icefloe.install_as_icechunk()
except RuntimeError as error:
    print(error)
"""
    assert "before any import of it" in run(tmp_path, code)
