"""Node paths: validity, nesting, and the two sort orders."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe._internal import paths
from icefloe.errors import InvalidInputError

names = st.text(
    st.one_of(st.sampled_from("ab-.0 \0"), st.characters(exclude_categories=["Cs"])), min_size=1
).filter(lambda name: name not in (".", "..") and "/" not in name)
valid_paths = st.lists(names, max_size=5).map(lambda segments: "/" + "/".join(segments))


@pytest.mark.parametrize(
    "path", ["/", "/foo", "/foo/bar", "/a b", "/...", "/.hidden", "/a..b", "/é/水", "/a\\b"]
)
def test_canonical_paths_are_valid(path: str) -> None:
    assert paths.validate(path) == path
    assert paths.normalize(path) == path


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("", "must start with '/'"),
        ("a", "must start with '/'"),
        ("./a", "must start with '/'"),
        ("/a/", "must not end with '/'"),
        ("//", "must not end with '/'"),
        ("//a", "segment ''"),
        ("/a//b", "segment ''"),
        ("/.", "segment '.'"),
        ("/a/./b", "segment '.'"),
        ("/..", "segment '..'"),
        ("/a/../b", "segment '..'"),
        ("/a\ud800", "cannot be encoded as UTF-8"),
    ],
)
def test_invalid_paths_are_rejected_with_the_reason(path: str, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason) as caught:
        paths.validate(path)

    assert caught.value.kind == "invalid-path"


@pytest.mark.parametrize(
    ("path", "canonical"),
    [("//", "/"), ("/.", "/"), ("/a/", "/a"), ("//a", "/a"), ("/a//b/./c", "/a/b/c"), ("/./a/.", "/a")],
)
def test_normalize_drops_redundant_segments(path: str, canonical: str) -> None:
    assert paths.normalize(path) == canonical


@pytest.mark.parametrize("path", ["", "a", "/..", "/a/../b", "/\udfff"])
def test_normalize_rejects_relative_and_upward_paths(path: str) -> None:
    with pytest.raises(InvalidInputError):
        paths.normalize(path)


@given(valid_paths, names)
def test_path_join_is_the_inverse_of_parent_and_name(path: str, name: str) -> None:
    child = paths.join(path, name)

    assert paths.validate(child) == child
    assert paths.get_parent(child) == path
    assert paths.get_name(child) == name


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/", "\ud800"])
def test_join_rejects_names_with_several_segments(name: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        paths.join("/a", name)

    assert caught.value.kind == "invalid-path"


def test_root_has_no_parent_and_no_name() -> None:
    assert paths.get_parent("/") is None
    assert paths.get_name("/") == ""
    assert paths.list_ancestors("/") == ()


def test_ancestors_are_listed_from_nearest_to_root() -> None:
    assert paths.list_ancestors("/a") == ("/",)
    assert paths.list_ancestors("/a/b/c") == ("/a/b", "/a", "/")


@given(valid_paths)
def test_path_is_within_itself_and_its_ancestors(path: str) -> None:
    assert all(paths.is_within(path, group) for group in (path, *paths.list_ancestors(path)))


def test_path_is_not_within_a_sibling_with_similar_name() -> None:
    assert not paths.is_within("/ab", "/a")
    assert not paths.is_within("/a", "/a/b")


def test_byte_order_and_component_order_differ_as_in_the_specification() -> None:
    assert sorted(["/b", "/ab", "/a-b", "/a/b", "/a", "/"], key=paths.make_component_key) == [
        *("/", "/a", "/a/b", "/a-b", "/ab", "/b")
    ]
    assert sorted(["/b", "/ab", "/a-b", "/a/b", "/a", "/"]) == ["/", "/a", "/a-b", "/a/b", "/ab", "/b"]


@given(st.lists(valid_paths, max_size=8))
def test_keys_order_like_utf8_bytes(some: list[str]) -> None:
    assert sorted(some) == sorted(some, key=str.encode)
    assert sorted(some, key=paths.make_component_key) == sorted(
        some, key=lambda path: [segment.encode() for segment in paths.make_component_key(path)]
    )


@given(st.lists(valid_paths, max_size=8))
def test_component_order_keeps_a_group_and_its_contents_together(some: list[str]) -> None:
    ordered = sorted(
        {*some, *(group for path in some for group in paths.list_ancestors(path))},
        key=paths.make_component_key,
    )

    for i, group in enumerate(ordered):
        inside = [paths.is_within(path, group) for path in ordered[i:]]
        assert inside == sorted(inside, reverse=True)
