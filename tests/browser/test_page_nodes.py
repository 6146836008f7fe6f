"""The web page of a run on several nodes, at the head and at a follower."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect
from support.results import make_result, step_result

from sentinel.metrics.exposition import Exposition
from sentinel.model.counters import Counters
from sentinel.model.record import Event
from tools.generate.sample_exposition import FOLLOWER_STATUS

METADATA = {"world_size": 4.0, "local_world_size": 2.0}


def node(host, ranks, state="up", silent=0.0, skew=0.0):
    fields = {"host": host, "ranks": ranks, "state": state}
    return fields | {"silent_seconds": silent, "skew_seconds": skew}


HEAD = {
    "role": "head",
    "port": 14007,
    "error": "",
    "nodes": [node("gpu-a", [0, 1, 2, 5]), node("<b>", [3], "lost", 34.2), node("c", [4], skew=-9)],
}
DISCONNECTED = FOLLOWER_STATUS | {
    "connected": False,
    "error": "No answer.",
    "silent_seconds": 700.0,
}


def state(cluster):
    exposition = Exposition(Counters(), {})
    for result in (make_result(Event.START, rank=0, values=METADATA), step_result(loss=1.5)):
        exposition.update(result)
    return {**exposition.state(), "cluster": cluster}


@pytest.fixture
def shown(show):
    """Returns a function: the page in a browser, for a cluster status."""
    return lambda cluster: show(state(cluster))


@pytest.mark.timeout(600)
def test_a_head_lists_its_nodes_with_the_lost_ones_first(shown):
    page = shown(HEAD)
    nodes = page.locator("#section-nodes .nodes")

    expect(nodes.locator("strong")).to_have_text(["<b>", "c", "gpu-a"])
    expect(nodes).to_contain_text("lost, no heartbeat for 34 s")
    expect(nodes).to_contain_text("clock 9 s ahead")
    expect(nodes).to_contain_text("ranks 0-2, 5")
    expect(page.locator("#section-nodes .note")).to_have_text("2 up, 1 lost")
    expect(page.locator("#section-nodes")).to_be_visible()


@pytest.mark.timeout(600)
def test_a_follower_refers_to_the_head(shown):
    page = shown(FOLLOWER_STATUS)

    expect(page.locator(".banners .banner")).to_contain_text(
        "The head at any:14000 processes this node"
    )
    expect(page.locator("#section-cases")).to_contain_text("None on this node")
    for section in ("nodes", "signals"):
        expect(page.locator(f"#section-{section}")).to_be_hidden()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("cluster", "text"),
    [
        (DISCONNECTED, "not been reached for 12 min: No answer."),
        ({"role": "single"}, "No head reached"),
    ],
    ids=["disconnected", "isolated"],
)
def test_a_node_without_a_head_shows_that(shown, cluster, text):
    expect(shown(cluster).locator(".banners .warning")).to_contain_text(text)


@pytest.mark.timeout(600)
def test_a_run_on_one_node_has_no_nodes_section(shown):
    page = shown({})

    expect(page.locator("#section-nodes")).to_be_hidden()
    expect(page.locator(".banners")).to_be_hidden()
    expect(page.locator("#section-signals")).to_contain_text("1.5")
