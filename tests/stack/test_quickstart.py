"""The commands of docs/quickstart.md deliver an incident, as they are on the page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from programs import find, free_port

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1200)]

PAGE = Path(__file__).parents[2] / "docs" / "quickstart.md"
INSTALLED = (
    "sudo apt-get install python3-venv prometheus prometheus-alertmanager",
    "sudo systemctl stop prometheus prometheus-alertmanager",
    "python3 -m venv env && . env/bin/activate",
    "pip install train-sentinel",
)
"""Commands of the page that are left out: the tests have what they install."""

TRAP = "trap 'kill $(jobs -p) 2> /dev/null || true' EXIT"


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def script():
    """All commands, with free ports."""
    text = "\n".join(blocks("sh"))
    for line in INSTALLED:
        assert f"{line}\n" in text
        text = text.replace(f"{line}\n", "")
    return text


def test_the_incident_of_the_page_is_delivered(tmp_path, monkeypatch):
    find("prometheus")
    find("prometheus-alertmanager")
    (receiver,), commands = blocks("python"), script()
    for port in ("9190", "9193", "9199"):
        free = str(free_port())
        receiver, commands = (text.replace(port, free) for text in (receiver, commands))
    (tmp_path / "sentinel-quickstart").mkdir()
    (tmp_path / "sentinel-quickstart" / "receiver.py").write_text(receiver)
    monkeypatch.setenv("SENTINEL_LINGER_SECONDS", "0")
    monkeypatch.setenv(
        "PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    )
    # With `timeout`, all processes end; with the trap, also after a command that fails.
    commands = f"{TRAP}\n{commands.replace('mkdir', 'mkdir --parents')}"
    done = subprocess.run(
        ["timeout", "600", "bash", "-e"], input=commands, cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    shown = re.search(r"(    Critical: .*\n(?:    .*\n)+)", PAGE.read_text())[1].splitlines()
    delivered = alike(done.stdout)

    assert done.returncode == 0, done.stderr
    assert [line for line in shown if alike(line.strip()) not in delivered] == []
    assert "What to do: " in delivered


def alike(text):
    """Without what another run changes: its id, its machine and the time of day."""
    text = re.sub(r"run demo-\w{6} \(demo_run.py on [\w.-]+\)", "run demo", text)
    return re.sub(r"\(\d{4}-.* UTC\)", "", text)
