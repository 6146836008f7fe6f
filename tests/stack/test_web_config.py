"""One web configuration file for an agent and for Prometheus, which scrapes it over TLS."""

from __future__ import annotations

import json
import os
import sys

import pytest
import requests
import yaml
from programs import find, free_port, run_program, running, wait_for
from support.certificates import make_certificate
from support.rank_processes import ranks

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1200), pytest.mark.fault("X4")]

HASH = "$2b$04$7Wnmo2bbySeCXu8y3/skxOm4f1q9R0xEathjAV/tIHHuOgla1CAqS"
"""Of the password "correct", at the lowest cost."""
WEB_CONFIG = {
    "tls_server_config": {
        "cert_file": "certificate.pem",
        "key_file": "key.pem",
        "client_auth_type": "RequireAndVerifyClientCert",
        "client_ca_file": "certificate.pem",
        "min_version": "TLS12",
        "max_version": "TLS13",
        "prefer_server_cipher_suites": True,
    },
    "http_server_config": {
        "http2": True,
        "headers": {
            "Strict-Transport-Security": "max-age=60",
            "Content-Security-Policy": "frame-ancestors 'none'",
            "X-Frame-Options": "deny",
            "X-Content-Type-Options": "nosniff",
            "X-XSS-Protection": "0",
        },
    },
    "basic_auth_users": {"ana": HASH},
}
"""Every key that both accept; Prometheus of Debian 12 does not know `rate_limit`."""


def test_prometheus_and_the_agent_share_the_file(promtool, tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "rings"))
    make_certificate(tmp_path)
    config = tmp_path / "web.yml"
    config.write_text(yaml.safe_dump(WEB_CONFIG))
    checked = run_program(promtool, "check", "web-config", str(config))
    assert checked.returncode == 0, checked.stdout

    home, port = tmp_path / "home", free_port()
    certificate = str(tmp_path / "certificate.pem")
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(scrape_config(home, tmp_path)))
    environ = os.environ | {
        "SENTINEL_HOME": str(home),
        "SENTINEL_HOST": "0.0.0.0",
        "SENTINEL_PORT": "0",
        "SENTINEL_WEB_CONFIG_FILE": str(config),
    }
    monkeypatch.setenv("SENTINEL_HOME", str(home))
    with ranks() as start_rank:
        start_rank(0, world=1, steps=20, values={"loss": [1.5]})
        with (
            running(
                tmp_path / "agent.log",
                *(sys.executable, "-m", "sentinel", "agent", "--run", "live"),
                env=environ,
            ),
            running(
                tmp_path / "prometheus.log",
                find("prometheus"),
                f"--config.file={tmp_path}/prometheus.yml",
                f"--storage.tsdb.path={tmp_path}/data",
                f"--web.config.file={config}",
                f"--web.listen-address=127.0.0.1:{port}",
            ),
        ):
            given = {"verify": certificate, "cert": (certificate, str(tmp_path / "key.pem"))}
            given |= {"auth": ("ana", "correct"), "timeout": 60}
            prometheus = f"https://127.0.0.1:{port}"
            wait_for("the scrape", lambda: loss(prometheus, given) == "1.5")
            # Both refuse the same clients.
            agent = f"https://127.0.0.1:{agent_port(home)}"
            for url in (prometheus, agent):
                wrong = given | {"auth": ("ana", "wrong")}
                assert requests.get(f"{url}/metrics", **given).ok
                assert requests.get(f"{url}/metrics", **wrong).status_code == 401
                with pytest.raises(requests.ConnectionError):
                    requests.get(f"{url}/metrics", **(given | {"cert": None}))
                headers = requests.get(f"{url}/metrics", **given).headers
                assert headers["strict-transport-security"] == "max-age=60"
                assert headers["content-security-policy"] == "frame-ancestors 'none'"


def scrape_config(home, folder):
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [
            {
                "job_name": "sentinel",
                "file_sd_configs": [
                    {"files": [f"{home}/targets/*.json"], "refresh_interval": "1s"}
                ],
                "basic_auth": {"username": "ana", "password": "correct"},
                "tls_config": {
                    "ca_file": f"{folder}/certificate.pem",
                    "cert_file": f"{folder}/certificate.pem",
                    "key_file": f"{folder}/key.pem",
                    "server_name": "127.0.0.1",
                },
            }
        ],
    }


def loss(prometheus, given):
    try:
        answer = requests.get(
            f"{prometheus}/api/v1/query", params={"query": "sentinel_loss"}, **given
        ).json()
    except requests.RequestException:
        return None
    return answer["data"]["result"][0]["value"][1] if answer["data"]["result"] else None


def agent_port(home):
    return json.loads((home / "runs/live/agent.json").read_text())["port"]
