"""The same random history, written by either package."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import zarr


def storage(library: Any, folder: Path) -> Any:
    """Return the same folder for either library."""
    return library.local_filesystem_storage(str(folder))


def random_history(library: Any, folder: Path, version: int, chance: random.Random) -> list[datetime]:
    """Commits, amended and detached ones, branches and tags; a time after each step."""
    config = library.RepositoryConfig.default()
    config.inline_chunk_threshold_bytes = 0
    options = {"spec_version": version} if hasattr(library, "SpecVersion") else {}
    repo = library.Repository.create(storage(library, folder), config=config, **options)
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(20,), chunks=(1,), dtype="i4")
    session.commit("first")
    times = []
    for step in range(chance.randint(4, 9)):
        branch = chance.choice(sorted(repo.list_branches()))
        session = repo.writable_session(branch)
        array = zarr.open_array(session.store, path="a")
        array[chance.randrange(20)] = step + 1
        how = chance.choice(["commit", "commit", "commit", "flush", "amend" if version == 2 else "commit"])
        getattr(session, how)(f"step {step}")
        line = [info.id for info in repo.ancestry(branch=branch)][:-1]
        if chance.random() < 0.3:
            repo.create_branch(f"b{step}", chance.choice(line))
        if chance.random() < 0.3:
            repo.create_tag(f"t{step}", chance.choice(line))
        times.append(datetime.now(UTC))
        time.sleep(0.003)
    return times


def seen(repo: Any) -> dict[str, Any]:
    """Return all that a user sees of a repository's history."""
    states = {f"branch {name}": repo.readonly_session(name) for name in repo.list_branches()}
    states |= {f"tag {name}": repo.readonly_session(tag=name) for name in repo.list_tags()}
    return {
        name: (
            [info.id for info in repo.ancestry(snapshot_id=session.snapshot_id)],
            np.asarray(zarr.open_array(session.store, path="a", mode="r")[:]).tolist(),
        )
        for name, session in states.items()
    }
