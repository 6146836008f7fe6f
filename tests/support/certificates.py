"""A self-signed certificate for 127.0.0.1."""

from __future__ import annotations

import shutil
import ssl
import subprocess

import pytest


def make_certificate(folder):
    """Path of a file that contains the certificate and its key; skips without openssl."""
    if not shutil.which("openssl"):
        pytest.skip("openssl makes the certificate")
    path = folder / "both.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", path, "-out", path.with_suffix(".crt")),
        ],
        check=True,
        capture_output=True,
    )
    path.write_text(path.read_text() + path.with_suffix(".crt").read_text())
    return path


def server_context(certificate):
    """The TLS context of a server with that certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context
