"""Restricts the URLs and IP addresses that notifications are sent to."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit

_METADATA_ADDRESSES = frozenset(
    {"100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254"}
)
"""Cloud services outside the link-local range that return credentials to any client."""


def url_refusal(url: str, *, allow_http: bool = False) -> str | None:
    """Why no notification may be sent to `url`, or None. The URL is secret and is not repeated.

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


def check_url(setting: str, url: str, *, allow_http: bool) -> None:
    """Raise ValueError about the setting of that name if nothing may be sent to its `url`."""
    if refusal := url_refusal(url, allow_http=allow_http):
        raise ValueError(f"`{setting}` {refusal}; `allow_http` permits http://")


def peer_refusal(peer: str) -> str | None:
    """Why nothing may be sent to the IP address `peer`, or None.

    Applied to the address of the open connection, so that DNS cannot bypass the check.

    >>> peer_refusal("::ffff:169.254.169.254")
    'is link-local, where cloud metadata lives'
    """
    address = ip_address(peer.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    if address.is_link_local:
        return "is link-local, where cloud metadata lives"
    if str(address) in _METADATA_ADDRESSES:
        return "is a cloud metadata service"
    if address.is_multicast or address.is_unspecified:
        return "is not one machine"
    return None


def is_loopback(host: str) -> bool:
    """Whether `host` is literally a loopback address or `localhost`; no name is looked up."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
