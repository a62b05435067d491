"""kill -9 at every point of a local writer: acknowledged writes exist, and nothing is incomplete."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from icefloe import Repository
from icefloe.storage.local.folder import LocalStorage
from tests.support import processes
from tests.support.killed_writer import PLANS, create, run, seen, steps

WRITER = """
import sys
from pathlib import Path
from tests.support import killed_writer

folder, spec_version, plan, every, first = sys.argv[1:]
killed_writer.main(Path(folder), int(spec_version), plan, int(every), int(first))
"""
TELLING_WRITER = """
import sys
from pathlib import Path
from tests.support.killed_writer import run

run(Path(sys.argv[1]), int(sys.argv[2]), "writes", lambda name: print(name, flush=True))
"""

# Number of file operations between two kills; ICEFLOE_KILL_EVERY=1 kills at each of them.
EVERY = int(os.environ.get("ICEFLOE_KILL_EVERY", "47"))

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="folders need a POSIX system")


def after_each_step(folder: Path, spec_version: int, plan: str) -> list[Any]:
    """Return the visible state before the first step and after each step."""
    states = [None]
    run(folder, spec_version, plan, lambda _: states.append(seen(folder)))
    return states


def assert_intact(
    folder: Path, acknowledged: list[str], states: list[Any], spec_version: int, plan: str
) -> None:
    """Check that the state is the acknowledged one or the next, is complete, and can be written to."""
    done = len(acknowledged)
    assert acknowledged == ["create", *steps(plan, spec_version)][:done]
    now = seen(folder)
    assert now in states[done : done + 2], f"{folder.name}, after {acknowledged[-1:]}"

    repo = create(folder, spec_version)
    assert repo.verify().ok
    tip = repo.lookup_branch("main")
    repo.writable_session("main").commit("goes on", allow_empty=True)
    assert [info.id for info in Repository.open(LocalStorage(folder)).ancestry(branch="main")][1] == tip


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("spec_version", [1, 2])
def test_writer_killed_before_any_file_operation_leaves_a_valid_repository(
    tmp_path: Path, spec_version: int, plan: str
) -> None:
    states = after_each_step(tmp_path / "whole", spec_version, plan)
    first = random.randrange(EVERY)
    code, printed = processes.run(WRITER, tmp_path, spec_version, plan, EVERY, first)
    assert code == 0, printed

    lines = printed.splitlines()
    assert len(lines) > 5
    for name, acknowledged in map(json.loads, lines):
        assert_intact(tmp_path / name, acknowledged, states, spec_version, plan)


@pytest.mark.parametrize("spec_version", [1, 2])
def test_writer_killed_at_any_moment_leaves_a_valid_repository(tmp_path: Path, spec_version: int) -> None:
    states = after_each_step(tmp_path / "whole", spec_version, "writes")

    with processes.started(TELLING_WRITER, tmp_path / "killed", spec_version) as writer:
        wanted = random.randrange(1, len(states) - 1)
        acknowledged = [writer.stdout.readline().strip() for _ in range(wanted)]
        writer.kill()  # the next step has begun by now, or is about to
        acknowledged += writer.stdout.read().split("\n")[:-1]

    assert_intact(tmp_path / "killed", acknowledged, states, spec_version, "writes")
