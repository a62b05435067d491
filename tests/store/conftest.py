"""Repositories for the tests of the store, and a way to run zarr's own tests, which are coroutines."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path

import pytest

from icefloe.repository import Repository
from icefloe.session import Session
from icefloe.storage import in_memory_storage, local_filesystem_storage
from icefloe.storage.base import Storage
from icefloe.store import IcechunkStore


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in arguments}))
    return True


@pytest.fixture(params=["memory", "folder"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "memory":
        return in_memory_storage()
    return local_filesystem_storage(str(tmp_path / "repo"))


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def repo(request: pytest.FixtureRequest, storage: Storage) -> Repository:
    return Repository.create(storage, spec_version=request.param)


@pytest.fixture
def session(repo: Repository) -> Session:
    return repo.writable_session("main")


@pytest.fixture
def store(session: Session) -> IcechunkStore:
    return session.store
