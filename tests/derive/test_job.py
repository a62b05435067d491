from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

import icefloe
from icefloe.errors import IcechunkError, InvalidInputError, NodeNotFoundError
from tests.support.derive import (
    DAILY,
    OUTPUTS,
    derive,
    field,
    make_repository,
    open_derived,
    stored_values,
    write_recipe,
)

PATHS = {
    "t2m_daily": "t2m_daily/t2m_daily",
    "climatology": "climatology/climatology",
    "anomaly": "anomaly",
    "hottest": "hottest/hottest",
    "coarse": "coarse/coarse",
    "celsius": "celsius",
    "deciles": "deciles/deciles",
    "series": "s/t2m",
}


def change_cell(repo: icefloe.Repository, at: tuple[int, int, int] = (5, 1, 2), value: float = 300) -> None:
    session = repo.writable_session("main")
    array: Any = zarr.open_array(session.store, path="t2m")
    array[at] = value
    session.commit("change a cell")


def append(repo: icefloe.Repository, start: str, times: int) -> None:
    session = repo.writable_session("main")
    field(start, times, seed=7).to_zarr(session.store, append_dim="time", consolidated=False)
    session.commit("append")


def compare_with_xarray(repo: icefloe.Repository) -> None:
    root = open_derived(repo)
    values = root["t2m"]
    daily = values.resample(time="1D").mean()
    xr.testing.assert_allclose(
        open_derived(repo, "t2m_daily")["t2m_daily"], daily.rename("t2m_daily"), rtol=1e-6
    )
    normals = values.groupby("time.month").mean()
    xr.testing.assert_allclose(open_derived(repo, "climatology")["climatology"], normals, rtol=1e-6)
    np.testing.assert_allclose(root["anomaly"], values.groupby("time.month") - normals, atol=1e-3)
    np.testing.assert_array_equal(open_derived(repo, "hottest")["hottest"], values.max("time"))
    coarse = values.coarsen(y=2, x=2, boundary="pad").mean()
    xr.testing.assert_allclose(open_derived(repo, "coarse")["coarse"], coarse, rtol=1e-6)
    np.testing.assert_array_equal(root["celsius"], values - np.float32(273.15))
    deciles = values.resample(time="1D").quantile([0.1, 0.9]).transpose("quantile", "time", "y", "x")
    np.testing.assert_array_equal(open_derived(repo, "deciles")["deciles"], deciles)
    np.testing.assert_array_equal(open_derived(repo, "s")["t2m"], values)


def test_every_kind_of_output_equals_xarray(tmp_path: Path) -> None:
    repo = make_repository(tmp_path)
    recipe = write_recipe(tmp_path, OUTPUTS)

    report = derive(recipe)

    compare_with_xarray(repo)
    assert report.commit == repo.lookup_branch("main")
    assert report.recomputed == sum(each.recomputed for each in report.outputs)


@pytest.mark.spark
def test_spark_computes_the_same_bits(tmp_path: Path, spark: Any) -> None:
    from icefloe.spark.executor import SparkExecutor

    repos = []
    for name in ("here", "spark"):
        (tmp_path / name).mkdir()
        repos.append(make_repository(tmp_path / name))
    derive(write_recipe(tmp_path / "here", OUTPUTS))
    icefloe.derive_arrays(write_recipe(tmp_path / "spark", OUTPUTS), executor=SparkExecutor(spark))

    for path in PATHS.values():
        assert stored_values(repos[0], path) == stored_values(repos[1], path)


class RepeatingExecutor(icefloe.ThreadExecutor):
    """An executor that runs each task twice, and keeps the second result, as Spark may do."""

    def map(self, task: Any, items: Any, /) -> Any:
        for item in items:
            sent = pickle.dumps(item)
            task.run(pickle.loads(sent))
            yield task.run(pickle.loads(sent))


def test_tasks_that_run_twice_write_the_same_bits_once(tmp_path: Path) -> None:
    repos = []
    for name, executor in (("once", icefloe.ThreadExecutor(1)), ("twice", RepeatingExecutor(1))):
        (tmp_path / name).mkdir()
        repos.append(make_repository(tmp_path / name))
        report = icefloe.derive_arrays(write_recipe(tmp_path / name, OUTPUTS), executor=executor)
        assert len(list(repos[-1].ancestry(branch="main"))) == 3
        assert report.commit == repos[-1].lookup_branch("main")

    for path in PATHS.values():
        assert stored_values(repos[0], path) == stored_values(repos[1], path)


