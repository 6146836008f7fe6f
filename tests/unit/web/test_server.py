"""HTTP server of the agent: routes, ports, tokens and malformed requests."""

import json
import re
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from math import inf, nan
from threading import Event, Timer

import pytest
import requests
from hypothesis import given
from hypothesis.strategies import binary, builds, integers, lists, sampled_from
from starlette.applications import Starlette
from support.rank_processes import until
from support.results import RUN, step_result
from support.web_servers import TIMEOUT_SECONDS, get, make_site, servers

from sentinel.metrics.exposition import Exposition
from sentinel.model.counters import Counters
from sentinel.web.connections import TimedH11Protocol
from sentinel.web.http_server import make_server
from sentinel.web.server import WebServer, bind_free_port
from sentinel.web.static_files import STATIC_DIRECTORY
from sentinel.web.suppression_api import SuppressionApi

PATHS = [
    "/metrics",
    "/-/ready",
    "/api/run",
    "/api/incidents",
    "/api/samples",
    "/",
    f"/runs/{RUN}",
    f"/runs/{RUN}/",
    f"/runs/{RUN}/api/run",
    "/static/run.js",
]


@pytest.fixture
def serve():
    with servers() as start:
        yield start


@pytest.fixture(name="get")
def requested():
    return get


def test_serves_the_metrics_of_the_run_in_both_formats(serve, get):
    exposition = Exposition(Counters(), {})
    exposition.update(step_result(loss=1.5))
    url = serve(registry=exposition.registry) + "/metrics"

    text = get(url)
    assert text.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert f'sentinel_loss{{run="{RUN}"}} 1.5' in text.text

    openmetrics = get(url, accept="application/openmetrics-text; version=1.0.0")
    assert openmetrics.headers["content-type"].startswith(
        "application/openmetrics-text; version=1.0.0"
    )
    assert openmetrics.text.endswith("# EOF\n")


def test_the_agents_of_the_home_directory_are_listed_for_http_discovery(
    serve, get, monkeypatch, tmp_path
):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path))
    url = serve() + "/sd"
    assert get(url).json() == []

    groups = [{"targets": [f"127.0.0.1:{port}"], "labels": {}} for port in (13130, 13131)]
    (tmp_path / "targets").mkdir()
    for name, group in zip("ab", groups, strict=True):
        (tmp_path / "targets" / f"{name}.json").write_text(json.dumps([group]))
    for name, text in {"c": "[{", "d": '{"targets": []}', "e": '["f"]', "g": "7"}.items():
        (tmp_path / "targets" / f"{name}.json").write_text(text)
    answer = get(url)

    assert answer.json() == groups
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    "accept",
    ["application/openmetrics-text; version=x", "text/plain; version=1.0.0; escaping=odd", ",;=,"],
)
def test_a_malformed_accept_header_still_gets_metrics(serve, get, accept):
    assert (
        "sentinel_build_info"
        in get(serve(registry=Exposition(Counters(), {}).registry) + "/metrics", accept=accept).text
    )


def test_nan_and_infinity_are_text_in_json(serve, get):
    """Browsers reject NaN in JSON."""
    url = serve(state=lambda: {"loss": nan, "deep": [{"norm": inf}], "step": 3})

    state = json.loads(get(url + "/api/run").text)
    assert (state["loss"], state["deep"], state["step"]) == ("nan", [{"norm": "inf"}], 3)


def test_the_page_loads_nothing_from_other_servers(serve, get):
    """Page, scripts and style are served here, without inline scripts."""
    url = serve()
    page = get(url + "/")

    assert page.url == f"{url}/runs/{RUN}/"
    assert page.headers["content-type"].startswith("text/html")
    assert re.findall(r"<script[^>]*>(?!</script>)", page.text) == []
    linked = re.findall(r'(?:src|href)="\.\./\.\./([\w./@-]+)"', page.text)
    assert len(linked) >= 2
    for text in (page.text, *(get(f"{url}/{path}").text for path in linked)):
        assert "http://" not in text
        assert "https://" not in text
        assert "innerHTML" not in text


