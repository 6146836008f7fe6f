"""Settings: every way to say a thing works, and every wrong one is named with what is right."""

import os
import re
from pathlib import Path

import pytest

from sentinel.config import plugins
from sentinel.config.settings import (
    ConfigError,
    Settings,
    build_detectors,
    build_sinks,
    load_settings,
)

ROOT = Path(__file__).parents[3]

URL = "https://hooks.slack.com/services/T/B/CANARY"
TOML = """
port = 1000
disable = ["loss_plateau"]
[sinks.slack]
url = "https://hooks.slack.com/services/FILE"
[detectors.kl_blowup]
ratio = 5
"""


@pytest.fixture
def read(tmp_path):
    """Reads settings in an empty directory from these variables and arguments."""

    def read(environ=None, **overrides):
        return load_settings(overrides, environ or {}, tmp_path)

    return read


@pytest.fixture
def refusal(read):
    """What is said about wrong settings; never the value, nor an error that quotes it."""

    def refusal(environ=None, **overrides):
        with pytest.raises(ConfigError) as caught:
            read(environ, **overrides)
        assert "CANARY" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__ or caught.value.__context__ is None
        return str(caught.value)

    return refusal


def test_everything_has_a_default(read):
    settings = read()

    assert settings == Settings()
    assert (settings.host, settings.port, settings.token, settings.sinks) == (
        "127.0.0.1",
        13130,
        None,
        {},
    )


def test_each_layer_hides_the_one_below(read, tmp_path):
    (tmp_path / "sentinel.toml").write_text(TOML + "[detectors.step_regression]\n")
    assert read().port == 1000
    assert read({"SENTINEL_PORT": "2000"}).port == 2000
    assert read({"SENTINEL_PORT": "2000"}, port=3000).port == 3000
    assert read({"SENTINEL_PORT": "2000"}, port=None).port == 2000
    assert read({"SENTINEL_PORT": ""}).port == 1000


def test_layers_are_joined_table_by_table(read, tmp_path):
    (tmp_path / "sentinel.toml").write_text(TOML)
    settings = read({"SENTINEL_SINKS__SLACK__LINK": "https://grafana.example/"})
    slack = settings.sinks["slack"]

    assert slack.link == "https://grafana.example/"
    assert slack.url.get_secret_value().endswith("/FILE")


def test_the_project_file_will_do_where_there_is_no_file_of_ours(read, tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.sentinel]\nport = 4000\n")
    assert read().port == 4000
    (tmp_path / "sentinel.toml").write_text("port = 5000\n")
    assert read().port == 5000
    (tmp_path / "other.toml").write_text("port = 6000\n")
    assert read({"SENTINEL_CONFIG": "other.toml"}).port == 6000


def test_a_project_file_of_others_is_left_alone(read, tmp_path):
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")

    assert read() == Settings()


def test_variables_that_are_no_settings_are_left_alone(read):
    """Our own others, and what Kubernetes sets for a service called sentinel."""
    environ = {
        "SENTINEL_HOME": "/x",
        "SENTINEL_RUNTIME_DIR": "/x",
        "SENTINEL_RUN_ID": "x",
        "SENTINEL_OFF": "1",
        "SENTINEL_REQUIRE_STACK": "1",
        "SENTINEL_SERVICE_HOST": "10.0.0.1",
        "SENTINEL_SERVICE_PORT": "13130",
        "SENTINEL_PORT": "tcp://10.0.0.1:13130",
        "SENTINEL_PORT_13130_TCP_ADDR": "10.0.0.1",
        "PORT": "CANARY",
    }

    assert read(environ) == Settings()


def test_no_variable_that_we_ourselves_read_or_set_is_taken_for_a_setting(read):
    """Whatever is in the environment of a rank is in that of the agent it brings back."""
    names = re.compile(r"[\"']SENTINEL_([A-Z_]+)[\"'=]")
    texts = [*(ROOT / "sentinel").rglob("*.py"), *(ROOT / "tests").rglob("need*.py")]
    texts = [path.read_text() for path in [*texts, ROOT / ".ci" / "run"]]
    ours = {f"SENTINEL_{name}" for text in texts for name in names.findall(text)}
    ours |= set(re.findall(r"SENTINEL_[A-Z_]+(?==)", texts[-1]))

    assert ours >= {"SENTINEL_PARENT_RANK", "SENTINEL_LAUNCHER_PID", "SENTINEL_REQUIRE_FRAMEWORKS"}
    assert read(dict.fromkeys(ours - {"SENTINEL_CONFIG"}, "1")) == Settings()


