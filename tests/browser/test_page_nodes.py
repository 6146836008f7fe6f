"""The web page of a run on several nodes, at the head and at a follower."""

from __future__ import annotations

import re

import pytest
from support.results import make_result, step_result
from support.web_servers import get

from sentinel.generate.sample_exposition import FOLLOWER_STATUS
from sentinel.metrics.exposition import Exposition
from sentinel.model.counters import Counters
from sentinel.model.record import Event

JAVASCRIPT_NAMES = {"if", "for", "catch", "fetch", "setTimeout", "encodeURIComponent"}
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
def rendered(render):
    """Returns a function: the DOM of the page in a browser, for a cluster status."""
    return lambda cluster: render(state(cluster))


def test_every_element_id_in_the_script_exists_in_the_page(serve):
    url = serve()
    page, script = get(url + "/").text, get(url + "/nodes.js").text
    requested = set(re.findall(r'\bat\("([\w-]+)"\)', script))

    assert {"nodes", "nodes-count", "role", "h-signals"} == requested
    assert requested <= set(re.findall(r'id="([\w-]+)"', page))


def test_every_function_that_the_scripts_call_is_defined(serve):
    url = serve()
    scripts = "\n".join(get(url + path).text for path in ("/nodes.js", "/app.js"))
    code = re.sub(r"^\s*//.*$", "", scripts, flags=re.MULTILINE)
    called = set(re.findall(r"(?<![.\w])([a-z]\w*)\(", code)) - JAVASCRIPT_NAMES
    defined = set(re.findall(r"\bfunction (\w+)\(|\bconst (\w+) = \(", code))

    assert called
    assert called <= {name for names in defined for name in names}


def test_the_script_sets_text_only_and_makes_no_requests(serve):
    script = get(serve() + "/nodes.js").text

    assert "innerHTML" not in script
    assert "http" not in script


def test_nodes_js_is_loaded_before_app_js(serve):
    page = get(serve() + "/").text

    assert page.index('src="nodes.js"') < page.index('src="app.js"')


@pytest.mark.timeout(600)
def test_a_head_lists_its_nodes_with_the_lost_ones_first(rendered):
    page = rendered(HEAD)
    listed = re.search(r'id="nodes" class="nodes">(.*?)</ul>', page, re.DOTALL)[1]

    assert re.findall(r"<strong>(.*?)</strong>", listed) == ["&lt;b&gt;", "c", "gpu-a"]
    assert "lost, no heartbeat for 34 s" in listed
    assert "clock 9 s ahead" in listed
    assert "ranks 0-2, 5" in listed
    assert "2 up, 1 lost" in page
    assert 'aria-labelledby="h-nodes" hidden' not in page
    assert "The agent does not answer" not in page


@pytest.mark.timeout(600)
def test_a_follower_refers_to_the_head(rendered):
    page = rendered(FOLLOWER_STATUS)

    assert "The head at any:14000 processes this node" in page
    assert "None on this node" in page
    assert 'aria-labelledby="h-nodes" hidden' in page
    assert 'aria-labelledby="h-signals" hidden' in page


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("cluster", "text"),
    [
        (DISCONNECTED, "not been reached for 12 min: No answer."),
        ({"role": "single"}, "No head reached"),
    ],
    ids=["disconnected", "isolated"],
)
def test_a_node_without_a_head_shows_that(rendered, cluster, text):
    assert text in rendered(cluster)


@pytest.mark.timeout(600)
def test_a_run_on_one_node_has_no_nodes_section(rendered):
    page = rendered({})

    assert 'aria-labelledby="h-nodes" hidden' in page
    assert re.search(r'id="role"[^>]*hidden', page)
    assert "sentinel_loss" in page or "1.500" in page
