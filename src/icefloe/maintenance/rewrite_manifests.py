"""Rewrite the manifests of a branch in parallel, ahead of the commit that uses them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from icefloe._internal.executor import Executor, Task
from icefloe._internal.ids import SnapshotId
from icefloe.config import ManifestSplittingConfig
from icefloe.core.commit.flush import OWN_METADATA
from icefloe.core.commit.manifests import Place, Rewritten, Sources, make_manifests, plan
from icefloe.core.commit.packs import select_small_arrays
from icefloe.core.handle import Handle
from icefloe.core.workspace import Workspace
from icefloe.format.snapshot import ManifestRef, NodeSnapshot

if TYPE_CHECKING:
    from icefloe.session import Session


def rewrite_manifests(
    session: Session,
    handle: Handle,
    executor: Executor | None,
    message: str,
    metadata: Mapping[str, Any] | None,
    commit_method: str,
) -> str:
    """Rewrite all manifests of a session's branch, and commit; see `Repository.rewrite_manifests`."""
    workspace = session._workspace
    workspace.rewrites_all = True
    if executor is not None:
        _rewrite_ahead(workspace, handle, executor)
    properties = dict(metadata or {})
    known = properties.get(OWN_METADATA)
    splitting = ManifestSplittingConfig(workspace.assets.config.split_sizes)
    properties[OWN_METADATA] = {
        **(known if isinstance(known, dict) else {}),
        "splitting_config": splitting.to_plain(),
    }
    if commit_method == "amend":
        return session.amend(message, metadata=properties, allow_empty=True)
    return session.commit(message, properties, allow_empty=True)


def _rewrite_ahead(workspace: Workspace, handle: Handle, executor: Executor) -> None:
    """Write the manifests of a workspace ahead of its commit, which finds them by their content."""
    nodes = workspace.arrays_with_chunks(workspace.paths())
    _, plans = select_small_arrays(workspace, [plan(workspace, node) for node in nodes])
    items = [(each.node, place, sources) for each in plans for place, sources in each.places.items()]
    workspace.rewritten = dict(
        executor.map(Task(partial(_write, handle, workspace.base.id), "manifests"), items)
    )


def _write(
    handle: Handle, base: SnapshotId, item: tuple[NodeSnapshot, Place, Sources]
) -> tuple[Place, Rewritten]:
    node, place, sources = item
    assets = handle.open().assets
    made = make_manifests(Workspace(assets.snapshot(base), assets), node, sources)
    refs = [ManifestRef(manifest.id, manifest.arrays[node.id].extents()) for manifest in made]
    infos = tuple(map(assets.write_manifest, made))
    assets.storage.sync()
    return place, Rewritten(sources, tuple(refs), infos)
