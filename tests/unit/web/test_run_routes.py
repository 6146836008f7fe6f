"""The data of one run: parameters of requests, and what is answered if it cannot be read."""

from __future__ import annotations

import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, nullcontext
from http.client import HTTPConnection
from threading import Event as Flag
from threading import Semaphore
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
import requests
from prometheus_client import CollectorRegistry
from support.insight_results import surface
from support.rank_processes import until
from support.results import RUN
from support.web_servers import TIMEOUT_SECONDS, StubReader, get, servers

from sentinel.store.artifact import save_artifact
from sentinel.store.database import connect, connect_read_only
from sentinel.web import run_routes, worker_pool
from sentinel.web.agent_site import AgentSite
from sentinel.web.home.home_site import HomeSite
from sentinel.web.run_routes import MAX_READS_PER_RUN, RunView
from sentinel.web.server import WebServer
from sentinel.web.suppression_api import SuppressionApi

SIGNALS = [{"name": name} for name in ("loss", "reward", "my/loss,raw")]


class Reader:
    """Remembers what it was asked."""

    def __init__(self):
        self.asked = []

    def __getattr__(self, name):
        def answer(*arguments, **options):
            self.asked.append((name, arguments, options))
            return {"series": {}} if name != "signals" else SIGNALS

        return answer


@pytest.fixture
def serve():
    with servers() as start:
        yield start


@pytest.fixture
def reader():
    return Reader()


@pytest.fixture
def asked(serve, reader):
    """Returns a function: what the reader is asked for a path."""
    answers = {
        name: getattr(reader, name)
        for name in (
            "signals",
            "series",
            "rank_grid",
            "thresholds",
            "samples",
            "deliveries",
            "media",
            "layers",
        )
    }
    url = serve(**answers)

    def ask(path):
        answer = get(f"{url}/runs/{RUN}/api/{path}")
        assert answer.status_code == 200, answer.text
        return reader.asked[-1][1:]

    return ask


@pytest.mark.parametrize(
    ("path", "arguments", "options"),
    [
        (
            "series?signals=loss,reward&points=100&axis=time&from=1.5&to=2e3",
            (["loss", "reward"],),
            {"points": 100, "axis": "time", "start": 1.5, "end": 2000.0},
        ),
        (
            "series?signals=my/loss,raw&signals=loss&signals=nothing",
            (["my/loss,raw", "loss"],),
            {"points": 800, "axis": "step", "start": None, "end": None},
        ),
        (
            "series?points=999999",
            ([],),
            {"points": 5000, "axis": "step", "start": None, "end": None},
        ),
        ("ranks?signal=loss&columns=9", ("loss",), {"columns": 9, "start": None, "end": None}),
        (
            "layers?statistic=layer_grad_norm&columns=9&from=2",
            ("layer_grad_norm",),
            {"columns": 9, "start": 2.0, "end": None},
        ),
        ("samples?step=7&search=fox&before=30", (7, 20, "fox", 30), {}),
        ("deliveries?limit=5", (5,), {}),
        ("deliveries?limit=999999", (2000,), {}),
        ("media?kind=image", ("image", 200), {}),
    ],
)
def test_the_reader_gets_the_parameters_within_bounds(asked, path, arguments, options):
    assert asked(path) == (arguments, options)


@pytest.mark.parametrize(
    "path",
    [
        "series?axis=wall",
        "series?points=many",
        "series?from=nan",
        "series?to=x",
        "deliveries?limit=-1",
    ],
)
def test_a_malformed_parameter_is_named(serve, path):
    answer = get(f"{serve()}/api/{path}")

    assert answer.status_code == 400
    assert answer.json()["error"].startswith(path.partition("?")[2].partition("=")[0])


@pytest.mark.parametrize(
    "path", ["runs/other/", "runs/other/api/run", "runs/%2e%2e/api/run", "runs/a%2fb/", "runs/"]
)
def test_an_agent_serves_its_run_only(serve, path):
    assert get(f"{serve()}/{path}").status_code == 404


