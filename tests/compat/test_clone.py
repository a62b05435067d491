"""The official library works with clones of repositories that either library wrote."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import zarr

import icefloe
from tests.support.compat.histories import random_history, seen, storage

icechunk = pytest.importorskip("icechunk")
pytestmark = pytest.mark.compat


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_official_library_works_with_a_clone(tmp_path: Path, version: int, seed: int) -> None:
    if version == 2 and not hasattr(icechunk, "SpecVersion"):
        pytest.skip("this release of the official library has no version 2 of the format")
    chance = random.Random(seed)
    random_history(icechunk if seed % 2 else icefloe, tmp_path / "source", version, chance)
    source = icefloe.Repository.open(storage(icefloe, tmp_path / "source"))

    source.clone_to(storage(icefloe, tmp_path / "whole"))
    source.clone_to(storage(icefloe, tmp_path / "shallow"), depth=2)

    original = seen(icechunk.Repository.open(storage(icechunk, tmp_path / "source")))
    assert seen(icechunk.Repository.open(storage(icechunk, tmp_path / "whole"))) == original
    shallow = icechunk.Repository.open(storage(icechunk, tmp_path / "shallow"))
    for name, (line, values) in seen(shallow).items():
        assert line[:2] == original[name][0][:2]
        assert values == original[name][1]
    session = shallow.writable_session("main")
    zarr.open_array(session.store, path="a")[0] = 77
    session.commit("goes on")
    assert icefloe.Repository.open(storage(icefloe, tmp_path / "shallow")).verify("chunks").ok
