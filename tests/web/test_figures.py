"""Prometheus and OpenTelemetry get the numbers of the journals."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from rl_swarm.errors import ConfigError
from rl_swarm.web import telemetry
from rl_swarm.web.figures import HELP
from rl_swarm.web.runs import Runs
from tests.support.long_run import LongRun
from tests.support.web_server import served

Found = dict[tuple[str, str], float]  # name and node → value


def expected(run: LongRun) -> Found:
    """What the journals say, read apart from the package."""
    found: Found = {("rl_swarm_rounds_done", ""): run.done, ("rl_swarm_workers", ""): len(run.names)}
    for node in run.names:
        rows = [json.loads(line) for line in (run.store.root / run.layout.log(node, "metrics.jsonl")).read_text().splitlines()]
        last = rows[-1]
        values = {
            "reward": last["reward"],
            "reward_total": sum(row["reward"] for row in rows),
            "tokens_total": sum(row["tokens"] for row in rows),
            "tokens_per_second": last["tokens_per_s"],
            "round": last["round"],
            "rounds": len(rows),
            "external_used": last["external_used"],
            "entropy": last["entropy"],
            "rejected_total": sum(last["rejected_total"].values()),
        }
        found |= {(f"rl_swarm_node_{name}", node): value for name, value in values.items()}
    return found


def test_prometheus_reads_the_numbers_of_the_journals(client: TestClient, run: LongRun) -> None:
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(answer.text))
    found = {(each.name, each.labels.get("node", "")): each.value for family in families for each in family.samples}
    for key, value in expected(run).items():
        assert found[key] == pytest.approx(value), key
    assert {each.labels["experiment"] for family in families for each in family.samples} == {"first"}
    assert {family.name for family in families} <= HELP.keys() and all(family.documentation for family in families)


@contextmanager
def collector() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """A collector that keeps what it gets."""
    received: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", received
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.slow
def test_a_collector_gets_the_numbers_of_the_journals_and_the_requests(run: LongRun, tmp_path: Path) -> None:
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.proto") is None:
        pytest.skip("OpenTelemetry is not installed: make test-slow installs it")
    with collector() as (url, received):
        settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_METRIC_EXPORT_INTERVAL": "500", "OTEL_BSP_SCHEDULE_DELAY": "200"}
        with served(run.store.root, tmp_path, environment=settings):
            deadline = time.monotonic() + 60
            while not {"/v1/metrics", "/v1/traces"} <= {path for path, _ in received} and time.monotonic() < deadline:
                time.sleep(0.1)
    metrics = [data for path, data in received if path == "/v1/metrics"]
    assert metrics and any(b"/api/healthz" in data for path, data in received if path == "/v1/traces")
    found: Found = {}
    for data in metrics:
        found |= decoded(data)
    for key, value in expected(run).items():
        assert found[key] == pytest.approx(value), key


def decoded(data: bytes) -> Found:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    found: Found = {}
    for resource in ExportMetricsServiceRequest.FromString(data).resource_metrics:
        for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
            for point in metric.gauge.data_points:
                labels = {each.key: each.value.string_value for each in point.attributes}
                found[metric.name, labels.get("node", "")] = point.as_double if point.HasField("as_double") else point.as_int
    return found


def test_without_the_libraries_the_variable_is_answered(run: LongRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install .*\[otel\]"):
        telemetry.export(Runs(run.store), {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"})
    telemetry.export(Runs(run.store), {})  # nothing is asked for