def test_addresses_are_relative_for_a_proxy_with_a_path(serve):
    url = serve()
    for path, target in (("/", f"runs/{RUN}/"), (f"/runs/{RUN}", f"{RUN}/")):
        answer = requests.get(url + path, allow_redirects=False, timeout=TIMEOUT_SECONDS)
        assert (answer.status_code, answer.headers["location"]) == (307, target)


def test_the_data_are_at_the_root_of_an_agent_and_below_its_run(serve):
    url = serve()

    assert get(f"{url}/api/run").json() == get(f"{url}/runs/{RUN}/api/run").json()


@pytest.mark.parametrize(
    ("error", "status"),
    [(sqlite3.OperationalError("disk I/O error"), 503), (FileNotFoundError(2, "gone"), 404)],
)
def test_data_that_cannot_be_read_are_an_error_for_people(serve, error, status):
    def incidents():
        raise error

    answer = get(f"{serve(incidents=incidents)}/api/incidents")

    assert answer.status_code == status
    assert answer.json()["error"].startswith("The data of this run")


def test_a_disk_that_hangs_does_not_keep_other_answers(serve, monkeypatch):
    monkeypatch.setattr(worker_pool, "READ_TIMEOUT_SECONDS", 0.2)
    hanging = Flag()
    url = serve(incidents=lambda: hanging.wait(TIMEOUT_SECONDS) and [])
    for _ in range(12):
        assert get(f"{url}/api/incidents").status_code == 503
    for path in ("/-/healthy", "/metrics", "/static/run.js", f"/runs/{RUN}/"):
        assert get(url + path).status_code == 200
    hanging.set()


def test_the_state_does_not_wait_for_long_readings_of_the_run(serve):
    """Nor do other runs of the server."""
    reading, released = Semaphore(0), Flag()

    def series(*_, **__):
        reading.release()
        released.wait(TIMEOUT_SECONDS)
        return {"series": {}}

    url = serve(series=series)
    with ThreadPoolExecutor(12) as clients:
        waiting = [clients.submit(get, f"{url}/api/series") for _ in range(12)]
        for _ in range(MAX_READS_PER_RUN):
            assert reading.acquire(timeout=TIMEOUT_SECONDS)
        assert get(f"{url}/api/run").json()["run"] == RUN
        released.set()
        assert {each.result().status_code for each in waiting} == {200}


def test_series_have_seven_digits_unless_they_are_to_be_exact(serve):
    curve = {
        "x": [1, 2, 3],
        "mean": [1 / 3, -2e-300, 123456789.0],
        "min": [None, 0.0, -0.125],
        "max": [1e300, 2.0, 16777217.0],
        "rank_min": None,
        "rank_max": [None, None, 0.1 + 0.2],
        "bad": [],
        "last": 1 / 3,
    }
    found = {"axis": "step", "series": {'my/"loss",é': curve}, "last_id": 3}
    url = serve(signals=list, series=lambda *_, **__: found)

    shown = get(f"{url}/runs/{RUN}/api/series").json()
    assert shown == found | {
        "series": {
            'my/"loss",é': curve
            | {
                "mean": [0.3333333, -2e-300, 123456800.0],
                "max": [1e300, 2.0, 16777220.0],
                "rank_max": [None, None, 0.3],
            }
        }
    }
    assert get(f"{url}/runs/{RUN}/api/series?exact=1").json() == found


def test_an_image_is_loaded_once(serve):
    url = serve(media_body=lambda _: ("image/png", b"png")) + "/api/media/4"
    answer = get(url)
    again = get(url, **{"if-none-match": answer.headers["etag"]})

    assert (answer.content, answer.headers["content-type"]) == (b"png", "image/png")
    assert (again.status_code, again.content) == (304, b"")


def test_an_image_that_is_gone_is_not_found(serve):
    def media_body(number):
        raise KeyError(number)

    assert get(serve(media_body=media_body) + "/api/media/4").status_code == 404


