"""From a case that turns critical to what two real ranks do about it, through a real agent."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing

import pytest
from support.rank_processes import until
from support.webhook_receiver import Receiver

from sentinel.notify import notification_codec
from sentinel.store.database import connect
from sentinel.store.history import History
from sentinel.transport.paths import ring_dir, run_dir
from sentinel.transport.run_lock import is_lock_held

pytestmark = pytest.mark.timeout(900)

PATIENCE = 240.0
"""Seconds: what a busy machine may take for what an idle one does in five."""

SCRIPT = """
import json, math, multiprocessing, os, sys, time

def train(rank, barrier):
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    os.environ.update({name: str(number) for name, number in place.items()})
    import sentinel
    calls, saves = [], []

    def call(asked):
        calls.append([asked.step, asked.case, sorted(asked.deeds)])
        raise ValueError("of no concern to the training")

    with sentinel.monitor(on_critical=["checkpoint", "stop", call], tier="notify"):
        for step in range(1, 20_001):
            barrier.wait(200)
            sentinel.log({"loss": 1.0 if step < 60 else math.nan}, step)
            asked = sentinel.requested()
            if "checkpoint" in asked:
                saves.append(step)
                sentinel.mark("save", step)
            if "stop" in asked:
                break
            time.sleep(0.01)
    with open(f"told-{rank}.json", "w") as file:
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


def test_two_ranks_save_call_and_stop_at_the_step_that_the_page_names(receiver, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, timeout=PATIENCE, check=False, stderr=-1
    )
    assert done.returncode == 0, done.stderr[-4000:]
    until(lambda: not is_lock_held(run_dir("acting") / "agent.lock"), PATIENCE, "the agent leaves")

    told = [json.loads((tmp_path / f"told-{rank}.json").read_text()) for rank in (0, 1)]
    last, saves, calls = told[0]
    assert told[1] == told[0]
    assert 60 < last < 20_000
    assert saves == [last]
    assert calls == [[last, "acting/nan_or_inf#1", ["checkpoint", "stop"]]]
    with closing(connect(run_dir("acting") / "sentinel.db")) as database:
        rows = database.execute("select incident, number, step from request").fetchall()
        pages = [
            notification_codec.decode(text)
            for (text,) in database.execute("select page from outbox")
        ]
        facts = History(database).run_metadata.as_dict()
    assert rows == [("acting/nan_or_inf#1", 1, last)]
    deeds = "A checkpoint, a stop and a call of your function were requested"
    told_of = [page for page in pages if page.incident.name == rows[0][0] and page.notes]
    assert f"{deeds} for step {last}." in told_of[0].notes
    # The tier that the decorator was given is heeded, too.
    assert {page.incident.severity.value for page in told_of} == {"warning"}
    assert facts["on_critical"].startswith(f"call, checkpoint, stop at step {last}, for acting/")
    assert facts["on_critical/error"] == "ValueError"
    assert not any(ring_dir("acting").iterdir())
