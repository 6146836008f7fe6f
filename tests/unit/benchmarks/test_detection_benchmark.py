"""Detections, false alarms and delays of the detection benchmark are counted correctly."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import detection
from detection_alike import make_alike_run
from detection_causes import Diagnoses, right_causes
from detection_evaluators import Alarm, Evaluation, NotifiedCase, evaluate_with_engine
from detection_exact import EXACT, make_exact_run
from detection_factories import make_run
from detection_families import FAMILIES, FAULTY, MEANS, make_family_run, make_run_of_means
from detection_intervals import format_rate, format_share
from detection_run import FAULTS, REINFORCED, FullRun
from detection_score import Detections, FalseAlarms, is_true_plateau
from detection_suite import Spec, suite
from detection_tables import PAGE, SYNTHETIC
from failing_runs import TRAININGS
from peers import PEERS, Best, Peer

from sentinel.config.plugins import load_classes
from sentinel.config.settings import build_causes
from sentinel.model.record import Event
from sentinel.testing import steps


def run_of(fault="loss_spike", onset=100, every=10, length=400):
    return FullRun(1, fault, "severe", {"learning_rate": np.ones(length)}, onset=onset, every=every)


def warned(name, step, **more):
    return Alarm(name, step, step, **more)


@pytest.mark.parametrize(
    ("option", "choice"), [("--only", "three_sigma"), ("--kinds", "straggler")]
)
def test_an_unknown_name_is_refused_with_the_valid_ones(option, choice, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["detection.py", "--runs", "1", option, "stragglers"])

    with pytest.raises(SystemExit):
        detection.main()
    error = capsys.readouterr().err
    assert f"{option} stragglers: choose from" in error
    assert f" {choice}," in error


@pytest.mark.parametrize("fault", FAULTS)
def test_a_seed_always_makes_the_same_run(fault):
    kind = "rl" if fault in REINFORCED else "sft"
    run, again = (make_run(kind, 1_000_003, fault, "severe") for _ in range(2))

    assert run.onset is not None
    assert 0 < run.onset < len(run)
    for name, values in run.series.items():
        assert np.array_equal(values, again.series[name], equal_nan=True)
    assert all(len(values) == len(run) for values in run.series.values())


def test_no_two_runs_of_the_suite_have_the_same_seed():
    specs = list(suite(0, 3, 2))

    assert len({spec.seed for spec in specs}) == len(specs)
    assert {spec.fault for spec in specs} == {"", *FAULTS, *EXACT, *FAULTY}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_makes_complete_runs(family):
    for seed in range(1_000_000, 1_000_004):
        run = make_family_run(family, seed)
        records = list(run.records())

        assert all(len(values) == len(run) for values in run.series.values())
        assert (run.onset is not None) == (family in FAULTY)
        assert 0 <= (run.onset or 0) < len(run)
        assert sum(record.event is Event.STEP for record in records) == run.ends


@pytest.mark.parametrize("kind", ["rl", "sft"])
def test_lines_of_means_are_few_and_hold_the_mean(kind):
    run = make_run_of_means(kind + MEANS, 1_000_005)

    assert 40 <= len(run) <= 62
    assert run.every > 1
    assert all(len(values) == len(run) for values in run.series.values())


def test_statements_that_are_true_of_a_run_are_no_false_alarms():
    run = run_of("")
    run.onset, run.true_statements = None, frozenset({"reward_stalled"})
    false_alarms = FalseAlarms()
    alarms = [warned("reward_stalled", 500), warned("kl_blowup", 600)]
    false_alarms.add(run, Evaluation(alarms))

    assert false_alarms.by_name == {"kl_blowup": 1}


def test_a_run_with_a_doubled_counter_is_measured_in_points():
    run = make_exact_run(5, "step_stride", "severe")
    points = [run.point(r.step) for r in run.records() if r.event is Event.STEP]

    assert points == list(range(run.ends))


def test_the_first_matching_alarm_counts_with_its_delay_in_points():
    detections = Detections()
    detections.add(
        run_of(), Evaluation([warned("grad_explosion", 1010), warned("loss_divergence", 1050)])
    )

    assert (detections.recall, detections.warned, detections.notifications) == (1.0, [4], [2])


def test_an_alarm_before_the_onset_or_beyond_the_horizon_does_not_count():
    detections = Detections()
    detections.add(run_of(), Evaluation([warned("loss_spike", 500), warned("loss_spike", 1800)]))

    assert (detections.warned, detections.missed) == ([], [1])


def test_info_findings_are_not_warnings():
    detections = Detections()
    detections.add(run_of(), Evaluation([Alarm("loss_spike", 1020)]))

    assert (detections.warned, detections.opened) == ([], [1])


def test_alarms_before_a_fault_are_false_and_later_ones_are_not():
    false_alarms = FalseAlarms()
    false_alarms.add(run_of(), Evaluation([warned("loss_spike", 500), warned("loss_spike", 1050)]))

    assert (false_alarms.points, false_alarms.warned, false_alarms.by_name) == (
        92,
        1,
        {"loss_spike": 1},
    )


def test_a_plateau_alarm_is_true_if_the_loss_without_noise_is_constant():
    run = run_of("")
    run.truth = np.concatenate([np.linspace(2, 1, 200), np.ones(200)])

    assert is_true_plateau(run, warned("loss_plateau", 3500))
    assert not is_true_plateau(run, warned("loss_plateau", 1500))


def test_the_lead_before_the_cliff_is_a_share_of_the_lag():
    run = run_of("policy_collapse", every=1)
    run.cliff = 140
    detections = Detections()
    case = NotifiedCase(112, 1, cause="policy_collapse", root="kl_blowup")
    detections.add(run, Evaluation([warned("kl_blowup", 121)], [case]))

    assert (detections.leads, detections.cases, detections.roots, detections.names) == (
        [0.5],
        [1],
        [True],
        [True],
    )


def test_a_rule_that_fires_again_within_the_mute_time_is_one_alarm():
    peer = Peer("", "", lambda: lambda record: ["x"] if record.values["loss"] > 1 else [])
    loss = [2.0 if at < 90 or at in (100, 160) else 0.0 for at in range(200)]

    assert [alarm.warned for alarm in peer.evaluate(steps(loss=loss)).alarms] == [1, 101, 161]


def test_peers_detect_a_loss_spike():
    noise = np.random.default_rng(3).normal(2.0, 0.05, 300)
    spiked = np.where(np.arange(300) >= 250, 9.0, noise).tolist()
    detections = {
        name: {alarm.name for alarm in peer.evaluate(steps(loss=spiked)).alarms}
        for name, peer in PEERS.items()
        if name in ("three_sigma", "wandb", "llm_foundry")
    }

    assert all("loss_spike" in names for names in detections.values())


def test_patience_restarts_with_a_better_value():
    best = Best()

    assert [best.add(value) for value in (1.0, 0.5, 0.9, 2.0, 1.0)] == [0, 1, 2, 0, 1]


def test_the_engine_evaluation_reports_its_alarms_and_cases():
    run = Spec("sft", 1_000_001, "nan_or_inf", "severe").make_run()
    evaluation = evaluate_with_engine(run.records())

    assert "nan_or_inf" in {alarm.name for alarm in evaluation.warned}
    assert evaluation.cases


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (format_share(9, 10), "90 % (60-98)"),
        (format_share(0, 0), "\N{EN DASH}"),
        (format_rate(4, 108_138), "0.37 (0.14-0.95)"),
        (format_rate(0, 100_000), "0.00 (0.00-0.38)"),
    ],
)
def test_a_share_is_printed_with_its_wilson_interval(text, expected):
    assert text == expected


def test_a_diagnosis_is_right_wrong_or_absent():
    diagnoses = Diagnoses()
    cases = [
        NotifiedCase(1, 1, critical=True, cause="bad_batch"),
        NotifiedCase(2, 1, critical=True, cause="learning_rate_too_high"),
        NotifiedCase(3, 1, cause="overfit"),
        NotifiedCase(4, 1),
    ]
    diagnoses.add(cases, right_causes("loss_spike"))

    assert (diagnoses.cases, diagnoses.right, diagnoses.wrong_critical) == (4, 1, 1)
    assert diagnoses.wrong == {"learning_rate_too_high": 1, "overfit": 1}


def test_every_declared_cause_exists():
    of_faults = [right_causes(fault) for fault in (*FAULTS, *EXACT, *FAULTY)]
    of_trainings = [training.causes for training in TRAININGS.values()]

    assert set().union(*of_faults, *of_trainings) <= set(build_causes())


def test_every_declared_detector_exists():
    declared = [training.expected_detectors for training in TRAININGS.values()]
    declared += [family.detectors for family in FAULTY.values()]

    assert set().union(*declared) <= set(load_classes("detectors"))


def test_every_table_has_a_place_in_the_documentation():
    page = PAGE.read_text()

    for name in (*SYNTHETIC, "labelled-logs", "driven-runs", "driven-runs-by-tool"):
        assert f"<!-- {name} -->\n" in page
        assert f"<!-- end of {name} -->" in page


def test_runs_of_a_family_are_alike_and_other_families_are_not():
    healthy = [make_alike_run(1_000_020, index) for index in range(4)]
    other = make_alike_run(1_000_021, 0)
    ends = [np.median(run.series["entropy"][-20:]) for run in (*healthy, other)]

    assert len({run.settings["beta"] for run in healthy}) == 1
    assert not np.array_equal(healthy[0].series["reward"][:50], healthy[1].series["reward"][:50])
    assert max(ends[:4]) < 1.6 * min(ends[:4])
