"""The agent's page in a browser."""

from __future__ import annotations

import os
import subprocess

import pytest
from support.chromium import chromium, find_chromium
from support.web_servers import servers


@pytest.fixture(scope="session")
def page(tmp_path_factory):
    """The page of a browser, which the tests share."""
    with chromium(tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.fixture
def serve():
    with servers() as start:
        yield start


@pytest.fixture
def render(serve, tmp_path):
    """Returns a function: the DOM of the page in a browser, for a state of `/api/run`."""
    browser = find_chromium()

    def render_state(state):
        url = serve(state=lambda: state)
        options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/it"]
        done = subprocess.run(
            [browser, *options, "--virtual-time-budget=4000", "--dump-dom", f"{url}/"],
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
            env=os.environ | {"HOME": str(tmp_path)},
        )
        return done.stdout

    return render_state
