"""Take the pictures of the README and the docs: pages of sentinel, and a Slack message as HTML.

    python scripts/pictures.py [FOLDER]

Runs `sentinel demo`, photographs the page of its run with headless Chromium while a fault is on,
then a list of 50 runs and a comparison, and renders the Slack message that the demo delivers.
Last, trains the example `trl_dpo_insight` in its three ways and photographs its loss surfaces and
the gradients of its layers.
Writes PNG files to docs/pictures; with FOLDER to that folder, and there also the page on a phone
and in the light theme, and a report.
"""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import requests
from playwright.sync_api import Browser, Page

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "stack")]
PICTURES = ROOT / "docs" / "pictures"
DEMO_TIMEOUT_SECONDS = 600.0
RUN_COUNT = 50
WIDE, PHONE = {"width": 1440, "height": 960}, {"width": 390, "height": 844}
STYLE = """
body { margin: 0; padding: 24px; width: 712px; background: #fff;
       font: 15px/1.47 DejaVu Sans, sans-serif; }
.label { color: #616061; font-size: 12px; margin-bottom: 12px; }
.message { border: 1px solid #ddd; border-left: 4px solid #e01e5a; border-radius: 6px;
           padding: 12px 16px; }
.header { font-size: 18px; font-weight: bold; margin: 4px 0 10px; }
.section { margin: 8px 0; white-space: pre-wrap; }
.fields { display: grid; grid-template-columns: 1fr 1fr; gap: 6px 24px; margin: 8px 0;
          white-space: pre-wrap; }
.context { color: #616061; font-size: 12px; margin: 8px 0 0; white-space: pre-wrap; }
code { background: #f3f3f4; border: 1px solid #ddd; border-radius: 3px; padding: 0 3px;
       font-size: 12px; }
"""


def main() -> None:
    """Write the pictures."""
    from support.browsers import chromium

    is_review = len(sys.argv) > 1
    folder = Path(sys.argv[1]) if is_review else PICTURES
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sentinel-pictures-") as scratch, chromium() as browser:
        camera = Camera(browser, folder)
        message = photograph_demo(camera, Path(scratch), is_review=is_review)
        (demo_home,) = Path(scratch).glob("sentinel-demo-*/home")
        photograph_runs(camera, demo_home, is_review=is_review)
        page = Path(scratch) / "slack.html"
        page.write_text(slack_html(message), encoding="utf-8")
        camera.take(page.as_uri(), "slack-message", {"width": 760, "height": 580}, theme="light")
        photograph_insight(camera, Path(scratch) / "insight")
    print(f"Pictures are in {folder}.")


class Camera:
    """Takes pictures of pages in a browser, as PNG files in a folder."""

    def __init__(self, browser: Browser, folder: Path) -> None:
        self._browser, self._folder = browser, folder

    def take(
        self,
        url: str,
        name: str,
        size: dict[str, int] | None = None,
        theme: str = "dark",
        section: str = "",
    ) -> None:
        """A picture of a page in a window of that size, from a section on, with its charts."""
        context = self._browser.new_context(
            viewport=size or WIDE, color_scheme=theme, reduced_motion="reduce"
        )
        page = context.new_page()
        page.goto(url)
        wait_until_drawn(page)
        if section:
            page.locator(f"#section-{section}").evaluate("(each) => each.scrollIntoView()")
            wait_until_drawn(page)
        page.screenshot(path=self._folder / f"{name}.png")
        context.close()


def wait_until_drawn(page: Page) -> None:
    """Wait until all charts in view have a curve, and nothing has changed for half a second."""
    page.wait_for_function(
        """() => [...document.querySelectorAll("[data-chart] .plot")].every((plot) => {
          const { top, bottom } = plot.getBoundingClientRect();
          return bottom < 0 || top > innerHeight || plot.childElementCount > 0;
        })""",
        timeout=120_000,
    )
    page.evaluate("""() => new Promise((resolve) => {
      const quiet = () => { observer.disconnect(); resolve(); };
      let timer = setTimeout(quiet, 1500);
      const last = performance.now() + 15000;
      const observer = new MutationObserver(() => {
        if (performance.now() > last) return;
        clearTimeout(timer);
        timer = setTimeout(quiet, 500);
      });
      observer.observe(document, { subtree: true, childList: true, attributes: true });
    })""")


def photograph_demo(camera: Camera, scratch: Path, *, is_review: bool) -> dict[str, Any]:
    """Run the demo, photograph its page once a cause is named, and return its longest message."""
    command = [sys.executable, "-u", "-m", "sentinel", "demo", "--keep"]
    environ = {**os.environ, "TMPDIR": str(scratch), "COLUMNS": "200"}
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=scratch, env=environ)
    deadline = time.monotonic() + DEMO_TIMEOUT_SECONDS
    try:
        url = next(
            match[1] for line in demo.stdout if (match := re.search(r"(http://\S+?)/metrics", line))
        )
        while not has_cause(url):
            if time.monotonic() > deadline:
                sys.exit("pictures: the demo named no cause")
            time.sleep(0.5)
        camera.take(f"{url}/", "run-page")
        if is_review:
            camera.take(f"{url}/", "run-page-light", theme="light")
            camera.take(f"{url}/", "run-page-phone", PHONE)
        demo.communicate(timeout=DEMO_TIMEOUT_SECONDS)
    finally:
        demo.kill()
        demo.wait()
    messages = [path.read_text(encoding="utf-8") for path in scratch.glob("*/slack-*.json")]
    return json.loads(max(messages, key=len))


