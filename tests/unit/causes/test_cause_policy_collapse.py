"""Tests of the cause policy_collapse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.diagnoses import diagnose, diagnose_run, make_context

from sentinel.causes.policy_collapse import PolicyCollapse
from sentinel.model.diagnosis import CaseContext, Symptom
from sentinel.model.finding import Severity
from sentinel.model.notification import NotificationReason
from sentinel.model.record import Event
from sentinel.testing import event, steps

GRPO = {"framework": "trl", "algorithm": "grpo", "beta": 0.001, "learning_rate": 5e-6}


def collapsing(seed, lag=40, count=500, onset=250):
    """KL that doubles every 12 steps from `onset` on, and a reward that falls `lag` steps later."""
    rng = np.random.default_rng(seed)
    elapsed = np.maximum(np.arange(count) - onset, 0)
    fallen = np.clip((np.arange(count) - onset - lag) / 8, 0, 1)
    kl = 0.05 * np.exp(rng.normal(0, 0.2, count)) * np.minimum(2.0 ** (elapsed / 12), 60)
    reward = 0.2 + 0.6 * np.minimum(np.arange(count) / 200, 1) - 0.7 * fallen
    reward += rng.normal(0, 0.05, count)
    return list(steps(kl_ref=kl.tolist(), reward=reward.tolist(), learning_rate=[5e-6] * count))


@pytest.mark.parametrize("seed", range(5))
def test_a_kl_rise_before_a_reward_fall_is_diagnosed(seed):
    replay = diagnose_run(collapsing(seed), GRPO)

    assert replay.causes == ["policy_collapse"]
    (case,) = replay.cases.values()
    assert case.incident.severity is Severity.CRITICAL
    assert case.incident.key.detector == "kl_blowup"
    assert "`beta`" in case.diagnosis.remedy


def test_notifications_are_sent_at_the_first_incident_and_when_critical():
    notifications = diagnose_run(collapsing(1, lag=60), GRPO).notifications
    reasons = [notification.reason for notification in notifications]

    assert reasons in (
        [NotificationReason.OPENED],
        [NotificationReason.OPENED, NotificationReason.ESCALATED],
    )
    assert notifications[0].step < 310


def test_evidence_is_ordered_by_onset_with_settings_last():
    (case,) = diagnose_run(collapsing(2), GRPO).cases.values()
    onsets = [item.step for item in case.diagnosis.evidence]
    known = [step for step in onsets if step is not None]

    assert known == sorted(known)
    assert onsets[-1] is None
    assert "0.001" in case.diagnosis.evidence[-1].text


def context(**onsets):
    symptoms = {
        name: Symptom(name, Severity.WARNING, onset, onset + 5, f"{name} is off.")
        for name, onset in onsets.items()
    }
    return CaseContext(symptoms, GRPO)


def test_a_falling_reward_alone_has_no_cause():
    assert diagnose(context(reward_collapse=100), {"it": PolicyCollapse()}) is None


def test_a_reward_that_falls_with_repetition_is_diagnosed_in_any_order():
    late = {"reward_collapse": 100, "length_explosion": 145, "repetition": 150}

    assert diagnose(context(**late), {"it": PolicyCollapse()}) is not None
    del late["repetition"]
    assert diagnose(context(**late), {"it": PolicyCollapse()}) is None


def test_repetition_of_severity_info_is_no_collapse():
    warnings = context(repetition=100, length_explosion=90, entropy_collapse=95).symptoms
    infos = {name: replace(symptom, severity=Severity.INFO) for name, symptom in warnings.items()}
    later = context(grad_explosion=400).symptoms

    assert diagnose(CaseContext({**infos, **later}, GRPO), {"it": PolicyCollapse()}) is None
    assert diagnose(CaseContext({**warnings, **later}, GRPO), {"it": PolicyCollapse()}) is not None


def test_a_kl_rise_long_after_the_reward_fall_has_another_cause():
    late = context(reward_collapse=100, kl_blowup=150)

    assert diagnose(late, {"it": PolicyCollapse()}) is None


def test_a_real_policy_that_leaves_its_reference_is_diagnosed_without_a_kl():
    """From step 150 on, its rate is three hundred times as high."""
    metadata = {"framework": "trl", "algorithm": "grpo"}
    records = list(policy_training())
    replay = diagnose_run(records, metadata)

    assert replay.causes == ["policy_collapse"]
    (case,) = replay.cases.values()
    assert case.incident.key.detector == "reward_collapse"
    texts = [each.text for each in case.diagnosis.evidence]
    assert any(
        "times their initial norm away from those of the reference" in text for text in texts
    )
    near = [with_values(each, distance_to_reference=0.2) for each in records]
    assert diagnose_run(near, metadata).causes == [""]
    adapters = [with_values(each, distance_to_reference=3.0) for each in records]
    assert diagnose_run(adapters, metadata | {"peft_type": "LORA"}).causes == [""]


def with_values(record, **values):
    return replace(record, values={**record.values, **values})


def policy_training(count=220):
    """Policy gradient in groups of 8: the reward is the share of letters that the prompt names."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 32), torch.nn.Tanh(),
        torch.nn.Linear(32, 8),
    )  # fmt: skip
    first = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    optimizer = torch.optim.Adam(model.parameters())
    prompts = torch.arange(8).repeat_interleave(8)
    inputs = torch.eye(8)[prompts]
    for step in range(1, count + 1):
        rate = optimizer.param_groups[0]["lr"] = 2e-3 * (300 if step >= 150 else 1)
        policy = torch.distributions.Categorical(logits=model(inputs)[:, None].expand(-1, 6, -1))
        letters = policy.sample()
        rewards = (letters == prompts[:, None]).float().mean(1).view(8, 8)
        spread = rewards.std(1, keepdim=True)
        advantages = ((rewards - rewards.mean(1, keepdim=True)) / (spread + 1e-4)).flatten()
        loss = -(policy.log_prob(letters).mean(1) * advantages).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        weights = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
        values = {
            "reward": rewards.mean().item(),
            "reward_std": spread.mean().item(),
            "learning_rate": rate,
            "distance_to_reference": ((weights - first).norm() / first.norm()).item(),
        }
        yield event(Event.STEP, step, time=float(step), **values)


