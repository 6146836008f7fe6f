"""The web configuration file: its format, its errors, and new versions of it."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import sys

import pytest
from support.certificates import make_certificate

from sentinel.config.config_sources import ConfigError
from sentinel.config.settings import load_agent_settings, load_replay_settings, load_settings
from sentinel.config.web_config import WebConfigFile, load_web_config

HASH = "$2b$04$7Wnmo2bbySeCXu8y3/skxOm4f1q9R0xEathjAV/tIHHuOgla1CAqS"
"""Of the password "correct", at the lowest cost."""

EVERY_KEY = """
tls_server_config:
  cert_file: certificate.pem
  key_file: key.pem
  client_auth_type: RequireAndVerifyClientCert
  client_ca_file: certificate.pem
  min_version: TLS12
  max_version: TLS13
  prefer_server_cipher_suites: true
http_server_config:
  http2: true
  headers:
    Strict-Transport-Security: max-age=31536000
    Content-Security-Policy: "default-src 'self'"
    X-Frame-Options: deny
    X-Content-Type-Options: nosniff
    X-XSS-Protection: "0"
basic_auth_users:
  ana: $2y$10$mDwo.lAisC94iLAyP81MCesa29IzH37oigHC/42V2pdJlUprsJPze
rate_limit:
  interval: 1m0.5s
  burst: 20
