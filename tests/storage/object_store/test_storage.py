"""Failures of object stores: lost responses, incorrect servers, forks, credentials."""

from __future__ import annotations

import multiprocessing
import pickle
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from icefloe.config import (
    Attribution,
    S3Options,
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
    StorageTimeoutSettings,
)
from icefloe.credentials import S3StaticCredentials
from icefloe.errors import ErrorKind, InvalidInputError, ReadOnlyError, StorageError
from icefloe.storage import (
    ABSENT,
    ConditionNotMetError,
    ObjectKind,
    ObjectNotFoundError,
    Storage,
    Unchanged,
    s3_storage,
    tigris_storage,
)
from icefloe.storage.object_store import clients as clients_module
from icefloe.storage.object_store.clients import ClientRole
from icefloe.storage.object_store.conditional_writes import WRITE_ID
from icefloe.storage.probe import probe
from tests.storage.conftest import BUCKET, SECRET, S3Maker
from tests.support.servers.proxy import Proxy, Request, faulty_proxy

QUICK = StorageSettings(retries=StorageRetriesSettings(max_tries=4, initial_backoff_ms=1, max_backoff_ms=5))


@pytest.fixture
def proxy(s3_url: str) -> Iterator[Proxy]:
    with faulty_proxy(s3_url) as running:
        yield running


@pytest.fixture
def storage(new_s3: S3Maker, proxy: Proxy) -> Storage:
    """Return a storage behind the proxy, quick to retry."""
    return new_s3(proxy.url).with_settings(QUICK)


def first_puts(fate: str, times: int = 1) -> Callable[[Request], str | None]:
    """Return a fault that meets the first writes of objects."""
    left = [times]

    def fault(request: Request) -> str | None:
        if request.method == "PUT" and left[0]:
            left[0] -= 1
            return fate
        return None

    return fault


@pytest.mark.parametrize("fate", ["lose-answer", "lose-request", "503"])
@pytest.mark.parametrize("use_metadata", [True, False])
def test_conditional_write_survives_a_fault(
    storage: Storage, proxy: Proxy, fate: str, use_metadata: bool
) -> None:
    storage = storage.with_settings(QUICK.merge(StorageSettings(unsafe_use_metadata=use_metadata)))

    proxy.fault = first_puts(fate)
    created = storage.put("repo", b"first", ABSENT)
    proxy.fault = first_puts(fate)
    replaced = storage.put("repo", b"second", Unchanged(created))

    assert storage.get("repo") == (b"second", replaced)


def test_write_is_recognized_after_several_lost_responses(storage: Storage, proxy: Proxy) -> None:
    proxy.fault = first_puts("lose-answer", times=3)

    storage.put("repo", b"first", ABSENT)

    assert storage.get("repo")[0] == b"first"


@pytest.mark.parametrize("use_metadata", [True, False])
def test_write_with_a_lost_response_is_recognized_without_a_retry(
    storage: Storage, proxy: Proxy, use_metadata: bool
) -> None:
    once = StorageSettings(retries=StorageRetriesSettings(1), unsafe_use_metadata=use_metadata)
    proxy.fault = first_puts("lose-answer")

    storage.with_settings(once).put("repo", b"first", ABSENT)

    assert sum(request.method == "PUT" for request in proxy.seen) == 1


def test_conflicting_write_after_a_lost_response_is_detected(
    new_s3: S3Maker, storage: Storage, proxy: Proxy
) -> None:
    """Another writer writes between our lost request and our next attempt."""
    version = storage.put("repo", b"start", ABSENT)
    prefix = storage.describe()["prefix"]
    other = new_s3(prefix=prefix)

    def fault(request: Request) -> str | None:
        if request.method == "PUT":
            proxy.fault = None
            other.put("repo", b"theirs", Unchanged(version))
            return "lose-request"
        return None

    proxy.fault = fault
    with pytest.raises(ConditionNotMetError):
        storage.put("repo", b"ours", Unchanged(version))

    assert storage.get("repo")[0] == b"theirs"


