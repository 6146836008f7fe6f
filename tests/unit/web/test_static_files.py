"""Static files: their versions, what browsers store, and that nothing else is served."""

from __future__ import annotations

import gzip
import os
import re

import pytest
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient
from support.results import RUN
from support.web_servers import get, servers

from sentinel.web.static_files import STATIC_DIRECTORY, StaticFiles


@pytest.fixture(scope="module")
def url():
    with servers() as start:
        yield start()


@pytest.fixture
def folder(tmp_path):
    static = tmp_path / "static"
    (static / "charts").mkdir(parents=True)
    (static / "page.html").write_text('<script src="static/a.js"></script><a href="static">')
    (static / "a.js").write_text("a")
    (static / "charts/b.js").write_text("b" * 20_000)
    (tmp_path / "secret.js").write_text("secret")
    (static / ".hidden.py").write_text("secret")
    return static


@pytest.fixture
def client(folder):
    static = StaticFiles(folder)
    routes = [Route("/static/{path:path}", static.serve), Route("/", static.page("page.html"))]
    return TestClient(Starlette(routes=routes))


def version_of(client):
    return re.search(r'src="(static/\w+@)/a.js"', client.get("/").text)[1]


def test_a_page_refers_to_files_by_a_version_that_browsers_store(client):
    answer = client.get(f"/{version_of(client)}/a.js")

    assert (answer.text, answer.headers["cache-control"]) == (
        "a",
        "private, max-age=31536000, immutable",
    )
    assert client.get("/").headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("path", ["static/a.js", "static/0123@/a.js", ""])
def test_without_the_version_a_browser_asks_each_time(client, path):
    answer = client.get(f"/{path}")
    again = client.get(f"/{path}", headers={"if-none-match": answer.headers["etag"]})

    assert answer.headers["cache-control"] == "no-cache"
    assert (again.status_code, again.content) == (304, b"")


def test_modules_of_a_folder_keep_the_version(client):
    assert client.get(f"/{version_of(client)}/charts/b.js").text == "b" * 20_000


def test_a_changed_file_has_another_version(client, folder):
    before = version_of(client)
    (folder / "a.js").write_text("changed")
    os.utime(folder / "a.js", (1, 1))

    assert version_of(client) != before
    assert client.get(f"/{before}/a.js").text == "changed"
    assert client.get(f"/{before}/a.js").headers["cache-control"] == "no-cache"


@pytest.mark.parametrize(
    "path",
    [
        "../secret.js",
        "%2e%2e/secret.js",
        "x@/../secret.js",
        "charts",
        "charts/",
        ".hidden.py",
        "",
        "/etc/passwd",
    ],
)
def test_nothing_else_is_served(client, path):
    assert client.get(f"/static/{path}").status_code == 404


def test_head_has_no_body(url):
    import requests

    answer = requests.head(f"{url}/static/run.js", timeout=240)

    assert (answer.status_code, answer.content) == (200, b"")


def test_the_chart_library_comes_from_its_package_and_is_compressed(url):
    path = f"{url}/static/plotly.min.js"
    small = get(path, **{"accept-encoding": "gzip"})
    plain = get(path, **{"accept-encoding": "identity"})

    assert small.headers["content-encoding"] == "gzip"
    assert int(small.headers["content-length"]) < 0.4 * len(plain.content)
    assert small.content == plain.content


def test_without_the_package_there_is_no_chart_library(client, monkeypatch):
    monkeypatch.setattr("sentinel.web.static_files.find_spec", lambda _: None)

    assert client.get("/static/plotly.min.js").status_code == 404


def test_a_large_file_is_compressed_for_clients_that_accept_it(client):
    accepted = client.get("/static/charts/b.js", headers={"accept-encoding": "br, gzip;q=0.5"})
    refused = client.get("/static/charts/b.js", headers={"accept-encoding": "gzip;q=0"})

    assert accepted.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in refused.headers
    assert len(gzip.compress(accepted.content)) < 500


def test_every_module_that_a_page_imports_is_served(url):
    """Also through the versions of their addresses."""
    page = get(f"{url}/runs/{RUN}/").text
    (entry,) = re.findall(r'src="\.\./\.\./(static/\w+@/)run\.js"', page)
    missing, known, waiting = [], set(), ["run.js"]
    while waiting:
        name = waiting.pop()
        known.add(name)
        answer = get(f"{url}/{entry}{name}")
        if answer.status_code != 200:
            missing.append(name)
        folder = (STATIC_DIRECTORY / name).parent
        for target in re.findall(
            r'^import .* from "(\./|\../)([\w./-]+)";$', answer.text, re.MULTILINE
        ):
            path = (folder / "".join(target)).resolve().relative_to(STATIC_DIRECTORY)
            if str(path) not in known:
                waiting.append(str(path))

    assert missing == []
    assert {"dom.js", "source.js", "sections/cases.js"} <= known
