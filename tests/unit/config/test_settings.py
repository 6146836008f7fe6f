"""Settings from every source, and the error messages for invalid ones."""

import os
import re
from pathlib import Path

import pytest

from sentinel.config import plugins
from sentinel.config.config_sources import parse_assignment
from sentinel.config.settings import (
    ActionSettings,
    ConfigError,
    Settings,
    build_detectors,
    build_sinks,
    load_agent_settings,
    load_replay_settings,
    load_settings,
)

ROOT = Path(__file__).parents[3]
TESTS = ROOT / "tests"

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
    """Loads settings in an empty directory from these variables and overrides."""

    def read(environ=None, **overrides):
        return load_settings(overrides, environ or {}, tmp_path)

    return read


@pytest.fixture
def refusal(read):
    """The error message for invalid settings; neither it nor its cause contains a value."""

    def refusal(environ=None, **overrides):
        with pytest.raises(ConfigError) as caught:
            read(environ, **overrides)
        assert "CANARY" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__ or caught.value.__context__ is None
        return str(caught.value)

    return refusal


def test_every_setting_has_a_default(read):
    settings = read()

    assert settings == Settings()
    assert (settings.host, settings.port, settings.token, settings.sinks) == (
        "127.0.0.1",
        13130,
        None,
        {},
    )


def test_a_source_overrides_those_of_lower_precedence(read, tmp_path):
    (tmp_path / "sentinel.toml").write_text(TOML + "[detectors.step_regression]\n")
    assert read().port == 1000
    assert read({"SENTINEL_PORT": "2000"}).port == 2000
    assert read({"SENTINEL_PORT": "2000"}, port=3000).port == 3000
    assert read({"SENTINEL_PORT": "2000"}, port=None).port == 2000
    assert read({"SENTINEL_PORT": ""}).port == 1000


def test_sources_are_merged_table_by_table(read, tmp_path):
    webhook = '[sinks.webhook]\nurl = "https://alerts.example.org/FILE"\n'
    (tmp_path / "sentinel.toml").write_text(TOML + webhook)
    settings = read({"SENTINEL_SINKS__WEBHOOK__ALLOW_HTTP": "true"})
    webhook = settings.sinks["webhook"]

    assert webhook.allow_http is True
    assert webhook.url.get_secret_value().endswith("/FILE")


def test_pyproject_is_read_if_there_is_no_sentinel_toml(read, tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.sentinel]\nport = 4000\n")
    assert read().port == 4000
    (tmp_path / "sentinel.toml").write_text("port = 5000\n")
    assert read().port == 5000
    (tmp_path / "other.toml").write_text("port = 6000\n")
    assert read({"SENTINEL_CONFIG": "other.toml"}).port == 6000


def test_a_pyproject_without_our_table_is_ignored(read, tmp_path):
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")

    assert read() == Settings()


def test_variables_that_are_not_settings_are_ignored(read):
    """Other variables of ours, and those that Kubernetes sets for a service named sentinel."""
    environ = {
        "SENTINEL_HOME": "/x",
        "SENTINEL_RUNTIME_DIR": "/x",
        "SENTINEL_RUN_ID": "x",
        "SENTINEL_OFF": "1",
        "SENTINEL_TERMINATION_LOG": "/x",
        "SENTINEL_REQUIRE_STACK": "1",
        "SENTINEL_SERVICE_HOST": "10.0.0.1",
        "SENTINEL_SERVICE_PORT": "13130",
        "SENTINEL_PORT": "tcp://10.0.0.1:13130",
        "SENTINEL_PORT_13130_TCP_ADDR": "10.0.0.1",
        "PORT": "CANARY",
    }

    assert read(environ) == Settings()


def test_every_other_variable_of_ours_is_not_a_setting(read):
    """An agent inherits the environment of the rank that starts it."""
    names = re.compile(r"[\"']SENTINEL_([A-Z_]+)[\"'=]")
    requirements = [TESTS / "stack" / "programs.py", TESTS / "frameworks" / "requirements.py"]
    requirements.append(ROOT / "scripts" / "system_programs.py")
    paths = [*(ROOT / "sentinel").rglob("*.py"), *requirements, ROOT / ".ci" / "run"]
    texts = [path.read_text() for path in paths]
    ours = {f"SENTINEL_{name}" for text in texts for name in names.findall(text)}
    ours |= set(re.findall(r"SENTINEL_[A-Z_]+(?==)", texts[-1]))

    assert ours >= {"SENTINEL_PARENT_RANK", "SENTINEL_LAUNCHER_PID", "SENTINEL_REQUIRE_FRAMEWORKS"}
    settings = {"SENTINEL_CONFIG", "SENTINEL_DRILL", "SENTINEL_CLUSTER__HEAD"}
    settings |= {"SENTINEL_LINGER_SECONDS", "SENTINEL_PREFLIGHT"}
    assert read(dict.fromkeys(ours - settings, "1")) == Settings()