def test_detectors_are_made_with_their_knobs_and_without_the_disabled(read, tmp_path):
    (tmp_path / "sentinel.toml").write_text(TOML)
    makers = build_detectors(read())

    assert makers.keys() == plugins.load_classes("detectors").keys() - {"loss_plateau"}
    assert makers["kl_blowup"]().ratio == 5.0
    assert makers["kl_blowup"]() is not makers["kl_blowup"]()


def test_several_can_be_disabled_in_one_variable(read):
    assert read({"SENTINEL_DISABLE": "loss_plateau, kl_blowup"}).disable == [
        "loss_plateau",
        "kl_blowup",
    ]


def test_sinks_are_built_under_the_names_they_were_given(read):
    sinks = build_sinks(
        read(sinks={"slack": {"url": URL}, "night": {"kind": "slack", "url": f"{URL}2"}})
    )

    assert [type(sink).__name__ for sink in sinks.values()] == ["Slack", "Slack"]
    assert sinks["night"].url.get_secret_value() == f"{URL}2"


def test_no_printing_shows_a_secret(read):
    settings = read(sinks={"slack": {"url": URL}}, token="CANARY")

    assert "CANARY" not in repr(settings) + str(settings) + settings.model_dump_json()
    assert settings.secret_token() == "CANARY"


def test_any_secret_may_be_in_a_file(read, tmp_path):
    (tmp_path / "secret").write_text(f"{URL}\n")
    settings = read(
        {"SENTINEL_SINKS__SLACK__URL_FILE": str(tmp_path / "secret")},
        token_file=tmp_path / "secret",
    )

    assert settings.sinks["slack"].url.get_secret_value() == URL
    assert settings.secret_token() == URL


def test_a_secret_hides_the_file_of_a_lower_layer(read, tmp_path):
    (tmp_path / "sentinel.toml").write_text('token_file = "/nowhere"\n')

    assert read({"SENTINEL_TOKEN": "t"}).secret_token() == "t"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "gpu-7.example.org", ""])
def test_others_may_not_read_without_a_token(read, refusal, host):
    assert '"token"' in refusal(host=host)
    assert read(host=host, token="t").host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.9.9.9"])
def test_this_machine_needs_no_token(read, host):
    assert read(host=host).token is None


@pytest.mark.parametrize(
    ("wrong", "parts"),
    [
        ({"prot": 1}, ['"prot"', 'Did you mean "port"?', "linger_seconds", "token_file"]),
        ({"port": "CANARY"}, ['"port"', "str", "valid integer"]),
        ({"port": 65536}, ['"port"', "int", "less than or equal to 65535"]),
        ({"port": True, "host": 5}, ['"host"', "int", "valid string"]),
        ({"linger_seconds": float("nan")}, ['"linger_seconds"', "float", "finite"]),
        ({"port_tries": 0}, ['"port_tries"', "greater than or equal to 1"]),
        ({"token": ""}, ['"token"', "at least 1"]),
        ({"sinks": 5}, ['"sinks"', "int", "table"]),
        ({"sinks": {"slack": URL}}, ['"sinks.slack"', "str", "table"]),
        ({"sinks": {"slak": {"url": URL}}}, ['"sinks.slak"', 'Did you mean "slack"?', "webhook"]),
        ({"sinks": {"x": {"kind": "slak"}}}, ['"sinks.x.kind.slak"', 'Did you mean "slack"?']),
        ({"sinks": {"x": {"kind": ["slack"]}}}, ['"sinks.x.kind.']),
        ({"sinks": {"slack": {}}}, ['"sinks.slack.url"', "not set"]),
        ({"sinks": {"slack": {"url": "http://x/CANARY"}}}, ['"sinks.slack.url"', "https://"]),
        ({"sinks": {"slack": {"url": 5}}}, ['"sinks.slack.url"', "int", "valid string"]),
        ({"sinks": {"slack": {"urll": URL}}}, ['"sinks.slack.urll"', 'Did you mean "url"?']),
        ({"sinks": {"slack": {"url": URL, "link": 5}}}, ['"sinks.slack.link"', "int"]),
        ({"sinks": {"webhook": {"url": "http://x/CANARY"}}}, ['"sinks.webhook"', "allow_http"]),
        ({"sinks": {"webhook": {"url": URL, "secret": "whsec_CANARY!"}}}, ["secret", "base64"]),
        ({"detectors": {"kl_blowp": {}}}, ['"detectors.kl_blowp"', 'Did you mean "kl_blowup"?']),
        ({"detectors": {"kl_blowup": {"ration": 3}}}, ["kl_blowup.ration", 'mean "ratio"?']),
        ({"detectors": {"kl_blowup": {"ratio": "CANARY"}}}, ["kl_blowup.ratio", "str", "number"]),
        ({"detectors": {"kl_blowup": 3}}, ['"detectors.kl_blowup"', "int", "table"]),
        ({"disable": ["kl_blowp"]}, ['"disable.kl_blowp"', 'Did you mean "kl_blowup"?']),
        ({"disable": "kl_blowup"}, ['"disable"', "str", "list"]),
        ({"token_file": "/nowhere/CANARY"}, ['"token_file"', "cannot be read"]),
        ({"token_file": 5}, ['"token_file"', "int", "path"]),
        ({"token_file": os.devnull}, ['"token_file"', "empty"]),
        ({"token_file": os.devnull, "token": "CANARY"}, ['"token_file"', "not both"]),
    ],
    ids=str,
)
def test_what_is_wrong_is_named_with_what_is_right(refusal, wrong, parts):
    said = refusal(**wrong)

    assert [part for part in parts if part not in said] == []
    assert "(argument)" in said or "not set" in said


