"""Summarize a repository for people: `icefloe info`, and the HTML of a Repository in notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import Enum
from itertools import islice
from typing import Any, Final

from icefloe._internal.times import from_microseconds
from icefloe.config.display import Tree, qualified
from icefloe.core.refs.base import RefStore
from icefloe.errors import IcechunkError
from icefloe.history.snapshots import public_status
from icefloe.storage.base import Storage
from icefloe.types import RepoAvailability

_MAIN: Final = "main"
_MOST_NAMES: Final = 20
"""Of branches and tags that a notebook shows."""
_MOST_COMMITS: Final = 10_000
_MOST_COMMIT_FILES: Final = 100
"""A notebook counts so many commits at most. Before version 2 each is a file to read."""


def overview(refs: RefStore, storage: Storage, most_commits: int | None = None) -> dict[str, Any]:
    """Collect the facts about a repository that `icefloe info` prints.

    Parameters
    ----------
    refs, storage
        The parts of an open repository.
    most_commits
        Count no more commits than this.
    """
    history = islice(refs.ancestry(refs.branch(_MAIN)), most_commits)
    tip = next(history, None)
    return {
        **storage.describe(),
        "format": version_text(refs),
        "spec_version": refs.spec.number or 1,
        "status": status(refs)["availability"],
        "branches": sorted(refs.branches()),
        "tags": sorted(refs.tags()),
        "commits_on_main": (tip is not None) + sum(1 for _ in history),
        "latest_commit": tip and tip.message,
        "committed_at": tip and from_microseconds(tip.flushed_at_us),
    }


def status(refs: RefStore) -> dict[str, Any]:
    """Tell whether a repository may be written. Formats before version 2 do not store it."""
    if refs.spec.refs_in_repo_info:
        now = public_status(refs.status())
        return {
            "availability": now.availability,
            "reason": now.limited_availability_reason,
            "since": now.set_at,
        }
    found = RepoAvailability.online if refs.spec.writable else RepoAvailability.read_only
    return {
        "availability": found,
        "reason": f"{version_text(refs)} of the format keeps no status",
        "since": None,
    }


def version_text(refs: RefStore) -> str:
    """Name the version of the format of a repository."""
    return f"version {refs.spec.number}" if refs.spec.number else "a draft"


def overview_html(refs: RefStore, storage: Storage) -> str:
    """Show the facts that `icefloe info` prints as HTML; where they cannot be read, show why.

    The HTML has no colours of its own and loads nothing, so it fits light and dark themes.
    """
    most = _MOST_COMMITS if refs.spec.refs_in_repo_info else _MOST_COMMIT_FILES
    facts: dict[str, Any]
    try:
        facts = overview(refs, storage, most)
        if facts["commits_on_main"] == most:
            facts["commits_on_main"] = f"{most} or more"
    except (IcechunkError, OSError) as error:  # a notebook shows the object anyway
        facts = {**storage.describe(), "format": version_text(refs), "not readable": str(error)}
    rows = tuple((name.replace("_", " "), _text(value)) for name, value in facts.items())
    return Tree(f"{qualified('', 'Repository')} (v{refs.spec.number or 1})", rows).as_html()


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Sequence) and not isinstance(value, str):
        more = len(value) - _MOST_NAMES
        return (", ".join(value[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")) or "-"
    return str(value)
