"""Self-signed certificates for 127.0.0.1."""

from __future__ import annotations

import ssl
import subprocess

from programs import find


def make_certificate(folder, *, is_expired=False):
    """Path of a file that contains the certificate and its key; skips without openssl."""
    openssl = find("openssl")
    key, certificate, path = folder / "key.pem", folder / "certificate.pem", folder / "both.pem"
    commands = [
        [
            *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", key, "-out", certificate),
        ]
    ]
    if is_expired:
        signed_again = ["x509", "-in", certificate, "-signkey", key, "-days", "-1"]
        commands.append([*signed_again, "-out", certificate])
    for command in commands:
        subprocess.run([openssl, *command], check=True, capture_output=True)
    path.write_text(key.read_text() + certificate.read_text())
    return path


def server_context(certificate):
    """The TLS context of a server with that certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context
