"""The run page beside those of trackio and TensorBoard: time to the charts, bytes, memory.

    python benchmarks/pages.py [--steps 100000] [--metrics 20] [--rounds 5]

The same values are stored in a database of sentinel, in one of trackio and in an event file. Each
round starts each tool's server and opens its page in Chromium twice: with an empty cache, then
again as a second tab. The clock starts at the navigation, after the server has read the data. The
first chart counts as soon as its line is drawn, all charts in view likewise. Bytes are those of all
answers to the first opening, compressed as they are sent. Memory is the proportional set size of
the server with its child processes after both. Prints medians as Markdown and writes
results/pages.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import requests

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext

FOLDER = Path(__file__).parent
sys.path[:0] = [
    str(FOLDER.parent),
    *(str(FOLDER.parent / "tests" / part) for part in ("", "stack")),
]
RESULTS = FOLDER / "results" / "pages.json"
TIMEOUT_SECONDS = 300.0
VIEW = {"width": 1400, "height": 1000}
RUN = "bench"


@dataclass(frozen=True)
class Tool:
    """A tool with a page: how its data is written, its server started, and its charts recognised.

    `write` stores rows of values below a folder; `command` and `environ` start the server for that
    folder and port. `path` is that of the page and `ready` a path that answers with the text
    `ready_text` once the data is read. `drawn` and `visible` are scripts: how many charts in view
    are drawn, and how many there are.
    """

    name: str
    write: Callable[[Path, list[dict[str, float]]], None]
    command: Callable[[Path, int], list[str]]
    environ: Callable[[Path], dict[str, str]]
    path: str
    ready: str
    ready_text: str
    drawn: str
    visible: str


IN_VIEW = """(selector) => [...document.querySelectorAll(selector)].filter((each) => {
  const box = each.getBoundingClientRect();
  return box.height > 0 && box.top < innerHeight && box.bottom > 0;
})"""


def write_sentinel(folder: Path, rows: list[dict[str, float]]) -> None:
    """A home with the run."""
    from support.stored_homes import write_long_run

    write_long_run(folder / "home", RUN, rows)


def write_tensorboard(folder: Path, rows: list[dict[str, float]]) -> None:
    """An event file with one summary per step."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    directory = folder / "events" / RUN
    directory.mkdir(parents=True)
    with (directory / "events.out.tfevents.1760000000.host").open("wb") as file:
        writer = RecordWriter(file)
        writer.write(Event(wall_time=1.76e9, file_version="brain.Event:2").SerializeToString())
        for step, row in enumerate(rows, 1):
            values = [Summary.Value(tag=name, simple_value=value) for name, value in row.items()]
            event = Event(wall_time=1.76e9 + step, step=step, summary=Summary(value=values))
            writer.write(event.SerializeToString())


TRACKIO_WRITER = """
import json, sys
from trackio.sqlite_storage import SQLiteStorage
rows = json.load(sys.stdin)
SQLiteStorage.bulk_log("bench", "bench", rows, steps=list(range(1, len(rows) + 1)))
"""

TRACKIO_SERVER = """
import sys, trackio
trackio.show("bench", open_browser=False, block_thread=True, server_port=int(sys.argv[1]))
"""


def write_trackio(folder: Path, rows: list[dict[str, float]]) -> None:
    """A project with the run; in a process, since trackio reads its folder when it is imported."""
    subprocess.run(
        [sys.executable, "-c", TRACKIO_WRITER],
        input=json.dumps(rows),
        text=True,
        check=True,
        env=os.environ | trackio_environ(folder),
    )


def trackio_environ(folder: Path) -> dict[str, str]:
    """The folder of trackio."""
    return {"TRACKIO_DIR": str(folder / "trackio"), "HF_HUB_OFFLINE": "1"}


TOOLS = (
    Tool(
        "sentinel",
        write_sentinel,
        lambda folder, port: [
            *(sys.executable, "-m", "sentinel", "serve", str(folder / "home")),
            *("--port", str(port)),
        ],
        lambda folder: {"SENTINEL_HOME": str(folder / "home")},
        f"/runs/{RUN}/",
        f"/runs/{RUN}/api/run",
        RUN,
        f"({IN_VIEW})('.js-plotly-plot').filter((e) => e.querySelector('path.js-line')).length",
        f"({IN_VIEW})('.chart').length",
    ),
    Tool(
        "trackio",
        write_trackio,
        lambda _, port: [sys.executable, "-c", TRACKIO_SERVER, str(port)],
        trackio_environ,
        "/",
        "/version",
        "",
        f"({IN_VIEW})('canvas.marks').length",
        f"({IN_VIEW})('.plot-container').length",
    ),
    Tool(
        "TensorBoard",
        write_tensorboard,
        lambda folder, port: [
            *(sys.executable, "-m", "tensorboard.main", "--logdir", str(folder / "events")),
            *("--port", str(port)),
        ],
        lambda _: {},
        "/",
        "/experiment/defaultExperimentId/data/plugin/timeseries/tags",
        "loss",
        f"({IN_VIEW})('card-view').filter((e) => / hr$|,000/m.test(e.innerText)).length",
        f"({IN_VIEW})('card-view').length",
    ),
)


