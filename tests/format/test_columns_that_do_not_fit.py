"""Invalid arguments of manifests and repo infos are refused, never truncated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from icefloe._internal.ids import INITIAL_SNAPSHOT_ID, ManifestId, NodeId
from icefloe.errors import FormatError, InvalidInputError
from icefloe.format.files import write_manifest, write_repo_info
from icefloe.format.manifest import ArrayManifest, Manifest
from icefloe.format.repo_changes import set_feature_flag
from icefloe.format.repo_info import RepoInfo, SnapshotInfo, SnapshotInfos
from icefloe.format.spec import V1, V2
from icefloe.format.updates import RepoStatus, Update, Updates
from icefloe.ops import UpdateType


def refs() -> ArrayManifest:
    return ArrayManifest.virtual([[0], [1]], ["s3://b/x", "s3://b/y"], [0, 5], [1, 2])


def repo_info() -> RepoInfo:
    return RepoInfo(
        snapshots=SnapshotInfos.of([SnapshotInfo(INITIAL_SNAPSHOT_ID, None, 1, "first")]),
        branches={"main": INITIAL_SNAPSHOT_ID},
        tags={},
        deleted_tags=frozenset(),
        status=RepoStatus(),
        latest_updates=Updates.of([Update(UpdateType.RepoInitialized(), 1)]),
    )


@pytest.mark.parametrize(
    "bad",
    [np.array([-1, 5]), np.array([0.5, 1]), [1 << 64, 1], [-1, 1], ["a", "b"], np.array([np.nan, 1])],
    ids=["negative array", "fraction", "too large", "negative list", "texts", "not a number"],
)
@pytest.mark.parametrize("which", ["offsets", "lengths"])
def test_non_integer_ranges_are_rejected(which: str, bad: Any) -> None:
    arguments: dict[str, Any] = {"offsets": [0, 5], "lengths": [1, 2], which: bad}

    with pytest.raises(InvalidInputError, match=which):
        ArrayManifest.virtual([[0], [1]], ["s3://b/x", "s3://b/y"], **arguments)


@pytest.mark.parametrize("coords", [np.array([[-1]]), np.array([[1 << 32]]), np.array([[0.5]])])
def test_non_integer_chunk_coordinates_are_rejected(coords: Any) -> None:
    with pytest.raises(InvalidInputError, match="coordinates"):
        ArrayManifest.virtual(coords, ["s3://b/x"], [0], [1])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"lengths": np.array([1], np.uint64)}, "2 references, but 1 lengths"),
        ({"location_codes": np.array([0, 2], np.uint32)}, "location 2, but there are only 2"),
        ({"etag_codes": np.array([0, 0], np.uint32)}, "etag 0, but there are only 0"),
    ],
)
def test_inconsistent_columns_are_not_written(columns: dict[str, Any], message: str) -> None:
    manifest = Manifest(ManifestId.random(), {NodeId.random(): replace(refs(), **columns)})

    with pytest.raises(FormatError, match=message):
        write_manifest(manifest, V2)


def test_repo_info_is_not_written_for_version_1() -> None:
    assert write_repo_info(repo_info(), V2)
    with pytest.raises(FormatError, match="has no repo info file"):
        write_repo_info(repo_info(), V1)


@pytest.mark.parametrize("flag", [-1, 1 << 16])
def test_feature_flags_beyond_16_bits_are_rejected(flag: int) -> None:
    with pytest.raises(InvalidInputError, match="feature flag"):
        set_feature_flag(repo_info(), flag, True)
