"""Configuration values: defaults, checks, merging, reprs."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import icefloe.storage  # some classes are shown under this name
from icefloe import config as c
from icefloe.config.fields import ConfigPart
from tests.support.config_samples import MP, MS, D, full_config

untyped: Any = c


def test_repr_is_code_that_creates_the_same_value() -> None:
    config = full_config()
    config.set_virtual_chunk_container(c.VirtualChunkContainer("https://a/", c.http_store({"k": "v"})))

    assert eval(repr(config), {"icefloe": icefloe}) == config


def test_str_of_a_config_shows_defaults() -> None:
    text = str(c.RepositoryConfig(compression=c.CompressionConfig(level=2)))

    assert "inline_chunk_threshold_bytes: 512 (default)" in text
    assert "    algorithm: Zstd (default)\n    level: 2\n" in text
    assert "storage: None" in text
    assert "        max_tries: 100\n" in text
    assert text.startswith("<icefloe.config.RepositoryConfig>")
    html = c.RepositoryConfig()._repr_html_()
    assert "<summary>compression</summary>" in html


def test_reprs_hide_possible_secrets() -> None:
    stores = [
        c.http_store({"allow_http": "true"}, {"authorization": "hunter2"}),
        c.gcs_store({"service_account_key": "hunter2"}),
        c.azure_store(account="a", config={"sas_token": "hunter2"}),
    ]

    for store in stores:
        shown = repr(store) + str(store) + store._repr_html_()
        assert "hunter2" not in shown
        assert "****" in shown
    assert "allow_http" in repr(stores[0])


@pytest.mark.parametrize(
    "value",
    [
        full_config(),
        full_config().storage,
        full_config().manifest,
        c.Attribution(client="a/1"),
        MP.true(),
        D.Any(),
    ],
    ids=lambda v: type(v).__name__,
)
def test_values_can_be_pickled_and_copied(value: object) -> None:
    assert pickle.loads(pickle.dumps(value)) == value
    assert copy.deepcopy(value) == value
    assert copy.copy(value) == value


def test_only_config_conditions_are_hashable() -> None:
    with pytest.raises(TypeError):
        hash(c.RepositoryConfig())

    assert len({MS.AnyArray(), MS.AnyArray(), D.Axis(1), D.Axis(1)}) == 2


def test_config_merge_combines_some_parts_and_replaces_others() -> None:
    base = full_config()
    other = c.RepositoryConfig(
        inline_chunk_threshold_bytes=0,
        compression=c.CompressionConfig(level=9),
        storage=c.StorageSettings(retries=c.StorageRetriesSettings(max_tries=4)),
        manifest=c.ManifestConfig(preload=c.ManifestPreloadConfig(max_total_refs=1)),
    )

    merged = base.merge(other)

    assert merged.inline_chunk_threshold_bytes == 0
    assert merged.compression == c.CompressionConfig(c.CompressionAlgorithm.Zstd, 9)
    assert merged.storage is not None
    assert merged.storage.retries == c.StorageRetriesSettings(4, 0, 0)
    assert merged.storage.storage_class == "X"
    assert merged.manifest is not None
    assert base.manifest is not None
    assert merged.manifest.preload == c.ManifestPreloadConfig(max_total_refs=1)
    assert merged.manifest.splitting == base.manifest.splitting
    assert merged.virtual_chunk_containers == base.virtual_chunk_containers


def test_merge_shares_nothing_with_its_inputs() -> None:
    base, other = full_config(), full_config()

    merged = base.merge(other)

    assert merged.storage is not None
    assert merged.storage.retries is not None
    merged.storage.retries.max_tries = 77
    assert base == other == full_config()


def test_cleared_containers_remove_stored_containers() -> None:
    cleared = c.RepositoryConfig()
    cleared.clear_virtual_chunk_containers()

    assert full_config().merge(cleared).virtual_chunk_containers == {}
    assert full_config().merge(c.RepositoryConfig()).virtual_chunk_containers


def test_nested_values_can_be_changed_in_place() -> None:
    config = full_config()
    assert config.storage is not None
    assert config.storage.retries is not None

    config.storage.retries.max_tries = 42

    assert config.to_plain()["storage"]["retries"]["max_tries"] == 42


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: untyped.RepositoryConfig(inline_chunk_threshold_bytes=-1), OverflowError),
        (lambda: untyped.RepositoryConfig(inline_chunk_threshold_bytes=2**16), OverflowError),
        (lambda: untyped.RepositoryConfig(inline_chunk_threshold_bytes="a"), TypeError),
        (lambda: untyped.RepositoryConfig(inline_chunk_threshold_bytes=1.5), TypeError),
        (lambda: untyped.RepositoryConfig(caching=3), TypeError),
        (lambda: untyped.RepositoryConfig(virtual_chunk_containers={"a": 1}), TypeError),
        (lambda: untyped.CompressionConfig(level=256), OverflowError),
        (lambda: untyped.CompressionConfig(algorithm="zstd"), TypeError),
        (lambda: untyped.StorageConcurrencySettings(0, 1), ValueError),
        (lambda: untyped.StorageRetriesSettings(0), ValueError),
        (lambda: untyped.StorageSettings(unsafe_use_metadata="no"), TypeError),
        (
            lambda: untyped.ManifestVirtualChunkLocationCompressionConfig(compression_level=2**31),
            OverflowError,
        ),
        (lambda: untyped.ManifestSplittingConfig((("x", ()),)), TypeError),
        (lambda: untyped.ManifestSplittingConfig(((MS.AnyArray(), ((D.Any(), 2**32),)),)), OverflowError),
        (lambda: D.Axis(-1), OverflowError),
        (lambda: untyped.S3Options(network_stream_timeout_seconds=-1), OverflowError),
    ],
)
def test_invalid_values_are_rejected(call: Callable[[], object], error: type[Exception]) -> None:
    with pytest.raises(error):
        call()


def test_misspelled_setting_is_rejected() -> None:
    with pytest.raises(AttributeError, match="inline_treshold"):
        c.RepositoryConfig().inline_treshold = 1


@pytest.mark.parametrize(
    ("prefix", "store", "name", "text"),
    [
        ("s3://b", c.s3_store(), None, "must end in a /"),
        ("s3://b/", c.s3_store(), "", "name must be non-empty"),
        ("s3://b/", c.s3_store(), "a/b", "name must be non-empty"),
        ("s3:///", c.s3_store(), None, "must include a host"),
        ("gs://b/", c.s3_store(), None, "Invalid url prefix scheme"),
        ("b/", c.s3_store(), None, "not an absolute url"),
        ("file:///", c.local_filesystem_store("/"), None, "must include a path"),
        ("memory://x/", c.ObjectStoreConfig.InMemory(), None, "Invalid url prefix scheme"),
    ],
)
def test_invalid_virtual_chunk_containers_are_rejected(
    prefix: str, store: c.AnyObjectStoreConfig, name: str | None, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        c.RepositoryConfig().set_virtual_chunk_container(c.VirtualChunkContainer(prefix, store, name))


def test_container_replaces_one_with_the_same_name() -> None:
    config = c.RepositoryConfig()
    config.set_virtual_chunk_container(c.VirtualChunkContainer("s3://a/", c.s3_store(), "data"))
    config.set_virtual_chunk_container(c.VirtualChunkContainer("s3://b/", c.s3_store(), "data"))

    assert list(config.virtual_chunk_containers or {}) == ["s3://b/"]
    assert config.get_virtual_chunk_container("s3://a/") is None
    assert config.get_virtual_chunk_container("s3://b/") is not None


def test_effective_config_has_the_documented_defaults() -> None:
    effective = c.RepositoryConfig().effective()

    assert effective.inline_chunk_threshold_bytes == 512
    assert effective.compression_level == 3
    assert effective.max_concurrent_requests == 256
    assert effective.num_chunk_refs == 15_000_000
    assert effective.update_max_tries == 100
    assert effective.split_sizes == ((MS.AnyArray(), ((D.Any(), 2**32 - 1),)),)
    assert c.RepositoryConfig(inline_chunk_threshold_bytes=0).effective().inline_chunk_threshold_bytes == 0
    zero = c.ManifestSplittingConfig(((MS.AnyArray(), ((D.Any(), 0),)),))
    assert c.RepositoryConfig(manifest=c.ManifestConfig(splitting=zero)).effective().split_sizes == (
        (MS.AnyArray(), ((D.Any(), 2**32 - 1),)),
    )


def test_effective_storage_settings_have_the_documented_defaults() -> None:
    effective = c.StorageSettings(storage_class="A", chunks_storage_class="B").effective()

    assert effective.max_concurrent_requests_for_object == 18
    assert effective.ideal_concurrent_request_size == 12 * 2**20
    assert (effective.max_tries, effective.initial_backoff_ms, effective.max_backoff_ms) == (10, 100, 180_000)
    assert (effective.metadata_storage_class, effective.chunks_storage_class) == ("A", "B")
    assert effective.minimum_size_for_multipart_upload == 100 * 2**20


def test_config_constructors_have_the_official_argument_order() -> None:
    assert list(inspect.signature(c.RepositoryConfig).parameters) == [
        "inline_chunk_threshold_bytes",
        "get_partial_values_concurrency",
        "compression",
        "max_concurrent_requests",
        "caching",
        "storage",
        "virtual_chunk_containers",
        "manifest",
        "repo_update_retries",
        "num_updates_per_repo_info_file",
        "max_concurrent_decodes",
    ]
    for kind in ConfigPart.__subclasses__():
        defaults = {p.default for p in inspect.signature(kind).parameters.values()}
        assert defaults <= {None, False}


@pytest.mark.parametrize(
    "arguments",
    [
        {"client": ""},
        {"client": "a b"},
        {"client": "a/b/c"},
        {"client": "a" * 129},
        {"workload": "a;b"},
        {"principal": "é"},
        {"principal": "a" * 129},
    ],
)
def test_invalid_attribution_is_rejected(arguments: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=f"attribution `{next(iter(arguments))}`"):
        c.Attribution(**arguments)


def test_attribution_is_part_of_the_user_agent() -> None:
    assert c.Attribution().user_agent("icefloe/1") == "icefloe/1"
    assert (
        c.Attribution(client="lib/2", workload="nightly", principal="").user_agent("icefloe/1")
        == "lib/2 icefloe/1 (workload=nightly)"
    )
