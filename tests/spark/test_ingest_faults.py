"""Inject faults into ingests and rechunks on three kinds of Spark clusters (`make test-cluster`).

ICEFLOE_FAULTS is the number of cases per kind (a few by default), ICEFLOE_SEED selects them.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.support.spark.clusters import standalone
from tests.support.spark.ingest_faults import figures, run

pytestmark = [
    pytest.mark.spark,
    pytest.mark.cluster,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs"),  # a warning of zarr 3.1 about the shuffle codec
]

CASES = int(os.environ.get("ICEFLOE_FAULTS", "8"))
SEED = int(os.environ.get("ICEFLOE_SEED", random.randrange(10**6)))


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]"])
def test_ingest_survives_faults_in_local_mode(tmp_path: Path, master: str) -> None:
    done = run(tmp_path, master, CASES, SEED)

    assert not [case for case in done if case.wrong], f"seed {SEED}\n{figures(done)}"
    assert len(done) == CASES


def test_ingest_survives_faults_on_standalone_cluster(tmp_path: Path) -> None:
    """Test speculative copies of slow tasks, which Spark starts only on another host."""
    faults = ("slow", "executor", "worker", "driver", "driver alone", "permission", "deleted")
    with standalone(tmp_path / "spark") as url:
        done = run(tmp_path / "cases", url, CASES, SEED, faults, speculation=True)

    assert not [case for case in done if case.wrong], f"seed {SEED}\n{figures(done)}"
    assert len(done) == CASES
