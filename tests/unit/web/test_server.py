"""Server: answers on a free port, only to those it should, and never with half a page."""

import json
import re
import socket
from math import inf, nan

import pytest
from prometheus_client import CollectorRegistry
from support.rank_processes import until
from support.results import RUN, case_result, step_result
from support.web_servers import PATIENCE, get, servers

from sentinel.metrics.exposition import Exposition
from sentinel.model.counters import Counters
from sentinel.web.server import WebServer, bind_free_port

PATHS = [
    "/metrics",
    "/-/ready",
    "/api/run",
    "/api/incidents",
    "/api/samples",
    "/",
    "/app.js",
    "/nodes.js",
    "/style.css",
]


@pytest.fixture
def serve():
    with servers() as start:
        yield start


@pytest.fixture(name="get")
def asked():
    return get


def test_serves_the_metrics_of_the_run_in_both_formats(serve, get):
    """Old and new Prometheus each get the format they ask for."""
    shown = Exposition(Counters(), {})
    shown.update(step_result(loss=1.5))
    url = serve(registry=shown.registry) + "/metrics"

    text = get(url)
    assert text.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert f'sentinel_loss{{run="{RUN}"}} 1.5' in text.text

    new = get(url, accept="application/openmetrics-text; version=1.0.0")
    assert new.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert new.text.endswith("# EOF\n")


@pytest.mark.parametrize(
    "accept",
    ["application/openmetrics-text; version=x", "text/plain; version=1.0.0; escaping=odd", ",;=,"],
)
def test_an_accept_header_that_makes_no_sense_still_gets_metrics(serve, get, accept):
    """A scrape is never refused over a header."""
    assert (
        "sentinel_build_info"
        in get(serve(registry=Exposition(Counters(), {}).registry) + "/metrics", accept=accept).text
    )


def test_json_speaks_of_what_is_not_finite_in_words(serve, get):
    """Browsers refuse NaN in JSON, so it is text."""
    url = serve(state=lambda: {"loss": nan, "deep": [{"norm": inf}], "step": 3})

    assert json.loads(get(url + "/api/run").text) == {
        "loss": "nan",
        "deep": [{"norm": "inf"}],
        "step": 3,
    }


def test_the_page_needs_nothing_from_elsewhere(serve, get):
    """Page, script and style come from here, without inline script."""
    url = serve()
    page = get(url + "/")

    assert page.headers["content-type"].startswith("text/html")
    for text in (page.text, get(url + "/app.js").text, get(url + "/style.css").text):
        assert "http://" not in text
        assert "https://" not in text
    assert "<script src=" in page.text
    assert "innerHTML" not in get(url + "/app.js").text


def test_the_script_finds_every_place_it_writes_to(serve, get):
    """Every id that the script asks for is one of the page's, and every cell has its heading."""
    url = serve()
    page, script = get(url + "/").text, get(url + "/app.js").text
    asked = set(re.findall(r'\bat\("(\w+)"\)', script)) | set(re.findall(r'rows\("(\w+)"', script))

    assert {"run", "state", "open", "signals", "ranks", "past", "trouble"} <= asked
    assert asked <= set(re.findall(r'id="([\w-]+)"', page))


def test_the_page_reads_what_the_state_tells(serve, get):
    """Every key that the script reads of a run is one that the exposition gives."""
    script = get(serve() + "/app.js").text
    told = Exposition(Counters(), {}).state()
    read = set(re.findall(r"\brun\.(\w+)", script))

    assert {"run", "state", "step", "signals", "cases", "incidents", "ranks"} <= read <= told.keys()


def test_the_page_reads_what_a_case_tells(serve, get):
    """Of the case, of what is behind it, and of each piece of evidence."""
    script = get(serve() + "/app.js").text
    shown = Exposition(Counters(), {})
    shown.update(case_result())
    (case,) = shown.state()["cases"]
    for name, told in (
        ("told", case),
        ("diagnosis", case["diagnosis"]),
        ("clue", case["diagnosis"]["evidence"][0]),
    ):
        read = set(re.findall(rf"\b{name}\.(\w+)", script))
        assert read
        assert read - {"author", "comment"} <= told.keys()