def test_nothing_can_be_changed_without_an_agent(serve):
    """The page of a run from long ago."""
    url = serve()
    token = get(url + "/api/write-token").json()["token"]
    headers = {"x-sentinel-write-token": token, "connection": "close"}
    body = {"for": "2h"}
    answer = requests.post(
        f"{url}/runs/{RUN}/api/silence", json=body, headers=headers, timeout=TIMEOUT_SECONDS
    )

    assert (answer.status_code, answer.json()) == (409, {"error": "No agent serves this run."})


@pytest.mark.fault("X5")
def test_the_page_of_a_run_writes_through_the_same_gate(serve, tmp_path):
    url = serve(suppression=SuppressionApi(RUN, tmp_path / "sentinel.db"))
    for path in ("acknowledge", "silence"):
        answer = requests.post(f"{url}/runs/{RUN}/api/{path}", json={}, timeout=TIMEOUT_SECONDS)
        assert answer.status_code == 403


def view_of(directory):
    """The view of a run whose files are in that directory."""
    return RunView(RUN, StubReader(), lambda: {"run": RUN}, directory / "sentinel.db")


@contextmanager
def site_server(view):
    server = WebServer(lambda: AgentSite(CollectorRegistry(), view))
    yield f"http://127.0.0.1:{server.start()}"
    server.stop()


def test_results_of_insight_are_listed_and_read(tmp_path):
    save_artifact(tmp_path, surface(40, size=5))
    (tmp_path / "insight" / "bad.json").write_text('{"version":1,"kind":"a",\n"data":')
    state = view_of(tmp_path).read_state()
    assert state["insight"]
    assert "layers" not in state
    with site_server(view_of(tmp_path)) as url:
        (listed,) = [each for each in get(f"{url}/api/insight").json() if each["id"] != "bad"]
        assert (listed["id"], listed["step"]) == ("loss_surface-40", 40)
        found = get(f"{url}/runs/{RUN}/api/insight/{listed['id']}").json()
        assert found["data"]["x"] == [-1.0, -0.5, 0.0, 0.5, 1.0]
        for path in ("bad", "missing", "..%2f..%2fsentinel.db", "%3Cscript%3E"):
            answer = get(f"{url}/api/insight/{path}")
            assert answer.status_code == 404
            assert answer.headers["content-type"] != "text/html"


def test_a_run_without_results_has_the_same_state_as_ever(tmp_path):
    assert view_of(tmp_path).read_state().keys() == {"run", "verdict"}


def test_a_request_that_waits_is_answered_once_its_condition_holds(serve):
    looks = iter([{"run": RUN, "state": "running", "step": step} for step in (1, 9)])
    url = serve(state=lambda: next(looks))
    answer = get(f"{url}/api/wait?until=unhealthy&until=step%3D9&seconds=30").json()

    assert answer["verdict"]["step"] == 9


def test_a_request_waits_on_when_the_files_of_a_run_move(tmp_path, monkeypatch):
    """At the end, the agent moves the database from shared memory to the home directory."""
    monkeypatch.setattr(run_routes, "WAIT_LOOK_SECONDS", 0.01)

    looks = []

    def shared():
        if looks:
            raise FileNotFoundError
        looks.append(1)
        return {"run": RUN, "state": "running", "step": 1}

    ended = {"run": RUN, "state": "finished"}
    states = {"shared.db": shared, "home.db": lambda: ended}
    views = iter(
        [RunView(RUN, StubReader(), state, tmp_path / name) for name, state in states.items()]
    )
    server = WebServer(lambda: HomeSite(SimpleNamespace(view=lambda _: next(views))))
    url = f"http://127.0.0.1:{server.start()}/runs/{RUN}"
    answer = get(f"{url}/api/wait?until=finished&seconds=60")
    server.stop()

    assert answer.json()["verdict"]["status"] == "ended_well"


