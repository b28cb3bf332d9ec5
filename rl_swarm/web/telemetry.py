"""Send the figures of the watched runs to an OpenTelemetry collector, configured by the usual OTEL_… variables.

FastAPI itself records a span and a duration for every request once providers are set.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from rl_swarm.errors import ConfigError, NotFound, StoreAway
from rl_swarm.extras import install_command
from rl_swarm.web.figures import HELP, Figure, figures
from rl_swarm.web.runs import Runs

ENDPOINTS = {
    "metrics": ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"),
    "traces": ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
}


def export(runs: Runs, environment: Mapping[str, str]) -> None:
    """Start the exporters that have an endpoint. The libraries read endpoint, headers, interval and resource themselves."""
    wanted = {kind: any(environment.get(name) for name in names) for kind, names in ENDPOINTS.items()}
    if not any(wanted.values()):
        return
    _require_libraries()
    from opentelemetry import metrics, trace
    from opentelemetry.sdk.resources import Resource

    resource = Resource.create({"service.name": "rl-swarm"})
    if wanted["metrics"]:
        metrics.set_meter_provider(_figures(runs, resource))
    if wanted["traces"]:
        trace.set_tracer_provider(_spans(resource))


def _require_libraries() -> None:
    try:
        there = find_spec("opentelemetry.sdk") and find_spec("opentelemetry.exporter.otlp.proto.http")
    except ModuleNotFoundError:
        there = None
    if not there:
        raise ConfigError(
            f"OTEL_EXPORTER_OTLP_ENDPOINT is set, but OpenTelemetry is not installed: {install_command('otel')}, or unset it"
        )


def _spans(resource: Any) -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def _figures(runs: Runs, resource: Any) -> Any:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    provider = MeterProvider(metric_readers=[PeriodicExportingMetricReader(OTLPMetricExporter())], resource=resource)
    meter = provider.get_meter("rl_swarm")

    def gauge(name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        return lambda options: [Observation(each.value, each.labels) for each in newest(runs) if each.name == name]

    for name, meaning in HELP.items():
        meter.create_observable_gauge(name, [gauge(name)], description=meaning)
    return provider


def newest(runs: Runs) -> list[Figure]:
    """Return the figures of the server's own experiment and of watched ones; none while the store is away."""
    with suppress(NotFound, ConfigError, StoreAway):
        runs.index(None).look()
    found: list[Figure] = []
    for index in runs.watched():
        with index.reading():
            found += figures(index)
    return found
