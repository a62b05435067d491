"""The stored form of configurations, compared with that of the official library."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from icefloe import config as c
from icefloe.errors import ErrorKind, FormatError
from tests.support.config_samples import full_config, official_dict


def test_config_is_written_like_the_official_library() -> None:
    plain = full_config().to_plain()

    assert plain == official_dict()
    assert list(plain) == list(official_dict())
    assert list(plain["storage"]) == list(official_dict()["storage"])


def test_config_of_the_official_library_is_read() -> None:
    config = c.RepositoryConfig.from_plain(official_dict())

    # An http store without options reads back with an empty map: the disk does not tell it from None.
    containers = config.virtual_chunk_containers or {}
    containers["https://b/"].store.opts = None  # type: ignore[union-attr]
    assert config == full_config()
    assert config.to_plain() == official_dict()


def test_default_config_has_every_key_and_only_nulls() -> None:
    plain = c.RepositoryConfig.default().to_plain()

    assert set(plain) == set(official_dict())
    assert set(plain.values()) == {None}


def test_missing_config_keys_are_accepted_and_unknown_keys_are_kept() -> None:
    plain = {"future": {"a": [1]}, "caching": {"num_chunk_refs": 7, "later": True}}

    config = c.RepositoryConfig.from_plain(plain)

    assert config == c.RepositoryConfig(caching=c.CachingConfig(num_chunk_refs=7))
    written = pickle.loads(pickle.dumps(config.merge(c.RepositoryConfig()))).to_plain()
    assert written["future"] == {"a": [1]}
    assert written["caching"]["later"] is True


@pytest.mark.parametrize(
    "plain",
    [
        [],
        {"inline_chunk_threshold_bytes": "many"},
        {"inline_chunk_threshold_bytes": 2**16},
        {"caching": 3},
        {"compression": {"algorithm": "lz4"}},
        {"manifest": {"preload": {"preload_if": "sometimes"}}},
        {"manifest": {"preload": {"preload_if": {"num_refs": {"from": "x", "to": "Unbounded"}}}}},
        {
            "manifest": {
                "splitting": {"split_sizes": [["any_array", [{"condition": "Some", "num_chunks": 1}]]]}
            }
        },
        {"manifest": {"splitting": {"split_sizes": [["any_array", [{"condition": "Any"}]]]}}},
        {"manifest": {"splitting": {"split_sizes": [["no_array", []]]}}},
        {"manifest": {"splitting": {"split_sizes": 3}}},
        {"virtual_chunk_containers": ["x"]},
        {"virtual_chunk_containers": {"x": {"url_prefix": "x"}}},
        {"virtual_chunk_containers": {"x": {"url_prefix": "x", "store": {"ftp": {}}}}},
        {"virtual_chunk_containers": {"x": {"url_prefix": "x", "store": {"gcs": {"a": 1}}}}},
    ],
)
def test_damaged_configs_are_rejected(plain: Any) -> None:
    with pytest.raises(FormatError) as caught:
        c.RepositoryConfig.from_plain(plain)

    assert caught.value.kind == ErrorKind.CONFIG_DESERIALIZATION
