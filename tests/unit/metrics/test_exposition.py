"""Prometheus exposition and JSON state of a run."""

import threading
from dataclasses import replace
from math import inf, isnan, nan

import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse
from support.expositions import DETECTORS, make_exposition, samples
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
from sentinel.model.delivery_problem import DeliveryProblem
from sentinel.model.finding import Severity
from sentinel.model.incident import IncidentState
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import Event
from sentinel.pipeline.engine import Threshold


def test_before_the_first_record_only_the_version_is_exported():
    assert {name for name, *_ in samples(make_exposition())} == {"sentinel_build_info"}


def test_every_detector_is_not_firing_as_soon_as_the_run_is_known():
    """A missing series would look like a broken exporter."""
    shown = samples(make_exposition(run=RUN))

    for name, severity in DETECTORS.items():
        assert shown["sentinel_alert_firing", name, severity.value] == 0
        assert shown["sentinel_alerts_total", name, severity.value] == 0


def test_run_info_has_the_listed_metadata_as_labels():
    metadata = {"framework": "trl", "framework_version": "1.16.0", "host": "secret"}
    metadata |= {"algorithm": "grpo", "model": "qwen"}
    shown = make_exposition(
        make_result(Event.START, rank=0, attributes=metadata, values={"world_size": 8.0})
    )
    text = generate_latest(shown.registry).decode()

    assert (
        'sentinel_run_info{algorithm="grpo",framework="trl",framework_version="1.16.0",'
        f'model="qwen",run="{RUN}",world_size="8"}} 1.0'
    ) in text
    assert "secret" not in text


def test_exactly_one_run_state_is_set():
    """Every state has a series, so that a panel can draw them all."""
    shown = samples(make_exposition(make_result(Event.START), step_result()))

    assert {s: shown["sentinel_run_state", s] for s in RUN_STATES} == {
        s: float(s == "running") for s in RUN_STATES
    }
    assert shown["sentinel_run_active",] == 1


def test_only_the_newest_attempt_is_exported_with_its_start():
    """The first is 1. Records of late ranks do not change the time."""
    first, second = make_result(Event.START, rank=0), make_result(Event.START, attempt=2, rank=0)
    late = make_result(Event.START, attempt=2, rank=1, time=NOW + 50)
    name = "sentinel_attempt_start_timestamp_seconds"

    def attempts(*results):
        shown = samples(make_exposition(*results))
        return {key[1]: value for key, value in shown.items() if key[0] == name}

    assert attempts(step_result()) == {}
    assert attempts(first, step_result()) == {"1": NOW + 1}
    assert attempts(first, second, late) == {"3": NOW + 1}


def test_a_finished_run_is_not_active():
    """The value becomes 0 before the series disappears."""
    shown = samples(
        make_exposition(step_result(), make_result(Event.STOP, attributes={"outcome": "finished"}))
    )

    assert shown["sentinel_run_active",] == 0


def test_signals_are_exported_with_their_spread_over_ranks():
    """The unit is the last part of every name."""
    step = make_result(
        values={"kl_ref": 0.2, "reward": 1.0, "learning_rate": 1e-6},
        spread={"kl_ref": make_spread(0.1, 0.3), "learning_rate": make_spread(1e-6, 1e-6)},
    )
    shown = samples(make_exposition(step))

    assert shown["sentinel_policy_kl_nats",] == 0.2
    assert shown["sentinel_policy_kl_rank_min_nats",] == 0.1
    assert shown["sentinel_policy_kl_rank_max_nats",] == 0.3
    assert shown["sentinel_policy_kl_rank_mean_nats",] == 0.2
    assert shown["sentinel_policy_kl_rank_std_nats",] == pytest.approx(0.1)
    assert shown["sentinel_policy_kl_worst_rank",] == 1
    assert shown["sentinel_reward",] == 1.0
    # A learning rate must be equal on all ranks: lowest and highest show whether it is.
    assert shown["sentinel_learning_rate_rank_min",] == 1e-6
    assert shown["sentinel_learning_rate_rank_max",] == 1e-6
    assert ("sentinel_learning_rate_rank_std",) not in shown


def test_step_times_are_a_histogram():
    steps = (step_result(step, step_time=value) for step, value in enumerate((0.3, 0.5, 7.0, nan)))
    # Without a measured time it is that between two records.
    shown = samples(make_exposition(*steps, step_result(step=8, loss=1.0)))

    name = "sentinel_step_time_seconds"
    buckets = {le: shown[f"{name}_bucket", le] for le in ("0.25", "0.5", "2.5", "5.0", "+Inf")}
    assert buckets == {"0.25": 0.0, "0.5": 2.0, "2.5": 2.0, "5.0": 3.0, "+Inf": 4.0}
    assert (shown[f"{name}_count",], shown[f"{name}_sum",]) == (4.0, 12.8)


