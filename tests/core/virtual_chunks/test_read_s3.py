"""Virtual chunks in a bucket: all types of credentials, and objects that changed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import obstore
import pytest
from obstore.store import S3Store

from icefloe.config import s3_store
from icefloe.credentials import (
    Credentials,
    S3StaticCredentials,
    s3_anonymous_credentials,
    s3_credentials,
    s3_refreshable_credentials,
)
from icefloe.errors import ErrorKind, IcechunkError
from icefloe.session import Session
from tests.support.servers.moto import make_bucket
from tests.support.virtual.locations import read_ref, session_with

URL = "s3://archive/data/a b.nc"


@pytest.fixture(scope="module")
def endpoint(s3_server: str) -> str:
    make_bucket(s3_server, "archive")
    return s3_server


@pytest.fixture
def bucket(endpoint: str) -> S3Store:
    config: Any = {
        "endpoint": endpoint,
        "region": "us-east-1",
        "access_key_id": "key",
        "secret_access_key": "secret",
    }
    client: Any = {"allow_http": True, "default_headers": {"x-amz-acl": "public-read"}}
    found = S3Store("archive", config=config, client_options=client)
    obstore.put(found, "data/a b.nc", bytes(range(100)))
    return found


def session_on(endpoint: str, credentials: Any, prefix: str = "s3://archive/data/") -> Session:
    store = s3_store(
        region="us-east-1", endpoint_url=endpoint, allow_http=True, s3_compatible=True, force_path_style=True
    )
    return session_with(prefix, store, Credentials.S3(credentials))


def failure(kind: ErrorKind) -> Any:
    return pytest.raises(IcechunkError, check=lambda error: error.kind == kind)


def keys() -> S3StaticCredentials:
    return S3StaticCredentials("key", "secret", None, datetime.now(UTC) + timedelta(hours=1))


def no_keys() -> S3StaticCredentials:
    raise OSError("the vault is closed")


@pytest.mark.parametrize(
    "credentials",
    [
        s3_anonymous_credentials(),
        s3_credentials(access_key_id="key", secret_access_key="secret"),
        s3_refreshable_credentials(keys),
    ],
    ids=["anonymous", "static", "refreshable"],
)
def test_objects_are_read_with_all_types_of_credentials(
    endpoint: str, bucket: S3Store, credentials: Any
) -> None:
    assert read_ref(session_on(endpoint, credentials), URL, 10, 4) == bytes(range(10, 14))


def test_unavailable_credentials_raise_an_error(endpoint: str, bucket: S3Store) -> None:
    with pytest.raises(IcechunkError, match="the vault is closed"):
        read_ref(session_on(endpoint, s3_refreshable_credentials(no_keys)), URL)


def test_bucket_is_taken_from_the_virtual_chunk_container(endpoint: str, bucket: S3Store) -> None:
    session = session_on(endpoint, s3_anonymous_credentials())

    for location in ("s3://archive/other.nc", "s3://other/data/a.nc", "s3://archive.data/a"):
        with failure(ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK):
            read_ref(session, location)
        with failure(ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK):
            read_ref(session, location, validate=False)


def test_changed_versions_are_rejected(endpoint: str, bucket: S3Store) -> None:
    session = session_on(endpoint, s3_anonymous_credentials())
    meta = obstore.head(bucket, "data/a b.nc")
    tag, time = meta["e_tag"], meta["last_modified"]
    assert tag is not None
    assert read_ref(session, URL, 0, 4, tag) == bytes(range(4))
    assert read_ref(session, URL, 0, 4, time) == bytes(range(4))

    with failure(ErrorKind.VIRTUAL_CHUNK_MODIFIED):
        read_ref(session, URL, 0, 4, time - timedelta(seconds=1))
    obstore.put(bucket, "data/a b.nc", bytes(100))
    with failure(ErrorKind.VIRTUAL_CHUNK_MODIFIED) as caught:
        read_ref(session, URL, 0, 4, tag)

    assert tag.strip('"') in caught.value.message
    assert "chunk (0,) of /a" in caught.value.message


def test_ranges_beyond_the_end_and_missing_objects_raise_errors(endpoint: str, bucket: S3Store) -> None:
    session = session_on(endpoint, s3_anonymous_credentials())

    for offset in (98, 100, 5000):
        with failure(ErrorKind.VIRTUAL_CHUNK_FETCH) as caught:
            read_ref(session, URL, offset, 4)
        assert "100 bytes" in caught.value.message
    with failure(ErrorKind.VIRTUAL_CHUNK_FETCH):
        read_ref(session, "s3://archive/data/missing")


def test_large_chunks_are_read_in_parts(endpoint: str, bucket: S3Store) -> None:
    data = bytes(range(256)) * 120_000
    obstore.put(bucket, "data/large", data)
    session = session_on(endpoint, s3_anonymous_credentials())

    assert read_ref(session, "s3://archive/data/large", 5, len(data) - 5) == data[5:]


def test_keys_with_empty_segments_are_rejected(endpoint: str, bucket: S3Store) -> None:
    session = session_on(endpoint, s3_anonymous_credentials())

    with failure(ErrorKind.INVALID_VIRTUAL_REF) as caught:
        read_ref(session, "s3://archive/data/a//b")

    assert "//" in caught.value.message
