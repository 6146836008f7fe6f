"""A run whose agent sends metrics and cases to an OpenTelemetry collector."""

from __future__ import annotations

import gzip
import socket
import ssl
import subprocess
import sys

import pytest
from google.protobuf.json_format import Parse
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from support.certificates import make_certificate, server_context
from support.rank_processes import has_ended, until
from support.webhook_receiver import Receiver

from sentinel.transport.paths import current_run_dir

SCRIPT = """
import sentinel, time

@sentinel.monitor
def train():
    for step in range(1, 60):
        sentinel.log({"loss": 2.0 if step < 30 else float("nan")}, step=step)
        time.sleep(0.02)
train()
"""


@pytest.fixture(autouse=True)
def environment(tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "rings"))
    monkeypatch.setenv("SENTINEL_RUN_ID", "exported")
    monkeypatch.setenv("SENTINEL_LINGER_SECONDS", "0")
    monkeypatch.setenv("SENTINEL_OTLP", "true")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "200")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=post-training")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20key")
    monkeypatch.chdir(tmp_path)


def train():
    """Train, and wait for the end of the agent."""
    subprocess.run([sys.executable, "-c", SCRIPT], timeout=240, check=True)
    # The agent moves its files at its end.
    until(lambda: has_ended(current_run_dir("exported")), 240.0, "the agent has ended")


def metrics_of(requests):
    """The metrics of each export, with its resource."""
    for request in requests:
        body = request.body
        if request.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        (group,) = ExportMetricsServiceRequest.FromString(body).resource_metrics
        (scope,) = group.scope_metrics
        yield texts(group.resource.attributes), {each.name: each for each in scope.metrics}


def texts(pairs):
    return {each.key: each.value.string_value for each in pairs}


@pytest.fixture
def tls(tmp_path, monkeypatch):
    """TLS of a collector that accepts the certificate of the agent only, named by the variables."""
    files = {}
    for name in ("server", "client"):
        folder = files[name] = tmp_path / name
        folder.mkdir()
        make_certificate(folder)
    variables = {
        "CERTIFICATE": files["server"] / "certificate.pem",
        "CLIENT_CERTIFICATE": files["client"] / "certificate.pem",
        "CLIENT_KEY": files["client"] / "key.pem",
    }
    for name, path in variables.items():
        monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{name}", str(path))
    # It has other certificates, and does not replace the variable.
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(files["client"] / "certificate.pem"))
    context = server_context(files["server"] / "both.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(files["client"] / "certificate.pem")
    return context


def test_metrics_and_cases_are_sent_in_the_format_of_opentelemetry(tmp_path, monkeypatch, tls):
    with Receiver(tls=tls) as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url.rstrip("/"))
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_LOGS_HEADERS", "tenant=cases")
        (tmp_path / "sentinel.toml").write_text("[sinks.otlp]\n")
        train()
    exports = [each for each in collector.accepted if each.path.endswith("/v1/metrics")]
    cases = [each for each in collector.accepted if each.path.endswith("/v1/logs")]

    resource, metrics = [*metrics_of(exports)][-1]
    assert resource["service.name"] == "sentinel"
    assert resource["service.instance.id"] == "exported"
    assert resource["team"] == "post-training"
    (steps,) = metrics["sentinel.steps"].sum.data_points
    assert (steps.as_double, texts(steps.attributes)) == (59.0, {"run": "exported"})
    assert metrics["sentinel.steps"].sum.is_monotonic
    (times,) = metrics["sentinel.step_time"].histogram.data_points
    assert metrics["sentinel.step_time"].unit == "s"
    assert sum(times.bucket_counts) == times.count == 58
    assert len(times.bucket_counts) == len(times.explicit_bounds) + 1
    assert metrics["sentinel.loss"].gauge.data_points[0].as_double != 2.0

    assert {each.headers["api-key"] for each in exports} == {"a key"}
    assert {(each.headers["tenant"], each.headers.get("api-key")) for each in cases} == {
        ("cases", None)
    }
    sent = Parse(cases[0].body, ExportLogsServiceRequest()).resource_logs[0]
    (record,) = sent.scope_logs[0].log_records
    assert (record.event_name, record.severity_text) == ("sentinel.case", "ERROR")
    assert texts(record.attributes)["sentinel.run"] == "exported"
    assert texts(record.attributes)["sentinel.detector"] == "nan_or_inf"
    assert "NaN" in record.body.string_value


def test_a_collector_that_hangs_delays_neither_training_nor_notification(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as hanging, Receiver() as receiver:
        monkeypatch.setenv(
            "OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{hanging.getsockname()[1]}"
        )
        (tmp_path / "sentinel.toml").write_text(f'[sinks.webhook]\nurl = "{receiver.url}"\n')
        train()

    alerts = [each.json["commonLabels"]["alertname"] for each in receiver.accepted]
    assert "nan_or_inf" in alerts


def test_without_the_setting_the_variables_alone_send_nothing(monkeypatch):
    monkeypatch.delenv("SENTINEL_OTLP")
    with Receiver() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url.rstrip("/"))
        train()

    assert collector.accepted == []