def test_every_run_key_in_the_scripts_exists_in_the_state():
    # On the other pages, a run is one of several.
    pages = ("runs.js", "compare.js", "compare_page.js")
    paths = (path for path in STATIC_DIRECTORY.rglob("*.js") if path.name not in pages)
    scripts = "".join(path.read_text() for path in paths)
    state = Exposition(Counters(), {}).state()
    arrays = {"js", "length", "push", "join"}
    # Of a server with a list of runs, of what else is stored, or of a run with a log only.
    others = {"is_listed", "insight", "layers", "log", "note", "verdict"}
    read = set(re.findall(r"\brun\.(\w+)", scripts)) - arrays - others

    assert {"run", "state", "step", "cases", "incidents"} <= read <= state.keys()


@pytest.mark.parametrize("path", [*PATHS, "/-/healthy", "/nowhere"])
def test_every_response_has_the_security_headers(serve, get, path):
    headers = get(serve() + path).headers

    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"


@pytest.fixture
def paths_of_routes(tmp_path, monkeypatch):
    """The path of every route of a server, as the router has them."""
    routers = []
    monkeypatch.setattr(
        "sentinel.web.http_server.Starlette",
        lambda routes, **more: routers.append(routes) or Starlette(routes=routes, **more),
    )
    make_server(WebServer(lambda: make_site(suppression=SuppressionApi(RUN, tmp_path / "db"))))
    parameters = {"{name}": "nan_or_inf", "{run}": RUN, "{path:path}": "run.js", "{id:int}": "1"}
    paths = [route.path for route in routers[0]]
    for name, value in parameters.items():
        paths = [path.replace(name, value) for path in paths]
    return [path for path in paths if not path.endswith("/api/events")]


@pytest.mark.fault("X3")
def test_every_route_but_the_probes_requires_the_token(serve, get, paths_of_routes, tmp_path):
    """An unknown path requires it too, so that paths cannot be listed without it."""
    url = serve(token="s3cret", suppression=SuppressionApi(RUN, tmp_path / "db"))
    assert {*PATHS, "/api/silence", "/api/acknowledge", "/api/note", "/api/write-token"} <= {
        *paths_of_routes
    }

    for path in (*paths_of_routes, "/nowhere", "/-/healthy/", "//-/healthy", "/-/healthy%2f"):
        for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"):
            plain = requests.request(method, url + path, timeout=TIMEOUT_SECONDS)
            wrong = {"authorization": "Bearer wrong"}
            refused = requests.request(method, url + path, headers=wrong, timeout=TIMEOUT_SECONDS)
            is_probe = path in {"/-/healthy", "/-/ready"}
            assert (plain.status_code == 401) != is_probe, (method, path)
            assert (refused.status_code == 401) != is_probe, (method, path)
        assert get(url + path, authorization="Bearer s3cret").status_code in {200, 404, 405}


@pytest.mark.fault("X3")
@pytest.mark.parametrize("path", ["/-/healthy", "/-/ready"])
def test_a_probe_requires_no_token(serve, get, path):
    assert get(serve(token="s3cret") + path).status_code == 200


def test_many_requests_of_a_probe_read_the_state_once_a_second(serve, get, monkeypatch):
    calls, now = [], [100.0]
    monkeypatch.setattr("sentinel.web.http_server.monotonic", lambda: now[0])
    url = serve(state=lambda: calls.append(1) or {})
    for seconds in (0.0, 0.5, 0.4, 0.1, 0.9):
        now[0] += seconds
        assert get(url + "/-/ready").status_code == 200

    assert len(calls) == 2


def test_the_server_is_not_ready_while_the_state_cannot_be_read(serve, get):

    def broken():
        message = "no state"
        raise RuntimeError(message)

    url = serve(state=broken)
    assert get(url + "/-/ready").status_code == 503
    assert get(url + "/-/healthy").status_code == 200