def test_a_preflight_sends_nothing():
    environ = {
        "SENTINEL_PREFLIGHT": "true",
        "SENTINEL_SINKS__COMMAND__COMMAND": "/bin/true",
        "SENTINEL_PING_URL": "https://ping.example/x",
        "SENTINEL_DISABLE": "loss_plateau",
        "SENTINEL_ACTIONS__ON_CRITICAL": "stop",
    }
    settings = load_agent_settings(environ)

    assert (settings.sinks, settings.ping_url, settings.baselines) == ({}, None, False)
    assert settings.actions == ActionSettings()
    assert settings.disable == ["loss_plateau"]


def test_detectors_are_built_with_their_settings_and_without_the_disabled(read, tmp_path):
    (tmp_path / "sentinel.toml").write_text(TOML)
    factories = build_detectors(read())

    assert factories.keys() == plugins.load_classes("detectors").keys() - {"loss_plateau"}
    assert factories["kl_blowup"]().ratio == 5.0
    assert factories["kl_blowup"]() is not factories["kl_blowup"]()


def test_a_variable_can_disable_several_detectors(read):
    assert read({"SENTINEL_DISABLE": "loss_plateau, kl_blowup"}).disable == [
        "loss_plateau",
        "kl_blowup",
    ]


def test_sinks_have_the_names_of_their_tables(read):
    sinks = build_sinks(
        read(sinks={"slack": {"url": URL}, "night": {"kind": "slack", "url": f"{URL}2"}})
    )

    assert [type(sink).__name__ for sink in sinks.values()] == ["Slack", "Slack"]
    assert sinks["night"].url.get_secret_value() == f"{URL}2"


def test_no_representation_of_the_settings_contains_a_secret(read):
    settings = read(sinks={"slack": {"url": URL}}, token="CANARY")

    assert "CANARY" not in repr(settings) + str(settings) + settings.model_dump_json()
    assert settings.secret_token() == "CANARY"


def test_any_secret_can_be_in_a_file(read, tmp_path):
    (tmp_path / "secret").write_text(f"{URL}\n")
    settings = read(
        {"SENTINEL_SINKS__SLACK__URL_FILE": str(tmp_path / "secret")},
        token_file=tmp_path / "secret",
    )

    assert settings.sinks["slack"].url.get_secret_value() == URL
    assert settings.secret_token() == URL


def test_a_secret_overrides_its_file_from_a_lower_source(read, tmp_path):
    (tmp_path / "sentinel.toml").write_text('token_file = "/nowhere"\n')

    assert read({"SENTINEL_TOKEN": "t"}).secret_token() == "t"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "gpu-7.example.org", ""])
def test_a_reachable_host_needs_a_token(read, refusal, host):
    assert '"token"' in refusal(host=host)
    assert read(host=host, token="t").host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.9.9.9"])
def test_a_loopback_host_needs_no_token(read, host):
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
        ({"token": ""}, ['"token"', "must not be empty"]),
        ({"sinks": 5}, ['"sinks"', "int", "table"]),
        ({"sinks": {"slack": URL}}, ['"sinks.slack"', "str", "table"]),
        ({"sinks": {"slak": {"url": URL}}}, ['"sinks.slak"', 'Did you mean "slack"?', "webhook"]),
        ({"sinks": {"x": {"kind": "slak"}}}, ['"sinks.x.kind.slak"', 'Did you mean "slack"?']),
        ({"sinks": {"x": {"kind": ["slack"]}}}, ['"sinks.x.kind.']),
        ({"sinks": {"slack": {}}}, ['"sinks.slack.url"', "not set"]),
        ({"sinks": {"slack": {"url": "http://x/CANARY"}}}, ['"sinks.slack.url"', "https://"]),
        ({"sinks": {"slack": {"url": 5}}}, ['"sinks.slack.url"', "int", "valid string"]),
        ({"sinks": {"slack": {"urll": URL}}}, ['"sinks.slack.urll"', 'Did you mean "url"?']),
        ({"sinks": {"webhook": {"url": URL, "allow_http": 5}}}, ["allow_http", "int"]),
        ({"sinks": {"webhook": {"url": "http://x/CANARY"}}}, ['"sinks.webhook"', "allow_http"]),
        ({"sinks": {"webhook": {"url": URL, "secret": "whsec_CANARY!"}}}, ["secret", "base64"]),
        ({"detectors": {"kl_blowp": {}}}, ['"detectors.kl_blowp"', 'Did you mean "kl_blowup"?']),
        ({"detectors": {"kl_blowup": {"ration": 3}}}, ["kl_blowup.ration", 'mean "ratio"?']),
        ({"detectors": {"kl_blowup": {"ratio": "CANARY"}}}, ["kl_blowup.ratio", "str", "number"]),
        ({"detectors": {"kl_blowup": {"ratio": float("nan")}}}, ["kl_blowup.ratio", "NaN"]),
        ({"detectors": {"kl_blowup": {"ratio": -1}}}, ["kl_blowup.ratio", "below 0"]),
        ({"detectors": {"grad_explosion": {"ratio": 0}}}, ["grad_explosion", "rejects ratio"]),
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
def test_the_error_names_the_invalid_setting_and_what_is_valid(refusal, wrong, parts):
    message = refusal(**wrong)

    assert [part for part in parts if part not in message] == []
    assert "(argument)" in message or "not set" in message


