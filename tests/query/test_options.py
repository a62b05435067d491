"""The options of the Spark source, and the versions they name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import icefloe
from icefloe.errors import ErrorKind, IcechunkError, InvalidInputError, RefNotFoundError
from icefloe.query.options import parse, session_at
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
def test_names_in_other_spellings(spelled: str, name: str) -> None:
    assert parse({spelled: "x"}).given == {name: "x"}


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("region", "region"),
        ("endpoint", "endpoint_url"),
        ("endpointUrl", "endpoint_url"),
        ("allowHttp", "allow_http"),
    ],
)
def test_options_of_the_storage(spelled: str, name: str) -> None:
    assert parse({spelled: "x"}).storage == {name: "x"}


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"varables": "t2m"}, "no option 'varables'; did you mean 'variables'"),
        ({"brnach": "main"}, "did you mean 'branch'"),
        ({"reigon": "x"}, "did you mean 'region'"),
        ({"path": "a", "url": "b"}, "the option path is given twice"),
    ],
)
def test_a_typo_is_corrected(wrong: dict[str, str], sentence: str) -> None:
    with pytest.raises(InvalidInputError, match=sentence):
        parse(wrong)


@pytest.mark.parametrize(
    "name", ["secret_access_key", "accessKeyId", "sessionToken", "my.secret", "sas_token"]
)
def test_secrets_are_refused_and_never_told(name: str) -> None:
    with pytest.raises(InvalidInputError, match="is a secret") as caught:
        parse({name: "hunter2"})

    assert "hunter2" not in str(caught.value)
    assert caught.value.kind == ErrorKind.INVALID_CREDENTIALS


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"sel": "lat=4"}, r"the option sel must be JSON"),
        ({"sel": "[1]"}, "must be a JSON object, such as"),
        ({"batchRows": "many"}, "must be a whole number from 1 on"),
        ({"maxPartitionBytes": "0"}, "must be a whole number from 1 on"),
    ],
)
def test_values_are_checked(wrong: dict[str, str], sentence: str) -> None:
    options = parse(wrong)

    with pytest.raises(InvalidInputError, match=sentence):
        _ = (options.mapping("sel"), options.batch_rows, options.partition_bytes)


def test_lists_and_sizes() -> None:
    options = parse({"variables": "t2m, rain", "maxPartitionBytes": "16m", "group": "a/b/"})

    assert options.names("variables") == ["t2m", "rain"]
    assert parse({"variables": '["a,b"]'}).names("variables") == ["a,b"]
    assert options.partition_bytes == 16 * 2**20
    assert options.group == "/a/b"


def test_a_repository_must_be_named_and_be_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="give its folder or URL with the option path"):
        parse({}).open()
    with pytest.raises(IcechunkError, match="repository"):
        parse({"path": str(tmp_path / "nowhere")}).open()


def test_credentials_come_from_a_function() -> None:
    with pytest.raises(InvalidInputError, match="cannot be imported"):
        parse({"path": "s3://bucket/x", "credentialsProvider": "no_such_module:f"}).open()
    with pytest.raises(InvalidInputError, match=r"must be package\.module:function"):
        parse({"path": "s3://bucket/x", "credentialsProvider": "json"}).open()


@pytest.fixture(scope="module")
def repo() -> icefloe.Repository:
    made = repository(weather())
    first = made.lookup_branch("main")
    made.create_tag("v1", first)
    put(made, weather(3), group="more")
    made.create_branch("old", first)
    return made


def test_every_way_to_name_a_version(repo: icefloe.Repository) -> None:
    tip, first = (info.id for info in list(repo.ancestry(branch="main"))[:2])
    now = (datetime.now(UTC) + timedelta(minutes=1)).isoformat()

    assert session_at(repo, {}).snapshot_id == tip
    for version in ({"branch": "main"}, {"snapshot": tip}, {"versionAsOf": "main"}, {"versionAsOf": tip}):
        assert session_at(repo, version).snapshot_id == tip
    for version in ({"branch": "old"}, {"tag": "v1"}, {"versionAsOf": "v1"}, {"snapshot": first}):
        assert session_at(repo, version).snapshot_id == first
    assert session_at(repo, {"timestampAsOf": now}).snapshot_id == tip
    assert session_at(repo, {"timestampAsOf": now, "branch": "old"}).snapshot_id == first
    milliseconds = str(int(datetime.now(UTC).timestamp() * 1000) + 60_000)
    assert session_at(repo, {"timestampAsOf": milliseconds}).snapshot_id == tip


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        ({"tag": "v1", "branch": "main"}, "branch, tag name a version each"),
        ({"tag": "v1", "timestampAsOf": "2024-01-01"}, "tag, timestampAsOf name a version each"),
        ({"timestampAsOf": "yesterday"}, "'yesterday' is no time"),
        ({"timestampAsOf": "1999-01-01"}, "no snapshot as old as 1999"),
        ({"branch": "nope"}, "nope"),
        ({"tag": "nope"}, "nope"),
        ({"versionAsOf": "nope"}, "no branch, tag or snapshot 'nope'; branches and tags are main, old, v1"),
    ],
)
def test_versions_that_are_not_there(
    repo: icefloe.Repository, version: dict[str, str], sentence: str
) -> None:
    with pytest.raises(IcechunkError, match=sentence):
        session_at(repo, version)


def test_a_name_of_both_a_branch_and_a_tag_needs_a_word_more(repo: icefloe.Repository) -> None:
    repo.create_branch("v1", repo.lookup_tag("v1"))

    with pytest.raises(InvalidInputError, match="v1 is both a branch and a tag"):
        session_at(repo, {"versionAsOf": "v1"})
    with pytest.raises(RefNotFoundError):
        session_at(repo, {"branch": "v2"})
