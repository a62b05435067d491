"""The files of a new repository, compared with the general encoders."""

from __future__ import annotations

import pytest

from icefloe._internal.ids import INITIAL_SNAPSHOT_ID
from icefloe.format.config_flexbuffers import encode_config
from icefloe.format.files import (
    read_repo_info,
    read_snapshot,
    read_transaction_log,
    write_repo_info,
    write_snapshot,
    write_transaction_log,
)
from icefloe.format.first_files import make_first_files
from icefloe.format.spec import V2

CONFIGS = pytest.mark.parametrize("config", [None, encode_config({"inline_chunk_threshold_bytes": 7})])


@CONFIGS
@pytest.mark.parametrize("now_us", [0, 1_794_000_000_123_456, (1 << 64) - 1])
def test_first_files_of_a_repository_equal_the_output_of_the_encoders(
    now_us: int, config: bytes | None
) -> None:
    first = make_first_files(now_us, config, 3)

    assert first.snapshot.flushed_at_us == now_us
    assert first.snapshot_file == write_snapshot(first.snapshot, V2, 3)
    assert first.log_file == write_transaction_log(first.log, V2, 3)
    assert first.info_file == write_repo_info(first.info, V2, 3)


@CONFIGS
def test_first_files_of_a_repository_decode_to_their_values(config: bytes | None) -> None:
    first = make_first_files(5, config, 1)

    info = read_repo_info(first.info_file)

    assert read_snapshot(first.snapshot_file, INITIAL_SNAPSHOT_ID) == first.snapshot
    assert read_transaction_log(first.log_file, INITIAL_SNAPSHOT_ID) == first.log
    assert info == first.info
    assert info.config == config
    assert [update.updated_at_us for update in info.latest_updates] == [5]