def test_a_reward_that_is_back_contradicts_it():
    """A fall that only the entropy went along with; a KL that left its range confirms it."""
    for other, is_contradicted in (("entropy_explosion", True), ("kl_blowup", False)):
        context = make_context(None, {}, reward_collapse=20, **{other: 10})
        over = replace(context.symptoms["reward_collapse"], is_over=True)
        symptoms = {**context.symptoms, "reward_collapse": over}

        assert diagnose(context, {"it": PolicyCollapse()}), other
        found = diagnose(replace(context, symptoms=symptoms), {"it": PolicyCollapse()})
        assert bool(found) is not is_contradicted, other


def test_a_collapse_is_no_part_of_the_case_of_a_reward_that_never_rose():
    """The reward is found to be flat 92 steps before the collapse, whose fall is found first."""
    rng, count, onset = np.random.default_rng(0), 1200, 1100
    since = np.maximum(np.arange(count) - onset, 0)
    later = np.maximum(since - 6, 0)
    reward = rng.normal(0.4, 0.02, count) * np.maximum(1 - since / 20, 0)
    kl = 0.03 * np.exp(np.minimum(later / 4, 8)) * rng.uniform(1, 1.1, count)
    entropy = rng.normal(1.1, 0.01, count) - 0.6 * np.minimum(later / 20, 1)
    run = diagnose_run(
        steps(reward=reward.tolist(), kl_ref=kl.tolist(), entropy=entropy.tolist()), GRPO
    )

    leads = [each.incident.key.detector for each in run.cases.values()]
    assert leads == ["reward_stalled", "reward_collapse"]
    assert run.causes == ["", "policy_collapse"]
