"""Places of several nodes: on loopback for everybody, as network namespaces where that is asked."""

import pytest
from hosts import Site
from namespaces import Cluster, RefusedError
from support.webhook_receiver import Receiver

# Before anybody imports them: what they assert is shown as a test's own would be.
pytest.register_assert_rewrite("jobs", "judged")


def made(kind, folder):
    try:
        return Cluster(folder) if kind == "namespaces" else Site(folder)
    except RefusedError as word:
        pytest.skip(f"no network namespaces here: {word}")


@pytest.fixture(params=["loopback", pytest.param("namespaces", marks=pytest.mark.nodes)])
def site(request, tmp_path):
    """A place for hosts of either kind."""
    site = made(request.param, tmp_path)
    yield site
    site.close()


@pytest.fixture
def loopback(tmp_path):
    """A place for hosts that share this machine's network."""
    site = Site(tmp_path)
    yield site
    site.close()


@pytest.fixture
def cluster(tmp_path):
    """A place for hosts that have a network of their own."""
    site = made("namespaces", tmp_path)
    yield site
    site.close()


@pytest.fixture
def people():
    """Gives a host somebody to tell; what they were told is in `taken`."""
    receivers = []

    def told_by(host):
        receiver = host.within(Receiver().__enter__)
        receivers.append(receiver)
        host.settings["SENTINEL_SINKS__WEBHOOK__URL"] = receiver.url
        return receiver

    yield told_by
    for receiver in receivers:
        receiver.__exit__(None, None, None)
