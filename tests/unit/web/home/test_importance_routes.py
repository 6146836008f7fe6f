"""The importance of settings over HTTP: a process works it out while the page asks for it."""

from __future__ import annotations

import json
import time

import pytest
import requests
from support.rank_processes import until

from sentinel.web.home import importance_routes
from sentinel.web.home.home_site import HomeSite
from sentinel.web.home.importance_routes import ImportanceJobs
from sentinel.web.server import WebServer

TIMEOUT_SECONDS = 240.0


class Runs:
    """Logs of runs by name."""

    def __init__(self, folder):
        self.paths = {}
        for place in range(6):
            path = folder / f"run-{place}" / "log.jsonl"
            path.parent.mkdir()
            path.write_text(json.dumps({"step": 1, "loss": 1.0 + place}) + "\n")
            (path.parent / "args.json").write_text(json.dumps({"lr": place, "model": "tiny"}))
            self.paths[f"run-{place}"] = path

    def list_runs(self, query):
        return {"runs": [{"run": run} for run in self.paths if query.filter in run]}

    def path(self, run):
        return self.paths.get(run)


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    site = HomeSite(Runs(tmp_path_factory.mktemp("logs")))
    server = WebServer(lambda: site)
    yield f"http://127.0.0.1:{server.start()}/api/importance"
    site.close()
    server.stop()


def get(url):
    return requests.get(url, headers={"connection": "close"}, timeout=TIMEOUT_SECONDS)


def ended(url):
    answer = get(url).json()
    return answer if answer.get("state") in {"done", "failed"} else None


def test_the_runs_of_a_filter_are_explained(url):
    answer = until(lambda: ended(f"{url}?filter=run"), TIMEOUT_SECONDS, "the answer")

    assert answer["state"] == "done", answer
    result = answer["result"]
    assert [each["name"] for each in result["settings"]] == ["lr"]
    assert result["settings"][0]["correlation"] == 1.0
    assert {row[0] for row in result["table"]["rows"]} == {f"run-{place}" for place in range(6)}
    assert result["outcomes"] == ["loss"]
    assert "6 runs with different settings are too few" in result["note"][0]


def test_what_cannot_be_explained_is_said(url):
    runs = "&".join(f"run=run-{place}" for place in range(3))
    answer = until(lambda: ended(f"{url}?{runs}"), TIMEOUT_SECONDS, "the answer")

    assert answer == {
        "state": "failed",
        "error": "only 3 of 3 runs have a finite loss: at least 5 are needed.",
    }


@pytest.mark.parametrize(
    ("query", "status", "message"),
    [
        ("run=nope", 404, "There is no run 'nope'."),
        ("filter=nothing", 400, "Choose 1 to 5000 runs, not 0."),
        ("statistic=first", 400, "statistic must be one of last, best, mean."),
        ("failed=keep", 400, "failed must be one of drop, worst."),
        ("better=more", 400, "better must be one of lower, higher."),
    ],
)
def test_an_invalid_query_is_refused(url, query, status, message):
    answer = get(f"{url}?{query}")

    assert answer.status_code == status
    assert answer.json()["error"].startswith(message)


class Process:
    """A process that answers when it is told to."""

    def __init__(self, lines=()):
        self.stdin, self.stdout, self.is_killed = self, iter(lines), False

    def write(self, text):
        self.request = json.loads(text)

    def close(self):
        pass

    def kill(self):
        self.is_killed = True

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def test_one_process_works_at_a_time_and_ends_when_nobody_waits(monkeypatch):
    now, started = [0.0], []

    def lines():
        while not started[-1].is_killed:
            time.sleep(0.01)
        yield from ()

    def start():
        started.append(Process(lines()))
        return started[-1]

    monkeypatch.setattr(importance_routes, "start_worker", start)
    jobs = ImportanceJobs(lambda: now[0])

    assert jobs.answer({"outcome": "a"})["state"] == "running"
    assert jobs.answer({"outcome": "b"}) == {"state": "waiting"}
    now[0] = 31.0
    assert jobs.answer({"outcome": "b"})["state"] == "running"
    assert started[0].is_killed
    assert len(started) == 2

    jobs.close()
    answer = until(lambda: jobs.answer({"outcome": "b"})["state"] == "failed", 240.0, "its end")
    assert answer
    assert jobs.answer({"outcome": "c"}) == {
        "state": "failed",
        "error": "The server is stopping.",
    }


def test_an_answer_is_kept_for_a_while_and_then_worked_out_again(monkeypatch):
    now, started = [0.0], []

    def start():
        done = json.dumps({"result": {"number": len(started)}})
        started.append(Process(['{"progress": 0.5, "text": "Reading"}\n', done + "\n"]))
        return started[-1]

    monkeypatch.setattr(importance_routes, "start_worker", start)
    jobs = ImportanceJobs(lambda: now[0])

    def result():
        return jobs.answer({"outcome": "a"}).get("result")

    assert until(result, 240.0, "the first answer") == {"number": 0}
    now[0] = 100.0
    assert result() == {"number": 0}
    now[0] = 300.0
    assert until(result, 240.0, "the next answer") == {"number": 1}
    assert started[0].request == {"outcome": "a"}
