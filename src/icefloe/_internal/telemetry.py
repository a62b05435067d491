"""OpenTelemetry spans for public functions, and metrics. They are exported if environment variables request
it.

Requires the extra `telemetry`, which is imported only on request. Spans are children of the application's
active span. Log records become events of the current span.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from icefloe._version import __version__

if TYPE_CHECKING:
    import logging

P = ParamSpec("P")
R = TypeVar("R")

INFO = 20
_PACKAGE = "icefloe"
_SCHEMES = ("http://", "https://")

_export: _Export | None = None
_observed: dict[str, Callable[[], int]] = {}
"""The functions that return the value of a metric in this process, by metric name."""


def trace_calls(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function so that each call is recorded as an OpenTelemetry span, if spans are exported."""
    name = f"{function.__module__}.{function.__qualname__}"

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        export = _export
        if export is None or not export.wants(name):
            return function(*args, **kwargs)
        with export.tracer.start_as_current_span(name.removeprefix(f"{_PACKAGE}.")):
            return function(*args, **kwargs)

    return wrapper


def start_from_env(parse_filter: Callable[[str], dict[str, int]]) -> None:
    """Start the export of OpenTelemetry spans and metrics if the environment names an OTLP/gRPC endpoint.

    ICECHUNK_OTLP_ENDPOINT takes precedence over OTEL_EXPORTER_OTLP_ENDPOINT, and ICECHUNK_OTEL_SERVICE_NAME
    over OTEL_SERVICE_NAME. ICECHUNK_OTEL_FILTER selects spans like a log filter. Metrics, which only a disk
    cache has, are not exported if OTEL_METRICS_EXPORTER is `none`.
    """
    variables = ("ICECHUNK_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    endpoint = next((os.environ[name] for name in variables if os.environ.get(name)), None)
    if endpoint is None or _export is not None:
        return
    try:
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        import logging

        from icefloe._internal.extras import TELEMETRY, format_install_command

        logging.getLogger(_PACKAGE).warning(
            "spans are not exported to %s because OpenTelemetry is not installed: %s",
            _strip_password(endpoint),
            format_install_command(*TELEMETRY),
        )
        return
    names = ("ICECHUNK_OTEL_SERVICE_NAME", "OTEL_SERVICE_NAME")
    service = next((os.environ[name] for name in names if os.environ.get(name)), "icechunk")
    target = endpoint if endpoint.startswith(_SCHEMES) else f"http://{endpoint}"
    insecure = target.startswith("http://")
    wants_metrics = os.environ.get("OTEL_METRICS_EXPORTER", "otlp") != "none"
    start(
        BatchSpanProcessor(OTLPSpanExporter(endpoint=target, insecure=insecure)),
        service,
        parse_filter(os.environ.get("ICECHUNK_OTEL_FILTER", "icechunk=info")),
        (lambda: PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=target, insecure=insecure)))
        if wants_metrics
        else None,
    )


def start(
    processor: Any,
    service: str,
    levels: dict[str, int],
    make_reader: Callable[[], Any] | None = None,
) -> None:
    """Start exporting OpenTelemetry spans to a span processor, and metrics to a metric reader, under a
    service name.

    The metric reader is created once there is something to observe.
    """
    global _export
    stop()
    _export = _Export(processor, service, levels, make_reader)
    for name in _observed:
        _export.observe(name)


def observe(name: str, read: Callable[[], int]) -> None:
    """Register a function whose value is exported as an OpenTelemetry metric, if metrics are exported."""
    _observed[name] = read
    if _export is not None:
        _export.observe(name)


def stop() -> None:
    """Send pending OpenTelemetry spans and stop exporting. Has no effect if nothing is exported."""
    global _export
    export, _export = _export, None
    if export is not None:
        export.close()


class _Export:
    """Exports spans and metrics through its own providers, independent of the application's."""

    def __init__(
        self,
        processor: Any,
        service: str,
        levels: dict[str, int],
        make_reader: Callable[[], Any] | None,
    ) -> None:
        import logging

        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        self._levels = levels
        self._resource = Resource.create({"service.name": service})
        self._provider = TracerProvider(resource=self._resource)
        self._provider.add_span_processor(processor)
        self.tracer = self._provider.get_tracer(_PACKAGE, __version__)
        self._events = _event_handler()
        self._logger = logging.getLogger(_PACKAGE)
        self._logger.addHandler(self._events)
        self._make_reader = make_reader
        self._metrics: Any = None

    def wants(self, name: str) -> bool:
        """Return True if the filter accepts spans of a function. Spans have the level `info`."""
        known = [logger for logger in self._levels if name == logger or name.startswith(f"{logger}.")]
        return bool(known) and self._levels[max(known, key=len)] <= INFO

    def observe(self, name: str) -> None:
        """Export the value of a function as a gauge."""
        if self._make_reader is None:
            return
        from opentelemetry.metrics import Observation

        if self._metrics is None:
            from opentelemetry.sdk.metrics import MeterProvider

            self._metrics = MeterProvider([self._make_reader()], self._resource, shutdown_on_exit=True)
        meter = self._metrics.get_meter(_PACKAGE, __version__)
        meter.create_observable_gauge(f"{_PACKAGE}.{name}", [lambda _: [Observation(_observed[name]())]])

    def close(self) -> None:
        """Send pending spans and metrics."""
        self._logger.removeHandler(self._events)
        self._provider.shutdown()
        if self._metrics is not None:
            self._metrics.shutdown()


def _event_handler() -> logging.Handler:
    import logging

    from opentelemetry import trace

    class Events(logging.Handler):
        """A log handler that adds records to the current span as events."""

        def emit(self, record: logging.LogRecord) -> None:
            span = trace.get_current_span()
            if span.is_recording():
                attributes = {"level": record.levelname, "target": record.name}
                span.add_event(record.getMessage(), attributes)

    return Events()


def _strip_password(endpoint: str) -> str:
    """Return an endpoint URL without its password."""
    scheme, slashes, rest = endpoint.rpartition("//")
    return f"{scheme}{slashes}{rest.rpartition('@')[2]}"