def test_second_run_computes_and_commits_nothing(tmp_path: Path) -> None:
    repo = make_repository(tmp_path)
    recipe = write_recipe(tmp_path, OUTPUTS)
    derive(recipe)
    tip = repo.lookup_branch("main")

    report = derive(recipe)

    assert (report.recomputed, report.moved, report.commit) == (0, 0, None)
    assert repo.lookup_branch("main") == tip


def test_report_names_the_commit_of_any_branch(tmp_path: Path) -> None:
    repo = make_repository(tmp_path)
    repo.create_branch("other", repo.lookup_branch("main"))
    celsius = OUTPUTS["celsius"]
    recipe = write_recipe(tmp_path, {"a": celsius, "b": {**celsius, "branch": "other"}})
    derive(recipe)
    change_cell(repo)

    report = derive(recipe)

    assert report.commit == repo.lookup_branch("main")
    assert not report.is_current
    assert set(report.input_snapshots) == {repo.lookup_branch("other"), get_parent_of_tip(repo)}


def get_parent_of_tip(repo: icefloe.Repository) -> str:
    return [info.id for info in repo.ancestry(branch="main")][1]


def test_one_changed_cell_recomputes_one_chunk_of_daily_means(tmp_path: Path) -> None:
    repo = make_repository(tmp_path)
    recipe = write_recipe(tmp_path, {"t2m_daily": DAILY})
    derive(recipe)
    change_cell(repo)

    planned = derive(recipe, dry_run=True)
    report = derive(recipe)

    assert (planned.recomputed, planned.commit) == (1, None)
    assert (report.recomputed, report.moved, report.kept) == (1, 0, 23)


def test_only_appended_days_are_computed(tmp_path: Path) -> None:
    repo = make_repository(tmp_path)
    recipe = write_recipe(tmp_path, {"t2m_daily": DAILY})
    derive(recipe)
    append(repo, "2020-02-05", 8)

    report = derive(recipe)

    assert (report.recomputed, report.kept) == (8, 24)


def test_new_month_keeps_normals_and_anomalies_of_other_months(tmp_path: Path) -> None:
    repo = make_repository(tmp_path, times=20)  # until 3 February
    recipe = write_recipe(tmp_path, {name: OUTPUTS[name] for name in ("climatology", "anomaly")})
    derive(recipe)
    append(repo, "2020-03-01", 4)

    report = derive(recipe)

    assert [(each.recomputed, each.kept) for each in report.outputs] == [(4, 8), (4, 20)]
    assert report.outputs[0].reason is None


def test_a_gap_in_time_does_not_change_the_chunks_of_later_periods(tmp_path: Path) -> None:
    data = field("2020-01-30", 40).chunk()
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path / "repo")))
    session = repo.writable_session("main")
    data.to_zarr(session.store, encoding={"t2m": {"chunks": (20, 6, 8)}}, consolidated=False)
    session.commit("five days per chunk")
    recipe = write_recipe(tmp_path, {"daily": {**DAILY, "chunks": {}}})
    derive(recipe)
    append(repo, "2020-02-20", 20)

    report = derive(recipe)

    assert (report.recomputed, report.kept) == (4, 2)
    assert report.outputs[0].reason is None


def test_gap_before_appended_days_computes_only_new_days(tmp_path: Path) -> None:
    repo = make_repository(tmp_path)
    recipe = write_recipe(tmp_path, {"t2m_daily": DAILY})
    derive(recipe)
    append(repo, "2020-02-07", 4)

    report = derive(recipe)

    assert (report.recomputed, report.kept) == (12, 24)


def test_shifted_content_is_moved_by_reference(tmp_path: Path) -> None:
    repo = make_repository(tmp_path)
    recipe = write_recipe(tmp_path, {"copy": {"function": "copy", "inputs": {"t2m": "t2m"}, "path": "c/t2m"}})
    derive(recipe)
    session = repo.writable_session("main")
    for path in ("t2m", "time"):
        rank = 3 if path == "t2m" else 1
        session.shift_array(f"/{path}", [-1, 0, 0][:rank])
    for path in ("t2m", "time"):
        array: Any = zarr.open_array(session.store, path=path)
        array.resize((20, *array.shape[1:]))
    session.commit("drop the first day")

    report = derive(recipe)

    assert (report.recomputed, report.moved, report.kept) == (0, 20, 0)
    np.testing.assert_array_equal(open_derived(repo, "c")["t2m"], open_derived(repo)["t2m"])


