"""A GET request to an agent of this machine, whose certificate is known."""

from __future__ import annotations

import re
import ssl
from hashlib import sha256
from pathlib import Path
from typing import Any

import requests
from requests.adapters import HTTPAdapter

REFUSALS = (requests.ConnectionError, ssl.SSLError)
"""Errors of a connection that the agent does not accept."""
_CERTIFICATE = re.compile(
    r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL | re.ASCII
)


def get(url: str, token: str, certificate_file: str, timeout: float) -> requests.Response:
    """The response, within `timeout` seconds; only from an agent with that certificate, if given.

    Raises requests.RequestException, OSError or ValueError.
    """
    headers = {"authorization": f"Bearer {token}"} if token else {}
    with requests.Session() as session:
        # The agent is on this machine: do not use the proxy of the environment.
        session.trust_env = False
        if certificate_file:
            session.mount("https://", _PinnedAdapter(_fingerprint(Path(certificate_file))))
        return session.get(
            url,
            headers=headers,
            timeout=timeout,
            allow_redirects=False,
            # The certificate is compared as a whole, whatever its issuer and names.
            verify=not certificate_file,
        )


class _PinnedAdapter(HTTPAdapter):
    """Accepts only the certificate with that SHA-256 digest."""

    def __init__(self, fingerprint: str) -> None:
        self._fingerprint = fingerprint
        super().__init__()

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs, assert_fingerprint=self._fingerprint)


def _fingerprint(certificate_file: Path) -> str:
    """SHA-256 of the first certificate of a PEM file. Raises OSError or ValueError."""
    found = _CERTIFICATE.search(certificate_file.read_text())
    if found is None:
        raise ValueError(f"{certificate_file} has no certificate")
    return sha256(ssl.PEM_cert_to_DER_cert(found[0])).hexdigest()