def test_equal_content_of_another_writer_is_not_mistaken_for_our_write(
    new_s3: S3Maker, storage: Storage
) -> None:
    """Two clients create the same tag on the same snapshot: one of them must get an error."""
    other = new_s3(prefix=storage.describe()["prefix"])
    without_metadata = QUICK.merge(StorageSettings(unsafe_use_metadata=False))
    other.put("refs/tag.v1/ref.json", b"same", ABSENT)
    other.with_settings(without_metadata).put("refs/tag.v2/ref.json", b"same", ABSENT)

    for ours in (storage, storage.with_settings(without_metadata)):
        for tag in ("v1", "v2"):
            with pytest.raises(ConditionNotMetError):
                ours.put(f"refs/tag.{tag}/ref.json", b"same", ABSENT)


def test_conditional_writes_have_an_id(storage: Storage, proxy: Proxy) -> None:
    storage.put("repo", b"x", ABSENT, metadata={"icspecver": "2"})
    storage.put("chunk", b"x")

    first, second = (request.headers for request in proxy.seen if request.method == "PUT")
    assert first[f"x-amz-meta-{WRITE_ID}"]
    assert first["x-amz-meta-icspecver"] == "2"
    assert f"x-amz-meta-{WRITE_ID}" not in second


def test_reads_are_retried(storage: Storage, proxy: Proxy) -> None:
    storage.put("a", b"content")
    faults = iter(["503", "lose-answer"])
    proxy.fault = lambda request: next(faults, None)

    assert storage.get("a")[0] == b"content"


def test_unreachable_server_raises_an_error_after_retries(storage: Storage, proxy: Proxy) -> None:
    proxy.fault = lambda request: "503"

    for call in (
        lambda: storage.put("a", b"x", ABSENT),
        lambda: storage.put("a", b"x"),
        lambda: storage.get("a"),
    ):
        with pytest.raises(StorageError) as caught:
            call()
        assert caught.value.kind == ErrorKind.THROTTLED
        assert SECRET not in str(caught.value)

    assert len(proxy.seen) < 40  # a few times four tries


def test_timeouts_follow_settings(storage: Storage, proxy: Proxy) -> None:
    timeouts = StorageTimeoutSettings(operation_attempt_timeout_ms=100, operation_timeout_ms=300)
    hasty = storage.with_settings(QUICK.merge(StorageSettings(timeouts=timeouts)))
    proxy.latency_s = 1.0

    with pytest.raises(StorageError) as caught:
        hasty.get("a")

    assert "retry_timeout: 300ms" in caught.value.message


def test_slow_read_does_not_time_out_while_bytes_arrive() -> None:
    """obstore's default limit of 30 seconds per request would end large transfers over slow connections."""
    settings = StorageSettings().effective()

    read = clients_module._client_options(settings, ClientRole.READ, {}, "agent")
    write = clients_module._client_options(settings, ClientRole.WRITE, {}, "agent")
    patient = clients_module._client_options(settings, ClientRole.READ, {}, "agent", 0)

    assert read["read_timeout"] == timedelta(seconds=60)
    assert read["timeout"] >= timedelta(hours=1)
    assert write["timeout"] >= timedelta(minutes=10)
    assert "read_timeout" not in write
    assert "read_timeout" not in patient


def drop_metadata(request: Request) -> str | None:
    """Drop the metadata of objects, as the gateway of Hugging Face does."""
    for name in [name for name in request.headers if name.startswith("x-amz-meta-")]:
        del request.headers[name]
    return None


def test_write_with_a_lost_response_is_recognized_without_metadata(storage: Storage, proxy: Proxy) -> None:
    lose = first_puts("lose-answer")
    proxy.fault = lambda request: drop_metadata(request) or lose(request)

    version = storage.put("repo", b"first", ABSENT)

    assert storage.get("repo") == (b"first", version)
    with pytest.raises(ConditionNotMetError):
        storage.put("repo", b"first", ABSENT)


def ignore_conditions(request: Request) -> str | None:
    for name in ("if-match", "if-none-match"):
        request.headers.pop(name, None)
    return None