def test_a_detector_with_a_threshold_is_exported_with_the_value_that_it_compares():
    thresholds = {"kl_blowup": Threshold("kl_ref", 1.5), "loss_spike": Threshold("loss", 4.0)}
    exposition = make_exposition(
        replace(step_result(kl_ref=0.2), thresholds=thresholds), step_result(kl_ref=0.3)
    )
    shown = samples(exposition)

    assert shown["sentinel_detector_value", "kl_blowup", "kl_ref"] == 0.3
    assert shown["sentinel_detector_threshold", "kl_blowup", "kl_ref"] == 1.5
    # The loss has no value yet.
    assert ("sentinel_detector_threshold", "loss_spike", "loss") not in shown


def test_the_time_of_the_run_is_a_counter_of_each_activity():
    start = make_result(Event.START, step=0, attributes={"framework": "trl"})
    shown = samples(make_exposition(start, step_result(3), step_result(5)))

    assert shown["sentinel_run_time_seconds_total", "startup"] == 3.0
    assert shown["sentinel_run_time_seconds_total", "productive"] == 2.0
    assert shown["sentinel_run_time_seconds_total", "lost"] == 0.0


@pytest.mark.fault("H6")
def test_nan_and_infinity_are_exported():
    shown = samples(make_exposition(step_result(loss=nan, grad_norm=inf)))

    assert isnan(shown["sentinel_loss",])
    assert shown["sentinel_grad_norm",] == inf


def test_an_alert_fires_under_its_current_severity_only():
    shown = make_exposition(incident_result(severity=Severity.WARNING))
    assert samples(shown)["sentinel_alert_firing", "kl_blowup", "warning"] == 1

    shown.update(incident_result(NotificationReason.ESCALATED, severity=Severity.CRITICAL))
    assert samples(shown)["sentinel_alert_firing", "kl_blowup", "warning"] == 0
    assert samples(shown)["sentinel_alert_firing", "kl_blowup", "critical"] == 1

    shown.update(incident_result(NotificationReason.RESOLVED, severity=Severity.CRITICAL))
    assert samples(shown)["sentinel_alert_firing", "kl_blowup", "critical"] == 0


def test_the_alert_of_two_ranks_fires_until_both_are_resolved():
    incidents = [make_incident(rank=0), make_incident(rank=1)]
    shown = make_exposition(
        *(incident_result(of=one) for one in incidents),
        incident_result(NotificationReason.RESOLVED, of=incidents[0]),
    )

    assert samples(shown)["sentinel_alert_firing", "kl_blowup", "critical"] == 1


def test_restored_incidents_are_firing_from_the_first_scrape():
    shown = make_exposition()
    shown.restore([make_incident()])

    assert samples(shown)["sentinel_alert_firing", "kl_blowup", "critical"] == 1


@pytest.mark.parametrize("count", COUNTER_FAMILIES, ids=lambda count: count.family)
def test_every_own_counter_is_exported_under_its_family(count):
    counters = Counters()
    counters.add(count.family, "ring_full", 3)

    assert samples(make_exposition(counters=counters))[count.family, "ring_full"] == 3


@pytest.mark.fault("H5", "X13")
def test_label_values_beyond_the_maximum_are_summed_as_other():
    counters = Counters()
    for i in range(MAX_LABEL_VALUES + 50):
        counters.add("sentinel_nonfinite_total", f"{i:04}")
    shown = {
        k: v for k, v in samples(make_exposition(counters=counters)).items() if "nonfinite" in k[0]
    }

    assert (len(shown), sum(shown.values())) == (MAX_LABEL_VALUES + 1, MAX_LABEL_VALUES + 50)
    assert shown["sentinel_nonfinite_total", "other"] == 50


@pytest.mark.fault("H5", "I4", "X9")
@pytest.mark.parametrize(
    "name", ['a"b\\', "new\nline", "\ud800", "x" * 9999, "\u202e\x00", "é" * 200, "{run='x'}"]
)
def test_malformed_names_do_not_break_the_exposition(name):
    """Keys, metadata and counter labels are parsed by both formats."""
    counters = Counters()
    counters.add("sentinel_nonfinite_total", name)
    step = make_result(Event.START, rank=0, attributes={"model": name})
    shown = make_exposition(step, make_result(values={name: 1.0}), counters=counters)

    assert list(parse(generate_latest(shown.registry).decode()))
    assert list(parse_openmetrics(generate_openmetrics(shown.registry).decode()))


