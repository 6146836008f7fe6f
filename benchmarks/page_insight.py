"""Times of drawing results of insight in Chromium, whose WebGL is in software here.

    python benchmarks/page_insight.py [--trials 5]

A file with a loss surface of 101 x 101 points and the gradient norms of 128 layers at 240 steps is
opened, and each picture is drawn again and again. Prints the median and the extremes of the times,
in milliseconds, from the call of plotly.js until the next frame is painted. `3-D, first` includes
the start of WebGL.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable
from math import cos, hypot, sin
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page, sync_playwright

from sentinel.cli._browser_picture import find_chromium
from sentinel.insight.gradient_flow import GradientFlow
from sentinel.insight.surface.loss_surface import LossSurface
from sentinel.web.report_page import write_insight_page

SIDE, LAYERS, STEPS = 101, 128, 240
PATCH = """() => {
  window.times = [];
  const react = Plotly.react;
  Plotly.react = async (element, traces, ...rest) => {
    const start = performance.now();
    const drawn = await react(element, traces, ...rest);
    const name = traces.map(({ type }) => type).find((type) => type !== "scatter");
    requestAnimationFrame(() => setTimeout(() => times.push([name, performance.now() - start])));
    return drawn;
  };
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=5)
    trials = parser.parse_args().trials
    print(f"load of the machine: {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder, "insight.html")
        write_insight_page([surface(), *(flow(step) for step in range(STEPS))], path)
        browser = playwright.chromium.launch(
            executable_path=find_chromium(), chromium_sandbox=False
        )
        times: dict[str, list[float]] = {}
        for _ in range(trials):
            page = browser.new_page(viewport={"width": 1440, "height": 1000})
            page.goto(path.as_uri())
            page.locator("#section-gradient-flow .flow-map .main-svg").first.wait_for()
            page.evaluate(PATCH)
            measure(page, times)
            page.close()
        browser.close()
    for what, each in times.items():
        print(
            f"{what:12}  median {statistics.median(each):5.0f} ms, {min(each):.0f} to "
            f"{max(each):.0f} ms"
        )


def measure(page: Page, times: dict[str, list[float]]) -> None:
    """Add the times of each picture."""
    section = page.locator("#section-loss-surface")

    def add(what: str, kind: str, action: Callable[[], object]) -> None:
        page.evaluate("() => { times.length = 0; }")
        action()
        found = "kind => times.find(([name]) => name === kind)?.[1] ?? 0"
        page.wait_for_function(found, arg=kind)
        times.setdefault(what, []).append(page.evaluate(found, kind))

    def button(name: str) -> Locator:
        return section.get_by_role("button", name=name)

    add("contour", "contour", button("Arrows").click)
    add("3-D, first", "surface", button("3-D").click)
    add("3-D, again", "surface", button("Arrows").click)
    choice = page.get_by_label("Statistic of the layers")
    add("heat map", "heatmap", lambda: choice.select_option("layer_grad_zero_share"))


def surface() -> dict[str, Any]:
    """A bumpy bowl."""
    axis = [2 * number / (SIDE - 1) - 1 for number in range(SIDE)]
    loss: list[list[float | None]] = [
        [hypot(x, y) ** 2 + 0.1 * sin(9 * x) * cos(7 * y) + 1 for x in axis] for y in axis
    ]
    arrows = [[x, y, -x, -y] for x in axis[::10] for y in axis[::10]]
    center = {"x": 0.0, "y": 0.0, "loss": 1.0}
    found = LossSurface(axis, axis, loss, [], [], center, arrows=arrows, step=1)
    return found.to_json()


def flow(step: int) -> GradientFlow:
    """The norms of all layers at one step."""
    layers = [f"model.layers.{number // 4}.{number % 4}.projection" for number in range(LAYERS)]
    norms: list[float | None] = [10 ** (3 * sin(step / 20 + n / 9)) for n in range(LAYERS)]
    shares: list[float | None] = [0.5 + 0.5 * sin(step / 30 + n / 5) for n in range(LAYERS)]
    return GradientFlow(layers, norms, shares, {layers[0]: [-9, 1, 2, 1]}, step=step)


if __name__ == "__main__":
    main()
