"""Address: where a page may be sent, and where never."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit

_METADATA_ADDRESSES = frozenset(
    {"100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254"}
)
"""Cloud services outside the link-local range that hand credentials to whoever asks."""


def url_refusal(url: str, *, allow_http: bool = False) -> str | None:
    """Why no page may be sent to `url`, or None. The answer never repeats it: it is a secret.

    >>> url_refusal("http://example.org/hook")
    'must begin with https:// (http:// only reaches this machine)'
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "is not a web address"
    if parts.scheme not in {"http", "https"} or not host or not url.isprintable() or " " in url:
        return "must be a web address such as https://host/path"
    if parts.username is not None or parts.password is not None:
        return "must not hold a user name or password"
    if parts.scheme == "http" and not allow_http and not is_loopback(host):
        return "must begin with https:// (http:// only reaches this machine)"
    return None


def peer_refusal(peer: str) -> str | None:
    """Why nothing may be said to the IP address `peer`, or None.

    Asked of the address that was connected to, so that no name server can talk its way around it.

    >>> peer_refusal("::ffff:169.254.169.254")
    'is link-local, where cloud metadata lives'
    """
    found = ip_address(peer.partition("%")[0])
    if isinstance(found, IPv6Address) and found.ipv4_mapped:
        found = found.ipv4_mapped
    if found.is_link_local:
        return "is link-local, where cloud metadata lives"
    if str(found) in _METADATA_ADDRESSES:
        return "is a cloud metadata service"
    if found.is_multicast or found.is_unspecified:
        return "is not one machine"
    return None


def is_loopback(host: str) -> bool:
    """Whether `host`, a name or an IP address, is this machine by its very spelling."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