def test_manually_edited_chunk_is_recomputed(tmp_path: Path) -> None:
    repo = make_repository(tmp_path)
    recipe = write_recipe(tmp_path, {"t2m_daily": DAILY})
    derive(recipe)
    before = stored_values(repo, "t2m_daily/t2m_daily")
    session = repo.writable_session("main")
    array: Any = zarr.open_array(session.store, path="t2m_daily/t2m_daily")
    array[0, 0, 0] = -1
    session.commit("edit the output")

    report = derive(recipe)

    assert report.recomputed == 1
    assert stored_values(repo, "t2m_daily/t2m_daily") == before


def test_reduction_over_many_chunks_stores_partial_aggregates(tmp_path: Path) -> None:
    repo = make_repository(tmp_path, times=200)
    outputs = {
        name: {"function": name, "inputs": {"t2m": "t2m"}, "dimensions": {"time": {"reduce": True}}}
        for name in ("mean", "std", "sum", "min", "max", "count")
    }
    recipe = write_recipe(tmp_path, outputs)
    first = derive(recipe)
    change_cell(repo)

    report = derive(recipe)

    values = open_derived(repo)["t2m"]
    for name in outputs:
        expected = getattr(values.astype("f8"), name)("time")
        np.testing.assert_allclose(open_derived(repo, name)[name], expected, rtol=1e-6)
    assert [each.partials for each in first.outputs] == [28] * 6
    assert [each.partials for each in report.outputs] == [1] * 6
    assert report.outputs[0].recomputed == 1


def test_periods_without_input_have_missing_values(tmp_path: Path) -> None:
    repo = make_repository(tmp_path, times=4)
    append(repo, "2020-02-02", 4)
    recipe = write_recipe(tmp_path, {"daily": {**DAILY, "function": "count"}})

    derive(recipe)

    daily = open_derived(repo, "daily")["daily"]
    assert daily.sizes["time"] == 4
    assert np.isnan(daily[1:3]).all()
    assert not np.isnan(daily[[0, 3]]).any()


def test_inputs_may_be_read_from_a_tag_of_another_repository(tmp_path: Path) -> None:
    source = make_repository(tmp_path)
    source.create_tag("v1", source.lookup_branch("main"))
    change_cell(source)
    target = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path / "target")))
    given = {"array": "/t2m", "repository": str(tmp_path / "repo"), "tag": "v1"}
    output = {**DAILY, "inputs": {"t2m": given}}

    derive({"repository": str(tmp_path / "target"), "outputs": {"daily": output}})

    old = xr.open_zarr(source.readonly_session(tag="v1").store, consolidated=False)["t2m"].load()
    expected = old.resample(time="1D").mean()
    np.testing.assert_allclose(open_derived(target, "daily")["daily"], expected, rtol=1e-6)