def test_the_state_has_what_the_web_page_shows():
    state = make_exposition(
        make_result(values={"kl_ref": 0.2, "mine": 1.0}, spread={"kl_ref": make_spread(0.1, 0.3)}),
        step_result(rank=1, step_time=0.5),
        incident_result(),
    ).state()

    assert (state["run"], state["state"], state["step"], state["steps"]) == (RUN, "running", 100, 2)
    assert state["signals"]["kl_ref"]["worst_rank"] == 1
    assert state["logged"] == {"mine": 1.0}
    assert state["ranks"]["1"]["step_time"] == 0.5
    assert state["incidents"][0]["summary"] == "KL is 2 nats."
    assert state["incidents"][0]["rank"] is None


def test_a_concurrent_scrape_sees_complete_updates():
    """The state is always one between two results, never half of one."""
    shown = make_exposition(run=RUN)
    finished = threading.Event()

    def train():
        for step in range(1, 3000):
            value = float(step)
            shown.update(
                make_result(
                    step=step, values={"loss": value}, spread={"loss": make_spread(step, step)}
                )
            )
        finished.set()

    trainer = threading.Thread(target=train)
    trainer.start()
    try:
        while not finished.is_set():
            loss = shown.state()["signals"].get("loss")
            assert loss is None or loss["value"] == loss["min"] == loss["max"]
    finally:
        trainer.join(timeout=240)


def test_kl_info_has_pair_estimator_and_reduction():
    """A threshold for one kind of KL is not valid for another."""
    kind = {"kl_ref": "objective/kl", "kl_ref.kind": "ref k1 sequence_sum signed cap=inf"}
    shown = samples(
        make_exposition(
            make_result(values={"kl_ref": 9.0}, attributes=kind), step_result(kl_old=0.1)
        )
    )

    info = [key for key in shown if key[0] == "sentinel_policy_kl_info"]
    assert info == [("sentinel_policy_kl_info", "k1", "ref", "sequence_sum", "kl_ref")]


def test_the_state_has_the_cause_and_incidents_of_a_case():
    state = make_exposition(case_result()).state()
    (case,) = state["cases"]

    assert (case["name"], case["subject"]) == ("grpo-7b/kl_blowup#1", "policy collapse")
    assert case["incidents"] == ["grpo-7b/kl_blowup#1", "grpo-7b/reward_collapse#1"]
    assert (case["onset_step"], case["last_good_step"], case["remedy"]) == (86, 80, "Go back.")
    assert case["diagnosis"]["confidence_text"] == "likely, 83 %"
    assert {each["case"] for each in state["incidents"]} == {case["name"]}
    assert state["incidents"][1]["diagnosis"] == case["diagnosis"]


def test_a_case_without_open_incidents_is_hidden_until_one_fires_again():
    shown = make_exposition(case_result(of=[make_incident()]))
    shown.update(
        replace(
            step_result(),
            changed_incidents=(replace(make_incident(), state=IncidentState.RESOLVED),),
        )
    )
    assert shown.state()["cases"] == []

    shown.update(replace(step_result(), changed_incidents=(make_incident(),)))
    assert len(shown.state()["cases"]) == 1


def test_a_restored_case_keeps_its_cause():
    shown = make_exposition()
    case = Notification(NotificationReason.OPENED, make_incident(), 100, NOW, diagnosis=DIAGNOSIS)
    shown.restore([make_incident()], [case])

    assert samples(shown)["sentinel_case_confidence", "kl_blowup#1"] == 0.826
    assert shown.state()["incidents"][0]["case"] == case.incident.name


def test_undelivered_notifications_are_counted_by_sink():
    """One that waits for less than a minute is no problem yet."""
    shown = make_exposition(run=RUN, sinks=("slack", "mail"), clock=lambda: NOW + 59)
    problems = [
        DeliveryProblem("slack", 2, 1, "HTTP 404", NOW),
        DeliveryProblem("mail", 0, 3, "TimeoutError", NOW),
    ]
    shown.set_delivery_problems(problems)
    series = {key[1:]: n for key, n in samples(shown).items() if "undelivered" in key[0]}

    assert series == {
        ("slack", "dead"): 2,
        ("slack", "retrying"): 1,
        ("mail", "dead"): 0,
        ("mail", "retrying"): 0,
    }
    assert [each["sink"] for each in shown.state()["delivery_problems"]] == ["slack"]

    shown.clock = lambda: NOW + 60
    shown.set_delivery_problems(problems)
    assert samples(shown)["sentinel_alerts_undelivered", "mail", "retrying"] == 3
    assert "3 notifications waiting" in shown.state()["delivery_problems"][1]["text"]
