"""A stored run full of hostile texts: list, page, comparison, report and answers stay harmless."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from itertools import cycle
from urllib.parse import quote

import pytest
import requests
from support.browsers import new_context
from support.hostile_texts import PAYLOADS
from support.insight_results import surface, trajectory
from support.layer_records import layer_record
from support.run_databases import write_records
from support.serve_command import serve_command
from support.stored_homes import write_run

from sentinel.store.artifact import save_artifact

pytestmark = [pytest.mark.fault("X7"), pytest.mark.timeout(1200)]

RUN = "hostile"

UNSAFE = """() => {
  const found = [];
  for (const each of document.querySelectorAll("*")) {
    const name = each.localName;
    if (/^(iframe|object|embed|base|video|template|frame|applet)$/.test(name)) found.push(name);
    if (name === "script" && new URL(each.src || "x:y").origin !== location.origin
        && each.type !== "application/json") found.push(`script ${each.src}`);
    if (name === "meta" && each.httpEquiv) found.push("meta");
    for (const { name: attribute, value } of each.attributes) {
      if (/^on/i.test(attribute)) found.push(`${name} ${attribute}`);
      if (/^(xlink:)?href$|^src|^action$|^data$/i.test(attribute)
          && /^\\s*(javascript|vbscript|data:text)/i.test(value)) found.push(value);
      if (/^(xlink:)?href$/i.test(attribute) && each.href && each.protocol
          && each.origin !== location.origin && each.protocol !== "data:") found.push(each.href);
    }
  }
  return found;
}"""
"""What no page of sentinel has: elements and attributes that run or load something foreign."""
OPEN_ALL = "() => document.querySelectorAll('details').forEach((each) => { each.open = true; })"


def poison(path):
    """Replace every text that a trainer, a model, a person or a receiver chose in the database."""
    payloads = cycle(PAYLOADS)
    with closing(sqlite3.connect(path)) as connection, connection:

        def rewrite(table, column, change):
            for key, text in connection.execute(f"select rowid, {column} from {table}").fetchall():
                if text:
                    query = f"update {table} set {column} = ? where rowid = ?"
                    connection.execute(query, (change(text), key))

        def json_with(*names):
            return lambda text: json.dumps(poisoned(json.loads(text), names, payloads))

        rewrite("incident", "body", json_with("summary", "remedy", "evidence"))
        rewrite("case_history", "body", json_with("title", "text", "remedy", "subject", "message"))
        rewrite("metadata", "text", lambda _: next(payloads).encode("utf-8", "replace").decode())
        rewrite("outbox", "last_error", lambda _: next(payloads).encode("utf-8", "replace"))


def poisoned(value, names, payloads, *, is_in=False):
    """The value with the texts below these names replaced."""
    if isinstance(value, str):
        return next(payloads) if is_in else value
    if isinstance(value, list):
        return [poisoned(each, names, payloads, is_in=is_in) for each in value]
    if isinstance(value, dict):
        return {
            key: poisoned(each, names, payloads, is_in=is_in or key in names)
            for key, each in value.items()
        }
    return value


def store_results(path, texts):
    """Results of insight, and measurements of layers, whose every text is a payload."""
    for step, text in enumerate(texts):
        direction = {"name": text, "kind": text, "norm": 1.0}
        said = {"selection": text, "model": text, "note": [text], "directions": [direction] * 2}
        save_artifact(path.parent, surface(step, size=5, **said), name=text, title=text)
    path_of_weights = trajectory(texts[0], selection=texts[1], note=texts)
    save_artifact(path.parent, path_of_weights, name=texts[2], title=texts[3])
    norms = dict.fromkeys(texts, 1.0)
    write_records(path, [layer_record(step, layer_grad_norm=norms) for step in (1, 2)])


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home with a run whose texts are payloads, under a name that is one."""
    home = tmp_path_factory.mktemp("hostile")
    texts = [each.encode("utf-8", "replace").decode().replace("\0", "") for each in PAYLOADS]
    path = write_run(
        home,
        run=RUN,
        steps=200,
        fault_at=140,
        outcome="",
        sample_every=2,
        texts=texts,
        extra_values=dict.fromkeys(texts, 1.0),
        metadata={"model": texts[0], "host": texts[4], "framework": texts[5]},
    )
    poison(path)
    store_results(path, texts)
    write_run(home, run="healthy", steps=60)
    return home