def test_probe_detects_a_server_that_ignores_conditions(storage: Storage, proxy: Proxy) -> None:
    proxy.fault = ignore_conditions

    report = probe(storage)

    assert not report.safe
    failed = {check.name for check in report.checks if not check.passed}
    assert {"create only if absent", "replace only if unchanged"} <= failed
    assert "NOT safe for concurrent commits" in str(report)
    assert list(storage.list_prefix()) == []


def test_probe_detects_unsafe_settings(storage: Storage) -> None:
    unsafe = StorageSettings(unsafe_use_conditional_update=False)

    report = probe(storage.with_settings(QUICK.merge(unsafe)))

    failed = {check.name for check in report.checks if not check.passed}
    assert "replace only if unchanged" in failed
    assert "create only if absent" not in failed


def test_probe_reports_an_unreachable_storage() -> None:
    nowhere = s3_storage(
        bucket="b",
        prefix="p",
        endpoint_url="http://127.0.0.1:1",
        allow_http=True,
        region="us-east-1",
        anonymous=True,
    )

    report = probe(nowhere.with_settings(QUICK))

    assert not report.safe
    assert [check.name for check in report.checks] == ["write and read back"]


def quoted_tags_refused(request: Request) -> str | None:
    """Respond with 412 to a quoted If-Match, as Ceph does, which accepts the tag without quotes."""
    tag = request.headers.get("if-match")
    if tag is not None and request.method == "PUT":
        if tag.startswith('"'):
            return "412"
        request.headers["if-match"] = f'"{tag}"'
    return None


def test_store_that_needs_unquoted_etags_is_supported(storage: Storage, proxy: Proxy) -> None:
    proxy.fault = quoted_tags_refused
    first = storage.put("repo", b"first", ABSENT)

    second = storage.put("repo", b"second", Unchanged(first))

    with pytest.raises(ConditionNotMetError):
        storage.put("repo", b"third", Unchanged(first))
    assert storage.get("repo") == (b"second", second)


def test_large_objects_are_read_by_several_requests(storage: Storage, proxy: Proxy) -> None:
    data = bytes(range(256)) * 4000
    storage.put("a", data)
    parted = storage.with_settings(StorageSettings(concurrency=StorageConcurrencySettings(4, 100_000)))
    proxy.seen.clear()

    assert parted.get_range("a", 0, len(data)) == data

    ranges = sorted(request.headers["range"] for request in proxy.seen)
    assert len(ranges) == 4
    proxy.seen.clear()
    assert parted.get("a")[0] == data
    assert sum("range" in request.headers for request in proxy.seen) == 4


def test_parts_of_two_versions_are_never_mixed(new_s3: S3Maker, storage: Storage, proxy: Proxy) -> None:
    other = new_s3(prefix=storage.describe()["prefix"])
    storage.put("a", b"1" * 500_000)
    parted = storage.with_settings(StorageSettings(concurrency=StorageConcurrencySettings(4, 100_000)))
    ranged = 0

    def replace_after_a_part(request: Request) -> str | None:
        nonlocal ranged
        ranged += "range" in request.headers
        if ranged == 2:
            ranged += 1
            other.put("a", b"2" * 500_000)
        return None

    proxy.fault = replace_after_a_part

    data, version = parted.get("a")

    assert data == b"2" * 500_000
    assert version == other.head("a")[1]


def test_large_objects_are_written_in_parts(storage: Storage, proxy: Proxy) -> None:
    data = bytes(range(256)) * 40_000
    parted = storage.with_settings(StorageSettings(minimum_size_for_multipart_upload=10_000_000))

    parted.put("small", b"x")
    parted.put("big", data, kind=ObjectKind.CHUNK)

    puts = [request.path for request in proxy.seen if request.method == "PUT"]
    assert sum("partNumber=" in path for path in puts) == 2
    assert storage.get("big")[0] == data


def test_storage_classes_depend_on_the_kind_of_object(storage: Storage, proxy: Proxy) -> None:
    classes = StorageSettings(storage_class="STANDARD_IA", chunks_storage_class="GLACIER_IR")
    classed = storage.with_settings(classes)

    classed.put("chunks/a", b"x", kind=ObjectKind.CHUNK)
    classed.put("manifests/a", b"x")

    puts = [request.headers["x-amz-storage-class"] for request in proxy.seen if request.method == "PUT"]
    assert puts == ["GLACIER_IR", "STANDARD_IA"]


