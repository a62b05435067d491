"""Looks into a repository that the official library wrote: its history, its tree and where its chunks are.

Only the format layer is used: files are read as bytes and turned into values.
"""

from __future__ import annotations

import json
import sys
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from icefloe.encoding.envelope import open_header
from icefloe.format.files import (
    MANIFESTS,
    SNAPSHOTS,
    read_manifest,
    read_repo_info,
    read_snapshot,
    write_manifest,
)
from icefloe.format.manifest import INLINE, NATIVE, VIRTUAL, ArrayManifest
from icefloe.format.manifest_codec import PackedManifest
from icefloe.format.repo_info import RepoInfo
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot, Snapshot
from icefloe.format.spec import V2
from icefloe.times import from_microseconds

GOLDEN = Path(__file__).parent.parent / "tests" / "data" / "golden"
SHOWN = 3
KINDS = {NATIVE: "native", VIRTUAL: "virtual", INLINE: "inline"}


def main(name: str) -> None:
    """Unpack a golden repository and show what is in it."""
    archive = GOLDEN / f"{name}.tar.xz"
    if not archive.is_file():
        names = ", ".join(sorted(path.name.removesuffix(".tar.xz") for path in GOLDEN.glob("v2-*.tar.xz")))
        sys.exit(f"demo: there is no repository {name!r}; there are {names}")
    with tarfile.open(archive) as tar:
        contents = {entry.name: tar.extractfile(entry) for entry in tar}
        files = {
            path.removeprefix("repo/"): file.read() for path, file in contents.items() if file is not None
        }
    show(files, name)


def show(files: Mapping[str, bytes], name: str) -> None:
    """Print history, tree and chunk references."""
    info = read_repo_info(files["repo"])
    writer = open_header(files["repo"], "repo").implementation
    headline(f"{name}: {len(files)} files, written by {writer}")
    show_history(info)
    tip = info.branches["main"]
    show_tree(files, read_snapshot(files[f"{SNAPSHOTS}/{tip}"], tip))


def show_history(info: RepoInfo) -> None:
    """Print the commits of main with the branches and tags that point to them."""
    headline("history of main")
    names: dict[bytes, list[str]] = {}
    for kind, refs in (("branch", info.branches), ("tag", info.tags)):
        for ref, target in refs.items():
            names.setdefault(target, []).append(f"{kind} {ref}")
    for row in info.snapshots.ancestry(info.branches["main"]):
        commit = info.snapshots[row]
        labels = f"  <- {', '.join(names[commit.id])}" if commit.id in names else ""
        when = from_microseconds(commit.flushed_at_us)
        print(f"{commit.id}  {when:%Y-%m-%d %H:%M:%S}  {commit.message}{labels}")


def show_tree(files: Mapping[str, bytes], snapshot: Snapshot) -> None:
    """Print every node, and for arrays the first of their chunk references."""
    headline(f"nodes of {snapshot.id} and their first chunk references")
    manifests: dict[bytes, PackedManifest] = {}
    for info in snapshot.manifest_files:
        manifests[info.id] = read_manifest(files[f"{MANIFESTS}/{info.id}"], info.id)
    started = time.process_time()
    total = 0
    for node in snapshot.nodes:
        refs = references(node, manifests)
        print(describe(node, refs))
        for row in range(min(len(refs), SHOWN)):
            print(f"      {list(refs.coords[row].tolist())!s:>12}  {refs.ref(row)}")
        total += len(refs)
    seconds = time.process_time() - started
    print(f"\n{len(snapshot.nodes)} nodes, {total} references, decoded and printed in {seconds:.3f} s of CPU")
    written = [write_manifest(packed.unpack(), V2) for packed in manifests.values()]
    print(f"all {len(written)} manifests written anew by icefloe: {sum(map(len, written))} bytes")


def references(node: NodeSnapshot, manifests: dict[bytes, PackedManifest]) -> ArrayManifest:
    """All references of a node, from however many manifests."""
    rank = len(node.node_data.shape) if isinstance(node.node_data, ArrayNodeData) else 0
    refs = node.node_data.manifests if isinstance(node.node_data, ArrayNodeData) else ()
    parts = [manifests[ref.id].array(node.id, rank) for ref in refs]
    return ArrayManifest.concat(parts) if parts else ArrayManifest.of(np.zeros((0, rank)), NATIVE)


def describe(node: NodeSnapshot, refs: ArrayManifest) -> str:
    """A line about a node."""
    if not isinstance(node.node_data, ArrayNodeData):
        return f"{node.path}  (group)"
    metadata = json.loads(node.user_data)
    shape = "x".join(str(d.array_length) for d in node.node_data.shape) or "scalar"
    counts = {label: int((refs.kind == kind).sum()) for kind, label in KINDS.items()}
    kept = ", ".join(f"{count} {label}" for label, count in counts.items() if count) or "no chunks"
    return f"{node.path}  {metadata['data_type']} {shape}: {kept}"


def headline(text: str) -> None:
    """Print a heading."""
    print(f"\n{text}\n{'-' * len(text)}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "v2-2.3.0-v2ops")
