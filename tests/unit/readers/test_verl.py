"""verl's log file: keys mapped to signals, null as NaN, and checkpoints."""

import json
import math

import pytest

from sentinel.model.record import WHOLE_RUN, Event
from sentinel.readers import jsonl, verl
from sentinel.readers.format_detection import open_log


def line(step, **data):
    return json.dumps({"step": step, "data": {k.replace("__", "/"): v for k, v in data.items()}})


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "gsm8k.jsonl"
    rows = [
        line(0, **{"val-core/gsm8k/acc/mean@1": 0.25}),
        line(1, actor__pg_loss=0.5, actor__ppo_kl=0.001, critic__score__mean=0.5),
        line(2, actor__pg_loss=None, actor__ppo_kl=0.002, timing_s__save_checkpoint=3.5),
        "not a line",
        line(3, actor__grad_norm=None, critic__score__mean=0.75),
    ]
    path.write_text("\n".join(rows) + "\n")
    return path


def test_its_keys_are_mapped_and_null_is_nan(log):
    reader = verl.read(log)
    records = list(reader)

    assert [r.event for r in records] == [
        Event.START,
        Event.EVAL,
        Event.STEP,
        Event.STEP,
        Event.SAVE,
        Event.STEP,
    ]
    assert {r.rank for r in records} == {WHOLE_RUN}
    assert records[2].values["kl_old"] == 0.001
    assert records[2].values["reward"] == 0.5
    assert math.isnan(records[-1].values["grad_norm"])
    assert reader.skipped == 1


def test_a_save_follows_the_step_with_its_time(log):
    save = next(r for r in verl.read(log) if r.event is Event.SAVE)

    assert (save.step, dict(save.values)) == (2, {})


def test_it_is_detected_by_its_first_line_even_if_that_is_long(tmp_path, log):
    head = log.read_bytes()[:4096]
    long = line(1, **{f"actor/k{at}": 0.123456789 for at in range(400)}).encode()[:4096]
    spaced = b'{ "step": 12, "data": {"a": 1}}'

    assert all(verl.can_read(log, each) for each in (head, long, spaced))
    assert not any(jsonl.can_read(log, each) for each in (head, long, spaced))
    for other in (b'{"step": 1, "loss": 2}', b'{"data": {"loss": 1}, "step": 1}', b""):
        assert not verl.can_read(log, other)
    assert not verl.can_read(tmp_path, b"")


def test_format_detection_selects_it(log):
    assert Event.SAVE in [record.event for record in open_log(log)]
