"""Virtual chunks in local files: authorization, links, and files that changed."""

from __future__ import annotations

import os
import pickle
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import obstore
import pytest
import zarr
from obstore.store import LocalStore

import icefloe
from icefloe.config import RepositoryConfig, VirtualChunkContainer, local_filesystem_store, s3_store
from icefloe.credentials import Credentials, s3_anonymous_credentials
from icefloe.errors import ErrorKind, IcechunkError, InvalidInputError, StorageError
from icefloe.format.manifest import ArrayManifest
from icefloe.session import Session
from tests.support.virtual.locations import read_ref, session_with

ACCESS = Credentials.LocalFileSystemAccess()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.nc").write_bytes(bytes(range(100)))
    (tmp_path / "secret").write_bytes(b"secret bytes")
    return tmp_path / "data"


@pytest.fixture
def session(folder: Path) -> Session:
    return session_with(f"file://{folder}/", local_filesystem_store(str(folder)), ACCESS, name="data")


def failure(kind: ErrorKind) -> Any:
    return pytest.raises(IcechunkError, check=lambda error: error.kind == kind)


def test_bytes_of_a_file_are_read(session: Session, folder: Path) -> None:
    assert read_ref(session, f"file://{folder}/a.nc", 10, 4) == bytes(range(10, 14))
    assert read_ref(session, "vcc://data/a.nc", 20, 4) == bytes(range(20, 24))


def test_names_with_spaces_and_signs_are_found(session: Session, folder: Path) -> None:
    (folder / "ä b%#?.nc").write_bytes(b"1234")

    assert read_ref(session, f"file://{folder}/ä b%25%23%3F.nc") == b"1234"


def test_files_need_authorization(folder: Path) -> None:
    session = session_with(f"file://{folder}/", local_filesystem_store(str(folder)), None)

    with failure(ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER):
        read_ref(session, f"file://{folder}/a.nc")


@pytest.mark.parametrize("key", ["name", "shorter", "longer", "other"])
def test_authorization_covers_only_the_prefix_of_a_container(folder: Path, key: str) -> None:
    prefix = f"file://{folder}/"
    given = {"name": "data", "shorter": f"file://{folder.parent}/", "longer": f"{prefix}deep/", "other": "x:"}
    config = RepositoryConfig()
    store = local_filesystem_store(str(folder))
    config.set_virtual_chunk_container(VirtualChunkContainer(prefix, store, "data"))
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), config, {given[key]: ACCESS})
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(16,), chunks=(4,), dtype="u1", compressors=None)

    with failure(ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER):
        read_ref(session, f"{prefix}a.nc")


def test_credentials_of_another_type_are_rejected_when_opening(folder: Path) -> None:
    store, prefix = local_filesystem_store(str(folder)), f"file://{folder}/"

    with failure(ErrorKind.STORAGE_OTHER):
        session_with(prefix, store, Credentials.S3(s3_anonymous_credentials()))
    with failure(ErrorKind.STORAGE_OTHER):
        session_with("s3://bucket/", s3_store(), ACCESS)
    with pytest.raises(TypeError, match="Credentials"):
        session_with("s3://bucket/", s3_store(), s3_anonymous_credentials())


OUTSIDE = [
    "file://{parent}/secret",
    "file://{folder}/../secret",
    "file://{folder}/%2e%2e/secret",
    "file://{folder}/..%2fsecret",
    "file://{folder}/.%2e%2Fsecret",
    "file://{folder}\\..\\secret",
    "file://{folder}/x/..%5c..%5c../secret",
    "vcc://data/../secret",
    "vcc://data/%2e%2e/secret",
    "vcc://data/..%2Fsecret",
    "vcc://unknown/secret",
    "FILE://{folder}/../secret",
    "file://evil{folder}/a.nc",
    "/etc/passwd",
    "relative/secret",
]


@pytest.mark.parametrize("location", OUTSIDE)
def test_malicious_manifests_cannot_read_files_outside(session: Session, folder: Path, location: str) -> None:
    place = location.format(folder=folder, parent=folder.parent)
    node = session._workspace.array("/a")
    session._workspace.put_refs(node, ArrayManifest.virtual([[0]], [place], [0], [4]))

    with pytest.raises(InvalidInputError):
        session.store.get_sync("a/c/0")


@pytest.mark.parametrize("location", OUTSIDE)
def test_references_to_files_outside_are_rejected(session: Session, folder: Path, location: str) -> None:
    place = location.format(folder=folder, parent=folder.parent)

    with pytest.raises(InvalidInputError):
        read_ref(session, place)
    with pytest.raises(InvalidInputError):
        read_ref(session, place, validate=False)


