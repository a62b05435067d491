"""Log filters, from arguments and from the environment."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import pytest
import zarr

import icefloe
from icefloe._internal import logs
from icefloe._internal.logs import TRACE, find_misspelling, parse_filter


@pytest.fixture(autouse=True)
def own_logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove filters of the environment, and restore the log configuration."""
    for name in ("ICECHUNK_LOG", "ICECHUNK_NO_LOGS", "ICECHUNK_LOG_TO_STDOUT"):
        monkeypatch.delenv(name, raising=False)
    logger = logging.getLogger("icefloe")
    before = (logger.level, logger.propagate, list(logger.handlers))
    yield
    logger.level, logger.propagate, logger.handlers = before
    logs._handler = None


def create() -> None:
    icefloe.Repository.create(icefloe.in_memory_storage())


@pytest.mark.parametrize(
    ("directive", "levels"),
    [
        ("", {"icefloe": logging.ERROR}),
        ("debug", {"icefloe": logging.DEBUG}),
        ("icechunk=info", {"icefloe": logging.INFO}),
        ("icefloe.storage=trace,warn", {"icefloe": logging.WARNING, "icefloe.storage": TRACE}),
        ("icechunk::storage=off, ERROR", {"icefloe": logging.ERROR, "icefloe.storage": 60}),
        ("icechunk", {"icefloe": TRACE}),
        ("tokio=debug,false", {"icefloe": logging.ERROR}),
        ("icefloe=loud", {"icefloe": logging.ERROR}),
    ],
)
def test_filters_name_loggers_and_levels(directive: str, levels: dict[str, int]) -> None:
    assert parse_filter(directive) == levels


@pytest.mark.parametrize(
    ("directive", "name"),
    [
        ("icechnk=debug", "icechnk"),
        ("icechuunk:debug", "icechuunk"),
        ("icefloes.core=debug", "icefloes"),
        ("debug,icechunk=info,icefloe=warn", None),
        ("ice=debug", None),
        ("chunk:info", None),
        ("", None),
    ],
)
def test_misspelled_logger_names_are_reported(directive: str, name: str | None) -> None:
    assert find_misspelling(directive) == name


def test_filter_prints_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    icefloe.set_logs_filter("debug")
    create()
    icefloe.set_logs_filter("off")
    create()
    icefloe.shutdown_telemetry()

    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("Creating Repository") == 1


def test_environment_sets_the_filter_and_the_stream(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ICECHUNK_LOG", "icechunk=debug")
    monkeypatch.setenv("ICECHUNK_LOG_TO_STDOUT", "1")

    icefloe.set_logs_filter(None)
    create()

    out, err = capfd.readouterr()
    assert "Creating Repository" in out
    assert err == ""


def test_nothing_is_printed_by_default(capfd: pytest.CaptureFixture[str]) -> None:
    icefloe.initialize_logs()
    create()

    assert capfd.readouterr() == ("", "")


def test_logs_can_be_disabled(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ICECHUNK_LOG", "debug")
    monkeypatch.setenv("ICECHUNK_NO_LOGS", "")

    icefloe.initialize_logs()
    create()
    monkeypatch.delenv("ICECHUNK_NO_LOGS")
    icefloe.initialize_logs()
    create()

    assert capfd.readouterr().err.count("Creating Repository") == 1


def test_misspelled_filter_gets_a_hint(capfd: pytest.CaptureFixture[str]) -> None:
    icefloe.set_logs_filter("icechnk=debug")

    said = capfd.readouterr().err
    assert "WARNING" in said
    assert "did you mean" in said


def test_cache_sizes_without_effect_cause_one_warning(capfd: pytest.CaptureFixture[str]) -> None:
    icefloe.set_logs_filter("warn")
    caching = icefloe.CachingConfig(num_chunk_refs=0, num_snapshot_nodes=0)
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), icefloe.RepositoryConfig(caching=caching))
    for message in ("one", "two"):
        with repo.transaction("main", message=message) as store:
            zarr.create_array(store, name=message, data=np.arange(10), chunks=(2,))

    said = capfd.readouterr().err

    assert said.count("WARN") == 2
    assert "5 chunk references" in said
    assert "keep 0 references" in said  # programs look for these words of the official library
    assert "2 nodes" in said
    assert "keep 0 nodes" in said


def test_debug_information_names_versions(capfd: pytest.CaptureFixture[str]) -> None:
    icefloe.print_debug_info()

    lines = capfd.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines[:4]] == ["platform", "python", "icefloe", "zarr"]
    assert icefloe.user_agent() == f"icefloe-{icefloe.__version__}"
    assert icefloe.supported_spec_versions() == [2, 1]
    assert icefloe.spec_version() == 2
