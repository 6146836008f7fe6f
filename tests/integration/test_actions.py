"""Tests of the actions of two real ranks on a critical case, through a real agent."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing

import pytest
from support.rank_processes import until
from support.webhook_receiver import Receiver

from sentinel.store import notification_codec
from sentinel.store.database import connect
from sentinel.store.history import History
from sentinel.transport.paths import current_run_dir, is_agent_running, ring_dir

pytestmark = pytest.mark.timeout(900)

TIMEOUT_SECONDS = 240.0
"""Long enough for a busy machine; an idle one takes five seconds."""

SCRIPT = """
import json, math, multiprocessing, os, sys, time

def train(rank, barrier):
    environment = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    os.environ.update({name: str(number) for name, number in environment.items()})
    import sentinel
    calls, saves = [], []

    def call(context):
        calls.append([context.step, context.case, sorted(context.actions)])
        raise ValueError("must not affect the training")

    with sentinel.monitor(on_critical=["checkpoint", "stop", call], tier="notify"):
        for step in range(1, int(sys.argv[1]) + 1):
            barrier.wait(200)
            sentinel.log({"loss": 1.0 if step < 60 else math.nan}, step)
            requested = sentinel.requested()
            if "checkpoint" in requested:
                saves.append(step)
                sentinel.mark("save", step)
            if "stop" in requested:
                break
            time.sleep(0.01)
    with open(f"result-{rank}.json", "w") as file:
        json.dump([step, saves, calls], file)

if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(2)
    ranks = [spawn.Process(target=train, args=(rank, barrier)) for rank in (0, 1)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
    sys.exit(max(abs(each.exitcode) for each in ranks))
"""


@pytest.fixture
def receiver(monkeypatch):
    monkeypatch.setenv("SENTINEL_RUN_ID", "acting")
    monkeypatch.setenv("SENTINEL_LINGER_SECONDS", "0.5")
    with Receiver() as receiver:
        monkeypatch.setenv("SENTINEL_SINKS__WEBHOOK__URL", receiver.url)
        yield receiver


def train(folder, steps):
    """Train for so many steps on two ranks; what both of them did: last step, saves, calls."""
    (folder / "train.py").write_text(SCRIPT)
    command = [sys.executable, "train.py", str(steps)]
    completed = subprocess.run(command, cwd=folder, timeout=TIMEOUT_SECONDS, check=False, stderr=-1)
    assert completed.returncode == 0, completed.stderr[-4000:]
    until(lambda: not is_agent_running(ring_dir("acting")), TIMEOUT_SECONDS, "agent stopped")
    results = [json.loads((folder / f"result-{rank}.json").read_text()) for rank in (0, 1)]
    assert results[1] == results[0]
    return results[0]


def test_shadow_mode_only_states_what_would_have_been_requested(receiver, tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_ACTIONS__MODE", "shadow")

    assert train(tmp_path, 400) == [400, [], []]
    notes = receiver.accepted[0].json["sentinel"]["notes"]
    actions = "a checkpoint, a stop and a call of your function"
    assert f"Shadow mode: {actions} would have been requested for step" in "".join(notes)


def test_two_ranks_save_call_and_stop_at_the_step_of_the_notification(receiver, tmp_path):
    last, saves, calls = train(tmp_path, 20_000)
    assert 60 < last < 20_000
    assert saves == [last]
    assert calls == [[last, "acting/nan_or_inf#1", ["checkpoint", "stop"]]]
    with closing(connect(current_run_dir("acting") / "sentinel.db")) as database:
        rows = database.execute("select incident, number, step from command").fetchall()
        notifications = [
            notification_codec.decode(text)
            for (text,) in database.execute("select notification from outbox")
        ]
        metadata = History(database).run_metadata.as_dict()
    assert rows == [("acting/nan_or_inf#1", 1, last)]
    with_notes = [each for each in notifications if each.incident.name == rows[0][0] and each.notes]
    actions = "A checkpoint, a stop and a call of your function"
    assert f"{actions} were requested for step {last}." in with_notes[0].notes
    # The tier of the decorator applies.
    assert {each.incident.severity.value for each in with_notes} == {"warning"}
    assert metadata["on_critical"].startswith(f"call, checkpoint, stop at step {last}, for acting/")
    assert metadata["on_critical/error"] == "ValueError"
    assert not any(ring_dir("acting").iterdir())