@pytest.fixture(scope="module")
def url(home):
    with serve_command(home) as address:
        yield address


@pytest.fixture
def page(browser, page_problems):
    context = new_context(browser, page_problems)
    yield context.new_page()
    context.close()


def assert_harmless(page):
    assert page.evaluate(UNSAFE) == []
    assert "pwned" not in page.title()


def test_no_payload_in_any_field_of_a_run_is_interpreted(page, url):
    page.goto(f"{url}/runs/{RUN}/")
    page.locator("#section-curves [data-chart]").first.scroll_into_view_if_needed()
    page.wait_for_function("() => document.querySelectorAll('.js-plotly-plot').length > 2")
    # Everything is shown: sections, charts and samples.
    page.evaluate(OPEN_ALL)
    for more in page.get_by_role("button", name="Show more").all():
        if more.is_visible():
            more.click()
    for number in range(6):
        page.evaluate("n => scrollTo(0, n * document.body.scrollHeight / 6)", number)
        page.wait_for_timeout(100)
    text = page.evaluate("() => document.body.textContent")

    assert_harmless(page)
    # Metrics, settings, samples, cases and incidents are there, as texts.
    shown = [each for each in PAYLOADS if each.replace("\0", "") in text]
    assert len(shown) > 0.9 * len(PAYLOADS)
    assert sum(text.count(each) for each in shown) > 2 * len(PAYLOADS)


def test_no_payload_in_the_list_of_runs_is_interpreted(page, url):
    page.goto(f"{url}/")
    page.get_by_role("link", name=RUN).first.wait_for()

    assert_harmless(page)


def test_no_payload_in_a_comparison_is_interpreted(page, url):
    page.goto(f"{url}/compare?run={RUN}&run=healthy")
    page.locator("[data-chart]").first.scroll_into_view_if_needed()
    page.wait_for_function("() => document.querySelectorAll('.js-plotly-plot').length > 0")

    assert_harmless(page)


def test_no_payload_in_a_report_is_interpreted(page, url, tmp_path):
    found = []
    for run in ("healthy", RUN):
        report = tmp_path / f"{run}.html"
        report.write_bytes(requests.get(f"{url}/runs/{run}/report.html", timeout=300).content)
        page.goto(report.as_uri())
        page.get_by_role("heading", level=1).wait_for()
        page.evaluate(
            "() => document.querySelectorAll('details').forEach((d) => { d.open = true; })"
        )
        found.append(page.evaluate(UNSAFE))
    text = page.evaluate("() => document.body.textContent")

    # Its own scripts and policy, as in every report.
    assert found[0] == found[1]
    assert "pwned" not in page.title()
    assert sum(payload in text for payload in PAYLOADS) > len(PAYLOADS) / 2


@pytest.mark.parametrize("path", ["api/samples?limit=200", "api/run", "api/signals", "api/cases"])
def test_answers_with_payloads_are_no_pages(page, url, page_problems, path):
    # The browser asks for it if the answer is no page.
    page_problems.expect("favicon.ico")
    page.goto(f"{url}/runs/{RUN}/{path}")

    assert_harmless(page)
    assert page.evaluate("() => document.scripts.length") == 0


@pytest.mark.parametrize("path", ["/runs/", "/runbooks/", "/static/", "/"])
def test_a_path_with_a_payload_is_not_interpreted(page, url, page_problems, path):
    page_problems.expect("40[04]")
    for payload in PAYLOADS[:4]:
        page.goto(f"{url}{path}{quote(payload, safe='', errors='replace')}")
        assert_harmless(page)
        assert page.evaluate("() => document.scripts.length") == 0
