"""Parse the options of the Spark source, and open the versions that they select."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import icefloe
from icefloe.errors import (
    ErrorKind,
    IcechunkError,
    InvalidInputError,
    RefNotFoundError,
    RepositoryNotFoundError,
)
from icefloe.query.options import open_session, parse_options
from tests.support.spark.weather import put, repository, weather


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("PATH", "path"),
        ("url", "path"),
        ("snapshotid", "snapshot"),
        ("snapshot-id", "snapshot"),
        ("as-of-timestamp", "timestampAsOf"),
        ("TIMESTAMPASOF", "timestampAsOf"),
        ("versionasof", "versionAsOf"),
        ("max_partition_bytes", "maxPartitionBytes"),
    ],
)
def test_option_names_ignore_case_and_separators(spelled: str, name: str) -> None:
    assert parse_options({spelled: "x"}).given == {name: "x"}


def test_catalog_table_is_rejected_with_an_alternative(tmp_path: Path) -> None:
    in_create_table = {"owner": "root", "provider": "icechunk", "path": str(tmp_path)}

    with pytest.raises(InvalidInputError, match=r"create views with icefloe\.spark\.register"):
        parse_options(in_create_table)
    with pytest.raises(InvalidInputError, match=r"no repository given.*icefloe\.spark\.register"):
        parse_options({}).open()


def test_only_write_options_create_a_repository(tmp_path: Path) -> None:
    chosen = parse_options({"path": str(tmp_path / "new"), "create": "true"})

    with pytest.raises(RepositoryNotFoundError):
        chosen.open()
    with pytest.raises(InvalidInputError, match="create must be true or false"):
        parse_options({"path": str(tmp_path / "new"), "create": "maybe"}).open(to_write=True)
    created = chosen.open(to_write=True)

    assert chosen.open(to_write=True).lookup_branch("main") == created.lookup_branch("main")


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("region", "region"),
        ("endpoint", "endpoint_url"),
        ("endpointUrl", "endpoint_url"),
        ("allowHttp", "allow_http"),
    ],
)
def test_storage_options_are_separated(spelled: str, name: str) -> None:
    assert parse_options({spelled: "x"}).storage == {name: "x"}


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"varables": "t2m"}, "no option 'varables'; did you mean 'variables'"),
        ({"brnach": "main"}, "did you mean 'branch'"),
        ({"reigon": "x"}, "did you mean 'region'"),
        ({"path": "a", "url": "b"}, "the option path is given twice"),
    ],
)
def test_unknown_option_suggests_nearest_name(wrong: dict[str, str], sentence: str) -> None:
    with pytest.raises(InvalidInputError, match=sentence):
        parse_options(wrong)


@pytest.mark.parametrize(
    "name", ["secret_access_key", "accessKeyId", "sessionToken", "my.secret", "sas_token"]
)
def test_secrets_in_options_are_rejected_and_not_repeated_in_the_error(name: str) -> None:
    with pytest.raises(InvalidInputError, match="is a secret") as caught:
        parse_options({name: "hunter2"})

    assert "hunter2" not in str(caught.value)
    assert caught.value.kind == ErrorKind.INVALID_CREDENTIALS


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"sel": "lat=4"}, r"the option sel must be JSON"),
        ({"sel": "[1]"}, "must be a JSON object, such as"),
        ({"batchRows": "many"}, "must be a positive number"),
        ({"maxPartitionBytes": "0"}, "must be a positive number"),
    ],
)
def test_option_values_are_validated(wrong: dict[str, str], sentence: str) -> None:
    options = parse_options(wrong)

    with pytest.raises(InvalidInputError, match=sentence):
        _ = (options.mapping("sel"), options.batch_rows, options.partition_bytes)


def test_lists_and_sizes_are_parsed() -> None:
    options = parse_options({"variables": "t2m, rain", "maxPartitionBytes": "16m", "group": "a/b/"})

    assert options.names("variables") == ["t2m", "rain"]
    assert parse_options({"variables": '["a,b"]'}).names("variables") == ["a,b"]
    assert options.partition_bytes == 16 * 2**20
    assert options.group == "/a/b"


def test_missing_path_or_repository_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="pass its path or URL with the option path"):
        parse_options({}).open()
    with pytest.raises(IcechunkError, match="repository"):
        parse_options({"path": str(tmp_path / "nowhere")}).open()


def test_credentials_provider_is_called() -> None:
    with pytest.raises(InvalidInputError, match="cannot be imported"):
        parse_options({"path": "s3://bucket/x", "credentialsProvider": "no_such_module:f"}).open()
    with pytest.raises(InvalidInputError, match=r"must be package\.module:function"):
        parse_options({"path": "s3://bucket/x", "credentialsProvider": "json"}).open()


@pytest.fixture(scope="module")
def repo() -> icefloe.Repository:
    made = repository(weather())
    first = made.lookup_branch("main")
    made.create_tag("v1", first)
    put(made, weather(3), group="more")
    made.create_branch("old", first)
    return made


def test_version_options_select_a_snapshot(repo: icefloe.Repository) -> None:
    tip, first = (info.id for info in list(repo.ancestry(branch="main"))[:2])
    now = (datetime.now(UTC) + timedelta(minutes=1)).isoformat()

    assert open_session(repo, {}).snapshot_id == tip
    for version in ({"branch": "main"}, {"snapshot": tip}, {"versionAsOf": "main"}, {"versionAsOf": tip}):
        assert open_session(repo, version).snapshot_id == tip
    for version in ({"branch": "old"}, {"tag": "v1"}, {"versionAsOf": "v1"}, {"snapshot": first}):
        assert open_session(repo, version).snapshot_id == first
    assert open_session(repo, {"timestampAsOf": now}).snapshot_id == tip
    assert open_session(repo, {"timestampAsOf": now, "branch": "old"}).snapshot_id == first
    milliseconds = str(int(datetime.now(UTC).timestamp() * 1000) + 60_000)
    assert open_session(repo, {"timestampAsOf": milliseconds}).snapshot_id == tip


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        ({"tag": "v1", "branch": "main"}, "branch, tag each select a version"),
        ({"tag": "v1", "timestampAsOf": "2024-01-01"}, "tag, timestampAsOf each select a version"),
        ({"timestampAsOf": "yesterday"}, "'yesterday' is not a time"),
        ({"timestampAsOf": "1999-01-01"}, "no snapshot at or before 1999"),
        ({"branch": "nope"}, "nope"),
        ({"tag": "nope"}, "nope"),
        ({"versionAsOf": "nope"}, "no branch, tag or snapshot 'nope'; branches and tags are main, old, v1"),
    ],
)
def test_missing_versions_are_rejected(
    repo: icefloe.Repository, version: dict[str, str], sentence: str
) -> None:
    with pytest.raises(IcechunkError, match=sentence):
        open_session(repo, version)


def test_ambiguous_version_name_needs_prefix(repo: icefloe.Repository) -> None:
    repo.create_branch("v1", repo.lookup_tag("v1"))

    with pytest.raises(InvalidInputError, match="v1 is both a branch and a tag"):
        open_session(repo, {"versionAsOf": "v1"})
    with pytest.raises(RefNotFoundError):
        open_session(repo, {"branch": "v2"})


def test_options_that_spark_adds_for_itself_are_ignored() -> None:
    options = parse_options({"path": "data/repo", "checkpointLocation": "there", "queryName": "stations"})

    assert options.given == {"path": "data/repo"}