@pytest.mark.fault("H9")
@pytest.mark.parametrize(
    ("seconds", "statuses"),
    [
        (0.0, (200, 200)),
        (9.0, (200, 200)),
        (11.0, (503, 200)),
        (59.0, (503, 200)),
        (61.0, (503,) * 2),
    ],
)
def test_a_probe_fails_while_the_loop_does_not_turn(serve, get, seconds, statuses):
    url = serve(loop_seconds=lambda: seconds)

    assert (get(url + "/-/ready").status_code, get(url + "/-/healthy").status_code) == statuses


@pytest.mark.fault("H4")
def test_a_port_in_use_is_skipped():
    with bind_free_port("127.0.0.1", 0, 1) as first:
        taken = first.getsockname()[1]
        with bind_free_port("127.0.0.1", taken, 50) as second:
            assert taken < second.getsockname()[1] < taken + 50


def test_the_former_port_is_used_again_if_it_is_free():
    with bind_free_port("127.0.0.1", 0, 1) as listening:
        port = listening.getsockname()[1]
        other = WebServer(make_site, former_port=port)
        assert other.start() != port
        other.stop()
    server = WebServer(make_site, former_port=port)
    assert server.start() == port
    server.stop()


def test_the_error_without_a_free_port_names_the_range():
    with bind_free_port("127.0.0.1", 0, 1) as first:
        taken = first.getsockname()[1]
        with pytest.raises(OSError, match=f"No free port on 127.0.0.1 from {taken} on"):
            bind_free_port("127.0.0.1", taken, 1)


def test_without_a_free_port_in_the_range_any_port_is_used():
    with bind_free_port("127.0.0.1", 0, 1) as first:
        taken = first.getsockname()[1]
        server = WebServer(make_site, port=taken, port_tries=1, any_port=True)
        assert server.start() not in {0, taken}
        server.stop()
        with pytest.raises(OSError, match="No free port"):
            WebServer(make_site, port=taken, port_tries=1).start()


@pytest.mark.fault("X3")
def test_a_reachable_host_requires_a_token_or_a_login(tmp_path):
    (tmp_path / "web.yml").write_text("{}")
    for file in (None, tmp_path / "web.yml"):
        with pytest.raises(ValueError, match=r"'0.0.0.0' is reachable from other machines: set"):
            WebServer(make_site, host="0.0.0.0", web_config_file=file)


def test_the_repr_has_no_token():
    assert "s3cret" not in repr(WebServer(make_site, token="s3cret"))


def test_a_stopped_server_closes_its_port(serve, get):
    server = WebServer(make_site)
    port = server.start()
    assert get(f"http://127.0.0.1:{port}/-/healthy").status_code == 200
    server.stop()

    until(lambda: is_refused(port), TIMEOUT_SECONDS, "the port is free")


def test_a_server_without_a_connection_imports_nothing():
    script = """
import sys
from sentinel.web.server import WebServer
server = WebServer(lambda: 1 / 0)
assert server.start()
server.stop()
print(*{"asyncio", "starlette", "uvicorn"} & sys.modules.keys())
"""
    completed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert (completed.stdout.strip(), completed.stderr) == ("", "")


def test_the_site_is_made_without_a_connection_after_some_time(monkeypatch):
    monkeypatch.setattr("sentinel.web.server.IMPORT_AFTER_SECONDS", 0.01)
    made = Event()
    server = WebServer(lambda: made.set() or make_site())
    server.start()

    assert made.wait(TIMEOUT_SECONDS)
    server.stop()


