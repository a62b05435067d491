"""Writing the manifests of a fork before it goes home."""

from __future__ import annotations

from collections.abc import Sequence

from icefloe._internal.ids import ManifestId
from icefloe.core.commit.early_manifests import early_manifest
from icefloe.core.commit.manifests import refs_by_window
from icefloe.core.commit.splitting import split_sizes
from icefloe.core.workspace import Workspace
from icefloe.format import coordinates
from icefloe.format.manifest import Manifest
from icefloe.format.snapshot import ArrayNodeData


def write_early(workspace: Workspace, path: str, window: Sequence[range] | None = None) -> int:
    """Write what was set in an array into manifests, one per window that the configuration has; how many.

    Of the chunk grid, only a `window` may be meant: references outside of it are forgotten.
    """
    node, assets = workspace.array(path), workspace.assets
    with workspace.editing():
        delta = workspace.changes.chunks.get(node.id)
        if delta is None:
            return 0
        written, gone = delta.resolve()
        if not isinstance(node.node_data, ArrayNodeData) or not node.node_data.manifests:
            gone = gone[:0]  # where nothing was, nothing needs to be deleted
        if window is not None:
            gone = gone[coordinates.inside(gone, window)]
            written = None if written is None else written.within(window)
        early = []
        if written is not None and len(written):
            sizes = split_sizes(assets.config.split_sizes, node)
            for refs in refs_by_window(written, sizes).values():
                info = assets.write_manifest(Manifest(ManifestId.random(), {node.id: refs}))
                early.append(early_manifest(node.id, info, refs, assets.manifest))
        delta.early = early
        delta.segments = [gone] if len(gone) else []
        if not early and not len(gone):
            del workspace.changes.chunks[node.id]
    return len(early)
