"""`sentinel inspect`: what it shows of a log, and its exit status."""

from __future__ import annotations

import json

import pytest
from support.console_logs import CONSOLE_LOGS
from typer.testing import CliRunner

from sentinel.cli.main import app


def run_inspect(*arguments):
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)])


def test_it_shows_format_keys_steps_rows_and_unread_lines(tmp_path):
    path = tmp_path / "slurm-1.out"
    path.write_text(CONSOLE_LOGS["nanogpt"].text + "{'loss': 2.1, 'lr':\n")
    shown = json.loads(run_inspect(path, "--json").stdout)
    text = run_inspect(path)

    assert shown["format"] == "Console output"
    assert shown["keys"]["loss"] == "loss"
    assert shown["step_key"] == "step"
    assert shown["segments"] == [
        {"row": 1, "line": 0, "first_step": 10, "last_step": 50, "reason": "start of the log"}
    ]
    assert shown["rows"][0]["loss"] == 2.4
    assert shown["unread"]["the dict in it is cut off"] == 1
    assert shown["unread_lines"][-1]["number"] == 9
    assert text.exit_code == 0
    assert "loss: loss" in text.stdout
    assert "line 9: {'loss': 2.1, 'lr':" in text.stdout


def test_a_key_is_mapped_by_the_settings(tmp_path, monkeypatch):
    path = tmp_path / "run.log"
    path.write_text("".join(f"step {n} zz {n / 10}\n" for n in range(1, 40)))
    before = run_inspect(path, "--json")
    (tmp_path / "sentinel.toml").write_text('[keys]\n"zz" = "reward"\n')
    after = run_inspect(path, "--json", "--config", tmp_path / "sentinel.toml")

    assert before.exit_code == 2
    assert '[keys] "zz"' in before.stderr
    assert after.exit_code == 0
    assert json.loads(after.stdout)["keys"]["zz"] == "reward"


def test_a_part_of_the_loss_that_stands_for_it_is_shown_as_the_loss(tmp_path):
    path = tmp_path / "results.csv"
    rows = "".join(f"{n},{2 / n},{3 / n}\n" for n in range(1, 40))
    path.write_text(f"epoch,loss_vae,loss_bbox\n{rows}")
    keys = json.loads(run_inspect(path, "--json").stdout)["keys"]

    assert sorted(map(str, (keys["loss_bbox"], keys["loss_vae"]))) == ["None", "loss"]


def test_the_sum_of_the_parts_of_the_loss_is_shown_as_the_loss(tmp_path):
    path = tmp_path / "results.csv"
    rows = "".join(f"{n},{2 / n},{3 / n}\n" for n in range(1, 40))
    path.write_text(f"epoch,train/box_loss,train/cls_loss\n{rows}")
    keys = json.loads(run_inspect(path, "--json").stdout)["keys"]

    assert keys["train/loss"] == "loss"
    assert keys["train/box_loss"] is None
    assert keys["train/cls_loss"] is None


@pytest.mark.parametrize("text", ["a text with 3 numbers\n", "step 1: done\nstep 2: done\n"])
def test_a_text_that_is_no_log_is_an_error_with_the_reason(tmp_path, text):
    path = tmp_path / "notes.txt"
    path.write_text(text)
    result = run_inspect(path)

    assert result.exit_code == 2
    assert "its format is not known" in result.stderr


def test_bad_lines_of_json_are_named(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1, "loss": 2}\n{"step": 2, "lo\n{"step": 3, "loss": 1}\n')
    shown = json.loads(run_inspect(path, "--json").stdout)

    assert shown["skipped"] == 1
    assert shown["unread_lines"] == [
        {"number": 2, "reason": "it is no JSON object", "excerpt": '{"step": 2, "lo'}
    ]


def write_rows(path, *parts):
    rows = [{"step": step, **more} for steps, more in parts for step in steps]
    lines = [json.dumps({**row, "loss": 2.0 + at / 100}) for at, row in enumerate(rows)]
    path.write_text("\n".join(lines) + "\n")


def test_segments_are_shown_with_line_steps_and_reason(tmp_path):
    path = tmp_path / "log.jsonl"
    write_rows(path, (range(1, 51), {}), (range(41, 81), {}), (range(1, 31), {}))
    shown = json.loads(run_inspect(path, "--json").stdout)["segments"]
    text = run_inspect(path).stdout

    assert [(each["line"], each["first_step"], each["last_step"]) for each in shown] == [
        (1, 1, 50), (51, 41, 80), (91, 1, 30)
    ]  # fmt: skip
    assert [each["reason"].split(":")[0] for each in shown] == [
        "start of the log", "the step goes back", "another training"
    ]  # fmt: skip
    assert "line 91: steps 1 to 30 (another training: the steps start over)" in text


def test_other_trainings_and_left_out_rows_are_shown(tmp_path):
    path = tmp_path / "log.jsonl"
    write_rows(path, *(([step], {"run_id": name}) for step in range(9) for name in "ab"))
    shown = json.loads(run_inspect(path, "--json").stdout)

    assert shown["other_trainings"] == ["run_id=b"]
    assert shown["unread"] == {"it is of another writer (run_id=b)": 8}
    assert shown["skipped"] == 0
    assert "Other trainings in the log: run_id=b." in run_inspect(path).stdout


def test_a_key_without_a_signal_is_shown_with_its_purpose(tmp_path):
    path = tmp_path / "log.jsonl"
    write_rows(path, (range(1, 5), {"num_games": 1, "clip_range": 0.2, "elo": 1200}))
    shown = json.loads(run_inspect(path, "--json").stdout)

    assert shown["purposes"] == {
        "step": "position in the run",
        "num_games": "counter",
        "clip_range": "configuration",
        "elo": "watched for NaN and infinity only",
    }
    assert "num_games: (counter)" in run_inspect(path).stdout