def test_a_request_whose_client_has_gone_does_not_wait(monkeypatch):
    looks = []
    monkeypatch.setattr(run_routes, "WAIT_LOOK_SECONDS", 0.02)
    # Longer than the test waits for its end.
    monkeypatch.setattr(run_routes, "MAX_WAIT_SECONDS", 300.0)
    with servers() as start:
        url = start(state=lambda: looks.append(time.monotonic()) or {"run": RUN})
        client = HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT_SECONDS)
        client.request("GET", "/api/wait?until=finished&seconds=300")
        until(lambda: looks, TIMEOUT_SECONDS, "the request waits")
        client.close()
        until(lambda: looks[-1] + 1.0 < time.monotonic(), TIMEOUT_SECONDS, "the wait has ended")


def test_a_request_that_waits_in_vain_is_answered_in_time(serve):
    url = serve(state=lambda: {"run": RUN, "state": "running", "step": 1})
    verdict = get(f"{url}/api/wait?until=finished&seconds=0.1").json()["verdict"]

    assert (verdict["status"], verdict["step"]) == ("healthy", 1)
    refused = get(f"{url}/api/wait?until=finshed")
    assert refused.status_code == 400
    assert "Did you mean 'finished'?" in refused.json()["error"]


def test_the_end_is_judged_by_what_is_committed_of_it(tmp_path):
    """An agent shows the state `finished` within the transaction that closes the open cases."""
    database = tmp_path / "sentinel.db"
    case = {"name": f"{RUN}/x#1", "severity": "critical", "subject": "x", "onset_step": 1}
    closed = case | {"resolved_step": 2, "lasted_until": "run_finished"}

    def cases():
        with closing(connect_read_only(database)) as connection:
            is_closed = connection.execute("select 1 from note").fetchone()
        return [closed if is_closed else case]

    state = {"run": RUN, "state": "finished", "is_live": True, "step": 130}
    view = RunView(RUN, StubReader(cases=cases), lambda: state, database)
    with ThreadPoolExecutor() as pool, closing(connect(database)) as ending:
        ending.execute("create table note(text)")
        ending.execute("begin immediate")
        ending.execute("insert into note values('the case is closed')")
        reading = pool.submit(view.read_state)
        wait([reading], timeout=0.3)
        ending.execute("commit")

        assert reading.result()["verdict"]["status"] == "ended_badly"


@pytest.mark.parametrize("is_log", [False, True])
def test_a_database_that_cannot_be_written_is_read_all_the_same(tmp_path, is_log):
    """Neither one of another user, nor one that is being written from a log."""
    state = {"run": RUN, "state": "finished", "is_live": True, "step": 130, "is_log": is_log}
    case = {"name": f"{RUN}/x#1", "severity": "critical", "subject": "x", "onset_step": 1}
    closed = case | {"resolved_step": 2, "lasted_until": "run_finished"}
    database = tmp_path / "none.db"
    with closing(connect(database)) if is_log else nullcontext() as importing:
        if is_log:
            importing.execute("begin immediate")
        view = RunView(RUN, StubReader(cases=lambda: [closed]), lambda: state, database)

        assert view.read_state()["verdict"]["status"] == "ended_badly"


def test_cases_that_are_read_again_are_not_missing_meanwhile(tmp_path, monkeypatch):
    monkeypatch.setattr(run_routes, "CASES_SECONDS", 1e9)
    case = {"name": f"{RUN}/x#1", "severity": "critical", "subject": "x", "onset_step": 1}
    running, ended = ({"run": RUN, "state": name} for name in ("running", "finished"))
    seen = []

    def cases():
        if seen:
            # What another thread reads at this moment.
            seen.append(view.read_state()["verdict"]["past_count"])
        return [case | {"resolved_step": 2, "opened_step": 1}]

    states = iter([running, ended, running])
    view = RunView(RUN, StubReader(cases=cases), lambda: next(states), tmp_path / "none.db")
    seen.append(view.read_state()["verdict"]["past_count"])
    seen.append(view.read_state()["verdict"]["past_count"])

    assert seen == [1, 1, 1]


def test_the_verdict_of_an_agent_is_passed_on(tmp_path):
    state = {"run": RUN, "state": "finished", "is_live": True, "verdict": {"status": "ended_badly"}}
    view = RunView(RUN, StubReader(), lambda: state, tmp_path / "none.db")

    assert view.read_state()["verdict"] == {"status": "ended_badly"}