@pytest.mark.parametrize("path", [*PATHS, "/-/healthy", "/nowhere"])
def test_every_answer_carries_the_security_headers(serve, get, path):
    """Whatever the route, and even where there is none."""
    headers = get(serve() + path).headers

    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", [*PATHS, "/nowhere"])
def test_every_route_but_the_probe_needs_the_token(serve, get, path):
    """Without the token nothing is said, not even which paths there are."""
    url = serve(token="s3cret") + path

    assert get(url).status_code == 401
    assert get(url, authorization="Bearer wrong").status_code == 401
    assert get(url, authorization="Bearer s3cret").status_code in {200, 404}


def test_the_probe_is_open(serve, get):
    """A probe has no token, and a busy state does not keep it waiting."""
    assert get(serve(token="s3cret") + "/-/healthy").status_code == 200


def test_readiness_is_refused_while_the_state_cannot_be_told(serve, get):
    """Ready means that the run's state can be told."""

    def broken():
        message = "no state"
        raise RuntimeError(message)

    url = serve(state=broken)
    assert get(url + "/-/ready").status_code == 503
    assert get(url + "/-/healthy").status_code == 200


def test_a_taken_port_gives_the_next_free_one():
    """A busy port is stepped over."""
    with bind_free_port("127.0.0.1", 0, 1) as first:
        taken = first.getsockname()[1]
        with bind_free_port("127.0.0.1", taken, 50) as second:
            assert taken < second.getsockname()[1] < taken + 50


def test_no_free_port_is_said_with_the_range():
    """When all are taken, the message names the range."""
    with bind_free_port("127.0.0.1", 0, 1) as first:
        taken = first.getsockname()[1]
        with pytest.raises(OSError, match=f"No free port on 127.0.0.1 from {taken} on"):
            bind_free_port("127.0.0.1", taken, 1)


def test_other_machines_need_a_token():
    """An open door to the network is refused at the start, with the remedy."""
    with pytest.raises(ValueError, match=r"'0.0.0.0' is reachable from other machines: set a tok"):
        WebServer(CollectorRegistry(), dict, list, host="0.0.0.0")


def test_the_token_cannot_be_printed():
    """A printed server does not give its token away."""
    assert "s3cret" not in repr(WebServer(CollectorRegistry(), dict, list, token="s3cret"))


def test_a_stopped_server_leaves_its_port(serve, get):
    """After stop nobody answers there."""
    server = WebServer(CollectorRegistry(), dict, list)
    port = server.start()
    assert get(f"http://127.0.0.1:{port}/-/healthy").status_code == 200
    server.stop()

    until(lambda: refused(port), PATIENCE, "the port is free")


def refused(port):
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 5000 + b"\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
    ],
    ids=["bytes", "long path", "many headers", "negative length"],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_garbage_is_refused_and_the_server_lives(serve, get, garbage):
    """Malformed requests get 4xx or a closed door, and the next scrape is answered."""
    url = serve()
    port = int(url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as peer:
        try:
            peer.sendall(garbage)
            answer = peer.recv(1000)
        except ConnectionError:
            answer = b""

    assert not answer or answer.startswith(b"HTTP/1.1 4")
    assert get(url + "/-/healthy").status_code == 200


def test_texts_are_told_of_a_step_and_at_most_so_many(serve, get):
    asked = []

    def samples(step, limit):
        asked.append((step, limit))
        return [{"completion": "\x1b \ud83d", "rewards": {"": nan}}]

    url = serve(samples=samples) + "/api/samples"

    assert get(url).json() == [{"completion": "\x1b \ud83d", "rewards": {"": "nan"}}]
    assert get(f"{url}?step=7&limit=3").status_code == 200
    assert asked == [(None, 20), (7, 3)]


@pytest.mark.parametrize("query", ["step=x", "limit=-1", "step=1.5", "limit=" + "9" * 30, "step=²"])
def test_a_question_for_texts_that_makes_no_sense_is_refused_with_what_is_wrong(serve, get, query):
    answer = get(f"{serve()}/api/samples?{query}")

    assert answer.status_code == 400
    assert query.partition("=")[0] in answer.text
