"""Locations of virtual chunks: validity, stored form, and containment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.config import ObjectStoreConfig, S3Options, VirtualChunkContainer
from icefloe.core.virtual_chunks.locations import (
    BadLocationError,
    Containers,
    check_locations,
    decode_key,
    to_stored_form,
)
from icefloe.encoding.columns import Blobs
from icefloe.errors import ErrorKind, InvalidInputError

CONTAINERS = Containers.of(
    [
        VirtualChunkContainer("s3://bucket/", ObjectStoreConfig.S3(S3Options())),
        VirtualChunkContainer("s3://bucket/deep/er/", ObjectStoreConfig.S3(S3Options()), name="deep"),
        VirtualChunkContainer("file:///data/", ObjectStoreConfig.LocalFileSystem("/data"), name="disk"),
    ]
)

STORED = {
    "S3://bucket/A/b": "s3://bucket/A/b",
    "s3://bucket/a//b?c#d": "s3://bucket/a//b?c#d",
    "s3://bucket/ä b": "s3://bucket/ä b",
    "file:///a/b/../c": "file:///a/c",
    "file:///a/./b/%2E%2e/c": "file:///a/c",
    "file:///a/b/..": "file:///a/",
    "file:///../../a": "file:///a",
    "FILE:/a/b": "file:///a/b",
    "file://localhost/a": "file:///a",
    "file:///a b/é": "file:///a%20b/%C3%A9",
    "file:///a\\..\\b": "file:///b",
    "file:///a//b": "file:///a//b",
    "file:///a/b?q r#f": "file:///a/b?q%20r#f",
    "vcc://disk/a/../b": "vcc://disk/a/../b",
}

MALFORMED = ["", "foo", "a/b.nc", "/a/b.nc", "s3:/a/b", "s3://", "s3:///key", "http://?q", ":", "9://a/b"]

LEADING_OUT = [
    "s3://bucket/deep/er/../x",
    "s3://bucket/deep/er/./x",
    "s3://bucket/a/%2e%2e/x",
    "s3://bucket/a/.%2E/x",
    "s3://bucket/..%2fx",
    "s3://bucket/..%2Fx",
    "s3://bucket/a\\..\\x",
    "s3://bucket/a%5c..%5cx",
    "s3://bucket/a/..",
    "s3://bucket/..",
    "s3://bucket/a%00b",
    "s3://bucket/%ff",
    "file:///data/..%2fetc/passwd",
    "vcc://disk/../etc/passwd",
    "vcc://disk/..%2fetc",
    "vcc://deep/%2e%2e/x",
]


@pytest.mark.parametrize("location", STORED)
def test_locations_are_stored_in_normal_form(location: str) -> None:
    assert to_stored_form(location) == STORED[location]
    assert to_stored_form(STORED[location]) == STORED[location]


@pytest.mark.parametrize("location", MALFORMED)
def test_relative_urls_are_rejected(location: str) -> None:
    with pytest.raises(BadLocationError) as caught:
        check_locations(Blobs.from_texts(["s3://bucket/fine", location]), CONTAINERS, validate=False)

    assert caught.value.row == 1
    assert caught.value.kind == ErrorKind.INVALID_VIRTUAL_REF


@pytest.mark.parametrize("location", LEADING_OUT)
def test_locations_cannot_lead_out_of_a_container(location: str) -> None:
    with pytest.raises(BadLocationError) as caught:
        check_locations(Blobs.from_texts(["s3://bucket/fine", location]), CONTAINERS, validate=True)
    with pytest.raises(InvalidInputError):
        decode_key(CONTAINERS.absolute(to_stored_form(location)))

    assert caught.value.row == 1


def test_dots_inside_segments_are_allowed() -> None:
    locations = ["s3://bucket/.hidden/..a/b..", "file:///data/...", "s3://bucket/a/.."[:-1] + "x"]

    stored, homeless = check_locations(Blobs.from_texts(locations), CONTAINERS, validate=True)

    assert stored.texts() == locations
    assert not homeless.any()


def test_container_with_the_longest_prefix_is_used() -> None:
    assert CONTAINERS.find("s3://bucket/deep/er/x") is CONTAINERS.named["deep"]
    assert CONTAINERS.find("vcc://deep/x") is CONTAINERS.named["deep"]
    assert CONTAINERS.find("vcc://deep") is None
    assert CONTAINERS.find("s3://bucket2/x") is None
    assert CONTAINERS.find("https://bucket/x") is None


def test_server_names_with_a_common_prefix_do_not_match() -> None:
    locations = ["s3://bucket@evil/x", "s3://bucket.evil/x", "s3://bucket", "file:///database/x"]

    _, homeless = check_locations(Blobs.from_texts(locations), CONTAINERS, validate=True)

    assert homeless.all()


def test_invalid_containers_are_ignored_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    local = ObjectStoreConfig.LocalFileSystem("/data")

    found = Containers.of(
        [
            VirtualChunkContainer("s3://bucket/", local),
            VirtualChunkContainer("file", local),
            VirtualChunkContainer("file:///with space/a", local),
        ]
    )

    assert [each.url_prefix for each in found.ordered] == ["file:///with%20space/a/"]
    assert caplog.text.count("is ignored") == 2


SEGMENTS = st.sampled_from(["a", "b c", "..", ".", "%2e%2e", "%2F", "", "é", "a.nc", "..%5c", "?", "#x", "~"])
HEADS = st.sampled_from(
    ["s3://bucket/", "s3://bucket/deep/er/", "file:///data/", "file:///", "https://h/", "S3://bucket/"]
)
LOCATIONS = st.builds(lambda head, tail: head + "/".join(tail), HEADS, st.lists(SEGMENTS, max_size=4))


@given(st.lists(LOCATIONS, max_size=12), st.booleans())
def test_bulk_check_equals_single_checks(locations: list[str], validate: bool) -> None:
    expected: list[str] = []
    homeless: list[bool] = []
    bad: int | None = None
    for row, location in enumerate(locations):
        text = to_stored_form(location)
        expected.append(text)
        homeless.append(CONTAINERS.find(text) is None)
        if validate and not homeless[-1] and bad is None:
            try:
                decode_key(text)
            except InvalidInputError:
                bad = row

    if bad is not None:
        with pytest.raises(BadLocationError) as caught:
            check_locations(Blobs.from_texts(locations), CONTAINERS, validate=validate)
        assert caught.value.row == bad
        return
    stored, found = check_locations(Blobs.from_texts(locations), CONTAINERS, validate=validate)
    assert stored.texts() == expected
    assert found.tolist() == homeless
