"""Cases are compared with the label of their incident, and a missing corpus is an error."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import causes

LABEL = {
    "set": "dev", "run": "sft-1", "step": 100, "types": ["loss_spike"], "right": ["bad_batch"],
    "plausible": ["numerical_breakdown"], "wrong": ["overfit"],
}  # fmt: skip


def case(**changes):
    named = {
        "set": "dev", "run": "sft-1", "detectors": ["loss_divergence"], "opened": [104],
        "early": 8.0, "cause": "bad_batch", "confidence": 0.7, "severity": "warning",
    }  # fmt: skip
    return named | changes


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "right"),
        ({"cause": "numerical_breakdown"}, "plausible"),
        ({"cause": "overfit"}, "wrong"),
        ({"cause": "slow_data"}, "unlabelled"),
        ({"cause": ""}, ""),
        ({"opened": [91]}, "unlabelled"),
        ({"opened": [93]}, "right"),
        ({"run": "sft-2"}, "unlabelled"),
        ({"detectors": ["kl_blowup"]}, "unlabelled"),
    ],
)
def test_a_cause_is_compared_with_the_label_of_the_same_event(changes, verdict):
    assert causes.judge(case(**changes), [LABEL])["verdict"] == verdict


def test_the_nearest_of_several_labels_counts():
    later = LABEL | {"step": 500, "right": [], "wrong": ["bad_batch"]}

    assert causes.judge(case(opened=[505]), [LABEL, later])["verdict"] == "wrong"
    assert causes.judge(case(opened=[120]), [LABEL, later])["verdict"] == "right"


def test_the_labels_name_known_causes_and_contain_nothing_of_the_logs():
    known = {path.stem for path in Path(causes.__file__).parents[1].glob("sentinel/causes/[a-z]*")}
    for line in causes.LABELS.read_text().splitlines():
        label = json.loads(line)
        assert sorted(label) == sorted(LABEL)
        named = [name for key in ("right", "plausible", "wrong") for name in label[key]]
        assert {*named} <= known
        assert len(named) == len({*named})


def test_a_folder_without_an_index_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["causes.py", str(tmp_path)])
    with pytest.raises(SystemExit):
        causes.main()

    assert f"{tmp_path}: no index.jsonl; give folders of logs" in capsys.readouterr().err


def test_the_made_logs_have_their_causes(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["causes.py", "--made", "--list"])
    causes.main()
    lines = capsys.readouterr().out.splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{")]

    assert {each["run"]: each["verdict"] for each in found} == {"nan": "right", "overfit": "right"}
