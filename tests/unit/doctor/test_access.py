"""Checks of the agent's TLS, and of its lack."""

from __future__ import annotations

import json
import subprocess

import pytest
from support.certificates import make_certificate

from sentinel.doctor.check_result import Grade
from sentinel.doctor.settings import check_settings


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Returns a function: grade and message of each check of that subject."""
    monkeypatch.chdir(tmp_path)

    def run(subject, **environ):
        for name, text in environ.items():
            monkeypatch.setenv(f"SENTINEL_{name.upper()}", text)
        results = [each for each in check_settings() if each.subject == subject]
        return [(each.grade, each.message) for each in results]

    return run


@pytest.fixture
def web_config(tmp_path):
    """Returns a function: path of a web configuration with a certificate."""

    def write(max_version="TLS13", **given):
        make_certificate(tmp_path, **given)
        path = tmp_path / "web.yml"
        tls = {"cert_file": "certificate.pem", "key_file": "key.pem", "max_version": max_version}
        path.write_text(json.dumps({"tls_server_config": tls}))
        return str(path)

    return write


def test_a_loopback_agent_needs_no_tls(check):
    assert check("access") == check("certificate") == []


def test_a_reachable_agent_without_tls_is_a_warning(check, tmp_path):
    ((grade, message),) = check("access", host="0.0.0.0", token="t")

    assert grade is Grade.WARN
    assert message.startswith("0.0.0.0 is reached without TLS")


def test_with_tls_there_is_none(check, web_config):
    path = web_config()

    assert check("access", host="0.0.0.0", token="t", web_config_file=path) == []


@pytest.mark.fault("X4")
@pytest.mark.parametrize("version", ["TLS12", "TLS13"])
def test_a_certificate_that_expires_soon_is_a_warning(check, web_config, version):
    """Those of the tests are valid for two days."""
    ((grade, message),) = check("certificate", web_config_file=web_config(version))

    assert grade is Grade.WARN
    assert message.endswith("certificate.pem expires in 2 days")


@pytest.mark.fault("X4")
@pytest.mark.parametrize("version", ["TLS12", "TLS13"])
def test_an_expired_certificate_is_a_failure(check, web_config, version):
    ((grade, message),) = check("certificate", web_config_file=web_config(version, is_expired=True))

    assert (grade, "has expired" in message) == (Grade.FAIL, True)


@pytest.mark.fault("X4")
def test_the_certificate_of_an_authority_that_is_unknown_here_is_read(check, web_config, tmp_path):
    """With the chain in the file, as certbot writes it."""
    path = web_config()
    (tmp_path / "authority").mkdir()
    make_certificate(tmp_path / "authority")
    sign = [
        *("openssl", "x509", "-in", "certificate.pem", "-days", "300", "-out", "signed.pem"),
        *("-CA", "authority/certificate.pem", "-CAkey", "authority/key.pem", "-CAcreateserial"),
    ]
    subprocess.run(sign, check=True, capture_output=True, cwd=tmp_path)
    signed = (tmp_path / "signed.pem").read_text()
    authority = (tmp_path / "authority/certificate.pem").read_text()
    (tmp_path / "certificate.pem").write_text(signed + authority)
    ((grade, message),) = check("certificate", web_config_file=path)

    assert grade is Grade.OK
    assert message.endswith(("is valid for 300 days", "is valid for 299 days"))
