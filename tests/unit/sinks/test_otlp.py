"""What a collector responds to a log record, and the variables of OpenTelemetry."""

from __future__ import annotations

import pytest
from support.notifications import make_notification

from sentinel.model.delivery import HttpRequest, Rejection, Response
from sentinel.notify.transports.http import send
from sentinel.sinks.otlp import Otlp


@pytest.mark.parametrize(
    ("response", "is_accepted", "rejection"),
    [
        (Response(200, "{}"), True, None),
        (Response(200, '{"partialSuccess": {"errorMessage": "slow down"}}'), True, None),
        (Response(200, '{"partialSuccess": {"rejectedLogRecords": "0"}}'), True, None),
        (
            Response(200, '{"partialSuccess": {"rejectedLogRecords": "1"}}'),
            False,
            Rejection.PERMANENT,
        ),
        (Response(503, ""), False, None),
    ],
)
def test_a_record_that_is_rejected_is_not_sent_again(response, is_accepted, rejection):
    sink = Otlp(URL)

    assert (sink.is_accepted(response), sink.rejection(response)) == (is_accepted, rejection)


PREFIX = "OTEL_EXPORTER_OTLP_"
URL = "http://127.0.0.1:4318/v1/logs"


@pytest.fixture
def request_with(tmp_path, monkeypatch):
    """The request of a sink with these variables; a value that is a name of a file is its path."""

    def render(**variables):
        for name in ("all.pem", "logs.pem", "key.pem"):
            (tmp_path / name).write_text("")
        for name, value in variables.items():
            path = tmp_path / value if value.endswith(".pem") else value
            monkeypatch.setenv(PREFIX + name, str(path))
        return Otlp().render(make_notification(), "id", None)

    return render


def test_the_variables_for_logs_precede_those_for_all_signals(request_with, tmp_path):
    request = request_with(
        ENDPOINT="http://127.0.0.1:1",
        LOGS_ENDPOINT="http://127.0.0.1:2/logs",
        HEADERS="tenant=all,a=1",
        LOGS_HEADERS="tenant=logs",
        CERTIFICATE="all.pem",
        LOGS_CERTIFICATE="logs.pem",
    )

    assert request.url == "http://127.0.0.1:2/logs"
    assert request.headers["tenant"] == "logs"
    assert "a" not in request.headers
    assert (request.ca_file, request.client_files) == (f"{tmp_path}/logs.pem", ())


def test_the_key_of_a_client_may_be_in_its_certificate(request_with, tmp_path):
    both = request_with(ENDPOINT="http://127.0.0.1:1", CLIENT_CERTIFICATE="all.pem")
    apart = request_with(CLIENT_KEY="key.pem")

    assert both.client_files == (f"{tmp_path}/all.pem",)
    assert apart.client_files == (f"{tmp_path}/all.pem", f"{tmp_path}/key.pem")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("CERTIFICATE", "cannot read the file of the variable OTEL_EXPORTER_OTLP_CERTIFICATE"),
        ("CLIENT_CERTIFICATE", "missing.pem"),
        ("LOGS_CERTIFICATE", "missing.pem"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(request_with, name, message):
    with pytest.raises(ValueError, match=message):
        request_with(ENDPOINT="http://127.0.0.1:1", **{name: "missing.pem"})


def test_a_key_without_a_certificate_is_refused(request_with):
    with pytest.raises(ValueError, match="CLIENT_KEY needs OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"):
        request_with(ENDPOINT="http://127.0.0.1:1", CLIENT_KEY="key.pem")


def test_a_file_that_is_gone_later_is_an_error_of_the_delivery(tmp_path):
    request = HttpRequest(URL.replace("http:", "https:"), ca_file=str(tmp_path / "gone.pem"))

    assert send(request, deadline=10.0).error == "OSError"