def test_the_error_names_the_source_of_the_setting(refusal, tmp_path):
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
def test_the_error_names_a_file_that_cannot_be_parsed(refusal, tmp_path, text, part):
    (tmp_path / "sentinel.toml").write_bytes(text.encode("latin-1"))

    assert part in refusal()


def test_a_missing_config_file_is_an_error(refusal):
    assert "gone.toml" in refusal({"SENTINEL_CONFIG": "gone.toml"})


def test_a_pyproject_whose_entry_is_not_a_table_is_refused(refusal, tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool]\nsentinel = 5\n")

    assert '"tool.sentinel"' in refusal()


@pytest.mark.parametrize(
    ("environ", "actions"),
    [
        ({}, []),
        ({"SENTINEL_ACTIONS__ON_CRITICAL": "stop"}, ["stop"]),
        ({"SENTINEL_ACTIONS__ON_CRITICAL": "checkpoint, stop"}, ["checkpoint", "stop"]),
    ],
)
def test_actions_are_a_list(environ, actions, tmp_path):
    assert load_settings(environ=environ, cwd=tmp_path).actions.on_critical == actions


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ({"on_critcal": ["stop"]}, 'actions.on_critcal.*Did you mean "on_critical"'),
        ({"on_critical": ["halt"]}, "actions.on_critical.0.*'checkpoint' or 'stop'"),
        ({"on_critical": "stop"}, "actions.on_critical.*the string given is wrong.*list"),
        ({"mode": "shadw"}, "actions.mode.*'act' or 'shadow'"),
        ("stop", "actions.*the string given is wrong.*table"),
    ],
    ids=repr,
)
def test_the_error_for_an_invalid_action_names_the_valid_ones(actions, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        load_settings({"actions": actions}, {}, tmp_path)


@pytest.mark.parametrize("head", ["", "gpu-a", "gpu-a:7000", "10.0.0.1:1", "[::1]:7000", "fe80::1"])
def test_the_head_is_a_host_or_a_host_and_port(head):
    assert load_settings({"cluster": {"head": head}}).cluster.head == head


@pytest.mark.parametrize(
    "head", ["gpu a", "gpu-a:x", "gpu-a:123456", "[::1]:x", "[::1", "tcp://a:1"]
)
def test_a_head_that_is_not_an_address_is_refused(head):
    with pytest.raises(ConfigError, match="head"):
        load_settings({"cluster": {"head": head}})


@pytest.fixture
def write_config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return (tmp_path / "sentinel.toml").write_text


@pytest.mark.parametrize(
    ("table", "setting", "parts"),
    [
        ("[detectors.kl_blowp]", "detectors.kl_blowp", ['Did you mean "kl_blowup"?']),
        ("[detectors.kl_blowup]\nration = 4", "detectors.kl_blowup", ['Did you mean "ratio"?']),
        ("[detectors.kl_blowup]\nratio = []", "detectors.kl_blowup", ["kl_blowup.ratio", "list"]),
        ("[detectors]\nkl_blowup = 3", "detectors.kl_blowup", ["int", "table"]),
        ("detectors = 3", "detectors", ["int", "table"]),
    ],
)
def test_an_agent_uses_the_defaults_of_a_detector_whose_table_is_invalid(
    write_config, table, setting, parts
):
    write_config(f"port = 4000\n{table}\n")
    with pytest.raises(ConfigError):
        load_settings(environ={})
    settings = load_agent_settings({})

    assert (settings.port, settings.detectors) == (4000, {})
    assert settings.config_errors.keys() == {setting}
    assert [part for part in parts if part not in settings.config_errors[setting]] == []
    assert "kl_blowup" in build_detectors(settings)


def test_valid_tables_beside_an_invalid_one_apply_to_an_agent(write_config):
    write_config("[detectors.kl_blowup]\nratio = 4\n[detectors.loss_spike]\nnone = 1\n")
    settings = load_agent_settings({})

    assert settings.detectors == {"kl_blowup": {"ratio": 4.0}}
    assert list(settings.config_errors) == ["detectors.loss_spike"]


HOOK = '[sinks.webhook]\nurl = "https://example.org"\n'


@pytest.mark.parametrize(
    ("text", "setting", "rest"),
    [
        ("prot = 4000", "prot", {"port": 13130}),
        ('port = "many"\nteam = "a"', "port", {"port": 13130, "team": "a"}),
        (f"{HOOK}linger_seconds = 9", "sinks.webhook.linger_seconds", {"linger_seconds": 900.0}),
        (f"{HOOK}min_severity = 4", "sinks.webhook.min_severity", {"port": 13130}),
        (f"{HOOK}[sinks.slak]\nurl = 'x'", "sinks.slak", {"port": 13130}),
        (f"{HOOK}[sinks.slack]", "sinks.slack.url", {"port": 13130}),
        ("[history]\nmax = 3", "history.max", {"port": 13130}),
        ("disable = ['nan', 'kl_blowup']", "disable.nan", {"disable": ["kl_blowup"]}),
    ],
)
def test_an_agent_uses_the_rest_beside_an_invalid_setting(write_config, text, setting, rest):
    write_config(f"{text}\n")
    with pytest.raises(ConfigError) as refused:
        load_settings(environ={})
    settings = load_agent_settings({})

    assert settings.config_errors == {setting: str(refused.value)}
    assert {name: getattr(settings, name) for name in rest} == rest
    assert list(settings.sinks) == (["webhook"] if "webhook" in text else [])
    assert settings.token is None


@pytest.mark.parametrize(
    "text",
    ['tokn = "secret"', 'token = ""', 'token_file = "/nowhere"', 'host = "0.0.0.0"\ntoken = 3'],
)
def test_an_agent_whose_login_is_invalid_lets_no_client_in(write_config, text):
    write_config(f"{text}\n")
    settings = load_agent_settings({})

    assert len(settings.secret_token()) > 20
    assert "secret" not in str(settings.config_errors)


def test_an_agent_without_a_login_for_others_serves_this_machine(write_config):
    write_config('host = "0.0.0.0"\n')

    assert load_agent_settings({}).host == "127.0.0.1"


def test_an_agent_whose_cluster_token_is_invalid_takes_no_other_node(write_config):
    write_config('[cluster]\nhead = "a:1"\ntokn = "secret"\n')
    cluster = load_agent_settings({}).cluster

    assert cluster.head == "a:1"
    assert len(cluster.secret_token()) > 20


@pytest.mark.parametrize(
    ("text", "environ"),
    [
        ("[privacy]\nmesages = false", {}),
        ("[privacy]\nmessages = 'flase'", {}),
        ("[privacy]\nmessages = true\nmesages = false", {}),
        ("privacy = false", {}),
        ("[privcy]\nmessages = false", {}),
        ("", {"SENTINEL_PRIVACY__MESAGES": "false"}),
        ("", {"SENTINEL_PRIVACY_MESSAGES": "false"}),
    ],
)
def test_an_agent_whose_privacy_settings_are_invalid_sends_no_messages(write_config, text, environ):
    write_config(f"{text}\n")
    settings = load_agent_settings(environ)

    assert len(settings.config_errors) == 1
    assert (settings.privacy.messages, settings.max_samples) == (False, 2000)


@pytest.mark.parametrize("text", ['max_samples = "none"', "max_samples = -1", "max_sample = 0"])
def test_an_agent_whose_number_of_samples_is_invalid_stores_none(write_config, text):
    write_config(f"{text}\n")
    settings = load_agent_settings({})

    assert len(settings.config_errors) == 1
    assert (settings.max_samples, settings.privacy.messages) == (0, True)


@pytest.mark.parametrize(
    "text",
    [
        "[actions]\non_critical = ['stop']\nmode = 'shadw'",
        "[actions]\non_critical = ['stop']\nmod = 'shadow'",
        "[actions]\non_criticl = ['stop']",
        "[action]\non_critical = ['stop']\nmode = 'shadow'",
    ],
)
def test_an_agent_whose_actions_are_invalid_takes_none(write_config, text):
    write_config(f"{text}\n")
    settings = load_agent_settings({})

    assert len(settings.config_errors) == 1
    assert settings.actions == ActionSettings(on_critical=[], mode="shadow")


def test_other_invalid_settings_leave_texts_as_they_were_set(write_config):
    write_config("samples_dri = 'texts'\nmax_samples = 5\n[history]\nmax = 3\n")
    settings = load_agent_settings({})

    assert len(settings.config_errors) == 2
    assert (settings.max_samples, settings.privacy.messages) == (5, True)


def test_an_agent_refuses_a_file_that_cannot_be_read(write_config):
    write_config("port = \n")

    with pytest.raises(ConfigError, match="cannot be read"):
        load_agent_settings({})


def test_a_replay_opens_no_file_with_a_secret(write_config):
    write_config(
        'host = "0.0.0.0"\ntoken_file = "/nowhere"\n'
        '[sinks.slack]\nurl_file = "/nowhere"\n[cluster]\ntoken_file = "/nowhere"\n'
    )
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings(environ={})
    settings = load_replay_settings(environ={})

    assert (settings.token, settings.sinks, settings.cluster.token) == (None, {}, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", 'Did you mean "port"'),
        ("[sinks.slack]\nurll_file = '/nowhere'", 'Did you mean "url_file"'),
        ("[sinks.webhook]\nallow_http = 5", "sinks.webhook.allow_http"),
        ("[sinks.slak]", 'Did you mean "slack"'),
        ("[detectors.kl_blowup]\nration = 1", 'Did you mean "ratio"'),
        ('host = "0.0.0.0"', "token"),
    ],
)
def test_a_replay_refuses_the_invalid_settings_that_an_agent_does(write_config, text, message):
    write_config(text)

    with pytest.raises(ConfigError, match=message):
        load_replay_settings(environ={})


