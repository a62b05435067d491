"""Parsing of store keys."""

from __future__ import annotations

import pytest

from icefloe.core.zarr_keys import (
    ChunkKey,
    Key,
    LegacyKey,
    MetadataKey,
    list_metadata_keys,
    make_chunk_prefix,
    parse_key,
    parse_leading_coords,
    parse_node_path,
)
from icefloe.errors import InvalidInputError


@pytest.mark.parametrize(
    ("key", "parsed"),
    [
        ("zarr.json", MetadataKey("/")),
        ("a/b/zarr.json", MetadataKey("/a/b")),
        ("/a//b/./zarr.json", MetadataKey("/a/b")),
        ("zarr.json/zarr.json", MetadataKey("/zarr.json")),
        ("c", ChunkKey("/", ())),
        ("c/0/12", ChunkKey("/", (0, 12))),
        ("a/c", ChunkKey("/a", ())),
        ("a/c/007", ChunkKey("/a", (7,))),
        ("a/b/c/4294967295", ChunkKey("/a/b", (0xFFFFFFFF,))),
        ("c/c/0", ChunkKey("/c", (0,))),
        ("a/c/0/c/1", ChunkKey("/a/c/0", (1,))),
        ("abc/c/0", ChunkKey("/abc", (0,))),
        ("né\nw/c/0", ChunkKey("/né\nw", (0,))),
        (".zgroup", LegacyKey(".zgroup")),
        ("a/.zarray", LegacyKey("a/.zarray")),
        ("a/.zattrs", LegacyKey("a/.zattrs")),
        (".zmetadata", LegacyKey(".zmetadata")),
    ],
)
def test_keys_are_parsed_by_segments(key: str, parsed: Key) -> None:
    assert parse_key(key) == parsed


@pytest.mark.parametrize(
    "key",
    [
        *("", "a", "abc", "abc/0/0", "a/0/0", "a/c/", "a/c/0/", "a/c//0", "a/c/x", "a/c/-1", "a/c/1.5"),
        *("a/c.0.0", "a/0.0", "a/c/²", "a/c/٣", "zarr.jsonx", "a/../zarr.json", "../c/0", "a/c/4294967296"),
        "\ud800/zarr.json",
    ],
)
def test_invalid_keys_are_rejected(key: str) -> None:
    """`abc/0/0` is not a chunk of an array `ab` (bug 14 of the official package)."""
    with pytest.raises(InvalidInputError, match="invalid key") as error:
        parse_key(key)

    assert error.value.kind == "invalid-key"


def test_keys_are_built_from_paths() -> None:
    assert list_metadata_keys(["/", "/a/b"]) == ["zarr.json", "a/b/zarr.json"]
    assert [make_chunk_prefix("/"), make_chunk_prefix("/a/b")] == ["c", "a/b/c"]


def test_prefixes_are_folders() -> None:
    assert [parse_node_path(prefix) for prefix in ("", "/", "a", "a/", "/a/b//")] == [
        "/",
        "/",
        "/a",
        "/a",
        "/a/b",
    ]
    with pytest.raises(InvalidInputError) as error:
        parse_node_path("a/../b")
    assert error.value.kind == "bad-key-prefix"


@pytest.mark.parametrize(
    ("path", "array", "first"),
    [
        ("/a/c", "/a", ()),
        ("/a/c/1/20", "/a", (1, 20)),
        ("/c/3", "/", (3,)),
        ("/a/b/c/0", "/a/b", (0,)),
        ("/a/d", "/a", None),
        ("/a/c/x", "/a", None),
        ("/a/c/01", "/a", None),
        ("/a/c/4294967296", "/a", None),
    ],
)
def test_folders_inside_an_array_are_parsed_as_leading_coordinates(
    path: str, array: str, first: tuple[int, ...] | None
) -> None:
    assert parse_leading_coords(path, array) == first
