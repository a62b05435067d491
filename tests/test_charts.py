"""Colours of numbers, and PNG files, by known pixels."""

from __future__ import annotations

import numpy as np
import pytest

from icefloe.charts import Scale


def test_ends_of_a_colour_scale_have_the_expected_colours() -> None:
    found = Scale.of(0, 10).rgba(np.array([[0, 10], [-5, np.inf]]))

    assert found[0].tolist() == [[68, 1, 84, 255], [253, 231, 37, 255]]
    assert found[1].tolist() == found[0].tolist()


def test_missing_values_are_transparent() -> None:
    assert Scale.of(0, 1).rgba(np.array([np.nan])).tolist() == [[0, 0, 0, 0]]


def test_colour_scale_of_positive_and_negative_values_is_centred_at_zero() -> None:
    scale = Scale.of(-2, 8)

    assert (scale.low, scale.high) == (-8, 8)
    assert scale.rgba(np.array([0.0])).tolist() == [[247, 247, 247, 255]]


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-1.0, 1.0), (3.0, 3.0)])
def test_colours_of_an_array_match_its_single_values(bounds: tuple[float, float]) -> None:
    scale = Scale.of(*bounds)
    values = np.linspace(bounds[0] - 1, bounds[1] + 1, 57)

    found = scale.rgba(values)

    single = [scale.colour(value) or () for value in values.tolist()]
    assert np.abs(found[:, :3].astype(int) - np.array(single)).max() <= 1
