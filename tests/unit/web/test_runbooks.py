"""Tests of the runbooks that the agent serves."""

from __future__ import annotations

import re

import pytest
from support.web_servers import get, servers

from sentinel.config.plugins import load_classes
from sentinel.web.runbooks import read_runbook, render_runbook

NAMES = sorted([*load_classes("detectors"), *load_classes("causes")])


@pytest.fixture(name="url", scope="module")
def server_url():
    with servers() as start:
        yield start()


@pytest.mark.parametrize("name", NAMES)
def test_every_detector_and_cause_has_a_runbook_whose_links_lead_to_others(name):
    page = render_runbook(read_runbook(name))
    links = re.findall(r"<a href=\W([^'\"]+)\W", page)

    assert "<h2>What to do</h2>" in page
    assert all(read_runbook(link) for link in links if "/" not in link)


def test_a_runbook_is_served_as_a_page(url):
    response = get(f"{url}/runbooks/kl_blowup")

    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.headers["content-security-policy"].startswith("default-src 'none'")
    assert "<h1>KL blow-up</h1>" in response.text


@pytest.mark.fault("X10")
@pytest.mark.parametrize("name", ["nothing", "<script>", "..%2fserver", "%2e%2e", "KL", "a" * 99])
def test_an_unknown_name_gives_the_list_of_all(url, name):
    response = get(f"{url}/runbooks/{name}")

    assert response.status_code == 404
    assert "<script>" not in response.text
    if "/" not in name and "%" not in name:
        assert "<a href='kl_blowup'>KL blow-up</a>" in response.text


def test_the_list_names_all_runbooks(url):
    text = get(f"{url}/runbooks/").text

    assert all(f"<a href='{name}'>" in text for name in NAMES)


def test_a_token_protects_runbooks_too():
    with servers() as start:
        url = start(token="secret")
        assert get(f"{url}/runbooks/kl_blowup").status_code == 401
        answered = get(f"{url}/runbooks/kl_blowup", authorization="Bearer secret")
        assert answered.status_code == 200


def test_html_in_a_runbook_is_escaped():
    page = render_runbook(
        "# A <b>title</b>\n\n<script>alert(1)</script> [x](javascript:alert(1))\n"
    )

    assert "<script>" not in page
    assert "<b>" not in page
    assert "href='javascript" not in page
    assert 'href="javascript' not in page
