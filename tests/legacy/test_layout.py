"""Detection of old formats must not need listings, which web servers do not support."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from icefloe.errors import ErrorKind, StorageError
from icefloe.repository import Repository
from icefloe.storage.base import StorageObjectInfo
from icefloe.testing.storages import PassingStorage
from tests.support.format import golden
from tests.support.legacy.locations import place


class Unlisted(PassingStorage):
    """A read-only storage that does not support listings."""

    @property
    def read_only(self) -> bool:
        return True

    def list_prefix(self, prefix: str = "") -> Iterator[StorageObjectInfo]:
        raise StorageError("cannot be listed", kind=ErrorKind.OBJECT_STORE)


@pytest.mark.parametrize("name", ["v1-1.1.21-basic", "v2-2.3.0-basic"])
def test_versions_1_and_2_are_opened(name: str) -> None:
    storage = Unlisted(place(golden.load(name).files))

    repo = Repository.open(storage)

    assert repo.lookup_branch("main") == golden.load(name).expected["branches"]["main"]


def test_empty_location_has_no_layout() -> None:
    assert not Repository.exists(Unlisted(place({})))


def test_old_format_is_recognized_by_its_first_file() -> None:
    storage = Unlisted(place(golden.load("handmade-002-alpha2").files))

    assert Repository.exists(storage)
    with pytest.raises(StorageError, match="cannot be listed"):
        Repository.open(storage).lookup_branch("main")
