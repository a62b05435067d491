"""Manifests written anew by many workers, ahead of the commit that uses them."""

from __future__ import annotations

from functools import partial

from icefloe._internal.executor import Executor, Task
from icefloe._internal.ids import SnapshotId
from icefloe.core.commit.manifests import Place, Rewritten, Sources, make_manifests, plan
from icefloe.core.handle import Recipe
from icefloe.core.workspace import Workspace
from icefloe.format.snapshot import ManifestRef, NodeSnapshot


def rewrite_ahead(workspace: Workspace, recipe: Recipe, executor: Executor) -> None:
    """Write the manifests that the commit of a workspace needs; it finds them by what they are made of."""
    nodes = workspace.arrays_with_chunks(workspace.paths())
    plans = [plan(workspace, node) for node in nodes]
    items = [(each.node, place, sources) for each in plans for place, sources in each.places.items()]
    workspace.rewritten = dict(
        executor.map(Task(partial(_write, recipe, workspace.base.id), "manifests"), items)
    )


def _write(
    recipe: Recipe, base: SnapshotId, item: tuple[NodeSnapshot, Place, Sources]
) -> tuple[Place, Rewritten]:
    node, place, sources = item
    assets = recipe.open().assets
    made = make_manifests(Workspace(assets.snapshot(base), assets), node, sources)
    refs = [ManifestRef(manifest.id, manifest.arrays[node.id].extents()) for manifest in made]
    infos = tuple(map(assets.write_manifest, made))
    assets.storage.sync()
    return place, Rewritten(sources, tuple(refs), infos)