def test_links_out_of_the_container_are_rejected(session: Session, folder: Path) -> None:
    (folder / "link").symlink_to(folder.parent / "secret")
    (folder / "up").symlink_to(folder.parent)
    (folder / "inside").symlink_to(folder / "a.nc")

    with failure(ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER) as caught:
        read_ref(session, f"file://{folder}/link")
    with failure(ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER):
        read_ref(session, f"file://{folder}/up/secret")

    assert "link" in caught.value.message
    assert read_ref(session, f"file://{folder}/inside", 1, 4) == bytes(range(1, 5))


def test_container_may_be_a_symbolic_link(folder: Path) -> None:
    (folder.parent / "other name").symlink_to(folder)
    prefix = f"file://{folder.parent}/other%20name/"
    session = session_with(prefix, local_filesystem_store(str(folder)), ACCESS)

    assert read_ref(session, f"{prefix}a.nc") == bytes(range(4))


def test_virtual_references_to_pipes_and_folders_are_rejected(session: Session, folder: Path) -> None:
    os.mkfifo(folder / "pipe")

    for name in ("pipe", ".x/../", "missing"):
        with pytest.raises(IcechunkError):
            read_ref(session, f"file://{folder}/{name}")
    with failure(ErrorKind.VIRTUAL_CHUNK_FETCH):
        read_ref(session, f"file://{folder}/pipe")


def test_ranges_beyond_the_end_of_a_file_are_rejected(session: Session, folder: Path) -> None:
    for offset in (98, 100, 5000, 2**62):
        with failure(ErrorKind.VIRTUAL_CHUNK_FETCH) as caught:
            read_ref(session, f"file://{folder}/a.nc", offset, 4)
        assert f"{folder.as_uri()}/a.nc" in caught.value.message
        assert "chunk (0,) of /a" in caught.value.message
        assert "100 bytes" in caught.value.message


def test_file_with_its_recorded_time_is_read(session: Session, folder: Path) -> None:
    os.utime(folder / "a.nc", (1_700_000_000, 1_700_000_000))
    recorded = datetime.fromtimestamp(1_700_000_000, UTC)

    assert read_ref(session, f"file://{folder}/a.nc", 0, 4, recorded) == bytes(range(4))


def test_change_within_the_recorded_second_is_detected(session: Session, folder: Path) -> None:
    """Times are stored in whole seconds, rounded down: false alarms are better than wrong bytes."""
    os.utime(folder / "a.nc", ns=(0, 1_700_000_000_500_000_000))

    for recorded in (1_700_000_000.0, 1_700_000_000.5, 1_700_000_000.9):
        with failure(ErrorKind.VIRTUAL_CHUNK_MODIFIED):
            read_ref(session, f"file://{folder}/a.nc", 0, 4, datetime.fromtimestamp(recorded, UTC))
    later = datetime.fromtimestamp(1_700_000_001, UTC)
    assert read_ref(session, f"file://{folder}/a.nc", 0, 4, later) == bytes(range(4))


def test_file_with_a_later_time_is_rejected(session: Session, folder: Path) -> None:
    os.utime(folder / "a.nc", (1_700_000_001, 1_700_000_001))

    with pytest.raises(StorageError) as caught:
        read_ref(session, f"file://{folder}/a.nc", 0, 4, datetime.fromtimestamp(1_700_000_000, UTC))

    assert caught.value.kind == ErrorKind.VIRTUAL_CHUNK_MODIFIED
    for word in ("a.nc", "chunk (0,) of /a", "2023-11-14T22:13:20", "2023-11-14T22:13:21"):
        assert word in caught.value.message


def test_local_files_have_the_etags_of_the_object_store_library(session: Session, folder: Path) -> None:
    tag = obstore.head(LocalStore(str(folder)), "a.nc")["e_tag"]
    assert tag is not None
    assert read_ref(session, f"file://{folder}/a.nc", 0, 4, tag) == bytes(range(4))

    (folder / "a.nc").write_bytes(b"something else")
    with failure(ErrorKind.VIRTUAL_CHUNK_MODIFIED) as caught:
        session.store.get_sync("a/c/0")
    assert tag.strip('"') in caught.value.message


def test_missing_file_raises_an_error(session: Session, folder: Path) -> None:
    read_ref(session, f"file://{folder}/a.nc")
    (folder / "a.nc").unlink()

    with failure(ErrorKind.VIRTUAL_CHUNK_FETCH) as caught:
        session.store.get_sync("a/c/0")

    assert f"{folder.as_uri()}/a.nc of chunk (0,) of /a" in caught.value.message


def test_pickled_sessions_keep_their_authorization(session: Session, folder: Path) -> None:
    read_ref(session, f"file://{folder}/a.nc")
    session.commit("virtual")

    copied = pickle.loads(pickle.dumps(session))

    assert copied.store.get_sync("a/c/0").to_bytes() == bytes(range(4))
