"""OpenTelemetry spans: their content, the environment variables, and no export by default."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
import zarr
from opentelemetry import trace
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_wire
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as wire
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import icefloe
from icefloe._internal import telemetry
from icefloe._internal.logs import parse_filter
from tests.support.source_tree import ROOT

EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
EXPORT_METRICS = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    yield InMemorySpanExporter()
    telemetry.stop()


def names(exporter: InMemorySpanExporter) -> list[str]:
    return [span.name for span in exporter.get_finished_spans()]


def work() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repo.writable_session("main")
    zarr.create_group(session.store)
    session.commit("a group")


def test_api_calls_become_spans(exporter: InMemorySpanExporter) -> None:
    telemetry.start(SimpleSpanProcessor(exporter), "tests", parse_filter("icechunk=info"))

    work()

    assert names(exporter) == ["repository.Repository.create", "session.Session.commit"]
    assert exporter.get_finished_spans()[0].resource.attributes["service.name"] == "tests"


def test_log_records_are_events_of_their_span(
    exporter: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    telemetry.start(SimpleSpanProcessor(exporter), "tests", parse_filter("icechunk=info"))

    with caplog.at_level("DEBUG", "icefloe"):
        work()

    created = exporter.get_finished_spans()[0]
    assert [event.name for event in created.events if "Creating Repository" in event.name] != []


@pytest.mark.parametrize(
    ("directive", "wanted"),
    [
        ("icechunk=warn", []),
        ("icechunk=warn,icechunk::session=info", ["session.Session.commit"]),
        ("debug", ["repository.Repository.create", "session.Session.commit"]),
        ("off", []),
    ],
)
def test_log_filter_selects_spans(exporter: InMemorySpanExporter, directive: str, wanted: list[str]) -> None:
    telemetry.start(SimpleSpanProcessor(exporter), "tests", parse_filter(directive))

    work()

    assert names(exporter) == wanted


def test_failed_calls_set_the_status_of_the_span(exporter: InMemorySpanExporter) -> None:
    telemetry.start(SimpleSpanProcessor(exporter), "tests", parse_filter("info"))

    with pytest.raises(icefloe.RepositoryNotFoundError):
        icefloe.Repository.open(icefloe.in_memory_storage())

    (span,) = exporter.get_finished_spans()
    assert not span.status.is_ok
    assert span.events[0].name == "exception"


async def create_in_span(tracer: trace.Tracer) -> None:
    with tracer.start_as_current_span("mine"):
        await icefloe.Repository.create_async(icefloe.in_memory_storage())


def test_spans_are_children_of_application_spans(exporter: InMemorySpanExporter) -> None:
    import asyncio

    telemetry.start(SimpleSpanProcessor(exporter), "tests", parse_filter("info"))
    provider = TracerProvider()
    mine = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(mine))

    asyncio.run(create_in_span(provider.get_tracer("app")))

    (inner,), (outer,) = exporter.get_finished_spans(), mine.get_finished_spans()
    assert inner.parent is not None
    assert inner.parent.span_id == outer.context.span_id


def test_nothing_is_exported_after_shutdown(exporter: InMemorySpanExporter) -> None:
    telemetry.start(SimpleSpanProcessor(exporter), "tests", parse_filter("info"))
    icefloe.shutdown_telemetry()
    icefloe.shutdown_telemetry()

    work()

    assert names(exporter) == []


@pytest.fixture
def collector() -> Iterator[tuple[str, list[Any]]]:
    """Start an OTLP collector on loopback; return its address and the received requests."""
    requests: list[Any] = []

    def handle(request: Any, response: Any) -> Any:
        def export(received: Any, context: Any) -> Any:
            requests.append(received)
            return response()

        return grpc.unary_unary_rpc_method_handler(
            export, request_deserializer=request.FromString, response_serializer=response.SerializeToString
        )

    handlers = {
        EXPORT: handle(wire.ExportTraceServiceRequest, wire.ExportTraceServiceResponse),
        EXPORT_METRICS: handle(
            metrics_wire.ExportMetricsServiceRequest, metrics_wire.ExportMetricsServiceResponse
        ),
    }

    class Service(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
        def service(self, details: Any) -> Any:
            return handlers.get(details.method)

    server = grpc.server(futures.ThreadPoolExecutor(2), handlers=[Service()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}", requests
    server.stop(None).wait()


PROGRAM = "import icefloe; icefloe.Repository.create(icefloe.in_memory_storage())"


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("ICECHUNK_", "OTEL_"))}
    clean["PYTHONPATH"] = str(ROOT / "src")
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )


@pytest.mark.parametrize(
    ("variables", "service"),
    [
        (("ICECHUNK_OTLP_ENDPOINT", "ICECHUNK_OTEL_SERVICE_NAME"), "floes"),
        (("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_SERVICE_NAME"), "floes"),
        (("ICECHUNK_OTLP_ENDPOINT", ""), "icechunk"),
    ],
)
def test_environment_sets_the_endpoint(
    collector: tuple[str, list[Any]], variables: tuple[str, str], service: str
) -> None:
    address, requests = collector
    environment = {variables[0]: f"http://{address}"}
    if variables[1]:
        environment[variables[1]] = service

    run(PROGRAM, **environment)

    resources = [found for request in requests for found in request.resource_spans]
    spans = [span.name for found in resources for scope in found.scope_spans for span in scope.spans]
    assert spans == ["repository.Repository.create"]
    attributes = {a.key: a.value.string_value for a in resources[0].resource.attributes}
    assert attributes["service.name"] == service


def test_disabled_logs_disable_spans(collector: tuple[str, list[Any]]) -> None:
    address, requests = collector

    run(PROGRAM, ICECHUNK_OTLP_ENDPOINT=f"http://{address}", ICECHUNK_NO_LOGS="1")

    assert requests == []


def test_missing_extra_causes_one_warning() -> None:
    hidden = "import sys; sys.modules['opentelemetry'] = None; " + PROGRAM

    done = run(hidden, ICECHUNK_OTLP_ENDPOINT="http://user:hunter2@127.0.0.1:1")

    assert done.stderr.count("pip install 'opentelemetry-sdk>=") == 1
    assert "hunter2" not in done.stderr


def test_opentelemetry_is_imported_only_on_request() -> None:
    done = run("import sys, icefloe; icefloe.Repository; print('opentelemetry' in sys.modules)")

    assert done.stdout == "False\n"


def test_use_of_a_disk_cache_is_a_metric(exporter: InMemorySpanExporter, tmp_path: Path) -> None:
    reader = InMemoryMetricReader()
    telemetry.start(SimpleSpanProcessor(exporter), "tests", parse_filter("info"), lambda: reader)
    cache = icefloe.DiskCache(tmp_path / "cache")
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repo"))
    repo = icefloe.Repository.create(storage)
    with repo.transaction("main", message="a group") as store:
        zarr.create_group(store)
    before = read_metrics(reader)

    for _ in range(2):
        icefloe.Repository.open(storage, disk_cache=cache).readonly_session("main")

    after = read_metrics(reader)
    grown = {name: number - before.get(name, 0) for name, number in after.items()}
    size = cache.usage().size_bytes
    assert grown == {
        "icefloe.disk_cache.hits": 1,
        "icefloe.disk_cache.misses": 1,
        "icefloe.disk_cache.size_bytes": size,
    }


def read_metrics(reader: InMemoryMetricReader) -> dict[str, int]:
    data: Any = reader.get_metrics_data()
    metrics = [] if data is None else data.resource_metrics[0].scope_metrics[0].metrics
    return {metric.name: metric.data.data_points[0].value for metric in metrics}


def test_environment_exports_metrics(collector: tuple[str, list[Any]], tmp_path: Path) -> None:
    address, requests = collector
    program = (
        "import icefloe; "
        f"icefloe.Repository.create(icefloe.in_memory_storage(), disk_cache={str(tmp_path / 'cache')!r})"
    )

    run(program, ICECHUNK_OTLP_ENDPOINT=f"http://{address}", OTEL_METRICS_EXPORTER="none")
    assert [request for request in requests if hasattr(request, "resource_metrics")] == []
    run(program, ICECHUNK_OTLP_ENDPOINT=f"http://{address}")

    (exported,) = [request for request in requests if hasattr(request, "resource_metrics")]
    names = [metric.name for metric in exported.resource_metrics[0].scope_metrics[0].metrics]
    assert names == [f"icefloe.disk_cache.{name}" for name in ("hits", "misses", "size_bytes")]
