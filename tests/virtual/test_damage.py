"""Parse truncated and damaged files of every format: an error that names the file, or a valid dataset."""

from __future__ import annotations

import io
import json
import os
import random
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from icefloe import StorageError
from icefloe.errors import ErrorKind
from icefloe.virtual import CannotVirtualizeError, VirtualDataset, virtualize
from icefloe.virtual.parsers import recognize
from icefloe.virtual.sources import open_file, to_location
from icefloe.virtual.values import open_values
from tests.support.servers.ranges import range_server
from tests.support.virtual.files import LONG_AGO, aged
from tests.support.virtual.formats import FORMATS

FILES = {name: pair for name, pair in FORMATS.items() if not pair[0].endswith(".zarr")}


def damaged(data: bytes, choice: random.Random) -> bytes:
    if choice.random() < 0.3:
        return data[: choice.randrange(len(data))]
    changed = bytearray(data)
    near = min(len(data), choice.choice([64, 1024, len(data)]))
    for _ in range(choice.choice([1, 1, 8])):
        changed[choice.randrange(near)] ^= 1 << choice.randrange(8)
    return bytes(changed)


def assert_within(dataset: VirtualDataset, size: int) -> None:
    """Check that every reference points to bytes of the file."""
    for _, group in dataset.walk():
        for variable in group.variables.values():
            if not variable.loaded and len(variable.references.offsets):
                assert (variable.references.offsets + variable.references.lengths).max() <= size


def tried(path: Path, kind: Any) -> VirtualDataset | str:
    """Return the dataset, or the error message."""
    try:
        return virtualize(aged(path), format=kind)
    except (CannotVirtualizeError, StorageError) as error:
        return str(error)


@pytest.mark.parametrize("name", FILES)
def test_damaged_file_is_rejected_or_parsed_safely(tmp_path: Path, name: str, capfd: Any) -> None:
    file, write = FILES[name]
    write(tmp_path)
    path = tmp_path / file
    data = path.read_bytes()
    kind = recognize(open_file(to_location(path)))
    choice = random.Random(name)
    cuts = [data[: len(data) // 2], data[:-1]]
    told = 0
    for changed in [*cuts, *(damaged(data, choice) for _ in range(10))]:
        path.write_bytes(changed)

        found = tried(path, kind)

        if isinstance(found, str):
            told += 1
            assert file in found
        else:
            holds = tmp_path / "raw" if name == "kerchunk" else path
            assert_within(found, holds.stat().st_size)
    assert told


@pytest.mark.parametrize("requests", [1, 2, 3, 4])
def test_change_between_requests_is_detected(requests: int) -> None:
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        for number in range(4):
            values = np.random.default_rng(number).random(300_000)
            file.create_dataset(f"v{number}", data=values, chunks=(100_000,))
            file[f"v{number}"].attrs["units"] = "m"
    with range_server() as server:
        server.files["f.h5"] = buffer.getvalue()
        server.modified["f.h5"] = "Tue, 14 Nov 2023 22:13:20 GMT"
        server.answers = [*["as it is"] * requests, *["newer"] * 100]

        with pytest.raises(StorageError, match=r"f\.h5 changed while it was parsed") as raised:
            virtualize(f"{server.url}/f.h5")

    assert raised.value.kind == ErrorKind.VIRTUAL_CHUNK_MODIFIED


def test_change_of_local_file_during_parsing_is_detected(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["v"] = np.arange(3)
    opened = open_file(to_location(aged(tmp_path / "f.h5")))

    os.utime(tmp_path / "f.h5", (LONG_AGO + 1, LONG_AGO + 1))

    with pytest.raises(StorageError, match=r"f\.h5 changed while it was parsed"):
        opened.finish()


def test_reading_missing_or_changed_chunk_fails(tmp_path: Path) -> None:
    FORMATS["zarr3"][1](tmp_path)
    for path in (tmp_path / "f.zarr").rglob("*"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    dataset = virtualize(tmp_path / "f.zarr")
    chunk = tmp_path / "f.zarr" / "v" / "c" / "1" / "1"

    chunk.write_bytes(chunk.read_bytes())
    with pytest.raises(StorageError) as changed:
        open_values(dataset, ["v"])
    chunk.unlink()
    with pytest.raises(StorageError) as gone:
        open_values(dataset, ["v"])

    assert changed.value.kind == ErrorKind.VIRTUAL_CHUNK_MODIFIED
    assert "c/1/1" in str(changed.value)
    assert "c/1/1" in str(gone.value)


SCHEMA = {"zarr_format": 3, "node_type": "array", "chunk_grid": {"name": "regular"}, "data_type": "int8"}


@pytest.mark.parametrize(
    "content", ["[]", "{", '{"zarr_format": 3, "node_type": "array"}', json.dumps({**SCHEMA, "shape": "x"})]
)
def test_inconsistent_metadata_is_rejected(tmp_path: Path, content: str) -> None:
    (tmp_path / "f.zarr" / "v").mkdir(parents=True)
    (tmp_path / "f.zarr" / "v" / "zarr.json").write_text(content)

    found = tried(tmp_path / "f.zarr", "zarr")

    told = found if isinstance(found, str) else found.refused[0].sentence
    assert "v" in told