def test_assignments_override_every_other_source(write_config):
    write_config("[detectors.kl_blowup]\nratio = 2\nlimit = 0.5\n")
    environ = {"SENTINEL_DETECTORS__KL_BLOWUP__RATIO": "3"}
    settings = load_replay_settings(["detectors.kl_blowup.ratio=4", "port = 7"], environ)

    assert settings.detectors == {"kl_blowup": {"ratio": 4.0, "limit": 0.5}}
    assert settings.port == 7


@pytest.mark.parametrize(
    ("assignment", "tree"),
    [
        ("port=7", {"port": 7}),
        ("host = ::1", {"host": "::1"}),
        ('host="a=b"', {"host": "a=b"}),
        ("host=", {"host": ""}),
        ("a.b=true", {"a": {"b": True}}),
        ("a.b=1\nc = 2", {"a": {"b": "1\nc = 2"}}),
        ("disable=kl_blowup, loss_spike", {"disable": ["kl_blowup", "loss_spike"]}),
        ('disable=["kl_blowup"]', {"disable": ["kl_blowup"]}),
    ],
)
def test_the_value_of_an_assignment_is_toml_or_else_a_string(assignment, tree):
    assert parse_assignment(assignment) == tree


@pytest.mark.parametrize("assignment", ["port", "=7", "a..b=7", ""])
def test_an_assignment_without_a_key_or_a_value_is_refused(assignment):
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        parse_assignment(assignment)


