"""Texts of runs, people and models in a browser: shown as they are, never interpreted."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
from playwright.sync_api import expect
from prometheus_client import CollectorRegistry
from support.hostile_texts import PAYLOADS
from support.results import RUN, case_result, step_result
from support.web_servers import servers

from sentinel.metrics.exposition import Exposition
from sentinel.model.counters import Counters
from sentinel.model.delivery_problem import DeliveryProblem

pytestmark = pytest.mark.fault("X7")

NOW = 1_700_000_000.0


def full_state():
    """A state with something in every part of the page."""
    exposition = Exposition(Counters(), {}, run=RUN, clock=lambda: NOW)
    exposition.update(step_result(loss=1.5))
    exposition.update(case_result())
    exposition.set_delivery_problems([DeliveryProblem("slack", 2, 1, "HTTP 404", NOW)])
    state = exposition.state()
    onset = {"step": 4, "earliest": 3, "latest": 5, "last_good_step": 2}
    signature = {"author": "ana", "comment": "known", "ends_at": NOW, "time": NOW}
    incident = {**HUNG, "acknowledged": signature, "silenced": signature}
    return state | {
        "incidents": [*state["incidents"], incident, {**incident, "case": "", "onset": onset}],
        "logged": {"my/metric": 1.0},
        "metadata": {**state["metadata"], "a setting": "a value", "algorithm": "grpo"},
        "patches": {"trl": {"on": [0], "off: KeyError": [1]}},
        "coverage": "nothing is monitored",
        "ranks": {"0": {"up": True, "step": 3, "step_time": 1.0, "last_step_time": NOW}},
        "machine": {
            "host": {"host_cpu": 0.5, "host_memory_used": 1.0, "host_memory_total": 2.0},
            "disks": {"checkpoints": 1e9},
            "gpus": [{"gpu": 0, "name": "H100", "ranks": [0], "throttled": ["heat"], "up": True}],
        },
        "cluster": {
            "role": "follower",
            "head": "gpu-a:14007",
            "connected": False,
            "error": "refused",
            "nodes": [
                {"host": f"gpu-{n}", "state": "up", "ranks": [n], "skew_seconds": 9.0}
                for n in range(3)
            ],
        },
    }


HUNG = {
    "detector": "run_stalled",
    "name": f"{RUN}/run_stalled#1",
    "severity": "critical",
    "summary": "Hung.",
    "remedy": "Run `py-spy`.",
    "rank": 1,
    "onset_step": 3,
    "evidence": {"stack_of_rank_1": "forward (model.py:3)"},
    "case": "one",
    "flaps": 2,
    "onset": None,
    "diagnosis": {"title": "A cause"},
    "state": "firing",
    "resolution": "by itself",
}


MESSAGE = {"subject": "Loss spike", "since": "At step 3.", "facts": ["A fact."], "remedy": "Do."}
STORED = {
    "cases": [
        {
            "name": f"{RUN}/loss_spike#1",
            "subject": "Loss spike",
            "severity": "warning",
            "message": MESSAGE,
            "remedy": "Do.",
            "resolution": "by itself",
            "onset_step": 3,
            "resolved_step": 9,
            "incidents": [f"{RUN}/loss_spike#1"],
            "diagnosis": None,
            "detector": "loss_spike",
        }
    ],
    "samples": [
        {
            "id": number,
            "step": 3,
            "rank": 0,
            "prompt": "Write.",
            "completion": "A story.",
            "rewards": {"style": 1.0},
            "finished": False,
        }
        for number in range(2)
    ],
    "deliveries": [
        {
            "sink": "slack",
            "reason": "opened",
            "severity": "critical",
            "incident": "one",
            "state": "queued",
            "tries": 1,
            "created": NOW,
            "next_at": NOW,
            "finished_at": None,
            "last_error": "HTTP 404",
        }
    ],
}


def with_payload(value, payload, *, keys=True):
    """The value with every text in it replaced, and the names in tables too."""
    if isinstance(value, str):
        return payload
    if isinstance(value, list):
        return [with_payload(each, payload, keys=keys) for each in value]
    if isinstance(value, dict):
        # Tables whose names are given by the run.
        is_open = keys and not value.keys() & KNOWN_KEYS
        return {
            (f"{payload}{n}" if is_open else key): with_payload(each, payload, keys=keys)
            for n, (key, each) in enumerate(value.items())
        }
    return value


KNOWN_KEYS = frozenset(
    ("run", "detector", "message", "subject", "role", "host", "gpu", "value", "up", "text", "cause")
) | {"step", "author", "title", "host_cpu", "disks", "prompt", "sink"}


@pytest.fixture
def shown(browser_page):
    """The page of a server whose answers the test replaces."""
    content = {"state": full_state(), "incidents": [HUNG], **STORED}
    registry = CollectorRegistry()
    names = ("incidents", "cases", "samples", "deliveries")
    with servers() as start:
        url = start(
            registry=registry,
            state=lambda: content["state"],
            sample_steps=lambda: [(3, 2)],
            **{name: lambda *_, name=name, **__: content[name] for name in names},
        )
        browser_page.goto(url + "/")
        expect(browser_page.locator("h1")).to_have_text(RUN)
        yield browser_page, url, content
        # Before the server stops.
        browser_page.goto("about:blank")


COUNT_ELEMENTS = """[...document.querySelectorAll(
  "script, iframe, object, embed, img, svg, video, form, base, meta, link, style, template")].length
  + [...document.querySelectorAll("*")].flatMap((each) => [...each.attributes])
    .filter(({ name, value, ownerElement }) => /^on|^style$|^src/i.test(name)
      || (/^(xlink:)?href$|action$|^data$/i.test(name) && ownerElement.tagName !== "LINK"
        && !value.startsWith("../../runbooks/") && !/^#(section|case)-/.test(value)))
    .length"""


def test_no_payload_in_any_field_is_interpreted(shown):
    page, _, content = shown
    elements = page.evaluate(COUNT_ELEMENTS)
    benign = json.dumps(content)
    shown_count = 0
    for number, payload in enumerate(PAYLOADS):
        original = json.loads(benign)
        # With it as a name too, the entries of some tables are no longer found.
        state = with_payload(original["state"], payload, keys=number % 2 == 0)
        content["state"] = state | {"step": 1000 + number}
        for name in ("incidents", "cases", "samples", "deliveries"):
            content[name] = with_payload(original[name], payload)
        page.evaluate("window.dispatchEvent(new Event('online'))")
        page.wait_for_function(
            "step => document.querySelector('.tile dd span').textContent === step",
            arg=str(1000 + number),
        )
        assert page.evaluate(COUNT_ELEMENTS) == elements, payload
        shown_count += page.evaluate("document.body.textContent").count(payload.replace("\0", ""))
    assert not page.title().startswith("pwned")
    # The texts are on the page: run, metrics, settings, stacks, incidents, nodes and others.
    assert shown_count > 10 * len(PAYLOADS)


@pytest.mark.parametrize("path", ["/api/samples?limit=200", "/api/run", "/metrics"])
def test_answers_with_payloads_are_no_pages(shown, page_problems, path):
    page, url, content = shown
    # The browser asks for it if the answer is no page.
    page_problems.expect("favicon.ico")
    content["state"] = with_payload(full_state(), "".join(PAYLOADS[:8]))
    page.goto(url + path)

    assert page.title() != "pwned"
    assert page.evaluate("document.scripts.length") == 0


def test_a_path_with_a_payload_is_not_interpreted(shown, page_problems):
    page, url, _ = shown
    page_problems.expect("404")
    for payload in PAYLOADS[:8]:
        page.goto(f"{url}/runbooks/{quote(payload, safe='', errors='replace')}")
        assert page.evaluate("document.scripts.length") == 0