def test_failed_bulk_delete_reports_remaining_objects(storage: Storage, proxy: Proxy) -> None:
    for key in ("a", "b", "c"):
        storage.put(key, b"x")

    def refuse_b(request: Request) -> str | None:
        return (
            "403" if request.method == "POST" and (b">" in request.body and b"/b<" in request.body) else None
        )

    proxy.fault = refuse_b
    report = storage.delete(["a", "b", "c"])

    assert report.deleted == 2
    assert [path for path, _ in report.failed] == ["b"]
    assert [info.key for info in storage.list_prefix()] == ["b"]


def test_missing_bucket_is_not_a_missing_object(s3_url: str) -> None:
    storage = s3_storage(
        bucket="no-such-bucket",
        prefix="p",
        endpoint_url=s3_url,
        allow_http=True,
        force_path_style=True,
        region="us-east-1",
        access_key_id="a",
        secret_access_key=SECRET,
    )

    for call in (lambda: storage.get("repo"), lambda: storage.put("repo", b"", ABSENT)):
        with pytest.raises(StorageError, match="does not exist") as caught:
            call()
        assert not isinstance(caught.value, ObjectNotFoundError)


def test_explicit_keys_are_not_mixed_with_environment_variables(
    storage: Storage, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """obstore alone would complete the given keys with the session token of the environment."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-somebody-else")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")

    storage.put("a", b"x")

    headers = proxy.seen[-1].headers
    assert "x-amz-security-token" not in headers
    assert "Credential=access/" in headers["authorization"]


def test_credentials_from_environment_variables_are_used(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "environment-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "environment-token")
    storage = s3_storage(
        bucket=BUCKET,
        prefix="env",
        endpoint_url=proxy.url,
        allow_http=True,
        force_path_style=True,
        from_env=True,
    )

    storage.put("a", b"x")

    assert "Credential=environment-key/" in proxy.seen[-1].headers["authorization"]
    assert proxy.seen[-1].headers["x-amz-security-token"] == "environment-token"


def anonymous_storage(url: str) -> Storage:
    return s3_storage(
        bucket=BUCKET, prefix="p", endpoint_url=url, allow_http=True, force_path_style=True, anonymous=True
    )


def test_anonymous_requests_are_not_signed(proxy: Proxy) -> None:
    assert not anonymous_storage(proxy.url).exists("missing-object")
    assert "authorization" not in proxy.seen[-1].headers


class Expiring:
    """A function that returns keys that expire immediately, a number of times."""

    calls = 0
    expired_times = 2

    def __call__(self) -> S3StaticCredentials:
        Expiring.calls += 1
        lifetime = timedelta(0) if Expiring.calls <= Expiring.expired_times else timedelta(hours=1)
        return S3StaticCredentials(f"key{Expiring.calls}", SECRET, expires_after=datetime.now(UTC) + lifetime)


def refreshing(url: str, function: Callable[[], S3StaticCredentials]) -> Storage:
    return s3_storage(
        bucket=BUCKET,
        prefix="refreshed",
        region="us-east-1",
        endpoint_url=url,
        allow_http=True,
        force_path_style=True,
        get_credentials=function,
    )


def test_expired_credentials_are_refreshed(proxy: Proxy) -> None:
    Expiring.calls = 0
    storage = refreshing(proxy.url, Expiring())

    for _ in range(5):
        storage.exists("a")

    assert Expiring.calls == 3
    used = [request.headers["authorization"].partition("Credential=")[2][:4] for request in proxy.seen]
    assert used == ["key1", "key2", "key3", "key3", "key3"]


def fail_to_get() -> S3StaticCredentials:
    raise RuntimeError("vault is sealed")


def test_failing_credentials_function_is_reported(proxy: Proxy) -> None:
    with pytest.raises(InvalidInputError, match="vault is sealed") as caught:
        refreshing(proxy.url, fail_to_get).with_settings(QUICK).get("a")

    assert caught.value.kind == ErrorKind.INVALID_CREDENTIALS


def test_reads_and_writes_send_their_own_headers(proxy: Proxy) -> None:
    storage = s3_storage(
        bucket=BUCKET,
        prefix="headers",
        endpoint_url=proxy.url,
        allow_http=True,
        force_path_style=True,
        access_key_id="a",
        secret_access_key=SECRET,
        headers={"x-all": "1", "x-role": "none"},
        read_headers={"x-role": "read"},
        write_headers={"x-role": "write"},
    ).with_attribution(Attribution(client="lib/1", workload="nightly"))

    storage.put("a", b"x")
    storage.get("a")

    put, get = (request.headers for request in proxy.seen)
    assert (put["x-all"], put["x-role"]) == ("1", "write")
    assert (get["x-all"], get["x-role"]) == ("1", "read")
    assert put["user-agent"].startswith("lib/1 icefloe/")
    assert put["user-agent"].endswith("(workload=nightly)")


def test_weakly_consistent_tigris_is_read_only(proxy: Proxy) -> None:
    storage = tigris_storage(
        bucket=BUCKET,
        prefix="p",
        endpoint_url=proxy.url,
        allow_http=True,
        use_weak_consistency=True,
        anonymous=True,
    )

    assert storage.read_only
    for call in (
        lambda: storage.put("a", b""),
        lambda: storage.delete(["a"]),
        lambda: storage.copy("a", "b"),
        storage.prepare_for_creation,
        lambda: probe(storage),
    ):
        with pytest.raises(ReadOnlyError) as caught:
            call()
        assert caught.value.kind == ErrorKind.READ_ONLY_STORAGE


def test_repository_cannot_be_created_at_the_root_of_a_bucket(s3_url: str) -> None:
    storage = s3_storage(bucket=BUCKET, prefix=None, endpoint_url=s3_url, allow_http=True, anonymous=True)

    with pytest.raises(InvalidInputError) as caught:
        storage.prepare_for_creation()

    assert caught.value.kind == ErrorKind.EMPTY_PREFIX_CREATION


def _use_in_child(storage: Storage, results: multiprocessing.SimpleQueue[str]) -> None:
    try:
        storage.get("a")
    except StorageError as error:
        results.put(error.message)


def test_forked_child_raises_an_error(new_s3: S3Maker) -> None:
    storage = new_s3()
    storage.put("a", b"x")
    context = multiprocessing.get_context("fork")
    results: multiprocessing.SimpleQueue[str] = context.SimpleQueue()
    child = context.Process(target=_use_in_child, args=(new_s3(), results))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is what is tested
        child.start()
    child.join(300)

    assert child.exitcode == 0
    assert "'spawn' or 'forkserver'" in results.get()


def test_pickles_contain_credentials_and_reprs_do_not(storage: Storage) -> None:
    pickled = pickle.dumps(storage)

    assert SECRET.encode() in pickled
    assert SECRET not in repr(pickle.loads(pickled))


def test_errors_hide_signatures_in_urls(storage: Storage) -> None:
    cause = RuntimeError("GET http://host/c?sv=1&sig=hunter2&x=1 failed\n\nDebug source: hunter2")

    error = storage._error("repo", cause)  # type: ignore[attr-defined]

    assert "hunter2" not in str(error)
    assert "sig=****" in str(error)


@pytest.mark.parametrize(
    ("endpoint", "path_style", "bucket", "expected"),
    [
        (None, False, "bucket", (None, True)),
        (None, False, "dotted.bucket", (None, False)),
        (None, True, "bucket", (None, False)),
        ("http://127.0.0.1:9000/", False, "bucket", ("http://127.0.0.1:9000", False)),
        ("http://localhost:9000", False, "bucket", ("http://localhost:9000", False)),
        ("https://s3.example.com", True, "bucket", ("https://s3.example.com", False)),
        ("https://s3.example.com", False, "bucket", ("https://bucket.s3.example.com", True)),
    ],
)
def test_buckets_are_addressed_by_host_or_path(
    endpoint: str | None, path_style: bool, bucket: str, expected: tuple[str | None, bool]
) -> None:
    options = S3Options(endpoint_url=endpoint, force_path_style=path_style)

    assert clients_module._s3_endpoint(bucket, options) == expected
