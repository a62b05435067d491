"""Values that are built from columns equal values that are built one by one."""

from __future__ import annotations

import pytest

import icefloe
from icefloe._internal.ids import SnapshotId
from icefloe.encoding.flatbuffers.records import Records
from icefloe.format import updates
from icefloe.format.schema import UPDATE
from icefloe.history import ops as ops_pages
from icefloe.ops import UpdateType

ID, OTHER = str(SnapshotId(bytes(range(12)))), str(SnapshotId(bytes(range(100, 112))))
LIMITED = updates.RepoStatus(updates.RepoAvailability.READ_ONLY, 77, "being moved")
KINDS: list[updates.StoredUpdate] = [
    UpdateType.RepoInitialized(),
    UpdateType.RepoMigrated(1, 2),
    UpdateType.ConfigChanged(),
    UpdateType.MetadataChanged(),
    UpdateType.TagCreated("v1"),
    UpdateType.TagDeleted("v1", ID),
    UpdateType.BranchCreated("d\u00e9v\nx"),
    UpdateType.BranchDeleted("dev", ID),
    UpdateType.BranchReset("dev", OTHER),
    UpdateType.NewCommit("main", ID),
    UpdateType.CommitAmended("main", ID, OTHER),
    UpdateType.NewDetachedSnapshot(OTHER),
    UpdateType.GCRan(),
    UpdateType.ExpirationRan(),
    UpdateType.FeatureFlagChanged(3, None),
    UpdateType.FeatureFlagChanged(4, False),
    updates.RepoStatusChanged(None),
    updates.RepoStatusChanged(LIMITED),
]


def a_log(*, in_columns: bool) -> updates.Updates:
    """Return entries of all kinds, some of them with a backup."""
    made = [
        updates.Update(kind, 10**15 - at, f"repo.{at}" if at % 3 else None) for at, kind in enumerate(KINDS)
    ]
    log = updates.Updates.of(made)
    if not in_columns:
        return log
    return updates.Updates(
        Records(UPDATE, "repo", columns=Records(UPDATE, "repo", blocks=log.blocks).columns)
    )


@pytest.mark.parametrize("in_columns", [False, True])
def test_history_read_in_pages_equals_history_read_one_by_one(in_columns: bool) -> None:
    assert {type(kind) for kind in KINDS} == set(updates.UPDATE_TYPES)
    log = a_log(in_columns=in_columns)

    for each in (
        log,
        log.in_backup("newest"),
        log.with_entry(updates.Update(UpdateType.GCRan(), 10**15 + 1), "b"),
    ):
        found = list(ops_pages.iterate_entries(each))

        assert found == list(map(ops_pages.to_public_update, each))
        assert list(map(repr, found)) == [repr(ops_pages.to_public_update(entry)) for entry in each]


def test_only_the_newest_entry_has_a_backup_path() -> None:
    log = a_log(in_columns=True)

    given = log.in_backup("newest")

    assert [entry.backup_path for entry in given] == [
        "newest",
        *(entry.backup_path for entry in list(log)[1:]),
    ]
    assert list(updates.Updates(Records(UPDATE, "repo", blocks=given.blocks))) == list(given)


def test_empty_log_has_no_entries() -> None:
    assert list(ops_pages.iterate_entries(updates.Updates.of([]))) == []


def test_ancestry_keeps_messages_and_metadata_across_pages() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    for number in range(60):
        metadata = {"number": number, "deep": {"of": [number]}} if number % 3 == 0 else None
        repo.writable_session("main").commit(f"commit\n{number}", metadata, allow_empty=True)

    found = list(repo.ancestry(branch="main"))

    assert found == [repo.lookup_snapshot(info.id) for info in found]
    assert [info.parent_id for info in found] == [*(info.id for info in found[1:]), None]
    assert found[0].metadata == {}
    assert found[2].metadata == {"number": 57, "deep": {"of": [57]}}
