"""The comparison of runs over HTTP, and the download of a report."""

from __future__ import annotations

import pytest
import requests
from support.stored_homes import write_run

from sentinel.metrics.stored_state import stored_state
from sentinel.store.run_reader import RunReader
from sentinel.web.home.home_site import HomeSite
from sentinel.web.run_routes import RunView
from sentinel.web.server import WebServer

TIMEOUT_SECONDS = 240.0


class Runs:
    """The runs of a home, each with a view of its own."""

    def __init__(self, paths):
        self.views = {
            path.parent.name: RunView(
                path.parent.name, RunReader(path), lambda path=path: stored_state(path), path
            )
            for path in paths
        }

    def list_runs(self, query):
        return {}

    def view(self, run):
        return self.views.get(run)


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    paths = [
        write_run(home, run="sick", steps=160, fault_at=100),
        write_run(home, run="well", steps=120, ranks=1, seed=2),
    ]
    missing = RunView("missing", RunReader(home / "no.db"), lambda: {"run": "missing"}, home / "no")
    runs = Runs(paths)
    runs.views["missing"] = missing
    server = WebServer(lambda: HomeSite(runs))
    yield f"http://127.0.0.1:{server.start()}"
    server.stop()


def get(url):
    return requests.get(url, headers={"connection": "close"}, timeout=TIMEOUT_SECONDS)


def test_a_browser_that_opens_an_unknown_run_gets_a_page_with_a_way_back(url):
    headers = {"accept": "text/html,*/*", "connection": "close"}
    for path, root in (("/runs/nope/", "../../"), ("/nope", "./")):
        answer = requests.get(url + path, headers=headers, timeout=TIMEOUT_SECONDS)
        assert answer.status_code == 404
        assert f'<a class="crumb" href="{root}">Runs</a>' in answer.text
        assert f'href="{root}static/style.css"' in answer.text
    assert get(f"{url}/runs/nope/").text == "There is no such run. It may have been deleted."


def test_runs_are_compared_in_the_order_of_the_query(url):
    answer = get(f"{url}/api/compare?run=well&run=sick&signals=loss&points=50").json()

    assert [run["name"] for run in answer["runs"]] == ["well", "sick"]
    assert [*answer["series"]] == ["loss"]
    assert [problem["title"] for problem in answer["problems"]] == ["Policy collapse"]


def test_the_first_answer_states_where_the_last_run_departs(url):
    answer = get(f"{url}/api/compare?run=well&run=sick").json()["what_changed"]

    assert (answer["run"], answer["good"]) == ("sick", ["well"])
    assert answer["departures"][0]["step"] == pytest.approx(100, abs=15)
    assert "what_changed" not in get(f"{url}/api/compare?run=well").json()


def test_a_part_of_the_axis_is_read_in_detail(url):
    answer = get(f"{url}/api/compare?run=well&signals=loss&from=20&to=30").json()

    (curve,) = answer["series"]["loss"]
    assert curve["is_raw"]
    assert 20 <= min(curve["x"]) <= max(curve["x"]) <= 30


@pytest.mark.parametrize(
    ("query", "status", "message"),
    [
        ("", 400, "Give 1 to 20 runs"),
        ("run=a&" * 30, 404, "There is no run 'a'"),
        ("&".join(f"run={number}" for number in range(21)), 400, "Give 1 to 20 runs"),
        ("run=gone", 404, "There is no run 'gone'. It may have been deleted."),
        ("run=well&run=missing", 503, "The data of a run cannot be read"),
        ("run=well&axis=epochs", 400, "axis must be one of step, time, tokens."),
        ("run=well&from=a", 400, "from must be a number"),
        ("run=well&points=-1", 400, "points must be a whole number"),
    ],
)
def test_what_cannot_be_compared_is_refused(url, query, status, message):
    answer = get(f"{url}/api/compare?{query}")

    assert answer.status_code == status
    assert message in answer.json()["error"]


def test_the_report_is_a_download_with_the_name_of_the_run(url):
    answer = get(f"{url}/runs/sick/report.html")

    assert answer.status_code == 200, answer.text
    assert answer.headers["content-disposition"] == 'attachment; filename="sentinel-sick.html"'
    assert "Policy collapse" in answer.text
    assert '"run":"sick"' in answer.text


def test_a_run_without_a_database_has_no_report(url):
    answer = get(f"{url}/runs/missing/report.html")

    assert answer.status_code == 404
    assert answer.json() == {"error": "Nothing is stored of this run yet."}


def test_the_page_that_compares_is_served(url):
    answer = get(f"{url}/compare?run=well")

    assert answer.status_code == 200
    assert "compare.js" in answer.text
