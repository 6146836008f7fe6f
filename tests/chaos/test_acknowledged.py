"""No step whose `log()` returned is lost, or stored twice, when trainers and agents are killed.

Two kills by default; `make soak` sets CHAOS_KILLS. benchmarks/kills.py kills 200 trainers and 100
agents.
"""

from __future__ import annotations

import os
import random

import pytest
from support.acknowledged_runs import isolated, kill_agents, kill_trainers

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1200)]

KILLS = min(int(os.environ.get("CHAOS_KILLS", "2")), 12)


@pytest.fixture(autouse=True)
def environment(tmp_path, monkeypatch):
    for name, value in isolated(tmp_path).items():
        monkeypatch.setenv(name, value)


@pytest.mark.full
@pytest.mark.fault("P1", "A1")
@pytest.mark.parametrize("kill", [kill_trainers, kill_agents])
def test_no_acknowledged_step_is_lost(kill):
    result = kill("acknowledged", KILLS, random.Random(11))

    assert result["acknowledged"] >= KILLS
    assert (result["lost"], result["repeated"]) == (0, 0)
