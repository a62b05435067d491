"""Both packages read the `config.yaml` that the other wrote in a V1 repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from icefloe import config as c
from tests.support.config_samples import TaggedLoader

pytestmark = pytest.mark.compat


def _build(package: Any) -> Any:
    """Create the same config from the classes of either package."""
    preload = package.ManifestPreloadCondition
    split, dimension = package.ManifestSplitCondition, package.ManifestSplitDimCondition
    config = package.RepositoryConfig(
        inline_chunk_threshold_bytes=12,
        compression=package.CompressionConfig(level=5),
        manifest=package.ManifestConfig(
            preload=package.ManifestPreloadConfig(
                preload_if=preload.name_matches("a") | preload.num_refs(2, 9)
            ),
            splitting=package.ManifestSplittingConfig.from_dict(
                {split.AnyArray() | split.path_matches("b"): {dimension.Axis(0): 4, dimension.Any(): 9}}
            ),
        ),
    )
    config.set_virtual_chunk_container(
        package.VirtualChunkContainer("s3://bucket/", package.s3_store(region="us-east-1", anonymous=True))
    )
    config.set_virtual_chunk_container(
        package.VirtualChunkContainer("file:///data/", package.local_filesystem_store("/data"))
    )
    return config


def test_official_config_file_equals_the_file_of_icefloe(tmp_path: Path) -> None:
    icechunk = pytest.importorskip("icechunk")
    create: dict[str, Any] = {"spec_version": 1} if icechunk.__version__ >= "2" else {}
    storage = icechunk.local_filesystem_storage(str(tmp_path))
    icechunk.Repository.create(storage, config=_build(icechunk), **create).save_config()

    stored = yaml.load((tmp_path / "config.yaml").read_text(), TaggedLoader)

    ours = _build(c).to_plain()
    del ours["storage"], stored["storage"]  # the official library adds the defaults of its backend
    assert _restricted(ours, stored) == stored
    assert c.RepositoryConfig.from_plain(stored) == _build(c)


def _restricted(ours: Any, stored: Any) -> Any:
    """Return the plain form without keys that an older official release does not know."""
    if isinstance(ours, dict) and isinstance(stored, dict):
        return {key: _restricted(ours.get(key), stored[key]) for key in stored}
    return ours
