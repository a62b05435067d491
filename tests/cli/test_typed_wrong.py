"""Things typed wrong: one sentence that helps, the right exit code, and never a traceback."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.cli import app


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A repository with one array."""
    folder = str(tmp_path / "repo")
    repo = icefloe.Repository.create(icefloe.storage_from_url(folder, sync=False))
    with repo.transaction("main", message="array") as store:
        zarr.create_array(store, name="temperature", data=np.arange(12).reshape(3, 4))
    return folder


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["cat", "REPO", "temperatur"], 3, "there is no array /temperatur; did you mean /temperature?"),
        (["head", "REPO", "xyz"], 3, "there is no array /xyz; `icefloe tree` lists what there is"),
        (["head", "REPO", "/"], 2, "not an array: / is a group"),
        (["cat", "REPO", "temperature", "9"], 2, "the region 9 is outside of an array of 3 x 4 elements"),
        (["cat", "REPO", "temperature", "1:x"], 2, "'1:x' is no region"),
        (["tree", "REPO", "-r", "mian"], 3, "no branch, tag or snapshot mian; did you mean main?"),
        (["log", "REPO", "zzz"], 3, "no branch, tag or snapshot zzz; `icefloe refs` lists what there is"),
        (["log", "REPO", "--grpah"], 2, "--grpah"),
        (["lgo", "REPO"], 2, "did you mean log?"),
        (["log", "ftp://host/path"], 2, "cannot open ftp:// urls"),
        (["log", "s3://"], 2, "names no bucket"),
        (["log", "REPO/nothing"], 3, "the repository doesn't exist"),
        (["init", "REPO"], 4, "there is a repository at this place already"),
        (["init", "FILE/repo"], 1, "FILE"),
        (["init", "/proc/no/such"], 1, "/proc/no"),
    ],
)
def test_what_is_typed_wrong_is_said(
    words: list[str], code: int, sentence: str, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "FILE").write_text("no folder")

    found = app.main([each.replace("REPO", place).replace("FILE", str(tmp_path / "FILE")) for each in words])

    printed = capsys.readouterr()
    assert sentence in printed.err
    assert "Traceback" not in printed.err
    assert found == code
