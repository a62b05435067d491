"""Repositories of official releases, decoded and encoded again by icefloe, file by file.

The official package must see the same before and after, and agree with icefloe's decoder.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from icefloe._internal.ids import ManifestId, SnapshotId
from icefloe.encoding.envelope import open_header
from icefloe.format import config_flexbuffers, config_yaml, files, refs_v1
from icefloe.format.locations import LocationCompression
from icefloe.format.snapshot import ManifestFiles
from icefloe.format.spec import Spec, get_spec
from tests.support.compat import official
from tests.support.compat.decoded import Folder, assert_seen_alike
from tests.support.format import golden

pytestmark = pytest.mark.compat

# The zarr of Python 3.11 does not know a data type that the one beside icechunk 2.3.0 writes.
OF_LATER_ZARR = {"v1-2.3.0-zarrish"}
READABLE = [
    name
    for name in golden.NAMES
    if official.KNOWS_V2 or (name.startswith("v1-") and name not in OF_LATER_ZARR)
]


@pytest.mark.parametrize("name", READABLE)
def test_decoder_agrees_with_the_official_package(name: str, tmp_path: Path) -> None:
    folder = golden.unpack(name, tmp_path) / "repo"

    assert_seen_alike(folder, official.open_repository(folder))


@pytest.mark.parametrize("name", READABLE)
def test_official_package_sees_no_difference_after_reencoding(name: str, tmp_path: Path) -> None:
    folder = golden.unpack(name, tmp_path) / "repo"
    before = official.everything(official.open_repository(folder))

    encode_anew(folder)

    after = official.everything(official.open_repository(folder))
    for snapshot, tree in before["trees"].items():
        # Nodes that readers missed, because old releases sorted them differently, are found now.
        assert {path: node for path, node in after["trees"][snapshot].items() if path in tree} == tree
        assert (
            sorted(after["trees"][snapshot])
            == Folder(folder).snapshot(SnapshotId.parse(snapshot)).nodes.paths()
        )
    del before["trees"], after["trees"]
    assert after == before


def encode_anew(folder: Path) -> None:
    """Decode each metadata file and encode it again, in the same version of the format."""
    ours = Folder(folder)
    sizes = {}
    for name in ours.ids(files.MANIFESTS):
        path, manifest = folder / files.MANIFESTS / name, ours.manifest(ManifestId.parse(name)).unpack()
        # A few references suffice, so that compressed locations are compared as well.
        path.write_bytes(
            files.write_manifest(manifest, spec_in(path), 5, LocationCompression(min_num_chunks=8))
        )
        sizes[manifest.id] = path.stat().st_size
    for name in ours.ids(files.SNAPSHOTS):
        path, snapshot = folder / files.SNAPSHOTS / name, ours.snapshot(SnapshotId.parse(name))
        listed = [
            replace(info, size_bytes=sizes.get(info.id, info.size_bytes)) for info in snapshot.manifest_files
        ]
        resized = replace(snapshot, manifest_files=ManifestFiles.of(listed))
        path.write_bytes(files.write_snapshot(resized, spec_in(path)))
    for name in ours.ids(files.TRANSACTIONS):
        path = folder / files.TRANSACTIONS / name
        path.write_bytes(files.write_transaction_log(ours.log(SnapshotId.parse(name)), spec_in(path)))
    for path in [folder / files.REPO_PATH, *(folder / files.OVERWRITTEN).glob("repo.*")]:
        if path.exists():
            _encode_repo_info_anew(path)
    _encode_v1_anew(folder)


def _encode_repo_info_anew(path: Path) -> None:
    info = files.read_repo_info(path.read_bytes(), path.name)
    if info.config is not None:
        config = config_flexbuffers.decode_config(info.config, path.name)
        info = replace(info, config=config_flexbuffers.encode_config(config))
    path.write_bytes(files.write_repo_info(info, spec_in(path)))


def _encode_v1_anew(folder: Path) -> None:
    for path in (folder / refs_v1.REFS).rglob(refs_v1.REF_FILE):
        path.write_bytes(refs_v1.encode_ref(refs_v1.decode_ref(path.read_bytes(), path.name)))
    config = folder / files.CONFIG_PATH
    if config.exists():
        values = config_yaml.decode_config_yaml(config.read_bytes(), files.CONFIG_PATH)
        config.write_bytes(config_yaml.encode_config_yaml(values))


def spec_in(path: Path) -> Spec:
    """Return the version in the header of a file."""
    return get_spec(open_header(path.read_bytes(), path.name).spec, path.name)
