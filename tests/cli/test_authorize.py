"""Virtual chunks in commands: they are read only with `--authorize`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.cli import errors as faults
from icefloe.cli import main as app


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Create a repository that refers to a file and to an unreachable server."""
    file = tmp_path / "archive" / "a.bin"
    file.parent.mkdir()
    file.write_bytes(np.arange(4, dtype="<i4").tobytes())
    config = icefloe.RepositoryConfig.default()
    once = icefloe.StorageRetriesSettings(max_tries=1)
    config.storage = icefloe.StorageSettings(retries=once)
    for prefix, store in (
        (f"file://{file.parent}/", icefloe.local_filesystem_store(str(file.parent))),
        ("http://127.0.0.1:9/", icefloe.http_store()),
    ):
        config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(prefix, store))
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path / "repo")), config=config)
    repo.save_config()
    session = repo.writable_session("main")
    for name, location in (("here", f"file://{file}"), ("there", "http://127.0.0.1:9/b.bin")):
        zarr.create_array(
            session.store, name=name, shape=(4,), chunks=(4,), dtype="i4", compressors=None, filters=None
        )
        session.store.set_virtual_ref(f"{name}/c/0", location, offset=0, length=16)
    session.commit("two references")
    return tmp_path


def findings(capsys: pytest.CaptureFixture[str], place: Path, *words: str) -> dict[str, str]:
    """Return the kind of each finding, by the last part of its location."""
    code = app.main(["verify", str(place / "repo"), "--level", "sources", "--json", *words])
    report: Any = json.loads(capsys.readouterr().out)
    assert code == (0 if report["ok"] else faults.FINDINGS)
    return {found["object"].rpartition("/")[2]: found["kind"] for found in report["findings"]}


def test_unauthorized_files_are_distinguished_from_unreachable_ones(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = f"file://{place}/archive/"

    assert findings(capsys, place) == {"a.bin": "unauthorised", "b.bin": "unauthorised"}
    assert findings(capsys, place, "--authorize", archive) == {"b.bin": "unauthorised"}
    assert findings(capsys, place, "--authorize", "all") == {"b.bin": "unreachable"}
    (place / "archive" / "a.bin").write_bytes(b"short")
    assert findings(capsys, place, "--authorize", archive)["a.bin"] == "short"
    (place / "archive" / "a.bin").unlink()
    assert findings(capsys, place, "--authorize", archive)["a.bin"] == "missing"


def test_virtual_data_is_exported_and_relocated(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repo, archive = str(place / "repo"), f"file://{place}/archive/"
    words = ["export", repo, str(place / "plain.zarr"), "--variables", "here"]
    assert app.main(words) == faults.USAGE
    assert app.main([*words, "--authorize", archive, "--overwrite"]) == 0
    plain = zarr.open_array(str(place / "plain.zarr"), path="here", mode="r")
    assert np.asarray(plain[:]).tolist() == [0, 1, 2, 3]

    (place / "archive" / "moved").mkdir()
    (place / "archive" / "a.bin").rename(place / "archive" / "moved" / "a.bin")
    moved = f"{archive}a.bin={archive}moved/a.bin"
    capsys.readouterr()
    app.main(["repair", repo, "--relocate", moved, "--authorize", archive, "--json"])

    actions = json.loads(capsys.readouterr().out)["actions"]
    assert [row["action"] for row in actions if "a.bin" in row["object"]] == ["relocated"]
    assert "a.bin" not in findings(capsys, place, "--authorize", archive, "-r", "main", "--no-history")


def test_virtual_values_are_read_after_authorization(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("cat", "head", "plot"):
        words = [command, str(place / "repo"), "here"]
        assert app.main(words) == faults.USAGE
        assert "authorize the virtual chunk container with --authorize PREFIX" in capsys.readouterr().err
        assert app.main([*words, "--authorize", "all"]) == 0
        assert "3" in capsys.readouterr().out


def test_unknown_container_is_rejected(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["verify", str(place / "repo"), "--authorize", "s3://elsewhere/"]) == faults.USAGE

    assert "no virtual chunk container s3://elsewhere/" in capsys.readouterr().err


def test_all_containers_of_a_repository_without_any_are_authorized(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(tmp_path / "plain")
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(place))
    with repo.transaction("main", message="a") as store:
        zarr.create_array(store, name="a", shape=(1,), dtype="i4")[...] = 7

    assert app.main(["cat", place, "a", "--authorize", "all"]) == 0
    assert "7" in capsys.readouterr().out
