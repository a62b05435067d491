"""Run one job on clusters of several processes (`make test-cluster`, not part of `make test`)."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from icefloe.spark import QUICK_START
from tests.support.spark.clusters import finished, standalone, started, started_job

pytestmark = [pytest.mark.spark, pytest.mark.cluster]


def run_job(master: str, folder: Path) -> None:
    finished(started_job("tests.support.spark.cluster_job", master, str(folder / "repo")))


def test_jobs_run_on_a_local_cluster(tmp_path: Path) -> None:
    run_job("local-cluster[2,1,1024]", tmp_path)


def test_jobs_run_on_a_standalone_cluster(tmp_path: Path) -> None:
    with standalone(tmp_path / "spark") as url:
        run_job(url, tmp_path)

    # Only with two hosts: Spark never starts a speculative copy of a task on the same host.
    assert {attempt.name for attempt in (tmp_path / "attempts").iterdir()} >= {"0", "1"}


def test_jobs_run_over_spark_connect(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = ["org.apache.spark.deploy.SparkSubmit", "--master", "local[2]", "--name", "connect"]
    server += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    for name, value in (
        ("spark.connect.grpc.binding.address", "127.0.0.1"),
        ("spark.connect.grpc.binding.port", str(port)),
        ("spark.ui.enabled", "false"),
        *QUICK_START.items(),
        ("spark.sql.shuffle.partitions", "4"),
        ("spark.sql.warehouse.dir", str(tmp_path / "warehouse")),
    ):
        server += ["--conf", f"{name}={value}"]

    with started([*server, "spark-internal"], tmp_path / "server.log", "Spark Connect server started"):
        run_job(f"sc://127.0.0.1:{port}", tmp_path)