FUNCTIONS = """
import random
import numpy as np

def double(t2m):
    return t2m * 2

def smooth(blocks):
    return blocks["t2m"].rolling(time=3, center=True, min_periods=1).mean()

def spread(t2m):
    return t2m.max("time") - t2m.min("time")

def fails(t2m):
    raise ValueError("no luck")

def wrong_shape(t2m):
    return t2m.values[:1]

def different(t2m):
    return t2m + random.random()

def large(t2m):
    return np.full(t2m.shape, 70000)

def twice(cells):
    return slice(2 * cells.start, 2 * cells.stop)

def pairs(t2m):
    return t2m.values[::2] - t2m.values[1::2]
"""


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a module of the user next to the recipe, with a name of its own."""
    name = f"functions_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def by_code(function: str, **more: Any) -> dict[str, Any]:
    return {"function": function, "inputs": {"t2m": "t2m"}, **more}


def test_user_functions_receive_labelled_blocks(tmp_path: Path, functions: str) -> None:
    repo = make_repository(tmp_path)
    outputs = {
        "double": by_code(f"{functions}:double"),
        "smooth": by_code(f"{functions}:smooth", dimensions={"time": {"halo": [1, 1]}}, dtype="float32"),
        "spread": by_code(f"{functions}:spread", dimensions={"time": {"group": "time.day"}}, dtype="float32"),
    }

    derive(write_recipe(tmp_path, outputs))

    root = open_derived(repo)
    values = root["t2m"]
    np.testing.assert_array_equal(root["double"], values * 2)
    smooth = values.rolling(time=3, center=True, min_periods=1).mean()
    np.testing.assert_allclose(root["smooth"], smooth, rtol=1e-5)
    days = values.resample(time="1D")
    np.testing.assert_allclose(open_derived(repo, "spread")["spread"], days.max() - days.min(), rtol=1e-6)


def test_windows_choose_the_cells_that_tasks_in_other_processes_read(tmp_path: Path, functions: str) -> None:
    repo = make_repository(tmp_path)
    window = {"window": f"{functions}:twice", "size": 12}
    recipe = write_recipe(
        tmp_path, {"steps": by_code(f"{functions}:pairs", dimensions={"time": window}, path="s/steps")}
    )

    icefloe.derive_arrays(recipe, executor=icefloe.ProcessExecutor(1))

    values = open_derived(repo)["t2m"].values
    np.testing.assert_array_equal(open_derived(repo, "s")["steps"], values[::2] - values[1::2])


def test_a_single_quantile_is_a_coordinate(tmp_path: Path) -> None:
    repo = make_repository(tmp_path)
    reduced = {"function": {"quantile": {"q": 0.5}}, "dimensions": {"time": {"reduce": True}}}
    derive(write_recipe(tmp_path, {"median": {**reduced, "inputs": {"t2m": "t2m"}}}))

    found = open_derived(repo, "median")["median"]
    assert found.coords["quantile"] == 0.5


@pytest.mark.parametrize(
    ("function", "more", "message"),
    [
        ("fails", {"dtype": "float32"}, "raised ValueError: no luck"),
        ("wrong_shape", {"dtype": "float32"}, "expected"),
        ("different", {}, "not deterministic"),
        ("smooth", {"dtype": "float32"}, "depends on more cells"),
        ("absent", {}, "cannot be imported"),
        ("double", {"dimensions": {"time": {"window": "operator:absent"}}}, "cannot be imported"),
        ("double", {"dimensions": {"time": {"window": "operator:neg"}}}, "operator:neg raised TypeError"),
        ("large", {"dtype": "int16"}, "int64 values that int16 cannot represent"),
    ],
)
def test_failing_function_changes_nothing(
    tmp_path: Path, functions: str, function: str, more: dict[str, Any], message: str
) -> None:
    repo = make_repository(tmp_path)
    tip = repo.lookup_branch("main")
    recipe = write_recipe(tmp_path, {"result": by_code(f"{functions}:{function}", **more)})

    with pytest.raises(InvalidInputError, match=message):
        derive(recipe)

    assert repo.lookup_branch("main") == tip


def test_changed_function_recomputes_everything(tmp_path: Path, functions: str) -> None:
    repo = make_repository(tmp_path)
    recipe = write_recipe(tmp_path, {"double": by_code(f"{functions}:double")})
    derive(recipe)
    file = tmp_path / f"{functions}.py"
    file.write_text(file.read_text() + "\n# changed\n")

    with pytest.raises(InvalidInputError, match="computed again"):
        derive(recipe, strict=True)
    report = derive(recipe)

    assert report.kept == 0
    assert report.outputs[0].reason is not None
    assert repo.lookup_branch("main") == report.commit


def test_array_with_the_name_of_a_period_groups_by_its_values(tmp_path: Path) -> None:
    repo = make_repository(tmp_path)
    session = repo.writable_session("main")
    labels = np.arange(24) % 3
    zarr.create_array(session.store, name="month", data=labels, dimension_names=["time"])
    session.commit("labels")

    by_label = {"dimensions": {"time": {"group": "month"}}}
    derive(write_recipe(tmp_path, {"t2m_max": {**OUTPUTS["hottest"], **by_label}}))

    found = open_derived(repo, "t2m_max")
    np.testing.assert_array_equal(found["month"], [0, 1, 2])
    values = open_derived(repo)["t2m"]
    np.testing.assert_array_equal(found["t2m_max"][1], values[labels == 1].max("time"))


@pytest.mark.parametrize(
    ("output", "error", "message"),
    [
        ({"inputs": {"t2m": "absent"}}, NodeNotFoundError, "no array /absent"),
        ({"path": "t2m"}, InvalidInputError, "not derived"),
        ({"dimensions": {"tme": {"reduce": True}}}, InvalidInputError, "no input has the dimension tme"),
        ({"dimensions": {"y": {"group": "y.day"}}}, InvalidInputError, "cannot be grouped"),
        ({"dimensions": {"time": {"group": "month"}}}, InvalidInputError, "write time.month"),
        ({"dimensions": {}}, InvalidInputError, "requires a dimension"),
        ({"dimensions": {"y": {"window": "a:b"}}}, InvalidInputError, "mean cannot use the window of y"),
        ({"chunks": {"tme": 1}}, InvalidInputError, "no dimension tme"),
        ({"encoding": {"dtype": "int99"}}, InvalidInputError, "'int99' is not a dtype"),
        ({"encoding": {"compressor": "zstd"}}, InvalidInputError, "unknown key 'compressor'"),
        ({"function": {"quantile": {"q": [2]}}}, InvalidInputError, "between 0 and 1"),
        ({"function": {"quantile": {"q": ["x"]}}}, InvalidInputError, "between 0 and 1"),
        ({"function": {"quantile": {"q": "x"}}}, InvalidInputError, "between 0 and 1"),
        ({"function": {"coarsen": {"y": "two"}}}, InvalidInputError, "positive number of cells, not 'two'"),
        ({"encoding": {"scale_factor": "x"}}, InvalidInputError, "scale_factor in encoding must be a number"),
        ({"encoding": {"scale_factor": 0}}, InvalidInputError, "scale_factor in encoding must not be 0"),
        ({"encoding": {"dtype": "i2", "_FillValue": "x"}}, InvalidInputError, "not a value of type int16"),
        ({"function": {"quantile": {"q": 0.5, "method": "none"}}}, InvalidInputError, "quantile: "),
        ({"function": {"mean": {"skipna": True}}}, InvalidInputError, "no argument 'skipna'"),
    ],
)
def test_mistakes_are_reported_and_change_nothing(
    tmp_path: Path, output: dict[str, Any], error: type[IcechunkError], message: str
) -> None:
    repo = make_repository(tmp_path)
    tip = repo.lookup_branch("main")
    recipe = write_recipe(tmp_path, {"daily": {**DAILY, **output}})

    with pytest.raises(error, match=message):
        derive(recipe)

    assert repo.lookup_branch("main") == tip


@pytest.mark.parametrize(
    "more",
    [
        {"coarse": {"function": {"coarsen": {"y": 2}}, "path": "a"}},
        {"coarse": {"function": {"coarsen": {"y": 2}}, "path": "new/a"}, "copy": {"path": "new/b"}},
    ],
)
def test_outputs_that_would_break_their_group_are_refused(tmp_path: Path, more: dict[str, Any]) -> None:
    repo = make_repository(tmp_path)
    session = repo.writable_session("main")
    del zarr.open_group(session.store)["y"]  # without this coordinate, only the sizes differ
    tip = session.commit("delete a coordinate")
    outputs = {name: {"function": "copy", "inputs": {"t2m": "t2m"}, **each} for name, each in more.items()}

    with pytest.raises(InvalidInputError, match="so xarray could not open the group"):
        derive(write_recipe(tmp_path, outputs))

    assert repo.lookup_branch("main") == tip


def test_packed_outputs_are_decoded_to_rounded_values(tmp_path: Path) -> None:
    repo = make_repository(tmp_path)
    packing = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32768}
    recipe = write_recipe(
        tmp_path, {"packed": {"function": "copy", "inputs": {"t2m": "t2m"}, "encoding": packing}}
    )

    derive(recipe)

    root = open_derived(repo)
    np.testing.assert_allclose(root["packed"], root["t2m"], atol=0.006)


def branch_with_change(repo: icefloe.Repository, name: str, at: tuple[int, int, int]) -> None:
    repo.create_branch(name, repo.lookup_branch("main"))
    session = repo.writable_session(name)
    array: Any = zarr.open_array(session.store, path="t2m")
    array[at] = 300
    session.commit(f"change on {name}")


def test_derivation_records_do_not_conflict_in_merges(tmp_path: Path) -> None:
    repo = make_repository(tmp_path)
    recipe = write_recipe(tmp_path, {"t2m_daily": DAILY})
    derive(recipe)
    branch_with_change(repo, "other", (0, 0, 0))
    change_cell(repo, (20, 5, 7))
    derive(recipe)
    derive({"repository": str(tmp_path / "repo"), "outputs": {"t2m_daily": {**DAILY, "branch": "other"}}})

    merged = repo.merge("other", "main", message="merge")

    assert merged.outcome == "merged"
    report = derive(recipe)
    assert report.recomputed + report.kept == 24
    daily = open_derived(repo)["t2m"].resample(time="1D").mean()
    np.testing.assert_allclose(open_derived(repo, "t2m_daily")["t2m_daily"], daily, rtol=1e-6)


def test_derivation_records_do_not_conflict_in_rebases(tmp_path: Path) -> None:
    repo = make_repository(tmp_path)
    recipe = write_recipe(tmp_path, {"t2m_daily": DAILY})
    derive(recipe)
    late = repo.writable_session("main")
    change_cell(repo)
    derive(recipe)
    records = "_icefloe/derived/t2m_daily/t2m_daily/records"
    array: Any = zarr.open_array(late.store, path=records)
    array[...] = 0

    late.commit("write records late", rebase_with=icefloe.ConflictDetector())

    assert derive(recipe).recomputed == 0


def derive_small(folder: Path, data: xr.Dataset, output: dict[str, Any], **encoding: Any) -> xr.DataArray:
    """Derive an array `out` from a small data set, twice, and return it."""
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(folder / "repo")))
    session = repo.writable_session("main")
    data.to_zarr(session.store, encoding={"a": encoding} if encoding else None, consolidated=False)
    session.commit("data")
    recipe = {"repository": str(folder / "repo"), "outputs": {"out": {"inputs": {"a": "a"}, **output}}}
    path = derive(recipe).outputs[0].path.strip("/")
    assert derive(recipe).commit is None
    return open_derived(repo, path.rpartition("/")[0] or None)[path.rpartition("/")[2]]


REDUCED = {"dimensions": {"x": {"reduce": True}}}


def test_labels_of_seasons_are_not_renamed(tmp_path: Path) -> None:
    time = ("time", np.arange(0, 360, 30), {"units": "days since 2000-01-01"})
    data = xr.Dataset({"a": (("time",), np.arange(12.0))}, {"time": time})

    found = derive_small(
        tmp_path, data, {"function": "max", "dimensions": {"time": {"group": "time.season"}}}
    )

    assert list(found["season"].values) == ["DJF", "JJA", "MAM", "SON"]


def test_a_float_fill_value_is_missing(tmp_path: Path) -> None:
    data = xr.Dataset({"a": (("x",), np.array([1, np.nan, 3], "f4"))})

    found = derive_small(tmp_path, data, {"function": "mean", **REDUCED}, _FillValue=-9999.0)

    assert found.item() == 2


def test_means_of_missing_values_are_missing(tmp_path: Path) -> None:
    data = xr.Dataset({"a": (("x",), np.full(3, np.nan))})

    assert np.isnan(derive_small(tmp_path, data, {"function": "mean", **REDUCED}))


def test_expressions_take_scalars(tmp_path: Path) -> None:
    data = xr.Dataset({"a": ((), 3.0)})

    assert derive_small(tmp_path, data, {"function": {"expression": "a * 2"}}).item() == 6


@pytest.mark.parametrize("function", [{"expression": "-a"}, {"quantise": {"digits": 1}}])
def test_functions_that_numpy_lacks_for_a_dtype_are_reported(tmp_path: Path, function: Any) -> None:
    data = xr.Dataset({"a": (("x",), np.array([True, False]))})

    with pytest.raises(InvalidInputError, match=r"output out.*type bool"):
        derive_small(tmp_path, data, {"function": function})


def test_text_variables_are_copied_to_outputs(tmp_path: Path) -> None:
    data = xr.Dataset({"a": (("x",), np.array(["one", "", "three"], object))})

    found = derive_small(tmp_path, data, {"function": "copy", "chunks": {"x": 2}})

    assert list(found.values) == ["one", "", "three"]


def test_an_output_with_other_metadata_is_computed_again(tmp_path: Path) -> None:
    repo = make_repository(tmp_path)
    recipe = write_recipe(tmp_path, {"t2m_daily": DAILY})
    derive(recipe)
    before = stored_values(repo, "t2m_daily/t2m_daily")
    session = repo.writable_session("main")
    group = zarr.open_group(session.store, path="t2m_daily")
    group.create_array("t2m_daily", shape=(3,), chunks=(3,), dtype="i4", overwrite=True)
    session.commit("replace the output")

    assert not derive(recipe, dry_run=True).is_current
    derive(recipe)

    assert stored_values(repo, "t2m_daily/t2m_daily") == before
