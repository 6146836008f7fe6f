"""kill -9 of one rank of a real gloo run: that rank alone is named, and soon.

Nothing is stopped before: the other ranks lose their connection and raise at once. Four kills by
default; RANK_KILLS=50 for more, RANK_KILLS_WORLD=4 ranks, RANK_KILLS_AGGREGATE=collective.
"""

from __future__ import annotations

import os
import random
import re
import time
from itertools import cycle, islice

import pytest
from support.ddp_trainings import TIMEOUT_SECONDS, DdpTraining
from support.rank_processes import until
from support.webhook_receiver import Receiver

pytest.importorskip("torch")
pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("RANK_KILLS", "4"))
WORLD = int(os.environ.get("RANK_KILLS_WORLD", "2"))
AGGREGATE = os.environ.get("RANK_KILLS_AGGREGATE", "agent")
CASES = [
    *islice(cycle((launcher, rank) for rank in range(WORLD) for launcher in ("torchrun", "spawn")),
            KILLS)
]  # fmt: skip
QUIET_SECONDS = 4.0
"""How long no other notification may follow: a connection error is held for 3 s."""


@pytest.mark.parametrize(
    ("number", "launcher", "rank"),
    [
        # One kill in `make test`.
        pytest.param(number, *case, marks=pytest.mark.full if number else ())
        for number, case in enumerate(CASES)
    ],
    ids=[f"{number}-{launcher}-rank{rank}" for number, (launcher, rank) in enumerate(CASES)],
)
@pytest.mark.fault("R8")
def test_a_killed_rank_alone_is_named(tmp_path, monkeypatch, number, launcher, rank):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "rings"))
    monkeypatch.setenv("SENTINEL_LINGER_SECONDS", "1")
    monkeypatch.setenv("SENTINEL_DETECTORS__RUN_STALLED__FLOOR", "3600")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with Receiver() as receiver:
        monkeypatch.setenv("SENTINEL_SINKS__WEBHOOK__URL", receiver.url)
        training = DdpTraining(
            tmp_path / "run", f"killed{number}", launcher=launcher, world=WORLD, aggregate=AGGREGATE
        )
        try:
            training.reach(20)
            until(
                lambda: list((tmp_path / "home" / "runs").glob("*/agent.json")),
                TIMEOUT_SECONDS,
                "an agent is registered",
            )
            time.sleep(random.Random(number).random() * 0.5)
            killed_at = training.kill(rank)
            until(lambda: receiver.accepted, TIMEOUT_SECONDS, "the notification arrives")
            print(f"fault to message: {receiver.accepted[0].time - killed_at:.3f} s")
            training.process.wait(TIMEOUT_SECONDS)
            time.sleep(QUIET_SECONDS if len(CASES[:4]) < KILLS else 0.5)
        finally:
            training.end()
        alerts = [request.json["alerts"][0] for request in receiver.accepted]
    texts = [(alert["labels"]["detector"], alert["annotations"]["summary"]) for alert in alerts]
    print(texts)
    others = r"ranks? [\d, -]+ failed after it( and \d+ ranks? still runs?)?"
    running = r"\d+ ranks? still runs?"
    assert [detector for detector, _ in texts] == ["run_died"], texts
    assert re.fullmatch(
        rf"Rank {rank} was killed by SIGKILL at step \d+; ({others}|{running}|no rank is left)\.",
        texts[0][1],
    ), texts
