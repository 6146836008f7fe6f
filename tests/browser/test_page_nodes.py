"""The page of a run on several nodes: a compact list at the head, and at a post where to look."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import pytest
from support.results import step_result, make_result
from support.web_servers import get, servers

from sentinel.generate.sample_exposition import FOLLOWER_STATUS
from sentinel.metrics.exposition import Exposition
from sentinel.model.counters import Counters
from sentinel.model.record import Event

ABOUT = {"world_size": 4.0, "local_world_size": 2.0}


def node(host, ranks, state="up", silent=0.0, skew=0.0):
    told = {"host": host, "ranks": ranks, "state": state}
    return told | {"silent_seconds": silent, "skew_seconds": skew}


HEAD = {
    "role": "head",
    "port": 14007,
    "error": "",
    "nodes": [node("gpu-a", [0, 1, 2, 5]), node("<b>", [3], "lost", 34.2), node("c", [4], skew=-9)],
}
AWAY = FOLLOWER_STATUS | {"connected": False, "error": "No answer.", "silent_seconds": 700.0}


def state(cluster):
    shown = Exposition(Counters(), {})
    for verdict in (make_result(Event.START, rank=0, values=ABOUT), step_result(loss=1.5)):
        shown.update(verdict)
    return {**shown.state(), "cluster": cluster}


@pytest.fixture
def serve():
    with servers() as start:
        yield start


@pytest.fixture
def seen(serve, tmp_path):
    """What a browser makes of the page of such an agent."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("chromium is not on PATH (Debian: chromium)")

    def look(cluster):
        url = serve(state=lambda: state(cluster))
        plain = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/it"]
        told = subprocess.run(
            [browser, *plain, "--virtual-time-budget=4000", "--dump-dom", f"{url}/"],
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
            env=os.environ | {"HOME": str(tmp_path)},
        )
        return told.stdout

    return look


def test_the_script_finds_every_place_it_writes_to(serve):
    url = serve()
    page, script = get(url + "/").text, get(url + "/nodes.js").text
    asked = set(re.findall(r'\bat\("([\w-]+)"\)', script))

    assert {"nodes", "nodes-count", "judge", "h-signals"} == asked
    assert asked <= set(re.findall(r'id="([\w-]+)"', page))


def test_the_script_shows_names_as_text_and_asks_nobody_else(serve):
    script = get(serve() + "/nodes.js").text

    assert "innerHTML" not in script
    assert "http" not in script


def test_it_is_there_before_the_script_that_calls_it(serve):
    page = get(serve() + "/").text

    assert page.index('src="nodes.js"') < page.index('src="app.js"')


@pytest.mark.timeout(600)
def test_a_head_lists_its_nodes_with_the_lost_ones_first(seen):
    page = seen(HEAD)
    listed = re.search(r'id="nodes" class="nodes">(.*?)</ul>', page, re.DOTALL)[1]

    assert re.findall(r"<strong>(.*?)</strong>", listed) == ["&lt;b&gt;", "c", "gpu-a"]
    assert "lost, not heard for 34 s" in listed
    assert "clock 9 s ahead" in listed
    assert "ranks 0-2, 5" in listed
    assert "2 up, 1 lost" in page
    assert 'aria-labelledby="h-nodes" hidden' not in page
    assert "No word from the agent" not in page


@pytest.mark.timeout(600)
def test_a_post_says_where_the_run_is_judged(seen):
    page = seen(FOLLOWER_STATUS)

    assert "judged with all others at any:14000" in page
    assert "It is not judged here." in page
    assert 'aria-labelledby="h-nodes" hidden' in page
    assert 'aria-labelledby="h-signals" hidden' in page


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("cluster", "words"),
    [(AWAY, "not been reached for 12 min: No answer."), ({"role": "single"}, "No head was")],
)
def test_a_node_on_its_own_says_so(seen, cluster, words):
    assert words in seen(cluster)


@pytest.mark.timeout(600)
def test_the_page_of_an_agent_that_knows_of_no_nodes_is_as_ever(seen):
    page = seen({})

    assert 'aria-labelledby="h-nodes" hidden' in page
    assert re.search(r'id="judge"[^>]*hidden', page)
    assert "sentinel_loss" in page or "1.500" in page
