"""Zarr's stateful machines over a repository: random operations, compared with zarr's own memory store.

Commits, new sessions and other manifest splits in between must not change the visible content.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import Any

import hypothesis.strategies as st
import pytest
import zarr
from hypothesis import HealthCheck, note, settings
from hypothesis.stateful import precondition, rule, run_state_machine_as_test
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.testing.stateful import ZarrHierarchyStateMachine, ZarrStoreStateMachine
from zarr.testing.strategies import node_names

from icefloe.config import ManifestSplitCondition, ManifestSplitDimCondition, RepositoryConfig
from icefloe.config.repository import ManifestConfig, ManifestSplittingConfig
from icefloe.repository import Repository
from icefloe.storage import in_memory_storage
from icefloe.store import IcechunkStore
from tests.support.zarr_documents import GROUP, array_document

LIMITS = settings(
    max_examples=8,
    stateful_step_count=25,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
RECTILINEAR = {"array.rectilinear_chunks": True} if "array.rectilinear_chunks" in zarr.config else {}
WARNINGS = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


class Commits:
    """Rules that commit and reopen a session between the operations of a machine."""

    repo: Repository

    @abstractmethod
    def _session(self) -> Any: ...

    @abstractmethod
    def _take(self, store: IcechunkStore) -> None: ...

    @precondition(lambda self: self._session().has_uncommitted_changes)
    @rule()
    def commit(self) -> None:
        note("commit")
        keys = sorted(self._session().store.list())
        self._session().commit("so far")
        assert sorted(self._session().store.list()) == keys
        self._take(self.repo.writable_session("main").store)

    @precondition(lambda self: not self._session().has_uncommitted_changes)
    @rule(size=st.integers(1, 4), inline=st.sampled_from([0, 8, 512]))
    def reopen(self, size: int, inline: int) -> None:
        note(f"reopen with {size} chunks per manifest, {inline} bytes inline")
        rules: Any = {ManifestSplitCondition.AnyArray(): {ManifestSplitDimCondition.Any(): size}}
        config = RepositoryConfig(
            inline_chunk_threshold_bytes=inline,
            manifest=ManifestConfig(splitting=ManifestSplittingConfig.from_dict(rules)),
        )
        self.repo = Repository.open(self.repo.storage, config)
        self._take(self.repo.writable_session("main").store)


class HierarchyMachine(Commits, ZarrHierarchyStateMachine):
    """A state machine over groups, arrays, chunks and attributes, with zarr's functions."""

    def __init__(self, spec_version: int) -> None:
        self.repo = Repository.create(in_memory_storage(), spec_version=spec_version)
        super().__init__(self.repo.writable_session("main").store)

    def _session(self) -> Any:
        return self.store.session  # type: ignore[attr-defined]

    def _take(self, store: IcechunkStore) -> None:
        self.store = store


@WARNINGS
@pytest.mark.parametrize("spec_version", [1, 2], ids=["v1", "v2"])
def test_hierarchies_match_zarr(spec_version: int) -> None:
    with zarr.config.set(RECTILINEAR if spec_version == 2 else {}):
        machine: Any = partial(HierarchyMachine, spec_version)
        run_state_machine_as_test(machine, settings=LIMITS)


@st.composite
def documents_and_chunks(draw: st.DrawFn, *, model: Any = None) -> str:
    """Draw keys that a repository can contain. The arrays are `a` and `b`; all other nodes are groups."""
    if draw(st.booleans()):
        return draw(st.sampled_from(["a", "b"])) + "/c/" + draw(st.sampled_from(["0/0", "0/1", "1/0", "1/1"]))
    names = draw(st.lists(node_names.filter(lambda name: name not in ("a", "b")), max_size=2))
    return "/".join([*names, "zarr.json"])


class KeyMachine(Commits, ZarrStoreStateMachine):
    """A state machine over keys that a repository can contain: two arrays, their chunks, and groups."""

    def __init__(self) -> None:
        self.repo = Repository.create(in_memory_storage())
        super().__init__(self.repo.writable_session("main").store)

    def _session(self) -> Any:
        return self.store.store.session  # type: ignore[attr-defined]

    def _take(self, store: IcechunkStore) -> None:
        self.store.store = store

    def _put_arrays(self) -> None:
        for name in ("a", "b"):
            self._set(f"{name}/zarr.json", array_document((2, 2)))

    def _set(self, key: str, data: bytes) -> None:
        value = cpu.Buffer.from_bytes(data)
        self.store.set(key, value)
        self.model[key] = value

    @rule(key=documents_and_chunks(), data=st.binary(min_size=1, max_size=100), attribute=st.text(max_size=5))
    def set(self, key: str, data: bytes, attribute: str) -> None:
        if "a/zarr.json" not in self.model:
            self._put_arrays()
        is_chunk = not key.endswith("zarr.json")
        document = GROUP.replace(b"{}", f'{{"{attribute.encode().hex()}": 1}}'.encode())
        self._set(key, data if is_chunk else document)

    @rule(key=documents_and_chunks())
    def get_invalid_zarr_keys(self, key: str) -> None:
        if key not in self.model:
            assert self.store.get(key, default_buffer_prototype()) is None

    @rule(key=documents_and_chunks())
    def exists(self, key: str) -> None:
        assert self.store.exists(key) == (key in self.model)

    @precondition(lambda self: len(self.model) > 0)
    @rule(data=st.data())
    def delete(self, data: Any) -> None:
        """Delete a key. Deleting a document also deletes everything below it, unlike other keys."""
        key = data.draw(st.sampled_from(sorted(self.model)))
        note(f"delete {key!r}")
        self.store.delete(key)
        folder = key.removesuffix("zarr.json") if key.endswith("zarr.json") else key
        for gone in [known for known in self.model if known.startswith(folder)]:
            del self.model[gone]
        if not {"a/zarr.json", "b/zarr.json"} <= self.model.keys():
            self._put_arrays()


@WARNINGS
def test_keys_and_values_match_a_dict() -> None:
    run_state_machine_as_test(KeyMachine, settings=LIMITS)
