"""Parse versions of Icechunk repositories as virtual sources."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

from icefloe import (
    Credentials,
    RefNotFoundError,
    Repository,
    RepositoryConfig,
    VirtualChunkContainer,
    local_filesystem_storage,
    local_filesystem_store,
)
from icefloe.virtual import virtualize
from tests.support.virtual.files import aged, assert_all_read_back

VALUES = np.arange(4000, dtype="i4").reshape(40, 100)
SMALL = np.arange(3, dtype="i2")


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def repo(request: pytest.FixtureRequest, tmp_path: Path) -> Repository:
    """Create a repository with native, inline and virtual chunks, and a tag with other values than main."""
    outside = tmp_path / "files"
    outside.mkdir()
    (outside / "f.bin").write_bytes(b"head" + VALUES[:10].tobytes())
    aged(outside / "f.bin")
    config = RepositoryConfig.default()
    prefix = f"file://{outside}/"
    config.set_virtual_chunk_container(VirtualChunkContainer(prefix, local_filesystem_store(str(outside))))
    found = Repository.create(
        local_filesystem_storage(str(tmp_path / "repo")),
        config,
        {prefix: Credentials.LocalFileSystemAccess()},
        spec_version=request.param,
    )
    session = found.writable_session("main")
    root = zarr.create_group(session.store)
    native = root.create_array("a/native", shape=VALUES.shape, chunks=(10, 100), dtype="i4", compressors=None)
    native[...] = VALUES
    small = root.create_array("small", shape=SMALL.shape, chunks=(3,), dtype="i2", dimension_names=["small"])
    small[...] = SMALL
    root.create_array(
        "virtual", shape=(10, 100), chunks=(10, 100), dtype="i4", compressors=None, filters=None
    )
    session.store.set_virtual_ref("virtual/c/0/0", f"{prefix}f.bin", offset=4, length=4000)
    found.create_tag("first", session.commit("first"))
    later = found.writable_session("main")
    zarr.open_array(later.store, path="a/native", mode="r+")[:10] = 7
    later.commit("later")
    return found


def test_references_point_to_chunks_of_snapshot(repo: Repository, tmp_path: Path) -> None:
    first = virtualize(tmp_path / "repo", version="first", loadable_variables=())
    newest = virtualize(tmp_path / "repo", loadable_variables=())

    changed = VALUES.copy()
    changed[:10] = 7
    assert_all_read_back(first, {"a/native": VALUES, "small": SMALL, "virtual": VALUES[:10]})
    assert_all_read_back(newest, {"a/native": changed, "small": SMALL, "virtual": VALUES[:10]})
    places = {each.location.rpartition("/")[0] for each in first.sources}
    assert places == {f"{tmp_path.as_uri()}/repo/chunks", f"{tmp_path.as_uri()}/files"}
    assert len(first.variables["small"].references.inline) == 1
    assert set(first.groups) == {"a"}


@pytest.mark.parametrize("version", ["tag:first", "main", "branch:main", "snapshot"])
def test_version_may_be_branch_tag_or_snapshot(repo: Repository, tmp_path: Path, version: str) -> None:
    id = repo.lookup_branch("main")

    found = virtualize(tmp_path / "repo", version=id if version == "snapshot" else version, group="a")

    assert int(found.to_xarray()["native"].values[0, 0]) == (0 if version == "tag:first" else 7)


def test_dimension_coordinates_are_loaded(repo: Repository, tmp_path: Path) -> None:
    found = virtualize(tmp_path / "repo")

    assert found.variables["small"].values.tolist() == SMALL.tolist()


def test_references_to_repository_are_written_to_another_one(repo: Repository, tmp_path: Path) -> None:
    config = RepositoryConfig.default()
    authorized = {}
    for folder in ("repo/chunks", "files"):
        prefix = f"file://{tmp_path}/{folder}/"
        store = local_filesystem_store(str(tmp_path / folder))
        config.set_virtual_chunk_container(VirtualChunkContainer(prefix, store))
        authorized[prefix] = Credentials.LocalFileSystemAccess()
    other = Repository.create(local_filesystem_storage(str(tmp_path / "other")), config, authorized)
    session = other.writable_session("main")

    virtualize(tmp_path / "repo", version="first").to_icechunk(session.store)
    session.commit("references")

    written = other.readonly_session("main").store
    np.testing.assert_array_equal(zarr.open_array(written, path="a/native", mode="r")[...], VALUES)
    np.testing.assert_array_equal(zarr.open_array(written, path="virtual", mode="r")[...], VALUES[:10])


def test_invalid_versions_are_rejected(repo: Repository, tmp_path: Path) -> None:
    with pytest.raises(RefNotFoundError, match="no branch, tag or snapshot v9"):
        virtualize(tmp_path / "repo", version="v9")
    with pytest.raises(ValueError, match="only valid for Icechunk repositories, not for zarr"):
        virtualize(tmp_path / "repo", version="main", format="zarr")
