"""Times of the charts of a run page in Chromium: a run of 100,000 steps, 64 ranks and 20 signals.

    python benchmarks/page_charts.py [--steps 100000] [--ranks 64] [--trials 7] [--keep FILE]

`sentinel serve` shows the database that run_page.py writes. The browser has its own profile, into
which the page is loaded three times first: then the scripts are cached. The page reports each time
to the performance timeline of the browser, from the user's action until the frame is painted.
Prints the median and the extremes of the trials, in milliseconds, in a window of 1440 x 1000 pixels
and in one that shows all 20 charts at once:

    first         from the click on the link until the charts in view are drawn
    zoom chart    from the release of the mouse until the chart under it has its detail
    zoom all      until all charts in view have theirs
    live          from a new row until it is drawn in all charts in view

`--cold` restarts the server before each load, so that it reads the database again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import BrowserContext, Page, Route, sync_playwright
from run_page import write_run

from sentinel.cli._browser_picture import find_chromium

RUN = "benchmark"
WINDOWS = {"in view": (1440, 1000), "all 20": (1440, 2900)}
WARM_LOADS = 3
TIMEOUT_SECONDS = 120.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--trials", type=int, default=7)
    parser.add_argument("--cold", action="store_true", help="Restart the server for each load.")
    parser.add_argument("--keep", type=Path, help="Database to use, written if it is missing.")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder, "runs", RUN, "sentinel.db")
        database.parent.mkdir(parents=True)
        kept = args.keep or database
        if not kept.exists():
            write_run(kept, args.steps, args.ranks)
        if kept != database:
            shutil.copy(kept, database)
        print(f"load of the machine: {os.getloadavg()[0]:.1f}")
        for name, (width, height) in WINDOWS.items():
            with sync_playwright() as playwright:
                context = playwright.chromium.launch_persistent_context(
                    f"{folder}/profile",
                    executable_path=find_chromium(),
                    chromium_sandbox=False,
                    viewport={"width": width, "height": height},
                )
                measured = measure(context, Path(folder), args.trials, is_cold=args.cold)
                context.close()
            for what, times in measured.items():
                print(
                    f"{name:8}  {what:10}  median {statistics.median(times):5.0f} ms, "
                    f"{min(times):.0f} to {max(times):.0f} ms"
                )


def measure(
    context: BrowserContext, home: Path, trials: int, *, is_cold: bool
) -> dict[str, list[float]]:
    """The times of each action."""
    found: dict[str, list[float]] = {"first": [], "zoom chart": [], "zoom all": [], "live": []}
    with serve(home) as url:
        for _ in range(WARM_LOADS):
            load(context, url).close()
        if not is_cold:
            for _ in range(trials):
                page = load(context, url)
                found["first"].append(duration(page, "first-charts"))
                page.close()
        page = load(context, url)
        for trial in range(trials):
            zoom(page, 0.1 + 0.05 * (trial % 5), found)
        page.close()
        found["live"] = live_times(context, url, trials)
    for _ in range(trials if is_cold else 0):
        with serve(home) as url:
            page = load(context, url)
            found["first"].append(duration(page, "first-charts"))
            page.close()
    return found


@contextmanager
def serve(home: Path) -> Iterator[str]:
    """`sentinel serve` of the home; yields the URL of the run's page."""
    environ = os.environ | {"SENTINEL_HOME": str(home), "SENTINEL_RUNTIME_DIR": f"{home}/shm"}
    command = [sys.executable, "-m", "sentinel", "serve", str(home), "--port", "0"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield f"{line.split()[-1]}runs/{RUN}/"
        process.terminate()


def load(context: BrowserContext, url: str) -> Page:
    """The page with its charts drawn, and nothing left to do."""
    page = context.new_page()
    page.goto(url)
    until(lambda: duration(page, "first-charts") > 0)
    time.sleep(1.0)
    return page


def duration(page: Page, name: str) -> float:
    """The last time of that action in milliseconds; 0 before the first."""
    return page.evaluate(
        "(name) => performance.getEntriesByName(name).at(-1)?.duration ?? 0", f"sentinel-{name}"
    )


def zoom(page: Page, share: float, found: dict[str, list[float]]) -> None:
    """Select a part of the chart of the loss, add the times, and go back to the whole run."""
    clear = "() => performance.clearMeasures()"
    page.evaluate(clear)
    box = page.locator("[data-chart=loss] .nsewdrag").bounding_box()
    assert box is not None
    x, y = box["x"] + 0.2 * box["width"], box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 0.5 * share * box["width"], y)
    page.mouse.move(x + share * box["width"], y)
    page.mouse.up()
    for name in ("zoom chart", "zoom all"):
        until(lambda name=name: duration(page, name.replace(" ", "-")) > 0)
        found[name].append(duration(page, name.replace(" ", "-")))
    page.keyboard.press("0")
    time.sleep(0.7)


def live_times(context: BrowserContext, url: str, trials: int) -> list[float]:
    """Times of rows that a stream of events brings, one for each connection."""
    page = context.new_page()
    names = [each["name"] for each in page.request.get(f"{url}api/signals").json()]
    last = page.request.get(f"{url}api/series?signals={names[0]}&points=2").json()
    step = last["series"][names[0]]["x"][-1]

    def answer(route: Route) -> None:
        nonlocal step
        step += 1
        rows = json.dumps(rows_of(step, names))
        body = f"retry: 700\n\nevent: rows\nid: {int(step)}\ndata: {rows}\n\n"
        route.fulfill(content_type="text/event-stream", body=body)

    page.route("**/api/events*", answer)
    page.goto(url)
    until(lambda: duration(page, "first-charts") > 0)
    times: list[float] = []
    for _ in range(trials):
        page.evaluate("() => performance.clearMeasures('sentinel-live')")
        until(lambda: duration(page, "live") > 0)
        times.append(duration(page, "live"))
    page.close()
    return times


def rows_of(step: float, names: list[str]) -> dict[str, Any]:
    """One row as the stream sends it."""
    return {
        "last_id": int(step),
        "step": [step],
        "time": [time.time()],
        "attempt": [1],
        "tokens": None,
        "values": {name: [0.5] for name in names},
    }


def until(is_done: Callable[[], bool]) -> None:
    """Wait until that is so."""
    end = time.monotonic() + TIMEOUT_SECONDS
    while not is_done():
        assert time.monotonic() < end, "the page does not draw its charts"
        time.sleep(0.02)


if __name__ == "__main__":
    main()
