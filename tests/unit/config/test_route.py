"""Routes: severity, run, team and quiet hours decide which notifications a sink gets."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from pydantic import ValidationError

from sentinel.config.route import Route
from sentinel.config.settings import ConfigError, load_replay_settings, load_settings
from sentinel.model.finding import Severity

BERLIN = ZoneInfo("Europe/Berlin")


def at(text):
    """Epoch seconds of a time in Berlin."""
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp()


def test_without_settings_everything_is_permitted():
    assert Route().permits("run", "", Severity.WARNING)
    assert Route().quiet_until(0.0) is None


@pytest.mark.parametrize(
    ("settings", "run", "team", "severity", "is_permitted"),
    [
        ({"min_severity": "critical"}, "run", "", Severity.WARNING, False),
        ({"min_severity": "critical"}, "run", "", Severity.CRITICAL, True),
        ({"min_severity": "warning"}, "run", "", Severity.WARNING, True),
        ({"runs": ["grpo-*", "sft"]}, "grpo-7b", "", Severity.WARNING, True),
        ({"runs": ["grpo-*", "sft"]}, "sft-7b", "", Severity.CRITICAL, False),
        ({"teams": ["post"]}, "run", "post", Severity.WARNING, True),
        ({"teams": ["post"]}, "run", "", Severity.CRITICAL, False),
    ],
)
def test_severity_run_and_team_select(settings, run, team, severity, is_permitted):
    assert Route(**settings).permits(run, team, severity) is is_permitted


@pytest.mark.parametrize(
    ("hours", "now", "end"),
    [
        ("22:00-07:00", "2026-01-05 23:30", "2026-01-06 07:00"),
        ("22:00-07:00", "2026-01-06 06:59:59", "2026-01-06 07:00"),
        ("22:00-07:00", "2026-01-06 07:00", None),
        ("22:00-07:00", "2026-01-06 21:59:59", None),
        ("22:00 - 07:00", "2026-01-06 22:00", "2026-01-07 07:00"),
        ("12:00-13:30", "2026-01-06 13:29", "2026-01-06 13:30"),
        ("12:00-13:30", "2026-01-06 23:00", None),
        # Clocks go forward at 02:00: the night is an hour shorter.
        ("22:00-07:00", "2026-03-28 23:00", "2026-03-29 07:00"),
    ],
)
def test_quiet_hours_end_at_their_local_time(hours, now, end):
    route = Route(quiet_hours=hours, timezone="Europe/Berlin")

    assert route.quiet_until(at(now)) == (end and at(end))


def test_without_a_time_zone_that_of_the_machine_applies():
    now = datetime(2026, 1, 5, 23, 30).astimezone()

    end = datetime(2026, 1, 6, 7, 0).astimezone()
    assert Route(quiet_hours="22:00-07:00").quiet_until(now.timestamp()) == end.timestamp()


@pytest.mark.parametrize(
    "settings",
    [
        {"quiet_hours": "22-7"},
        {"quiet_hours": "24:00-07:00"},
        {"quiet_hours": "07:00-07:00"},
        {"timezone": "Middle/Earth"},
        {"timezone": "../../etc/passwd"},
        {"min_severity": "fatal"},
        {"runs": "grpo"},
    ],
    ids=str,
)
def test_an_invalid_route_is_rejected(settings):
    with pytest.raises(ValidationError):
        Route(**settings)


CONFIG = """
[sinks.webhook]
url = "https://a.example/x"
quiet_hours = "22:00-07:00"
timezone = "UTC"

[sinks.pager]
kind = "webhook"
url = "https://b.example/x"
min_severity = "critical"
runs = ["grpo-*"]

[sinks.another]
kind = "webhook"
url = "https://c.example/x"
"""


def test_a_sink_table_contains_its_route_and_the_order_of_the_file_is_kept(tmp_path):
    (tmp_path / "sentinel.toml").write_text(CONFIG)
    environ = {"SENTINEL_SINKS__ANOTHER__TEAMS": "post, pre"}
    settings = load_settings(environ=environ, cwd=tmp_path)

    assert list(settings.sinks) == ["webhook", "pager", "another"]
    assert settings.routes == {
        "webhook": Route(quiet_hours="22:00-07:00", timezone="UTC"),
        "pager": Route(min_severity="critical", runs=["grpo-*"]),
        "another": Route(teams=["post", "pre"]),
    }


@pytest.mark.parametrize(
    "url", ["http://hc.example/CANARY", "CANARY", "https://u:CANARY@hc.example/"]
)
def test_the_ping_has_the_url_policy_of_the_sinks(url, tmp_path):
    with pytest.raises(ConfigError) as caught:
        load_settings({"ping_url": url}, {}, tmp_path)

    assert "CANARY" not in str(caught.value)


def test_an_invalid_route_is_an_error_that_names_the_setting(tmp_path, monkeypatch):
    (tmp_path / "sentinel.toml").write_text(CONFIG.replace('"UTC"', '"CANARY"'))
    monkeypatch.chdir(tmp_path)
    for load in (lambda: load_settings(environ={}), lambda: load_replay_settings(environ={})):
        with pytest.raises(ConfigError, match=r"sinks.webhook.timezone") as caught:
            load()
        assert "CANARY" not in str(caught.value)
