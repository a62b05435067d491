"""The number of chunks per manifest."""

from __future__ import annotations

import pytest

from icefloe._internal.ids import NodeId
from icefloe.config import (
    ManifestConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    RepositoryConfig,
)
from icefloe.core.commit.manifests import UNSPLIT, split_sizes
from icefloe.format.snapshot import ArrayNodeData, DimensionShape, NodeSnapshot

RULES = ManifestSplittingConfig.from_dict(
    {ManifestSplitCondition.AnyArray(): {ManifestSplitDimCondition.DimensionName("x"): 3}}
)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (None, [UNSPLIT, UNSPLIT]),
        (("t", "x"), [UNSPLIT, 3]),
        (("x",), [3, UNSPLIT]),
        (("x", "t", "x"), [3, UNSPLIT]),
    ],
)
def test_extra_dimension_names_are_ignored(names: tuple[str, ...] | None, expected: list[int]) -> None:
    config = RepositoryConfig(manifest=ManifestConfig(splitting=RULES)).effective()
    data = ArrayNodeData((DimensionShape(9, 9),) * 2, dimension_names=names)

    assert split_sizes(config.split_sizes, NodeSnapshot(NodeId.random(), "/a", b"{}", data)) == expected
