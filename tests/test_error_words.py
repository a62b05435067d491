"""Error messages contain the words of official messages that programs match."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest
import zarr
from zarr.core.sync import sync

import icefloe
from icefloe import Repository, in_memory_storage, s3_storage
from tests.support.zarr_documents import GROUP, array_document


def two_commits(spec_version: int) -> tuple[Repository, str, str]:
    repo = Repository.create(in_memory_storage(), spec_version=spec_version)
    ids = []
    for name in ("a", "b"):
        with repo.transaction("main", message=name) as store:
            zarr.create_group(store, path=name)
        ids.append(repo.lookup_branch("main"))
    return repo, ids[0], ids[1]


def create_again(repo: Repository, snapshot_id: str) -> None:
    """Create a tag with the name of a deleted one."""
    repo.create_tag("used", snapshot_id)
    repo.delete_tag("used")
    repo.create_tag("used", snapshot_id)


CASES: dict[str, Callable[[Repository, str, str], Any]] = {
    "ref not found.*nothing": lambda repo, a, b: repo.lookup_branch("nothing"),
    "ref not found.*none": lambda repo, a, b: repo.lookup_tag("none"),
    "ref not found.*no tag": lambda repo, a, b: repo.delete_tag("x"),
    "tag .*already .*deleted: used": lambda repo, a, b: create_again(repo, a),
    "no changes made to the session": lambda repo, a, b: repo.writable_session("main").commit("c"),
    "ancestry .*doesn't include": lambda repo, a, b: repo.diff(from_snapshot_id=b, to_snapshot_id=a),
    "branch update conflict": lambda repo, a, b: repo.reset_branch("main", a, from_snapshot_id=a),
    "main branch cannot be deleted": lambda repo, a, b: repo.delete_branch("main"),
    "read-only mode.*read-only store": lambda repo, a, b: sync(
        repo.readonly_session("main").store.delete("a/zarr.json")
    ),
    "the repository doesn't exist": lambda repo, a, b: Repository.open(in_memory_storage()),
}


@pytest.mark.parametrize("spec_version", [1, 2])
@pytest.mark.parametrize("words", CASES)
def test_repository_errors_contain_official_words(words: str, spec_version: int) -> None:
    with pytest.raises(icefloe.IcechunkError, match=words):
        CASES[words](*two_commits(spec_version))


def test_location_errors_contain_official_words() -> None:
    root = s3_storage(bucket="b", prefix="", region="us-east-1", access_key_id="i", secret_access_key="s")

    with pytest.raises(icefloe.InvalidInputError, match="empty prefix"):
        Repository.create(root)
    with pytest.raises(ValueError, match=r"Couldn't parse a valid version.*'v1'"):
        Repository.create(in_memory_storage(), spec_version="v1")  # type: ignore[arg-type]


def test_version_1_supports_only_regular_grids() -> None:
    grid = b'{"name":"rectilinear","configuration":{"kind":"inline","chunk_shapes":[[2,3]]}}'
    document = re.sub(rb'"chunk_grid":\s*\{.*?\}\s*\}', b'"chunk_grid":' + grid, array_document([5]))
    store = Repository.create(in_memory_storage(), spec_version=1).writable_session("main").store

    with pytest.raises(icefloe.InvalidInputError, match="Non-regular chunk grids are not supported in icech"):
        asyncio.run(store._store.set("a/zarr.json", document))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"workload": "a;b"}, "`workload` contains the forbidden character ';'"),
        ({"principal": "a\nb"}, "`principal` contains the forbidden character"),
        ({"principal": "x" * 129}, "`principal` is longer than 128 bytes"),
        ({"client": "x" * 129}, "`client` is longer than 128 bytes"),
        ({"client": "a b"}, "token characters, not 'a b'"),
    ],
)
def test_attribution_errors_contain_official_words(given: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        icefloe.Attribution(**given)


@pytest.mark.parametrize("which", ["headers", "read_headers", "write_headers"])
def test_header_errors_contain_official_words(which: str) -> None:
    place: dict[str, Any] = {"bucket": "b", "prefix": "p", "region": "us-east-1"}

    with pytest.raises(ValueError, match="invalid HTTP header name 'bad name'"):
        s3_storage(**{**place, which: {"bad name": "v"}})
    with pytest.raises(ValueError, match="invalid HTTP header value for 'x'") as raised:
        s3_storage(**{**place, which: {"x": "secret\r\ny: z"}})

    assert "secret" not in str(raised.value)


def test_raw_store_errors_contain_official_words() -> None:
    store = Repository.create(in_memory_storage()).writable_session("main").store

    async def both() -> bytes:
        await store._store.set("zarr.json", GROUP)
        return await store._store.get("zarr.json")

    assert asyncio.run(both()) == GROUP
    with pytest.raises(KeyError, match=r"a/zarr\.json"):
        asyncio.run(store._store.get("a/zarr.json"))


@pytest.mark.parametrize("spec_version", [1, 2])
@pytest.mark.parametrize(
    "given",
    [
        {"message": "\ud800"},
        {"message": "m", "metadata": {"k": "\ud800"}},
        {"message": "m", "metadata": {"\ud800": 1}},
    ],
)
def test_texts_with_lone_surrogates_are_rejected_before_writing(
    given: dict[str, Any], spec_version: int
) -> None:
    storage = in_memory_storage()
    session = Repository.create(storage, spec_version=spec_version).writable_session("main")
    zarr.create_group(session.store)
    before = sorted(storage.list_objects())

    with pytest.raises(icefloe.InvalidInputError, match="lone surrogates"):
        session.commit(**given)

    assert sorted(storage.list_objects()) == before
    assert session.has_uncommitted_changes
