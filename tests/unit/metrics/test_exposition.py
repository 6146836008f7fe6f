"""Exposition: every family under its name, whole at every moment, cheap to ask for."""

import threading
from dataclasses import replace
from math import inf, isnan, nan

import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse
from support.expositions import DETECTORS, exposition, samples
from support.results import (
    DIAGNOSIS,
    NOW,
    RUN,
    case_result,
    incident_result,
    make_incident,
    make_result,
    make_spread,
    step_result,
)

from sentinel.metrics.families import MAX_LABEL_VALUES
from sentinel.metrics.run_state import RUN_STATES
from sentinel.model.counters import COUNTER_FAMILIES, Counters
from sentinel.model.finding import Severity
from sentinel.model.incident import IncidentState
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import Event


def test_before_the_first_record_only_sentinel_itself_is_shown():
    """Nothing is said of a run that is not known yet."""
    assert {name for name, *_ in samples(exposition())} == {"sentinel_build_info"}


def test_every_detector_is_shown_as_not_firing_as_soon_as_the_run_is_known():
    """A missing series cannot be told from a broken exporter, so there is none missing."""
    shown = samples(exposition(run=RUN))

    for name, severity in DETECTORS.items():
        assert shown["sentinel_alert_firing", name, severity.value] == 0
        assert shown["sentinel_alerts_total", name, severity.value] == 0


def test_the_run_tells_what_it_is():
    """Facts of the start become labels of one info series, and only the known ones do."""
    facts = {"framework": "trl", "framework_version": "1.16.0", "host": "secret"}
    facts |= {"algorithm": "grpo", "model": "qwen"}
    shown = exposition(
        make_result(Event.START, rank=0, attributes=facts, values={"world_size": 8.0})
    )
    text = generate_latest(shown.registry).decode()

    assert (
        'sentinel_run_info{algorithm="grpo",framework="trl",framework_version="1.16.0",'
        f'model="qwen",run="{RUN}",world_size="8"}} 1.0'
    ) in text
    assert "secret" not in text


def test_exactly_one_state_is_on():
    """All states are always there, so that a panel can draw them."""
    shown = samples(exposition(make_result(Event.START), step_result()))

    assert {s: shown["sentinel_run_state", s] for s in RUN_STATES} == {
        s: float(s == "running") for s in RUN_STATES
    }
    assert shown["sentinel_run_active",] == 1


def test_a_finished_run_is_not_active():
    """The end is said with a value before the series goes away."""
    shown = samples(
        exposition(step_result(), make_result(Event.STOP, attributes={"outcome": "finished"}))
    )

    assert shown["sentinel_run_active",] == 0


def test_signals_are_shown_with_how_the_ranks_differ():
    """The unit stays last in every name."""
    step = make_result(
        values={"kl_ref": 0.2, "reward": 1.0, "learning_rate": 1e-6},
        spread={"kl_ref": make_spread(0.1, 0.3), "learning_rate": make_spread(1e-6, 1e-6)},
    )
    shown = samples(exposition(step))

    assert shown["sentinel_policy_kl_nats",] == 0.2
    assert shown["sentinel_policy_kl_rank_min_nats",] == 0.1
    assert shown["sentinel_policy_kl_rank_max_nats",] == 0.3
    assert shown["sentinel_policy_kl_rank_mean_nats",] == 0.2
    assert shown["sentinel_policy_kl_rank_std_nats",] == pytest.approx(0.1)
    assert shown["sentinel_policy_kl_worst_rank",] == 1
    assert shown["sentinel_reward",] == 1.0
    # Ranks agree on a learning rate or the trainer is broken; five more families say no more.
    assert ("sentinel_learning_rate_rank_min",) not in shown


def test_what_is_not_finite_is_shown_as_it_is():
    """NaN and infinity reach Prometheus instead of vanishing."""
    shown = samples(exposition(step_result(loss=nan, grad_norm=inf)))

    assert isnan(shown["sentinel_loss",])
    assert shown["sentinel_grad_norm",] == inf


