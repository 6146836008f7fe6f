"""Pages of other origins in a browser: they can neither read the run nor change anything."""

from __future__ import annotations

import json
import logging
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from support.results import RUN

from sentinel.store.database import connect
from sentinel.store.silences import active_silences
from sentinel.web.suppression_api import SuppressionApi

FORM = """<form id=form method=post enctype=text/plain action="{url}/api/silence">
<input name='{{"for": "2h", "reason": "' value='"}}'></form><script>form.submit()</script>"""

ATTEMPTS = """
(async () => {
  const attempt = (path, options) => fetch(agent + path, options)
    .then(async (answer) => `${answer.type} ${answer.status} ${(await answer.text()).length}`)
    .catch(() => "refused");
  const body = '{"for": "2h"}';
  const json = { "content-type": "application/json" };
  return {
    read: await attempt("/api/run"),
    token: await attempt("/api/write-token", { credentials: "include" }),
    json: await attempt("/api/silence", { method: "POST", body, headers: json }),
    plain: await attempt("/api/silence", { method: "POST", body }),
    opaque: await attempt("/api/silence", { method: "POST", mode: "no-cors", body }),
    script: await attempt("/api/run", { mode: "no-cors" }),
    included: await attempt("/api/acknowledge",
      { method: "POST", mode: "no-cors", credentials: "include", body }),
    beacon: navigator.sendBeacon(agent + "/api/silence", body),
  };
})()
"""


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "sentinel.db"
    connect(path).close()
    return path


@pytest.fixture
def agent_url(serve, database):
    return serve(suppression=SuppressionApi(RUN, database))


def silences(database):
    with closing(connect(database)) as connection:
        return [each.comment for each in active_silences(connection, 0)]


@pytest.fixture
def serve_foreign():
    """Returns a function: the address, of another site, of a page with that content."""
    servers = []

    def start(content):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.send_header("content-type", "text/html")
                self.end_headers()
                self.wfile.write(content.encode())

            def log_message(self, *_):
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://evil.example:{servers[-1].server_port}/"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def foreign_problems(page_problems):
    """Pages of other sites are requested, and what they try is refused."""
    page_problems.expect(r"to another host: http://(evil|rebound)\.example")
    page_problems.expect(r"^console: ")


@pytest.mark.fault("X5")
def test_the_page_of_the_agent_can_write(agent_url, browser_page, database):
    browser_page.goto(agent_url + "/")
    answer = browser_page.evaluate("""(async () => {
      const { token } = await (await fetch("api/write-token")).json();
      const answer = await fetch("api/silence", {
        method: "POST", body: '{"for": "2h", "reason": "own page"}',
        headers: { "content-type": "application/json", "x-sentinel-write-token": token } });
      return answer.status;
    })()""")

    assert answer == 200
    assert silences(database) == ["own page"]


@pytest.mark.fault("X5")
@pytest.mark.usefixtures("foreign_problems")
def test_scripts_of_another_site_are_refused(
    browser_page, agent_url, serve_foreign, database, caplog
):
    caplog.set_level(logging.INFO, "sentinel.web")
    browser_page.goto(serve_foreign(f"<script>const agent = {json.dumps(agent_url)}</script>"))
    attempts = browser_page.evaluate(ATTEMPTS)

    assert attempts.pop("beacon") is True
    assert set(attempts.values()) == {"refused"}
    # The browser sent those for which it needs no permission.
    assert "Refused POST /api/silence of 127.0.0.1: Requests from other pages" in caplog.text
    assert silences(database) == []


@pytest.mark.fault("X5")
@pytest.mark.usefixtures("foreign_problems")
def test_a_form_of_another_site_is_refused(
    browser_page, agent_url, serve_foreign, database, caplog
):
    caplog.set_level(logging.INFO, "sentinel.web")
    browser_page.goto(serve_foreign(FORM.format(url=agent_url)))
    browser_page.wait_for_url("**/api/silence")

    assert "Requests from other pages are refused." in browser_page.inner_text("body")
    assert "Refused POST /api/silence" in caplog.text
    assert silences(database) == []


@pytest.mark.fault("X5")
@pytest.mark.usefixtures("foreign_problems")
def test_the_page_of_the_agent_is_shown_in_no_frame(
    browser_page, agent_url, serve_foreign, page_problems
):
    """Otherwise clicks could be led to its buttons."""
    browser_page.goto(serve_foreign(f"<iframe id=frame src='{agent_url}/'></iframe>"))

    assert browser_page.evaluate("frame.contentDocument") is None
    assert [each for each in page_problems.found if "frame-ancestors" in each]


@pytest.mark.fault("X6")
@pytest.mark.usefixtures("foreign_problems")
def test_a_name_that_is_rebound_to_this_machine_is_refused(browser_page, agent_url, database):
    """The browser takes such a page for one of its own site, and sends no `Origin` with a GET."""
    rebound = agent_url.replace("127.0.0.1", "rebound.example")
    browser_page.goto(rebound + "/-/healthy")
    statuses = browser_page.evaluate("""(async () => {
      const get = async (path) => (await fetch(path)).status;
      const json = { "content-type": "application/json" };
      const post = await fetch("/api/silence", { method: "POST", body: "{}", headers: json });
      return [await get("/"), await get("/api/run"), await get("/api/write-token"),
              await get("/metrics"), post.status];
    })()""")

    assert statuses == [400] * 5
    assert silences(database) == []
