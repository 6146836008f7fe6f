"""Notifications leave this machine only over TLS, and never to a metadata service."""

import pytest

from sentinel.config.url_policy import is_loopback, peer_refusal, url_refusal


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.slack.com/services/T/B/X",
        "http://127.0.0.1:9/x",
        "http://[::1]/",
        "http://localhost/",
    ],
)
def test_https_and_loopback_urls_are_allowed(url):
    assert url_refusal(url) is None


@pytest.mark.fault("X2")
@pytest.mark.parametrize(
    "url",
    [
        "",
        "hooks.slack.com/services",
        "ftp://example.org/",
        "file:///etc/passwd",
        "https://",
        "https://example.org:port/",
        "https://[::1/",
        "https://example.org/a b",
        "https://example.org/\nHost: other",
        "https://hooks.slack.com@example.org/",
        "https://user:secret@example.org/",
        "http://example.org/",
        "http://0x7f.1/",
        "http://0.0.0.0/",
        "http://localhost.example.org/",
    ],
)
def test_other_urls_are_refused_without_repeating_them(url):
    refusal = url_refusal(url)

    assert refusal
    assert "example" not in refusal


def test_http_to_other_machines_can_be_allowed():
    assert url_refusal("http://receiver.cluster.local/hook", allow_http=True) is None


@pytest.mark.fault("X2")
@pytest.mark.parametrize(
    "peer",
    [
        "169.254.169.254",
        "::ffff:169.254.169.254",
        "fe80::1%eth0",
        "fd00:ec2::254",
        "100.100.100.200",
        "224.0.0.1",
        "ff02::1",
        "0.0.0.0",
        "::",
    ],
)
def test_metadata_and_multicast_addresses_are_refused(peer):
    assert peer_refusal(peer)


@pytest.mark.parametrize("peer", ["127.0.0.1", "10.1.2.3", "192.168.0.7", "8.8.8.8", "2001:db8::1"])
def test_other_addresses_are_allowed(peer):
    """Receivers are often in private networks."""
    assert peer_refusal(peer) is None


def test_a_host_is_loopback_only_by_its_spelling():
    assert is_loopback("127.8.9.1")
    assert is_loopback("localhost")
    assert not is_loopback("localhost.example.org")
    assert not is_loopback("0.0.0.0")
