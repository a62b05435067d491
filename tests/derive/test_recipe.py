from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from icefloe.derive.recipe import Coarsen, Group, Same, load_recipe, order_outputs
from icefloe.errors import InvalidInputError

RECIPE: dict[str, Any] = {
    "repository": "repo",
    "outputs": {
        "daily": {
            "function": "mean",
            "inputs": {"t2m": {"array": "/t2m", "repository": "../era5", "tag": "v1"}},
            "dimensions": {"time": {"group": "time.day"}, "y": {"halo": [1, 2]}, "x": {"coarsen": 2}},
            "chunks": {"time": 1},
        }
    },
}


def test_recipe_paths_are_relative_to_its_folder(tmp_path: Path) -> None:
    import yaml

    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))

    recipe = load_recipe(tmp_path / "recipe.yaml")

    (output,) = recipe.outputs
    assert recipe.repository == str(tmp_path / "repo")
    assert output.inputs[0].repository == str(tmp_path / "../era5")
    assert output.inputs[0].version == ("tag", "v1")
    assert output.dimensions == {"time": Group("time.day"), "y": Same(1, 2), "x": Coarsen(2)}


def test_resample_and_coarsen_are_reductions_with_a_mapping() -> None:
    outputs = {
        "a": {"function": {"resample": {"time": "month", "method": "max"}}, "inputs": "t2m"},
        "b": {"function": {"coarsen": {"y": 2}}, "inputs": "t2m"},
    }

    a, b = load_recipe({"repository": "repo", "outputs": outputs}).outputs

    assert (a.function, a.dimensions) == ("max", {"time": Group("time.month")})
    assert (b.function, b.dimensions) == ("mean", {"y": Coarsen(2)})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"function": "meann"}, "did you mean mean"),
        ({"function": None}, "the key function is missing"),
        ({"inputs": {}}, "the key inputs is missing"),
        ({"inputs": {"t2m": {"array": "t2m", "tag": "a", "branch": "b"}}}, "several versions"),
        ({"inputs": {"2m": "t2m"}}, "identifier"),
        ({"dimensions": {"time": {"groups": "time.day"}}}, "expected same"),
        ({"dimensions": {"time": {"halo": [1]}}}, "halo must be"),
        ({"dimensions": {"time": {"coarsen": 0}}}, "coarsen must be"),
        ({"chunks": {"time": 0}}, "chunks along time"),
        ({"chunk": {"time": 1}}, "did you mean chunks"),
        ({"inputs": {"t2m": "/"}}, "/ is the root group"),
        ({"path": "/"}, "/ is the root group"),
        ({"path": "_icefloe/derived/x"}, "/_icefloe belongs to icefloe"),
    ],
)
def test_recipe_errors_name_the_output_and_the_remedy(changes: dict[str, Any], message: str) -> None:
    output = {**RECIPE["outputs"]["daily"], **changes}

    with pytest.raises(InvalidInputError, match=message):
        load_recipe({"repository": "repo", "outputs": {"daily": output}})


def test_missing_recipe_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="there is no such file"):
        load_recipe(tmp_path / "absent.yaml")


def test_outputs_are_ordered_after_their_inputs() -> None:
    outputs = {
        "anomaly": {"function": "anomaly", "inputs": {"t2m": "t2m", "normals": "climatology"}},
        "climatology": {
            "function": "mean",
            "inputs": {"t2m": "t2m"},
            "dimensions": {"time": {"group": "time.season"}},
        },
    }
    recipe = load_recipe({"repository": "repo", "outputs": outputs})

    ordered = order_outputs(
        recipe.outputs, {"anomaly": "/anomaly", "climatology": "/climatology/climatology"}
    )

    assert [each.name for each in ordered] == ["climatology", "anomaly"]


def test_cyclic_outputs_are_rejected() -> None:
    outputs = {
        "a": {"function": "copy", "inputs": {"x": "b"}},
        "b": {"function": "copy", "inputs": {"x": "a"}},
    }
    recipe = load_recipe({"repository": "repo", "outputs": outputs})

    with pytest.raises(InvalidInputError, match="cycle"):
        order_outputs(recipe.outputs, {"a": "/a", "b": "/b"})