"""


@pytest.fixture(scope="module")
def certificate_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificate")
    make_certificate(folder)
    return folder


@pytest.fixture
def folder(tmp_path, certificate_folder):
    """A folder with a certificate and its key."""
    for name in ("certificate.pem", "key.pem"):
        shutil.copy(certificate_folder / name, tmp_path / name)
    return tmp_path


@pytest.fixture
def write(folder):
    """Returns a function that writes the file and returns its path."""

    def write_text(text):
        path = folder / "web.yml"
        path.write_text(text if isinstance(text, str) else json.dumps(text))
        return path

    return write_text


def tls(**keys):
    return {"tls_server_config": {"cert_file": "certificate.pem", "key_file": "key.pem", **keys}}


@pytest.mark.fault("X4")
def test_every_key_of_the_format_is_read(write, folder):
    config = load_web_config(write(EVERY_KEY))
    context = config.make_tls_context()

    assert config.tls.cert_file == folder / "certificate.pem"
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert config.headers["x-frame-options"] == "deny"
    assert config.headers["strict-transport-security"] == "max-age=31536000"
    assert list(config.users) == ["ana"]
    assert (config.rate_limit.interval, config.rate_limit.burst) == (60.5, 20)
    assert config.requires_client_certificate
    assert "mDwo" not in repr(config)


@pytest.mark.fault("X4")
def test_an_empty_file_is_plain_http_without_a_login(write):
    config = load_web_config(write("# nothing\n"))

    assert (config.tls, config.users, config.headers) == (None, {}, {})
    assert config.make_tls_context() is None
    assert not config.authenticates


@pytest.mark.fault("X4")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"tls_config": {}}, 'tls_config is not known. Did you mean "tls_server_config"?'),
        (tls(cert_fle="x"), 'tls_server_config.cert_fle is not known. Did you mean "cert_file"?'),
        (tls(curve_preferences=["X25519"]), "curve_preferences is not supported: leave it out."),
        (tls(cipher_suites=[]), "cipher_suites is not supported: leave it out."),
        (tls(key="s3cret"), "tls_server_config.key is not supported: name a file instead."),
        (tls(client_auth_type="RequireAnyClientCert"), "client_auth_type: the string given is"),
        (tls(client_auth_type="RequireAndVerifyClientCert"), "need each other"),
        (tls(client_ca_file="certificate.pem"), "client_ca_file and client_auth_type need each ot"),
        (tls(min_version="TLS10"), "min_version: the string given is wrong"),
        (tls(min_version="TLS13", max_version="TLS12"), "min_version is above max_version"),
        ({"tls_server_config": {"cert_file": "a"}}, "tls_server_config.key_file is missing."),
        ({"tls_server_config": "s3cret"}, "tls_server_config: the string given is wrong"),
        ({"basic_auth_users": {"s3cret": "s3cret"}}, "each user needs the bcrypt hash of a passw"),
        ({"basic_auth_users": {"ana": HASH[:-1]}}, "each user needs the bcrypt hash"),
        ({"basic_auth_users": {"ana": HASH.replace("$04$", "$99$")}}, "needs the bcrypt hash"),
        ({"basic_auth_users": ["s3cret"]}, "basic_auth_users: the list given is wrong"),
        ({"http_server_config": {"headers": {"X-Own": "1"}}}, "headers.X-Own is not known."),
        ({"http_server_config": {"headers": {"X-Frame-Options": "x"}}}, "X-Frame-Options: the str"),
        ({"rate_limit": {"interval": "soon"}}, 'must be a duration such as "1s" or "500ms"'),
        ({"rate_limit": {"interval": "1s", "burst": -1}}, "rate_limit.burst: the integer given"),
        ("s3cret", "the content: the string given is wrong"),
        ("a: [s3cret", "not valid YAML at line 1."),
        ("a: \x00s3cret", "not valid YAML."),
        ("a: !!python/object/apply:os.system [s3cret]", "not valid YAML"),
    ],
)
def test_an_error_names_file_and_key_and_no_value(write, content, message):
    path = write(content)
    with pytest.raises(ConfigError) as error:
        load_web_config(path)

    assert str(error.value).startswith(f"Web configuration {path}: ")
    assert message in str(error.value)
    assert "s3cret" not in str(error.value)
    assert HASH[:-1] not in str(error.value)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot be read \(No such file or directory\)"):
        load_web_config(tmp_path / "none.yml")


@pytest.mark.fault("X4")
@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("certificate.pem", None, "No such file"),
        ("key.pem", b"", "NO_START_LINE|PEM"),
        ("key.pem", b"-----BEGIN PRIVATE KEY-----\ns3cret\n", "PEM|NO_|BAD_"),
    ],
)
def test_a_certificate_that_cannot_be_used_is_an_error(write, folder, name, content, reason):
    path = write(tls())
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)

    with pytest.raises(ConfigError, match=rf"cert_file and key_file cannot be used \(.*{reason}"):
        load_web_config(path).make_tls_context()


@pytest.mark.fault("X4")
def test_the_key_of_another_certificate_is_an_error(write, folder):
    (folder / "other").mkdir()
    make_certificate(folder / "other")
    with pytest.raises(ConfigError, match="KEY_VALUES_MISMATCH"):
        load_web_config(write(tls(key_file="other/key.pem"))).make_tls_context()


@pytest.mark.parametrize(("module", "content"), [("yaml", {}), ("bcrypt", {"ana": HASH})])
def test_a_missing_package_is_an_error_with_the_extra(write, monkeypatch, module, content):
    path = write({"basic_auth_users": content})
    monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(ConfigError, match=r"pip install 'train-sentinel\[web-config\]'"):
        load_web_config(path)


def replace(path, text):
    """Write a new version with another time of change, whatever the clock of the file system."""
    path.write_text(text)
    later = path.stat().st_mtime_ns + 1_000_000_000
    os.utime(path, ns=(later, later))


@pytest.mark.fault("X4")
def test_a_new_version_of_the_file_or_its_certificate_is_read(write, folder):
    path = write(tls())
    file = WebConfigFile(path, must_authenticate=False)
    before = file.tls_context
    file.reload()
    assert file.tls_context is before

    replace(path, json.dumps(tls() | {"basic_auth_users": {"ana": HASH}}))
    file.reload()
    assert list(file.current.users) == ["ana"]
    changed = file.tls_context
    assert changed is not before

    (folder / "new").mkdir()
    make_certificate(folder / "new")
    for name in ("certificate.pem", "key.pem"):
        replace(folder / name, (folder / "new" / name).read_text())
    file.reload()
    assert file.tls_context is not changed


@pytest.mark.fault("X4")
@pytest.mark.parametrize(
    ("new", "reason"),
    [
        ("tls_server_config: [", "not valid YAML"),
        ("{}", "TLS is switched on or off by a new agent only"),
        (json.dumps(tls()), "neither users nor client certificates"),
        (json.dumps(tls(key_file="none.pem")), "cannot be used"),
    ],
)
def test_an_invalid_new_version_is_logged_once_and_the_last_one_stays(write, caplog, new, reason):
    path = write(tls() | {"basic_auth_users": {"ana": HASH}})
    file = WebConfigFile(path, must_authenticate=True)
    valid = file.current, file.tls_context

    replace(path, new)
    file.reload()
    file.reload()
    assert (file.current, file.tls_context) == valid
    (record,) = caplog.records
    assert "The last valid web configuration stays" in record.message
    assert reason in record.message


def test_a_certificate_that_is_mended_is_read_without_a_change_of_the_file(write, folder):
    """As with a tool that replaces the certificate first and the key a moment later."""
    file = WebConfigFile(write(tls()), must_authenticate=False)
    before, key = file.tls_context, (folder / "key.pem").read_text()
    replace(folder / "key.pem", "half")
    file.reload()
    assert file.tls_context is before
    replace(folder / "key.pem", key)
    file.reload()

    assert file.tls_context is not before


@pytest.fixture
def read(tmp_path):
    return lambda **given: load_settings(given, {}, tmp_path)


@pytest.mark.fault("X3", "X4")
@pytest.mark.parametrize("content", [{}, tls(), {"rate_limit": {"interval": "1s"}}])
def test_a_reachable_host_needs_more_than_a_file_without_a_login(read, write, content):
    with pytest.raises(ConfigError, match=r'"host" .*needs a token, or a web configuration with'):
        read(host="0.0.0.0", web_config_file=str(write(content)))


@pytest.mark.fault("X3", "X4")
@pytest.mark.parametrize(
    "content",
    [
        {"basic_auth_users": {"ana": HASH}},
        tls(client_auth_type="RequireAndVerifyClientCert", client_ca_file="certificate.pem"),
    ],
)
def test_a_reachable_host_may_have_users_or_client_certificates(read, write, content):
    path = write(content)

    assert read(host="0.0.0.0", web_config_file=str(path)).web_config_file == path


@pytest.mark.fault("X4")
def test_an_invalid_file_is_an_error_of_the_setting(read, write):
    with pytest.raises(ConfigError, match=r'Setting "web_config_file" \(argument\): Web config'):
        read(web_config_file=str(write({"tls": {}})), token="t")


@pytest.mark.fault("X4")
@pytest.mark.parametrize("token", [{}, {"SENTINEL_TOKEN": "own"}])
def test_an_agent_with_an_invalid_file_monitors_and_lets_nobody_in(write, monkeypatch, token):
    path = write({"tls": {}})
    monkeypatch.chdir(path.parent)
    environ = {"SENTINEL_HOST": "0.0.0.0", "SENTINEL_WEB_CONFIG_FILE": str(path), **token}
    settings = load_agent_settings(environ)

    assert (settings.host, settings.web_config_file) == ("127.0.0.1", None)
    assert settings.secret_token() == "own" if token else len(settings.secret_token()) > 20
    assert "tls is not known" in settings.config_errors["web_config_file"]


def test_a_drill_listens_on_loopback_without_the_file(write, monkeypatch):
    """Its command has no client certificate to ask the agent."""
    client_auth = {
        "client_auth_type": "RequireAndVerifyClientCert",
        "client_ca_file": "certificate.pem",
    }
    path = write(tls(**client_auth))
    monkeypatch.chdir(path.parent)
    environ = {"SENTINEL_HOST": "0.0.0.0", "SENTINEL_WEB_CONFIG_FILE": str(path)}
    usual = load_agent_settings(environ)
    drill = load_agent_settings({**environ, "SENTINEL_DRILL": "true"})

    assert (usual.host, usual.web_config_file) == ("0.0.0.0", path)
    assert (drill.host, drill.web_config_file) == ("127.0.0.1", None)


def test_a_replay_does_not_open_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    environ = {"SENTINEL_HOST": "0.0.0.0", "SENTINEL_WEB_CONFIG_FILE": "/nowhere.yml"}

    assert load_replay_settings((), environ).host == "0.0.0.0"
