"""`sentinel serve LOGDIR` as a user runs it: list, page, images, growth, and a second server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
import requests
from support.event_files import event, event_file, field
from support.images import png

DEADLINE_SECONDS = 240.0
IMAGE = b"\x09" + bytes(8) + b"\x10\x05" + field(
    5, field(1, field(1, b"drawn") + field(4, field(4, png(48, 32))))
)  # fmt: skip


@contextmanager
def serving(folder):
    """Address of a server of the logs below a folder."""
    command = [sys.executable, "-m", "sentinel", "serve", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield re.search(r"http://[0-9.:]+", process.stdout.readline())[0]
        finally:
            process.terminate()


def wait_until(condition):
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return value


@pytest.fixture
def get():
    """Returns a function: the JSON at an address."""
    with requests.Session() as session:
        session.trust_env = False

        def read(url):
            answer = session.get(url, timeout=DEADLINE_SECONDS)
            # A busy machine takes longer than a page waits, and the page asks again.
            return answer.json() if answer.status_code != 503 else {}

        yield read


def runs_of(answer):
    return {each["run"] for each in answer["runs"]}


def streamed_steps(path, first, lines):
    """The steps of the rows that a stream sends after its last reset, from `first` on.

    After a reset, the page loads what was logged before it, so further rows are logged.
    """
    end, steps = first + 2, []
    write_rows(path, range(first, end))
    while end - 1 not in steps:
        line = next(lines)
        if line == "event: reset":
            steps.clear()
            write_rows(path, range(end, end + 2))
            end += 2
        elif line.startswith("data: ") and '"values"' in line:
            steps += json.loads(line.removeprefix("data: "))["step"]
    return steps


def write_rows(path, steps):
    with path.open("a") as file:
        file.writelines(json.dumps({"step": n, "loss": 1.0 + 1 / n}) + "\n" for n in steps)


def test_logs_are_runs_of_a_server(tmp_path, get):
    folder = tmp_path / "logs"
    folder.mkdir()
    with serving(folder) as url:
        empty = get(f"{url}/api/runs")
        assert (empty["total"], "No log in" in empty["notice"]) == (0, True)

        for name in ("lr-1", "lr-2"):
            event_file(folder / name, *(event(n, "loss", 1.0) for n in range(1, 30)), IMAGE)
        write_rows(folder / "log.jsonl", range(1, 20))
        wait_until(lambda: runs_of(get(f"{url}/api/runs")) == {"lr-1", "lr-2", "log"})

        page = requests.get(f"{url}/runs/lr-1/", timeout=DEADLINE_SECONDS)
        assert "script-src 'self'" in page.headers["content-security-policy"]
        (media,) = wait_until(lambda: get(f"{url}/runs/lr-1/api/media"))
        image = requests.get(f"{url}/runs/lr-1/api/media/{media['id']}", timeout=DEADLINE_SECONDS)
        assert (image.headers["content-type"], image.content) == ("image/png", png(48, 32))
        assert image.headers["x-content-type-options"] == "nosniff"

        run = f"{url}/runs/log"
        wait_until(lambda: get(f"{run}/api/run").get("step") == 19)
        with requests.get(f"{run}/api/events", stream=True, timeout=DEADLINE_SECONDS) as events:
            lines = events.iter_lines(chunk_size=1, decode_unicode=True)
            assert any("event: run" in line for line in lines)
            steps = streamed_steps(folder / "log.jsonl", 20, lines)
        assert steps == [*range(steps[0], steps[-1] + 1)]

        compared = wait_until(lambda: get(f"{url}/api/compare?run=lr-1&run=lr-2"))
        assert "lr-2" in json.dumps(compared)
        # A second server shares the imports of the first.
        with serving(folder) as other:
            wait_until(lambda: get(f"{other}/runs/log/api/run").get("step") == steps[-1])
            assert len(runs_of(get(f"{other}/api/runs"))) == 3
