"""Tests of the receiver, the sandbox and the whole demo."""

import json
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import requests
from pydantic import SecretStr
from support.notifications import make_notification, with_diagnosis
from support.rank_processes import until

from sentinel.demo import sandbox
from sentinel.demo.receiver import DemoReceiver, ReceivedNotification
from sentinel.demo.scenario import FAULTS
from sentinel.model.delivery import Response
from sentinel.model.notification import NotificationReason
from sentinel.sinks.slack import Slack
from sentinel.sinks.webhook import Webhook

ROOT = Path(__file__).parents[2]


@pytest.fixture
def receiver():
    with DemoReceiver("a secret") as receiver:
        yield receiver


def deliver(
    receiver: DemoReceiver, secret: str = "a secret", identity: str = "one", notification=None
) -> int:
    sink = Webhook(url=SecretStr(f"{receiver.url}/webhook"), secret=SecretStr(secret))
    request = sink.sign(
        sink.render(notification or make_notification(NotificationReason.OPENED), identity, None),
        time.time(),
    )
    response = requests.post(
        request.url, data=request.body, headers=dict(request.headers), timeout=60
    )
    return response.status_code


def test_the_receiver_parses_a_webhook(receiver):
    assert deliver(receiver) == 200

    delivery = receiver.received.get(timeout=240)
    assert replace(delivery, seconds=0.0) == ReceivedNotification(
        reason="opened",
        case="grpo-7b/kl_blowup#1",
        detector="kl_blowup",
        severity="critical",
        step=100,
        onset_step=90,
        summary="KL is 2 nats.",
        remedy="Raise the KL coefficient.",
        evidence={"kl": 2.0, "limit": 0.4},
        seconds=0.0,
    )


def test_the_receiver_parses_a_diagnosis(receiver):
    assert deliver(receiver, notification=with_diagnosis()) == 200
    delivery = receiver.received.get(timeout=240)

    assert (delivery.cause, delivery.title) == ("policy_collapse", "policy collapse")
    assert (delivery.confidence_text, delivery.last_good_step) == ("likely, 83 %", 80)
    assert delivery.cause_evidence == (
        "since step 86: KL is 2 nats.",
        "since step 95: The reward fell.",
        "The KL coefficient is 0.0001.",
    )
    assert delivery.remedy == "Go back, and raise `beta`."
    assert delivery.others == ("reward_collapse",)


def test_the_receiver_rejects_other_signatures(receiver):
    assert deliver(receiver, secret="another") == 401
    assert requests.post(f"{receiver.url}/webhook", data=b"{}", timeout=240).status_code == 401
    assert receiver.received.empty()


def test_the_receiver_ignores_a_repeat(receiver):
    assert [deliver(receiver), deliver(receiver), deliver(receiver, identity="two")] == [
        200,
        200,
        200,
    ]
    assert receiver.received.qsize() == 2


def test_the_receiver_reads_a_slack_message(receiver):
    sink = Slack(url=SecretStr(f"{receiver.url}/slack"))
    request = sink.render(make_notification(NotificationReason.OPENED), "one", None)
    response = requests.post(
        request.url, data=request.body, headers=dict(request.headers), timeout=60
    )

    assert sink.is_accepted(Response(response.status_code, response.text))
    assert "KL is 2 nats, run grpo-7b" in receiver.received.get(timeout=240)


def test_no_demo_notification_reaches_the_users_sinks(tmp_path):
    ours = {
        "SENTINEL_SINKS__SLACK__URL": "https://hooks.slack.com/x",
        "SENTINEL_OFF": "1",
        "A": "b",
    }
    environ = sandbox.training_environment(ours, tmp_path)

    assert environ["A"] == "b"
    named = {name: value for name, value in environ.items() if name.startswith("SENTINEL_")}
    assert named.keys() == {"SENTINEL_HOME", "SENTINEL_RUNTIME_DIR", "SENTINEL_CONFIG"}
    assert all(value.startswith(str(tmp_path)) for value in named.values())


def test_without_torch_the_demo_names_the_requirement(monkeypatch):
    monkeypatch.setattr(sandbox, "find_spec", lambda _: None)

    assert "pip install torch" in sandbox.missing_requirement()


