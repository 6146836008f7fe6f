"""What a backtest takes from the replay of a run."""

from __future__ import annotations

import json

import pytest

from sentinel.backtest.run_replay import replay_run
from sentinel.config.settings import Settings

BEGIN, STEP_SECONDS, PAUSE = 1.76e9, 10.0, 3 * 86_400.0


def rows(steps, begin):
    return [
        {"step": step, "time": begin + STEP_SECONDS * place, "loss": 2.0 / step}
        for place, step in enumerate(steps)
    ]


def test_the_pause_before_a_log_goes_back_to_a_checkpoint_is_no_training(tmp_path):
    path = tmp_path / "log.jsonl"
    first, second = range(1, 31), range(21, 51)
    resumed = rows(first, BEGIN) + rows(second, BEGIN + PAUSE)
    path.write_text("\n".join(map(json.dumps, resumed)))
    findings = replay_run(path, Settings())

    assert findings.seconds == pytest.approx(STEP_SECONDS * (29 + 29))
    assert (findings.trained_steps, findings.last_step) == (29 + 29, 50)