def test_where_a_wrong_setting_came_from_is_said(refusal, tmp_path):
    assert "(SENTINEL_PROT)" in refusal({"SENTINEL_PROT": "CANARY"})
    assert "(SENTINEL_SINKS__SLAK__URL)" in refusal({"SENTINEL_SINKS__SLAK__URL": URL})
    (tmp_path / "sentinel.toml").write_text("prot = 'CANARY'\n")
    assert "sentinel.toml)" in refusal()


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("port = CANARY", "line 1"),
        ("a = 1\na = 'CANARY'", "end of document"),
        ("\xff", "sentinel.toml"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(refusal, tmp_path, text, part):
    (tmp_path / "sentinel.toml").write_bytes(text.encode("latin-1"))

    assert part in refusal()


def test_a_file_that_was_asked_for_must_be_there(refusal):
    assert "gone.toml" in refusal({"SENTINEL_CONFIG": "gone.toml"})


def test_a_project_file_with_something_else_in_our_place_is_refused(refusal, tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool]\nsentinel = 5\n")

    assert '"tool.sentinel"' in refusal()


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({}, []),
        ({"SENTINEL_ACTIONS__ON_CRITICAL": "stop"}, ["stop"]),
        ({"SENTINEL_ACTIONS__ON_CRITICAL": "checkpoint, stop"}, ["checkpoint", "stop"]),
    ],
)
def test_what_is_asked_of_a_run_is_a_list_of_words(environ, words, tmp_path):
    assert load_settings(environ=environ, cwd=tmp_path).critical_actions() == words


@pytest.mark.parametrize(
    ("actions", "words"),
    [
        ({"on_critcal": ["stop"]}, 'actions.on_critcal.*Did you mean "on_critical"'),
        ({"on_critical": ["halt"]}, "actions.on_critical.0.*'checkpoint' or 'stop'"),
        ({"on_critical": "stop"}, "actions.on_critical.*the str given is wrong.*list"),
        ("stop", "actions.*the str given is wrong.*table"),
    ],
    ids=repr,
)
def test_a_wrong_action_is_refused_with_the_right_word(actions, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        load_settings({"actions": actions}, {}, tmp_path)


@pytest.mark.parametrize("head", ["", "gpu-a", "gpu-a:7000", "10.0.0.1:1", "[::1]:7000", "fe80::1"])
def test_the_head_may_be_set_by_host_or_by_host_and_port(head):
    assert load_settings({"cluster": {"head": head}}).cluster.head == head


@pytest.mark.parametrize(
    "head", ["gpu a", "gpu-a:x", "gpu-a:123456", "[::1]:x", "[::1", "tcp://a:1"]
)
def test_a_head_that_is_no_address_is_refused(head):
    with pytest.raises(ConfigError, match="head"):
        load_settings({"cluster": {"head": head}})
