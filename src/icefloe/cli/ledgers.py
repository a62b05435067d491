"""Listings without the ledger of ingests, which is of no interest to most; `--all` shows it."""

from __future__ import annotations

import click

from icefloe._internal.paths import LEDGERS, is_within
from icefloe.snapshots import Diff

all_option = click.option(
    "--all", "with_ledgers", is_flag=True, help=f"With the ledger of ingests, {LEDGERS.strip('/')}."
)


def is_listed(path: str, *, with_ledgers: bool) -> bool:
    """Whether a listing has this node."""
    return with_ledgers or not is_within(path, LEDGERS)


def listed_changes(changed: Diff, *, with_ledgers: bool) -> Diff:
    """The changes that a listing has."""
    if with_ledgers:
        return changed

    def some(paths: set[str]) -> set[str]:
        return {path for path in paths if is_listed(path, with_ledgers=False)}

    return Diff(
        some(changed.new_groups),
        some(changed.new_arrays),
        some(changed.deleted_groups),
        some(changed.deleted_arrays),
        some(changed.updated_groups),
        some(changed.updated_arrays),
        {path: changed.updated_chunks[path] for path in some(set(changed.updated_chunks))},
        [move for move in changed.moved_nodes if not all(is_within(path, LEDGERS) for path in move)],
    )