def test_an_alert_fires_and_stops_firing_under_its_severity():
    """Worse is another severity: the old one is off then, and both off in the end."""
    shown = exposition(incident_result(severity=Severity.WARNING))
    assert samples(shown)["sentinel_alert_firing", "kl_blowup", "warning"] == 1

    shown.update(incident_result(NotificationReason.ESCALATED, severity=Severity.CRITICAL))
    assert samples(shown)["sentinel_alert_firing", "kl_blowup", "warning"] == 0
    assert samples(shown)["sentinel_alert_firing", "kl_blowup", "critical"] == 1

    shown.update(incident_result(NotificationReason.RESOLVED, severity=Severity.CRITICAL))
    assert samples(shown)["sentinel_alert_firing", "kl_blowup", "critical"] == 0


def test_two_ranks_fire_one_series_until_both_are_well():
    """The first rank to recover does not switch off the other's alert."""
    sick = [make_incident(rank=0), make_incident(rank=1)]
    shown = exposition(
        *(incident_result(of=one) for one in sick),
        incident_result(NotificationReason.RESOLVED, of=sick[0]),
    )

    assert samples(shown)["sentinel_alert_firing", "kl_blowup", "critical"] == 1


def test_a_restarted_agent_goes_on_firing():
    """Open incidents of before the restart are firing from the first scrape on."""
    shown = exposition()
    shown.restore([make_incident()])

    assert samples(shown)["sentinel_alert_firing", "kl_blowup", "critical"] == 1


@pytest.mark.parametrize("count", COUNTER_FAMILIES, ids=lambda count: count.family)
def test_every_count_of_the_tally_is_shown(count):
    """Each counter arrives under its family and its label."""
    tally = Counters()
    tally.add(count.family, "ring_full", 3)

    assert samples(exposition(tally=tally))[count.family, "ring_full"] == 3


def test_a_flood_of_labels_keeps_its_total():
    """Labels beyond the cap are counted as `other`, so that sums stay true."""
    tally = Counters()
    for i in range(MAX_LABEL_VALUES + 50):
        tally.add("sentinel_nonfinite_total", f"{i:04}")
    shown = {k: v for k, v in samples(exposition(tally=tally)).items() if "nonfinite" in k[0]}

    assert (len(shown), sum(shown.values())) == (MAX_LABEL_VALUES + 1, MAX_LABEL_VALUES + 50)
    assert shown["sentinel_nonfinite_total", "other"] == 50


@pytest.mark.parametrize(
    "name", ['a"b\\', "new\nline", "\ud800", "x" * 9999, "\u202e\x00", "é" * 200, "{run='x'}"]
)
def test_no_name_breaks_the_page(name):
    """Odd keys, facts and counter labels are read back by both parsers."""
    tally = Counters()
    tally.add("sentinel_nonfinite_total", name)
    step = make_result(Event.START, rank=0, attributes={"model": name})
    shown = exposition(step, make_result(values={name: 1.0}), tally=tally)

    assert list(parse(generate_latest(shown.registry).decode()))
    assert list(parse_openmetrics(generate_openmetrics(shown.registry).decode()))


def test_the_state_tells_the_page_what_it_shows():
    """The page reads plain values under plain names."""
    told = exposition(
        make_result(values={"kl_ref": 0.2, "mine": 1.0}, spread={"kl_ref": make_spread(0.1, 0.3)}),
        step_result(rank=1, step_time=0.5),
        incident_result(),
    ).state()

    assert (told["run"], told["state"], told["step"], told["steps"]) == (RUN, "running", 100, 2)
    assert told["signals"]["kl_ref"]["worst_rank"] == 1
    assert told["logged"] == {"mine": 1.0}
    assert told["ranks"]["1"]["step_time"] == 0.5
    assert told["incidents"][0]["summary"] == "KL is 2 nats."
    assert told["incidents"][0]["rank"] is None