def photograph_runs(camera: Camera, home: Path, *, is_review: bool) -> None:
    """Photograph the list of the demo's home with other runs, a comparison and a report."""
    from support.serve_command import serve_command
    from support.stored_homes import write_run

    (demo_run,) = (path.name for path in (home / "runs").iterdir())
    now = time.time()
    for number in range(1, RUN_COUNT):
        write_run(
            home,
            run=f"{('grpo-7b', 'grpo-32b', 'sft-8b')[number % 3]}-{number:02}",
            kind="sft" if number % 3 == 2 else "grpo",
            steps=120 + 7 * number,
            seed=number,
            fault_at=100 if number % 7 == 0 else None,
            outcome="failed" if number % 11 == 0 else "finished",
            begin=now - 7200.0 * number,
            metadata={"host": f"gpu-{number % 5}", "learning_rate": 1e-6 * (1 + number % 4)},
        )
    with serve_command(home) as url:
        # The summaries of runs that no agent served are made now.
        while "reading" in requests.get(f"{url}/api/runs", timeout=60).json()["states"]:
            time.sleep(0.5)
        camera.take(f"{url}/", "run-list")
        runs = "run=grpo-7b-18&run=grpo-7b-21&run=grpo-7b-24"
        camera.take(f"{url}/compare?{runs}", "compare", section="curves")
    if is_review:
        report = home / "report.html"
        subprocess.run(
            [sys.executable, "-m", "sentinel", "report", demo_run, "-o", str(report)],
            env={**os.environ, "SENTINEL_HOME": str(home)},
            check=True,
        )
        camera.take(report.as_uri(), "report", theme="light")


def photograph_insight(camera: Camera, home: Path) -> None:
    """Train with DPO, healthy and broken, and photograph what insight shows of it."""
    from support.serve_command import serve_command

    home.mkdir()
    own = {"SENTINEL_HOME": str(home), "SENTINEL_RUNTIME_DIR": str(home / "shm")}
    environ = {**os.environ, **own, "SENTINEL_LINGER_SECONDS": "0", "PYTHONPATH": str(ROOT)}
    example = str(ROOT / "examples" / "trl_dpo_insight.py")
    for kind in ("healthy", "learning-rate", "frozen"):
        subprocess.run([sys.executable, example, kind], env=environ, cwd=home, check=True)
    names = [path.name for path in (home / "runs").iterdir()]
    healthy, fast, frozen = (
        next(name for name in names if name.startswith(f"dpo-{kind}"))
        for kind in ("healthy", "learning-rate", "frozen")
    )
    with serve_command(home) as url:
        # The pages are complete once the agents have written how the runs ended.
        while "reading" in requests.get(f"{url}/api/runs", timeout=60).json()["states"]:
            time.sleep(0.5)
        runs = f"run={healthy}&run={fast}"
        sizes = {"width": 1440, "height": 660}
        camera.take(f"{url}/compare?{runs}", "insight-surfaces", sizes, section="loss-surface")
        camera.take(f"{url}/compare?{runs}", "insight-paths", sizes, section="trajectory")
        camera.take(f"{url}/runs/{frozen}/", "insight-layers", sizes, section="gradient-flow")


def has_cause(url: str) -> bool:
    """Whether the agent has named the cause of a case."""
    cases = requests.get(f"{url}/api/run", timeout=10).json().get("cases", ())
    return any(case["diagnosis"] for case in cases)


def slack_html(message: dict[str, Any]) -> str:
    """The Block Kit message as HTML, labelled as a rendering."""
    blocks = [
        block
        for part in (message, *message.get("attachments", ()))
        for block in part.get("blocks", ())
    ]
    body = "\n".join(_block(block) for block in blocks) or _mrkdwn(message["text"])
    label = "HTML rendering of the Slack message that <code>make demo</code> delivers"
    return (
        f"<!doctype html><meta charset=utf-8><style>{STYLE}</style>"
        f'<div class="label">{label}</div><div class="message">{body}</div>'
    )


def _block(block: dict[str, Any]) -> str:
    if block["type"] == "context":
        lines = "\n".join(_text(each) for each in block["elements"])
        return f'<div class="context">{lines}</div>'
    text = _text(block["text"]) if "text" in block else ""
    out = f'<div class="{block["type"]}">{text}</div>' if text else ""
    if block.get("fields"):
        cells = "".join(f"<div>{_text(each)}</div>" for each in block["fields"])
        out += f'<div class="fields">{cells}</div>'
    return out


def _text(element: dict[str, Any]) -> str:
    if element["type"] == "mrkdwn":
        return _mrkdwn(element["text"])
    text = html.escape(html.unescape(element.get("text", "")))
    return re.sub(r":(?:large_)?(\w+)_circle:", r'<span style="color: \1">●</span>', text)


def _mrkdwn(text: str) -> str:
    safe = html.escape(html.unescape(text))
    safe = re.sub(r"`([^`\n]+)`", r"<code>\1</code>", safe)
    safe = re.sub(r"&lt;(https?://[^|\s]+)\|([^&]+)&gt;", r'<a href="\1">\2</a>', safe)
    return re.sub(r"(?<![\w*])\*([^*\n]+)\*(?![\w*])", r"<b>\1</b>", safe)


if __name__ == "__main__":
    main()