def test_no_process_is_left_after_stop(tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox, "NUM_RANKS", 2)
    started = sandbox.Sandbox(tmp_path)
    started.configure("http://127.0.0.1:9", "a secret")
    started.start()
    until(lambda: started.is_registered and started.agent, 240.0, "the agent is up")
    torchrun = psutil.Process(started.trainer.pid)
    running = [
        torchrun,
        *torchrun.children(recursive=True),
        started.agent,
    ]
    started.stop()

    assert len(set(running)) >= 1 + sandbox.NUM_RANKS
    assert [process for process in running if lives(process)] == []


def lives(process):
    """Whether the process runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def scripts(monkeypatch):
    """The modules of the training script, as torchrun lets them find each other."""
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "demo"))
    import stories
    import train

    return stories, train


def numbers(stories, text: str) -> list[int]:
    words = text.split()
    return [stories.NUMBER[word] for word in words]


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("the fox sees a owl . a red fox hears the tree near the boat .", 0.5),
        ("the fox sees a owl . the fox sees a owl .", 0.25),
        ("the owl sees a fox . the fox sees a owl", 0.0),
        ("the fox the fox the fox . fox sees owl .", 0.0),
        ("a fox sees a owl . a fox sees a fox . a fox sees a bear . a fox sees a king .", 1.0),
    ],
    ids=["two", "the same twice", "another topic, and unfinished", "no grammar", "four"],
)
def test_the_reward_counts_different_correct_sentences_about_the_topic(scripts, text, reward):
    stories, _ = scripts

    assert stories.reward(numbers(stories, "story fox : " + text)) == reward


def test_training_stories_have_a_reward_between_zero_and_the_maximum(scripts):
    stories, _ = scripts
    dice = random.Random(0)
    rewards = [stories.reward(stories.story(dice)) for _ in range(500)]

    assert 0.2 < sum(rewards) / 500 < 0.8


def saved(train, updates: int, counts: int, tmp_path) -> list[int]:
    kept = train.Checkpoints(tmp_path, save_steps=500, max_steps=4000)
    steps = []
    for _ in range(updates):
        kept.global_step += counts
        if kept.is_due:
            steps.append(kept.global_step)
    return steps


def test_a_step_counted_twice_saves_as_in_the_report(scripts, tmp_path):
    """huggingface/trl#2124: 500, 1000, ..., 4000, then every 2 steps until 8000."""
    _, train = scripts

    assert saved(train, 4000, 1, tmp_path) == list(range(500, 4001, 500))
    twice = saved(train, 4000, 2, tmp_path)
    assert twice == [*range(500, 4000, 500), *range(4000, 8001, 2)]


def test_the_fault_matches_its_description(scripts):
    _, train = scripts
    meant, wrong = train.Settings(), train.RELOADED

    assert "300 times too high" in FAULTS[0].description
    assert wrong.learning_rate / meant.learning_rate == pytest.approx(300)
    assert "1000 times too low" in FAULTS[0].description
    assert meant.kl_coef / wrong.kl_coef == pytest.approx(1000)


@pytest.mark.timeout(1200)
def test_every_fault_in_a_real_training_is_reported_and_nothing_else():
    """Runs what `make demo` does, with two processes instead of four: a real KL and reward."""
    fewer = "from sentinel.demo import sandbox; sandbox.NUM_RANKS = 2"
    command = [sys.executable, "-c", f"{fewer}; from sentinel.__main__ import main; main()"]
    command += ["demo", "--json"]
    completed = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)

    lines = [json.loads(line) for line in completed.stdout.splitlines()]
    opened = [
        line for line in lines if line["type"] == "notification" and line["reason"] == "opened"
    ]
    assert (completed.returncode, lines[-1]["passed"]) == (0, True), (
        completed.stdout + completed.stderr
    )
    assert len(opened) == len(FAULTS), "consequences are part of the case of their cause"
    assert lines[-1]["steps_after"].keys() == {fault.cause for fault in FAULTS}
    assert all(0 <= late <= 60 for late in lines[-1]["steps_after"].values())