def test_logged_keys_are_mapped_to_signals(write_config):
    write_config('[keys]\n"kl/divergence" = "kl_ref"\n"val/acc" = "eval_accuracy"\n"m" = "KL"\n')

    assert load_settings().keys == {
        "kl/divergence": "kl_ref",
        "val/acc": "eval_accuracy",
        "m": "kl_ref",
    }


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ('"grad_nrom"', 'it names no signal. Did you mean "grad_norm"?'),
        ('"a_loss_of_mine"', 'it names no signal. Did you mean "loss"?'),
        ("1.5", "the float given is wrong: it must be a string"),
    ],
)
def test_a_key_of_an_unknown_signal_is_refused_with_the_nearest(write_config, value, message):
    write_config(f'[keys]\n"my/key" = {value}\n')

    with pytest.raises(ConfigError) as raised:
        load_settings()
    assert message in str(raised.value)
    assert '"keys.my/key"' in str(raised.value)


def test_an_agent_leaves_an_invalid_key_out(write_config):
    write_config('[keys]\n"a" = "nothing"\n"b" = "loss"\n')

    settings = load_agent_settings()

    assert settings.keys == {"b": "loss"}
    assert settings.config_errors.keys() == {"keys.a"}


@pytest.mark.fault("P16")
def test_a_deleted_working_directory_has_no_settings_file(tmp_path, monkeypatch):
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()

    assert load_settings({"port": 7}, {}).port == 7
    assert load_agent_settings({"SENTINEL_PORT": "8"}).port == 8
