"""Derived arrays of a repository that the official package writes to, too."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.compat.official import KNOWS_V2, icechunk
from tests.support.derive_history import check_history, file_prefix, open_here

pytestmark = pytest.mark.compat


def open_official(path: str) -> Any:
    access = icechunk.containers_credentials({file_prefix(Path(path).parent): None})
    storage = icechunk.local_filesystem_storage(path)
    return icechunk.Repository.open(storage, authorize_virtual_chunk_access=access)


# Release 1.1 knows no other way to say that files need no credentials.
@pytest.mark.filterwarnings("ignore:Passing `None`:DeprecationWarning")
@pytest.mark.parametrize("seed", range(int(os.environ.get("ICEFLOE_DERIVATIONS", "1"))))
def test_incremental_runs_equal_full_runs_with_two_writers(tmp_path: Path, seed: int) -> None:
    version = 2 if KNOWS_V2 and seed % 4 != 3 else 1

    check_history(tmp_path, seed, [open_here, open_official], times=16, spec_version=version)
