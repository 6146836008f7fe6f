"""The detection benchmark: what it calls found, false and late is what a reader would."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from detection_exact import EXACT, counted
from detection_judges import Alarm, Judged, Told, ours
from detection_made import made
from detection_run import FAULTS, REINFORCED, Whole
from detection_score import Calm, Found, stands
from detection_suite import Spec, suite
from peers import PEERS, Best, Peer

from sentinel.model.record import Event
from sentinel.testing import steps


def run_of(fault="loss_spike", onset=100, every=10, length=400):
    return Whole(1, fault, "severe", {"learning_rate": np.ones(length)}, onset=onset, every=every)


def told(name, step, **more):
    return Alarm(name, step, step, **more)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_in_the_run_from_its_onset_on_and_seeds_make_the_same_run(fault):
    kind = "rl" if fault in REINFORCED else "sft"
    run, again = (made(kind, 1_000_003, fault, "severe") for _ in range(2))

    assert run.onset is not None
    assert 0 < run.onset < len(run)
    for name, values in run.series.items():
        assert np.array_equal(values, again.series[name], equal_nan=True)
    assert all(len(values) == len(run) for values in run.series.values())


def test_no_two_runs_of_the_suite_have_the_same_seed():
    specs = list(suite(0, 3, 2))

    assert len({spec.seed for spec in specs}) == len(specs)
    assert {spec.fault for spec in specs} == {"", *FAULTS, *EXACT}


def test_a_run_whose_counter_doubles_is_timed_by_its_points():
    run = counted(5, "step_stride", "severe")
    points = [run.point(r.step) for r in run.records() if r.event is Event.STEP]

    assert points == list(range(run.ends))


def test_the_first_right_alarm_counts_with_its_delay_in_points():
    found = Found()
    found.add(run_of(), Judged([told("grad_explosion", 1010), told("loss_divergence", 1050)]))

    assert (found.recall, found.told, found.pages) == (1.0, [4], [2])


def test_an_alarm_before_the_onset_or_beyond_the_horizon_is_no_answer():
    found = Found()
    found.add(run_of(), Judged([told("loss_spike", 500), told("loss_spike", 1800)]))

    assert (found.told, found.missed) == ([], [1])


def test_what_is_only_noted_is_not_told():
    found = Found()
    found.add(run_of(), Judged([Alarm("loss_spike", 1020)]))

    assert (found.told, found.noted) == ([], [1])


def test_alarms_before_a_fault_are_false_and_later_ones_are_not():
    calm = Calm()
    calm.add(run_of(), Judged([told("loss_spike", 500), told("loss_spike", 1050)]))

    assert (calm.points, calm.told, calm.by_name) == (92, 1, {"loss_spike": 1})


def test_a_plateau_is_true_where_the_loss_without_its_noise_stood_still():
    run = run_of("")
    run.truth = np.concatenate([np.linspace(2, 1, 200), np.ones(200)])

    assert stands(run, told("loss_plateau", 3500))
    assert not stands(run, told("loss_plateau", 1500))


def test_the_lead_before_the_cliff_is_a_share_of_the_lag():
    run = run_of("policy_collapse", every=1)
    run.cliff = 140
    found = Found()
    case = Told(112, 1, cause="policy_collapse", root="kl_blowup")
    found.add(run, Judged([told("kl_blowup", 121)], [case]))

    assert (found.leads, found.cases, found.roots, found.names) == ([0.5], [1], [True], [True])


def test_a_rule_that_goes_on_firing_is_one_alarm_and_so_is_one_that_comes_back_soon():
    peer = Peer("", "", lambda: lambda record: ["x"] if record.values["loss"] > 1 else [])
    loss = [2.0 if at < 90 or at in (100, 160) else 0.0 for at in range(200)]

    assert [alarm.told for alarm in peer.judge(steps(loss=loss)).alarms] == [1, 101, 161]


def test_peers_find_what_they_are_made_for():
    noise = np.random.default_rng(3).normal(2.0, 0.05, 300)
    spiked = np.where(np.arange(300) >= 250, 9.0, noise).tolist()
    found = {
        name: {alarm.name for alarm in peer.judge(steps(loss=spiked)).alarms}
        for name, peer in PEERS.items()
        if name in ("three_sigma", "wandb", "llm_foundry")
    }

    assert all("loss_spike" in names for names in found.values())


def test_patience_is_over_once_and_begins_anew_with_a_better_value():
    best = Best()

    assert [best.add(value) for value in (1.0, 0.5, 0.9, 2.0, 1.0)] == [0, 1, 2, 0, 1]


def test_ours_says_what_the_engine_says():
    run = Spec("sft", 1_000_001, "nan_or_inf", "severe").made()
    judged = ours(run.records())

    assert "nan_or_inf" in {alarm.name for alarm in judged.told}
    assert judged.cases