def test_connections_that_are_opened_before_the_server_is_there_are_answered():
    may_start = Event()
    server = WebServer(lambda: may_start.wait(TIMEOUT_SECONDS) and make_site())
    address = "127.0.0.1", server.start()
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(address)) for _ in range(20)]
        for client in clients:
            client.sendall(b"GET /-/healthy HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        may_start.set()
        for client in clients:
            client.settimeout(TIMEOUT_SECONDS)
            assert client.recv(64).startswith(b"HTTP/1.1 200 OK")
    server.stop()


def test_a_server_that_is_stopped_while_it_starts_closes_its_port():
    is_starting, may_start = Event(), Event()

    def site():
        is_starting.set()
        may_start.wait(TIMEOUT_SECONDS)
        return make_site()

    server = WebServer(site)
    port = server.start()
    with socket.create_connection(("127.0.0.1", port)):
        assert is_starting.wait(TIMEOUT_SECONDS)
        Timer(0.1, may_start.set).start()
        server.stop()

    until(lambda: is_refused(port), TIMEOUT_SECONDS, "the port is free")


def test_a_server_that_cannot_start_closes_its_port_and_logs_why(caplog):
    server = WebServer(lambda: 1 / 0)
    port = server.start()
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(TIMEOUT_SECONDS)
        with suppress(ConnectionResetError):
            assert client.recv(1) == b""
    until(lambda: is_refused(port), TIMEOUT_SECONDS, "the port is free")
    server.stop()

    assert "the server cannot start" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def is_refused(port):
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.fault("H3")
@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 5000 + b"\r\n",
        b"GET /-/healthy HTTP/1.1\r\nhost: localhost\r\n" + b"a: b\r\n" * 5000 + b"\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET /metrics\0 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=[
        *(
            "bytes",
            "long_path",
            "headers",
            "many_headers",
            "negative_length",
            "two_hosts",
            "no_host",
        ),
        *("nul_in_path", "two_lengths", "malformed_chunk"),
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_malformed_request_is_rejected_and_the_server_keeps_running(serve, get, data):
    """The response is 4xx, or the connection is closed."""
    url = serve()
    port = int(url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS) as peer:
        try:
            peer.sendall(data)
            response = peer.recv(1000)
        except ConnectionError:
            response = b""

    assert not response or response.startswith(b"HTTP/1.1 4")
    assert get(url + "/-/healthy").status_code == 200


@pytest.fixture(scope="module")
def fuzzed_url():
    with servers() as start:
        yield start()


REQUEST_TEXT = b"POST /metrics?step=1 HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\n\r\nabcde"
PARTS = (
    *(bytes([each]) for each in REQUEST_TEXT),
    b"transfer-encoding: chunked\r\n",
    b"\0",
    b"\xff",
)


@pytest.mark.fault("H3")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@given(
    binary(max_size=300)
    | builds(
        lambda start, length, part: REQUEST_TEXT[:start] + part + REQUEST_TEXT[start + length :],
        integers(0, len(REQUEST_TEXT)),
        integers(0, 9),
        lists(sampled_from(PARTS), max_size=9).map(b"".join),
    )
)
def test_no_bytes_stop_the_server(fuzzed_url, data):
    """Random bytes, and a valid request with one part replaced."""
    port = int(fuzzed_url.rpartition(":")[2])
    with pytest.MonkeyPatch.context() as patch:
        # The server does not wait long for the rest of this request.
        patch.setattr(TimedH11Protocol, "request_timeout", 0.02)
        peer = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS)
        with peer, suppress(ConnectionError):
            peer.sendall(data)
            assert peer.recv(1000)[:9] in {b"", b"HTTP/1.1 "}
    assert get(fuzzed_url + "/-/healthy").status_code == 200


def test_samples_take_a_step_and_a_limit(serve, get):
    requested = []

    def samples(step, limit, search, before):
        requested.append((step, limit, search, before))
        return [{"completion": "\x1b \ud83d", "rewards": {"": nan}}]

    url = serve(samples=samples) + "/api/samples"

    assert get(url).json() == [{"completion": "\x1b \ud83d", "rewards": {"": "nan"}}]
    assert get(f"{url}?step=7&limit=3&search=so&before=9").status_code == 200
    assert requested == [(None, 20, "", None), (7, 3, "so", 9)]


@pytest.mark.parametrize("query", ["step=x", "limit=-1", "step=1.5", "limit=" + "9" * 30, "step=²"])
def test_a_malformed_query_for_samples_is_rejected_with_the_parameter(serve, get, query):
    response = get(f"{serve()}/api/samples?{query}")

    assert response.status_code == 400
    assert query.partition("=")[0] in response.text
