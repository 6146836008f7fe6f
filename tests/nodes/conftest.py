"""Sites of several hosts: on loopback, or in network namespaces with the marker `nodes`.

Each test of a job has a twin under `sentinel run`, with the marker `nodes` too.
"""

from importlib import import_module

import pytest
from hosts import Site
from namespaces import NamespaceError, NamespaceSite
from support.webhook_receiver import Receiver

# Before their import, so that their assertions are rewritten like those of tests.
pytest.register_assert_rewrite("jobs", "agent_results")


def pytest_generate_tests(metafunc):
    """Start the jobs of a test with the decorator, and again under `sentinel run`."""
    chosen = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if hasattr(metafunc.module, "Job") and "monitored_by" not in chosen:
        under_run = pytest.param("under_run", marks=pytest.mark.nodes)
        metafunc.parametrize("monitored_by", ["decorator", under_run], indirect=True)


@pytest.fixture(autouse=True)
def monitored_by(request, monkeypatch):
    """What monitors the jobs of the test: "decorator" or "under_run"."""
    by = getattr(request, "param", "decorator")
    monkeypatch.setattr(import_module("jobs").Job, "under_run", by == "under_run")
    return by


def create_site(kind, folder):
    try:
        return NamespaceSite(folder) if kind == "namespaces" else Site(folder)
    except NamespaceError as error:
        pytest.skip(f"no network namespaces here: {error}")


@pytest.fixture(params=["loopback", pytest.param("namespaces", marks=pytest.mark.nodes)])
def site(request, tmp_path):
    """A site of either kind."""
    site = create_site(request.param, tmp_path)
    yield site
    site.close()


@pytest.fixture
def loopback(tmp_path):
    """A site whose hosts share the network of the machine."""
    site = Site(tmp_path)
    yield site
    site.close()


@pytest.fixture
def cluster(tmp_path):
    """A site whose hosts have their own networks."""
    site = create_site("namespaces", tmp_path)
    yield site
    site.close()


@pytest.fixture
def add_receiver():
    """Adds a webhook sink to a host; returns its receiver, with requests in `accepted`.

    Other hosts may send to it too.
    """
    receivers = []

    def add(host, *others):
        address = host.address if others else "127.0.0.1"
        receiver = host.within(Receiver(address=address).__enter__)
        receivers.append(receiver)
        for each in (host, *others):
            each.settings["SENTINEL_SINKS__WEBHOOK__URL"] = receiver.url
            each.settings["SENTINEL_SINKS__WEBHOOK__ALLOW_HTTP"] = "true"
        return receiver

    yield add
    for receiver in receivers:
        receiver.__exit__(None, None, None)
