"""The overview of a repository for `icefloe info` and for the HTML repr of a Repository in notebooks."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

from icefloe._internal import html
from icefloe._internal.times import from_microseconds
from icefloe.config import display
from icefloe.config.display import qualify_name
from icefloe.core.assets import AssetStore
from icefloe.core.node_summary import render_nodes
from icefloe.core.refs.base import RefStore
from icefloe.core.workspace import Workspace
from icefloe.errors import IcechunkError
from icefloe.history.snapshots import to_public_status
from icefloe.storage.base import Storage
from icefloe.types import RepoAvailability

_MAIN: Final = "main"
_SHOWN_COMMITS: Final = 10
_MAX_COMMITS: Final = 10_000
_MAX_COMMIT_FILES: Final = 100
"""The maximum number of commits to count in a notebook. Before version 2, each commit is a separate file."""


def collect_overview(refs: RefStore, storage: Storage, most_commits: int | None = None) -> dict[str, Any]:
    """Collect the facts that `icefloe info` prints about a repository.

    Parameters
    ----------
    refs, storage
        The refs and the storage of an open repository.
    most_commits
        Count at most this many commits.
    """
    history = islice(refs.ancestry(refs.branch(_MAIN)), most_commits)
    tip = next(history, None)
    return {
        **storage.describe(),
        "format": format_version(refs),
        "spec_version": refs.spec.number or 1,
        "status": get_status(refs)["availability"],
        "branches": sorted(refs.branches()),
        "tags": sorted(refs.tags()),
        "commits_on_main": (tip is not None) + sum(1 for _ in history),
        "latest_commit": tip and tip.message,
        "committed_at": tip and from_microseconds(tip.flushed_at_us),
    }


def get_status(refs: RefStore) -> dict[str, Any]:
    """Return the status of a repository. Formats before version 2 do not store one."""
    if refs.spec.refs_in_repo_info:
        now = to_public_status(refs.status())
        return {
            "availability": now.availability,
            "reason": now.limited_availability_reason,
            "since": now.set_at,
        }
    found = RepoAvailability.online if refs.spec.writable else RepoAvailability.read_only
    return {
        "availability": found,
        "reason": f"{format_version(refs)} of the format does not store a status",
        "since": None,
    }


def format_version(refs: RefStore) -> str:
    """Format a repository's format version for display."""
    return f"version {refs.spec.number}" if refs.spec.number else "a draft"


def render_overview(refs: RefStore, assets: AssetStore, storage: Storage) -> str:
    """Render the overview of a repository as HTML, with its newest commits and the arrays on main.

    If the repository cannot be read, the HTML shows the error.
    """
    most = _MAX_COMMITS if refs.spec.refs_in_repo_info else _MAX_COMMIT_FILES
    title, note = qualify_name("", "Repository"), f"format {format_version(refs)}"
    facts: dict[str, Any]
    try:
        facts = collect_overview(refs, storage, most)
        if facts["commits_on_main"] == most:
            facts["commits_on_main"] = f"{most} or more"
        tip = refs.branch(_MAIN)
        newest = list(islice(refs.ancestry(tip), _SHOWN_COMMITS))
        rows = [(str(each.id), from_microseconds(each.flushed_at_us), each.message) for each in newest]
        parts = [
            render_nodes(Workspace(assets.snapshot(tip), assets)),
            html.render_section(
                "Newest commits",
                len(rows),
                html.render_table(("id", "written at", "message"), rows),
                is_open=False,
            ),
        ]
    except (IcechunkError, OSError) as error:  # a notebook always shows something
        facts, parts = {**storage.describe(), "not readable": error}, []
    shown = {"storage" if name == "type" else name: fact for name, fact in facts.items()}
    return html.render_card(display.PACKAGE, title, note, html.render_facts(shown), *parts)
