"""Why a sink does not get the notification of a drill."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentinel.config.settings import load_agent_settings
from sentinel.demo import drill as module
from sentinel.demo.drill import Delivery, Drill
from sentinel.demo.drill_faults import FAULTS
from sentinel.model.finding import Severity
from sentinel.notify.outbox import DeliveryRow

OPENINGS = ("opened", "escalated")


@pytest.fixture
def make_drill(monkeypatch, tmp_path):
    """Makes a drill whose incident is a warning, with these settings, that never starts."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(module.tempfile, "tempdir", None)

    def make(fault="nan", **variables):
        environ = {"SENTINEL_SINKS__WEBHOOK__URL": "http://127.0.0.1:9/", **variables}
        drill = Drill(FAULTS[fault], load_agent_settings(environ), None, 1.0)
        drill.folder.rmdir()
        drill._severity = Severity.WARNING
        return drill

    return make


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("SENTINEL_TIER", "quiet", "the setting `tier` is quiet"),
        ("SENTINEL_SINKS__WEBHOOK__MIN_SEVERITY", "critical", "its `min_severity` is critical"),
        ("SENTINEL_SINKS__WEBHOOK__TEAMS", "vision", "its `teams` do not contain"),
        ("SENTINEL_SINKS__WEBHOOK__RUNS", "prod-*", 'add "chaos-*" to include chaos-nan-'),
        ("SENTINEL_TIER", "page", ""),
        ("SENTINEL_SINKS__WEBHOOK__RUNS", "prod-*,chaos-*", ""),
    ],
)
def test_the_setting_that_holds_a_notification_back_is_named(make_drill, variable, value, reason):
    why = make_drill(**{variable: value})._why_held_back("webhook")

    assert reason in why
    assert bool(why) == bool(reason)


def test_a_tier_that_lowers_the_severity_is_taken_into_account(make_drill):
    drill = make_drill(SENTINEL_TIER="notify", SENTINEL_SINKS__WEBHOOK__MIN_SEVERITY="critical")
    drill._severity = Severity.CRITICAL

    assert "this is warning" in drill._why_held_back("webhook")


@pytest.mark.parametrize(
    ("state", "error", "expected", "detail"),
    [
        ("delivered", "", "delivered", ""),
        ("dead", "HTTP 404", "dead", "HTTP 404"),
        ("withheld", "", "held_back", "`quiet_hours` last until"),
        ("digested", "", "held_back", "`max_notifications_per_hour` is exceeded"),
        ("queued", "HTTP 500", "late", "last answer: HTTP 500"),
    ],
)
def test_the_state_of_a_delivery_is_decided_by_the_outbox(  # noqa: PLR0917 - two fixtures
    make_drill, monkeypatch, state, error, expected, detail
):
    drill, delivery = make_drill(), Delivery()
    row = DeliveryRow("opened", state, error, 1.0, 2.0 if state == "delivered" else None)
    monkeypatch.setattr(drill, "_outbox", lambda _: [row])
    drill._decide("webhook", OPENINGS, delivery, is_late=True)

    assert delivery.state == expected
    assert detail in delivery.detail


def test_a_replaced_notification_has_the_fate_of_the_one_that_replaced_it(make_drill, monkeypatch):
    drill, delivery = make_drill(), Delivery()
    rejected = DeliveryRow("opened", "dead", "HTTP 400", 1.0, None)
    rows = [rejected, DeliveryRow("escalated", "merged", "", 2.0, None)]
    monkeypatch.setattr(drill, "_outbox", lambda _: rows)
    drill._decide("webhook", OPENINGS, delivery, is_late=False)

    assert (delivery.state, delivery.detail) == ("dead", "HTTP 400")


def test_a_detector_that_is_switched_off_is_named(make_drill):
    drill = make_drill(SENTINEL_DISABLE="nan_or_inf")

    assert drill._why_undetected() == (
        "nothing is detected: the setting `disable` switches nan_or_inf off"
    )


def test_the_page_lists_every_fault():
    page = (Path(__file__).parents[3] / "docs" / "chaos.md").read_text()
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    listed = {cells[0].strip("|` "): cells[1:] for cells in rows if len(cells) == 3}

    assert listed == {
        fault.name: [fault.description, f"{fault.seconds:.0f} s |"] for fault in FAULTS.values()
    }