def request_series(tool: Tool, url: str, names: list[str], steps: int) -> None:
    """Request the curves of all charts as the page does, until they reach the last step."""
    last = 0
    while last < steps:
        if tool.name == "sentinel":
            query = [*(("signals", name) for name in names), ("points", "1000"), ("axis", "step")]
            answer = requests.get(f"{url}/runs/{RUN}/api/series", query, timeout=TIMEOUT_SECONDS)
            last = min(series["x"][-1] for series in answer.json()["series"].values())
        elif tool.name == "trackio":
            body = {"project": RUN, "runs": [{"run": RUN}], "max_points": 3000}
            answer = requests.post(f"{url}/api/get_logs_batch", json=body, timeout=TIMEOUT_SECONDS)
            last = answer.json()["data"][0]["logs"][-1]["step"]
        else:
            wanted = [{"plugin": "scalars", "tag": name} for name in names]
            path = "experiment/defaultExperimentId/data/plugin/timeseries/timeSeries"
            form = {"requests": json.dumps(wanted)}
            answer = requests.post(f"{url}/{path}", form, timeout=TIMEOUT_SECONDS)
            curves = [each["runToSeries"][RUN] for each in answer.json()]
            last = min(curve[-1]["step"] for curve in curves)


def cpu_seconds(process: psutil.Process) -> float:
    """User and system seconds of a process and its children, those that ended included."""
    family = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    ended = family[0].children_user + family[0].children_system
    return ended + sum(each.user + each.system for each in family)


@contextmanager
def server(tool: Tool, folder: Path) -> Iterator[tuple[str, psutil.Process, float]]:
    """The address of the tool's server, its process, and the seconds until the data was read."""
    from programs import free_port

    port = free_port()
    begin = time.monotonic()
    with (folder / f"{tool.name}.log").open("w") as output:
        process = subprocess.Popen(
            tool.command(folder, port),
            env=os.environ | tool.environ(folder),
            stdout=output,
            stderr=output,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        until(lambda: is_ready(url + tool.ready, tool.ready_text), tool.name)
        yield url, psutil.Process(process.pid), time.monotonic() - begin
    finally:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.terminate()
        process.terminate()
        process.wait(TIMEOUT_SECONDS)


def is_ready(url: str, text: str) -> bool:
    """Whether the server answers, and with that text."""
    try:
        answer = requests.get(url, timeout=TIMEOUT_SECONDS)
    except requests.ConnectionError:
        return False
    return answer.ok and text in answer.text


def until(condition: Callable[[], bool], name: str) -> None:
    """Wait for the condition."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"pages: {name} does not answer")
        time.sleep(0.05)


def open_page(context: BrowserContext, tool: Tool, url: str) -> dict[str, float]:
    """Seconds to the first chart and to all in view, and the bytes that were sent until then."""
    page = context.new_page()
    sent = 0.0

    def add(event: dict[str, float]) -> None:
        nonlocal sent
        sent += event["encodedDataLength"]

    session = context.new_cdp_session(page)
    session.send("Network.enable")
    session.on("Network.loadingFinished", add)
    begin = time.monotonic()
    page.goto(url + tool.path, wait_until="commit")
    timeout = 1e3 * TIMEOUT_SECONDS
    page.wait_for_function(f"() => {tool.drawn} > 0", timeout=timeout)
    first = time.monotonic() - begin
    page.wait_for_function(
        f"() => {tool.visible} > 0 && {tool.drawn} >= {tool.visible}", timeout=timeout
    )
    whole = time.monotonic() - begin
    charts = page.evaluate(tool.visible)
    page.close()
    return {"first_s": first, "view_s": whole, "kilobytes": sent / 1e3, "charts": charts}


def measure(browser: Browser, tool: Tool, folder: Path) -> dict[str, float]:
    """One round of a tool."""
    with server(tool, folder) as (url, process, read_s):
        context = browser.new_context(viewport=VIEW)
        cold, warm = (open_page(context, tool, url) for _ in range(2))
        context.close()
        family = [process, *process.children(recursive=True)]
        memory = sum(each.memory_full_info().pss for each in family)
    return {
        "read_s": read_s,
        **cold,
        "again_first_s": warm["first_s"],
        "again_view_s": warm["view_s"],
        "again_kilobytes": warm["kilobytes"],
        "memory_mb": memory / 1e6,
    }


COLUMNS = {
    "first chart": "first_s",
    "charts in view": "view_s",
    "again: first": "again_first_s",
    "again: in view": "again_view_s",
    "sent": "kilobytes",
    "sent again": "again_kilobytes",
    "memory": "memory_mb",
}


def table(results: dict[str, dict[str, float]]) -> str:
    """The medians as Markdown."""
    lines = [f"| | {' | '.join(COLUMNS)} |", f"|---|{'---:|' * len(COLUMNS)}"]
    for name, row in results.items():
        cells = [
            f"{row[key] / 1e3:.2f} MB"
            if "kilobytes" in key
            else f"{row[key]:.0f} MB"
            if key == "memory_mb"
            else f"{row[key]:.2f} s"
            for key in COLUMNS.values()
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--metrics", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tools", nargs="*", default=[tool.name for tool in TOOLS])
    args = parser.parse_args()
    from support.browsers import chromium
    from support.stored_homes import long_rows

    tools = [tool for tool in TOOLS if tool.name in args.tools]
    rounds: dict[str, list[dict[str, float]]] = {tool.name: [] for tool in tools}
    with tempfile.TemporaryDirectory(prefix="sentinel-pages-") as scratch:
        folder, rows = Path(scratch), [*long_rows(args.steps, args.metrics)]
        for tool in tools:
            tool.write(folder, rows)
        del rows
        for _ in range(args.rounds):
            for tool in tools:
                with chromium() as browser:
                    rounds[tool.name].append(measure(browser, tool, folder))
    medians = {
        name: {key: statistics.median(each[key] for each in trials) for key in trials[0]}
        for name, trials in rounds.items()
    }
    print(f"{args.metrics} metrics x {args.steps} steps, {args.rounds} rounds")
    print(table(medians))
    RESULTS.parent.mkdir(exist_ok=True)
    content = {"steps": args.steps, "metrics": args.metrics, "median": medians, "rounds": rounds}
    RESULTS.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
