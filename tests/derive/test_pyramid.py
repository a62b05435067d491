from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

import icefloe
from icefloe.derive.pyramid import find_levels
from icefloe.errors import InvalidInputError
from tests.support.derive import derive, make_repository, open_derived, stored_values


def pyramid(folder: Path, *, array: str = "t2m", path: str | None = None, **arguments: Any) -> dict[str, Any]:
    output: dict[str, Any] = {"function": {"pyramid": arguments}, "inputs": {"array": array}}
    if path is not None:
        output["path"] = path
    return {"repository": str(folder / "repo"), "outputs": {"pyramid": output}}


def halve(values: xr.DataArray) -> xr.DataArray:
    return values.coarsen(y=2, x=2, boundary="pad").mean()


def write_array(folder: Path, values: np.ndarray[Any, Any], **more: Any) -> icefloe.Repository:
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(folder / "repo")))
    session = repo.writable_session("main")
    encoding = {"classes": more} if more else None
    data = xr.Dataset({"classes": (("y", "x"), values)})
    data.to_zarr(session.store, encoding=encoding, consolidated=False)
    session.commit("classes")
    return repo


def test_each_level_has_the_means_of_the_level_before(tmp_path: Path) -> None:
    repo = make_repository(tmp_path)

    report = derive(pyramid(tmp_path, levels=3))

    levels = [open_derived(repo, f"pyramid/{number}")["t2m"] for number in range(3)]
    xr.testing.assert_identical(levels[0], open_derived(repo)["t2m"])
    xr.testing.assert_allclose(levels[1], halve(levels[0]), rtol=1e-6)
    xr.testing.assert_allclose(levels[2], halve(levels[1]), rtol=1e-6)
    assert [each.dtype for each in levels] == [np.dtype("f4")] * 3
    assert [each.recomputed for each in report.outputs] == [0, 6, 6]


def test_the_group_is_described_for_ome_and_geozarr_readers(tmp_path: Path) -> None:
    repo = make_repository(tmp_path)
    derive(pyramid(tmp_path, levels=2))

    group = zarr.open_group(repo.readonly_session("main").store, path="pyramid", mode="r")

    attributes: dict[str, Any] = dict(group.attrs)
    (image,) = attributes["ome"]["multiscales"]
    assert attributes["ome"]["version"] == "0.5"
    assert [axis["type"] for axis in image["axes"]] == ["time", "space", "space"]
    assert [each["path"] for each in image["datasets"]] == ["0/t2m", "1/t2m"]
    assert image["datasets"][1]["coordinateTransformations"] == [
        {"type": "scale", "scale": [1, 2, 2]},
        {"type": "translation", "translation": [0, 0.5, 0.5]},
    ]
    assert [each["asset"] for each in attributes["multiscales"]["layout"]] == ["0", "1"]
    assert attributes["zarr_conventions"][0]["name"] == "multiscales"


def test_only_changed_parts_of_levels_are_computed_again(tmp_path: Path) -> None:
    repo = make_repository(tmp_path)
    derive(pyramid(tmp_path, levels=3))
    session = repo.writable_session("main")
    array: Any = zarr.open_array(session.store, path="t2m")
    array[0, 0, 0] = 300
    session.commit("change a cell")

    stale = find_levels(repo.readonly_session("main"), "/t2m")
    report = derive(repo)

    assert [each.path for each in stale] == ["/t2m"]
    assert [(each.recomputed, each.moved) for each in report.outputs] == [(0, 1), (1, 0), (1, 0)]
    assert derive(repo).commit is None


def test_levels_are_found_by_their_array(tmp_path: Path) -> None:
    repo = make_repository(tmp_path)
    derive(pyramid(tmp_path, levels=3))

    found = find_levels(repo.readonly_session("main"), "/t2m")

    assert [(each.path, each.shape) for each in found] == [
        ("/t2m", (24, 6, 8)),
        ("/pyramid/1/t2m", (24, 3, 4)),
        ("/pyramid/2/t2m", (24, 2, 2)),
    ]


def test_mode_and_nearest_keep_classes(tmp_path: Path) -> None:
    classes = np.array([[1, 1, 7, 3, 5], [2, 1, 3, 3, 6], [9, 8, 4, 4, 0]], "u1")
    repo = write_array(tmp_path, classes)

    derive(pyramid(tmp_path, array="classes", path="mode", levels=2, method="mode"))
    derive(pyramid(tmp_path, array="classes", path="nearest", levels=2, method="nearest"))

    mode = open_derived(repo, "mode/1")["classes"]
    assert mode.dtype == np.uint8
    np.testing.assert_array_equal(mode, [[1, 3, 5], [8, 4, 0]])
    np.testing.assert_array_equal(open_derived(repo, "nearest/1")["classes"], classes[::2, ::2])


def test_pyramid_levels_have_the_same_packing_as_their_array(tmp_path: Path) -> None:
    values = np.array([[10.0, 20.0, np.nan, np.nan], [30.0, np.nan, np.nan, np.nan]])
    repo = write_array(tmp_path, values, dtype="i2", scale_factor=0.5, _FillValue=-1)

    derive(pyramid(tmp_path, array="classes", levels=2))

    level: Any = zarr.open_array(repo.readonly_session("main").store, path="pyramid/1/classes", mode="r")
    assert level.dtype == np.int16
    np.testing.assert_array_equal(open_derived(repo, "pyramid/1")["classes"], [[20.0, np.nan]])


def test_level_0_of_a_pyramid_uses_no_storage(tmp_path: Path) -> None:
    repo = make_repository(tmp_path)
    workspace = repo.readonly_session("main")._workspace
    before = workspace.refs(workspace.array("/t2m"))

    derive(pyramid(tmp_path, levels=1))

    workspace = repo.readonly_session("main")._workspace
    after = workspace.refs(workspace.array("/pyramid/0/t2m"))
    assert before.equal_rows(after).all()
    assert stored_values(repo, "t2m") == stored_values(repo, "pyramid/0/t2m")


def test_reducing_levels_deletes_superfluous_levels(tmp_path: Path) -> None:
    repo = make_repository(tmp_path)
    derive(pyramid(tmp_path, levels=3))

    derive(pyramid(tmp_path, levels=2))

    group = zarr.open_group(repo.readonly_session("main").store, path="pyramid", mode="r")
    assert sorted(group.group_keys()) == ["0", "1"]
    assert derive(repo).commit is None


def test_existing_array_at_the_path_of_a_pyramid_is_reported(tmp_path: Path) -> None:
    make_repository(tmp_path)

    with pytest.raises(InvalidInputError, match="an array already exists at /t2m"):
        derive(pyramid(tmp_path, path="t2m"))