def test_scrapes_during_a_busy_run_are_whole():
    """A scrape sees a moment between two verdicts, never half of one."""
    shown = exposition(run=RUN)
    over = threading.Event()

    def train():
        for step in range(1, 3000):
            value = float(step)
            shown.update(
                make_result(
                    step=step, values={"loss": value}, spread={"loss": make_spread(step, step)}
                )
            )
        over.set()

    trainer = threading.Thread(target=train)
    trainer.start()
    try:
        while not over.is_set():
            told = shown.state()["signals"].get("loss")
            assert told is None or told["value"] == told["min"] == told["max"]
    finally:
        trainer.join(timeout=240)


def test_it_is_told_which_kl_a_kl_is():
    """A threshold for one of them says nothing of another."""
    kind = {"kl_ref": "objective/kl", "kl_ref.kind": "ref k1 sequence_sum signed cap=inf"}
    shown = samples(
        exposition(make_result(values={"kl_ref": 9.0}, attributes=kind), step_result(kl_old=0.1))
    )

    told = [key for key in shown if key[0] == "sentinel_policy_kl_info"]
    assert told == [("sentinel_policy_kl_info", "k1", "ref", "sequence_sum", "kl_ref")]


def test_a_case_is_shown_with_its_cause_and_its_incidents():
    told = exposition(case_result()).state()
    (case,) = told["cases"]

    assert (case["name"], case["subject"]) == ("grpo-7b/kl_blowup#1", "policy collapse")
    assert case["incidents"] == ["grpo-7b/kl_blowup#1", "grpo-7b/reward_collapse#1"]
    assert (case["onset_step"], case["last_good_step"], case["remedy"]) == (86, 80, "Go back.")
    assert case["diagnosis"]["confidence_text"] == "likely, 83 %"
    assert {each["case"] for each in told["incidents"]} == {case["name"]}
    assert told["incidents"][1]["diagnosis"] == case["diagnosis"]


def test_how_far_causes_are_believed_in_is_shown_while_their_cases_are_open():
    shown = exposition(case_result())
    series = "sentinel_diagnosis_confidence", "policy_collapse"
    assert samples(shown)[series] == 0.826

    shown.update(
        case_result(NotificationReason.UPDATED, diagnosis=replace(DIAGNOSIS, confidence=0.9))
    )
    assert samples(shown)[series] == 0.9

    shown.update(case_result(NotificationReason.RESOLVED))
    assert series not in samples(shown)
    assert shown.state()["cases"] == []


def test_a_case_whose_incidents_calmed_down_is_not_shown_until_one_comes_back():
    shown = exposition(case_result(of=[make_incident()]))
    shown.update(
        replace(step_result(), moved=(replace(make_incident(), state=IncidentState.RESOLVED),))
    )
    assert shown.state()["cases"] == []

    shown.update(replace(step_result(), moved=(make_incident(),)))
    assert len(shown.state()["cases"]) == 1


def test_a_flood_of_causes_is_bounded():
    causes = [
        replace(DIAGNOSIS, cause=f"{n:04}" + "x" * 9999) for n in range(MAX_LABEL_VALUES + 50)
    ]
    told = (case_result(of=[make_incident(episode=n)], diagnosis=c) for n, c in enumerate(causes))
    shown = samples(exposition(*told))

    assert (
        len([key for key in shown if key[0] == "sentinel_diagnosis_confidence"]) == MAX_LABEL_VALUES
    )


def test_a_restarted_agent_goes_on_naming_the_cause():
    shown = exposition()
    case = Notification(NotificationReason.OPENED, make_incident(), 100, NOW, diagnosis=DIAGNOSIS)
    shown.restore([make_incident()], [case])

    assert samples(shown)["sentinel_diagnosis_confidence", "policy_collapse"] == 0.826
    assert shown.state()["incidents"][0]["case"] == case.incident.name
