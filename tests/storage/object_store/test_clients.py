"""Settings of object stores, observed in requests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from icefloe.config import ChecksumAlgorithm
from icefloe.errors import ErrorKind, StorageError
from icefloe.storage import ABSENT, ALWAYS, Storage, s3_storage
from tests.storage.conftest import BUCKET, SECRET
from tests.support.servers.proxy import Proxy, faulty_proxy


@pytest.fixture
def proxy(s3_url: str) -> Iterator[Proxy]:
    with faulty_proxy(s3_url) as running:
        yield running


def storage_with(algorithm: ChecksumAlgorithm | None, url: str) -> Storage:
    return s3_storage(
        bucket=BUCKET,
        prefix=f"checksums-{algorithm}",
        region="us-east-1",
        endpoint_url=url,
        allow_http=True,
        force_path_style=True,
        access_key_id="access",
        secret_access_key=SECRET,
        checksum_algorithm=algorithm,
    )


@pytest.mark.parametrize("algorithm", [ChecksumAlgorithm.Sha256, ChecksumAlgorithm.Crc64Nvme])
def test_supported_checksums_are_sent_to_s3(proxy: Proxy, algorithm: ChecksumAlgorithm) -> None:
    storage = storage_with(algorithm, proxy.url)

    storage.put("plain", b"x")
    storage.put("swapped", b"y", ABSENT)

    assert storage.get("plain")[0] + storage.get("swapped")[0] == b"xy"
    writes = [request for request in proxy.seen if request.method == "PUT"]
    assert len(writes) == 2
    assert all(f"x-amz-checksum-{algorithm.name.lower()}" in request.headers for request in writes)


@pytest.mark.parametrize(
    "algorithm", [ChecksumAlgorithm.Crc32, ChecksumAlgorithm.Crc32c, ChecksumAlgorithm.Sha1]
)
def test_unsupported_checksums_are_rejected(proxy: Proxy, algorithm: ChecksumAlgorithm) -> None:
    storage = storage_with(algorithm, proxy.url)
    storage_with(None, proxy.url).put("other", b"x")
    before = len(proxy.seen)

    for condition in (ALWAYS, ABSENT):
        with pytest.raises(StorageError, match=f"{algorithm.name} checksum; use Sha256") as caught:
            storage.put("a", b"x", condition)
        assert caught.value.kind == ErrorKind.STORAGE_CONFIG

    assert len(proxy.seen) == before
    assert not storage.exists("a")  # reading needs no checksum


def test_proxies_of_the_environment_are_used(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy.url)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    storage = storage_with(None, "http://s3.invalid:81")

    # The server behind takes the whole URL for the name of a bucket.
    with pytest.raises(StorageError):
        storage.get("a")

    assert proxy.seen[-1].path.startswith("http://s3.invalid:81/")
