"""Recipes in YAML, through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from icefloe import InvalidInputError, Repository, storage_from_url
from icefloe.cli.main import main
from icefloe.ingest.options import Check
from icefloe.ingest.recipe import load_recipe
from tests.support.ingest.files import archive, assert_same, expected, read, tree, write_groups

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

RECIPE = """
sources: [data/*.nc]
repository: repo
options: {chunks: {time: 2}, commit_every: 2, metadata: {team: weather}}
checks:
  - monotone
  - range: {variable: t2m, low: 0, high: HIGH}
executor: threads
"""


def test_ingest_runs_a_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = archive(tmp_path / "data")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE.replace("HIGH", "50"))

    assert main(["ingest", "--recipe", str(recipe)]) == 5
    assert "check failed" in capsys.readouterr().out
    recipe.write_text(RECIPE.replace("HIGH", "5000"))
    assert main(["ingest", "--recipe", str(recipe), "--dry-run"]) == 0
    capsys.readouterr()
    assert main(["ingest", "--recipe", str(recipe), "--json"]) == 0

    repo = Repository.open(storage_from_url(str(tmp_path / "repo")))
    assert json.loads(capsys.readouterr().out)["published"] == repo.lookup_branch("main")
    assert_same(read(repo), expected(files))
    assert next(iter(repo.ancestry(branch="main"))).metadata["team"] == "weather"


def test_recipe_ingests_files_with_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data").mkdir()
    files = [write_groups(tmp_path / "data" / f"{day}.nc", day) for day in (0, 2)]
    recipe = tmp_path / "recipe.yaml"
    text = RECIPE.replace("commit_every: 2", "commit_every: 1, group: radar").replace("HIGH", "{high}")
    recipe.write_text(text.replace("{high}", "1"))

    assert main(["ingest", "--recipe", str(recipe)]) == 5
    assert "t2m" in capsys.readouterr().out
    recipe.write_text(text.replace("{high}", "5000"))
    assert main(["ingest", "--recipe", str(recipe)]) == 0

    repo = Repository.open(storage_from_url(str(tmp_path / "repo")))
    assert tree(repo).keys() == {"radar/air", "radar/fixed/land"}
    assert tree(repo)["radar/air"].sizes["time"] == 2 * len(files)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sources: [", "not valid YAML"),
        ("- a", "mapping"),
        ("sources: a\nrepository: b\nspeed: 3", "unknown key speed"),
        ("sources: a", "it needs a repository"),
        ("sources: a\nrepository: b\nchecks: [luck]", "unknown check 'luck'"),
        ("sources: a\nrepository: b\nchecks: [{range: {colour: 3}}]", "colour"),
        ("sources: a\nrepository: b\nchecks: [{range: 3}]", "expected its arguments as a mapping, not 3"),
        ("sources: a\nrepository: b\nchecks: [{sql: ''}]", "a query is required"),
        ("sources: a\nrepository: b\noptions: {speed: 3}", "no option speed"),
        ("sources: a\nrepository: b\nspark_conf: local", "spark_conf must be a mapping"),
        ("sources: ''\nrepository: b", "it needs sources"),
        ("sources: a\nrepositry: b", "unknown key repositry; did you mean repository?"),
        (
            "sources: a\nrepository: b\nexecuter: spark",
            "unknown key executer; did you mean executor?",
        ),
        ("sources: a\nrepository: b\nchecks: [{range: {variable: 3}}]", "variable must be text, not 3"),
        ("sources: a\nrepository: b\nchecks: [{python: {call: 3}}]", "call must be text, not 3"),
        ("sources: a\nrepository: b\noptions: {chnks: 3}", "no option chnks; did you mean chunks?"),
        ("sources: a\nrepository: b\noptions: {memory: 3}", "no option memory; did you mean memory_bytes?"),
        ("sources: a\nrepository: b\noptions: {checks: []}", "checks belong next to options"),
        ("sources: a\nrepository: b\noptions: {variables: 5}", "variables must be names, not 5"),
        ("sources: a\nrepository: b\noptions: {concat_dim: [x]}", r"concat_dim must be text, not \['x'\]"),
        ("sources: a\nrepository: b\noptions: {chunks: 5}", "chunks must map dimensions to integers"),
        ("sources: a\nrepository: b\noptions: {chunks: {x: yes}}", "chunks must map dimensions to integers"),
        ("sources: a\nrepository: b\noptions: {commit_every: yes}", "must be a positive integer"),
        ("sources: a\nrepository: b\noptions: {metadata: [x]}", "metadata must map names to values"),
        ("sources: a\nrepository: b\noptions: {metadata: {d: 2024-01-01}}", "metadata must be valid JSON"),
        ("sources: a\nrepository: b\noptions: {message: 2024-01-01}", "message must be text"),
        ("sources: a\nsources: c\nrepository: b", "line 2, column 1: the key sources appears twice"),
        ("sources: a\nrepository: b\noptions: {chunks: {x: 1, x: 2}}", "the key x appears twice"),
        ("sources: a\nrepository: b\nchunks: {x: 1}", "chunks belongs below options"),
        ("sources: a\nrepository: b\nchecks: [{range: t}]", "the check range: low or high is required"),
        ("sources: a\nrepository: b\nchecks: [{gaps: {low: 3}}]", "check gaps: unknown key low"),
        ("sources: a\nrepository: b\noptions: {join: outter}", "join must be one of outer, inner"),
        ("sources: a\nrepository: b\noptions: {data_vars: some}", "data_vars must be one of minimal"),
        ("sources: a\nrepository: b\noptions: {mode: virtual, chunks: {x: 1}}", "keep the chunks"),
        (
            "sources: a\nrepository: b\noptions: {mode: virtaul}",
            "mode must be one of native, virtual",
        ),
    ],
)
def test_invalid_recipe_is_refused(tmp_path: Path, text: str, said: str) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(text)

    with pytest.raises(InvalidInputError, match=said):
        load_recipe(recipe)


def test_check_with_one_argument_has_a_short_form(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "sources: a\nrepository: b\n"
        "checks: [{sql: 'SELECT * FROM staged WHERE t < 0'}, {python: 'm:f'}, {nulls: t}]"
    )

    assert load_recipe(recipe).options.checks == (
        Check("sql", query="SELECT * FROM staged WHERE t < 0"),
        Check("python", call="m:f"),
        Check("nulls", "t"),
    )


def test_relative_paths_start_at_the_recipe(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("sources: [a.nc, s3://bucket/b.nc, ~/c.nc]\nrepository: repo\n")

    found = load_recipe(recipe)

    assert found.sources == (str(tmp_path / "a.nc"), "s3://bucket/b.nc", "~/c.nc")
    assert found.repository == str(tmp_path / "repo")
    assert found.options.checks == (Check("monotone"), Check("source"))
