"""Conditions for preloading and splitting manifests: what they match, how they are stored and shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import icefloe.config
from icefloe import config as c
from tests.support.config_samples import MP, MS, D


@pytest.mark.parametrize(
    ("condition", "path", "num_refs", "expected"),
    [
        (MP.true(), "/a", 0, True),
        (MP.false(), "/a", 0, False),
        (MP.path_matches("^/a/"), "/a/b", 0, True),
        (MP.name_matches("^a"), "/a/b", 0, False),
        (MP.name_matches("b"), "/a/abc", 0, True),
        (MP.name_matches("("), "/a/b", 0, False),
        (MP.num_refs(1, 10), "/a", 10, False),
        (MP.num_refs(1, 10), "/a", 1, True),
        (MP.num_refs(None, None), "/a", 10**12, True),
        (MP.true() & MP.false(), "/a", 0, False),
        (MP.true() | MP.false(), "/a", 0, True),
    ],
)
def test_preload_conditions_match_the_expected_arrays(
    condition: c.ManifestPreloadCondition, path: str, num_refs: int, expected: bool
) -> None:
    assert condition.matches(path, num_refs) is expected


def test_manifest_split_conditions_match_the_expected_arrays_and_dimensions() -> None:
    assert (MS.AnyArray() & MS.name_matches("^t")).matches("/a/temp")
    assert not (MS.name_matches("(") | MS.path_matches("^b")).matches("/a/b")
    assert D.Axis(1).matches(1, None)
    assert not D.DimensionName("t").matches(0, None)
    assert D.DimensionName("t").matches(0, "lat")
    assert isinstance(D.Any(), c.ManifestSplitDimCondition)


def test_default_preload_condition_selects_small_coordinates() -> None:
    preload_if = c.RepositoryConfig().effective().preload_if

    names = ["time", "t", "lat", "longitude", "x", "y", "level", "depth", "hour12", "nav_lon"]
    assert [name for name in names if not preload_if.matches(f"/group/{name}", 1000)] == []
    assert not preload_if.matches("/time", 1001)
    assert not preload_if.matches("/temperature", 10)


preload_conditions = st.recursive(
    st.one_of(
        st.sampled_from([MP.true(), MP.false()]),
        st.builds(MP.path_matches, st.text()),
        st.builds(MP.name_matches, st.text()),
        st.builds(MP.num_refs, st.none() | st.integers(0, 9), st.none() | st.integers(0, 9)),
    ),
    lambda inner: (
        st.builds(MP.or_conditions, st.lists(inner)) | st.builds(MP.and_conditions, st.lists(inner))
    ),
)


@given(preload_conditions)
def test_preload_conditions_round_trip_through_plain_form_and_repr(
    condition: c.ManifestPreloadCondition,
) -> None:
    assert MP.from_plain(condition.to_plain()) == condition
    assert eval(repr(condition), {"icefloe": icefloe}) == condition


def test_inclusive_and_exclusive_bounds_are_normalized() -> None:
    plain = {"num_refs": {"from": {"Excluded": 3}, "to": {"Included": 1000}}}

    assert MP.from_plain(plain) == MP.num_refs(4, 1001)
