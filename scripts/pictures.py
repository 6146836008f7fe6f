"""Take the pictures of the README: the web page of a run, and a Slack message as HTML.

    python scripts/pictures.py

Runs `sentinel demo`, photographs the agent's page with headless Chromium while the run is active,
and renders the Slack message that the demo delivers. Writes PNG files to docs/pictures.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import requests

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
DEMO_TIMEOUT_SECONDS = 600.0
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
    """Write both pictures."""
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("pictures: chromium is missing. Install it: apt-get install chromium")
    PICTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sentinel-pictures-") as scratch:
        message = run_demo(chromium, Path(scratch))
        page = Path(scratch) / "slack.html"
        page.write_text(slack_html(message), encoding="utf-8")
        photograph(chromium, page.as_uri(), PICTURES / "slack-message.png", (760, 540))
    print(f"Pictures are in {PICTURES}.")


def run_demo(chromium: str, scratch: Path) -> dict[str, Any]:
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
        photograph(chromium, f"{url}/", PICTURES / "run-page.png", (1280, 585))
        demo.communicate(timeout=DEMO_TIMEOUT_SECONDS)
    finally:
        demo.kill()
        demo.wait()
    messages = [path.read_text(encoding="utf-8") for path in scratch.glob("*/slack-*.json")]
    return json.loads(max(messages, key=len))


def has_cause(url: str) -> bool:
    """Whether the agent has named the cause of a case."""
    cases = requests.get(f"{url}/api/run", timeout=10).json().get("cases", ())
    return any(case["diagnosis"] for case in cases)


def photograph(chromium: str, url: str, path: Path, size: tuple[int, int]) -> None:
    """Save a screenshot of a page."""
    command = [
        *(chromium, "--headless=new", "--no-sandbox", "--hide-scrollbars", "--disable-gpu"),
        *("--force-device-scale-factor=1", "--virtual-time-budget=4000"),
        *(f"--window-size={size[0]},{size[1]}", f"--screenshot={path}", url),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=120)


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
