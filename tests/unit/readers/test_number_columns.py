"""Columns of numbers: found by content, named by the settings, and no other log taken for them."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from sentinel.cli.main import app
from sentinel.model.record import Event
from sentinel.readers.format_detection import open_log
from sentinel.readers.log_folder import find_logs

LOSSES = [2.0 + 1.0 / n for n in range(1, 101)] + [90.0] * 40
"""A loss that jumps and stays, from its 101st value on."""


def steps(path):
    return [record for record in open_log(path) if record.event is Event.STEP]


def rows(separator=" ", interval=10):
    return [f"{n * interval}{separator}{loss:.4f}\n" for n, loss in enumerate(LOSSES, start=1)]


@pytest.mark.parametrize("separator", [" ", "    ", "\t", ",", "; "])
def test_a_first_column_that_grows_is_the_step(tmp_path, separator):
    path = tmp_path / "losses.txt"
    path.write_text("".join(rows(separator)))
    records = steps(path)
    assert [record.step for record in records] == [10 * n for n in range(1, len(LOSSES) + 1)]
    assert records[0].values["column_2"] == 3.0


def test_rows_without_a_step_are_counted(tmp_path):
    path = tmp_path / "losses.txt"
    path.write_text("".join(f"{loss:.4f}\n" for loss in LOSSES))
    assert [record.step for record in steps(path)] == [*range(1, len(LOSSES) + 1)]


@pytest.mark.parametrize("header", ["t  cost\n", "# t  cost\n", "Loading data\nt\tcost\n"])
def test_a_header_without_a_known_name_names_the_columns(tmp_path, header):
    path = tmp_path / "losses.txt"
    path.write_text(header + "".join(rows()))
    assert steps(path)[0].values["cost"] == 3.0


@pytest.mark.parametrize("header", ["# step loss\n", "% iter  loss\n", "# step,loss\n"])
def test_a_header_behind_a_comment_sign_is_one(tmp_path, header):
    path = tmp_path / "losses.txt"
    separator = "," if "," in header else " "
    path.write_text(header + "".join(rows(separator)))
    assert len([record for record in steps(path) if "loss" in record.values]) == len(LOSSES)


def test_a_line_of_another_width_is_counted_and_left_out(tmp_path):
    path = tmp_path / "losses.txt"
    path.write_text("".join([*rows()[:50], "1 2 3\n", "stopped by hand\n", *rows()[50:]]))
    reader = open_log(path)
    assert sum(record.event is Event.STEP for record in reader) == len(LOSSES)
    assert reader.skipped == 2
    assert [each.number for each in reader.unread_lines] == [51, 52]


def test_a_small_matrix_in_a_text_is_no_table(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("weights of the classes\n" + "0 0.5\n1 0.2\n2 0.3\n" + "done\n" * 20)
    with pytest.raises(ValueError, match="its format is not known"):
        open_log(path)


def test_a_matrix_in_a_log_with_named_metrics_is_not_read(tmp_path):
    path = tmp_path / "train.log"
    matrix = "".join(f"{n} 0.5 0.2\n" for n in range(10))
    path.write_text(matrix + "".join(f"step {n}: loss {loss}\n" for n, loss in enumerate(LOSSES)))
    keys = {key for record in steps(path) for key in record.values}
    assert keys == {"loss", "step", "global_step"}


def test_a_table_of_data_in_a_folder_is_no_run(tmp_path):
    (tmp_path / "houses.csv").write_text("".join(rows(",")))
    (tmp_path / "losses.log").write_text("".join(rows()))
    assert [log.path.name for log in find_logs(tmp_path)] == ["losses.log"]


def test_inspect_and_replay_say_where_the_columns_are_and_how_to_name_them(tmp_path):
    path = tmp_path / "losses.log"
    path.write_text("Loading data\n" + "".join(rows()))
    inspected = CliRunner().invoke(app, ["inspect", str(path)])
    assert inspected.exit_code == 2
    assert "column_2=3" in inspected.stdout
    for result in (inspected, CliRunner().invoke(app, ["replay", str(path)])):
        text = " ".join(result.output.split())
        assert "from line 2 on" in text
        assert '[keys] "column_2" = "<signal>"' in text


def test_named_columns_are_monitored(tmp_path):
    path = tmp_path / "losses.log"
    path.write_text("".join(rows()))
    arguments = ["replay", str(path), "--json", "--set", "keys.column_2=loss"]
    result = CliRunner().invoke(app, arguments)
    objects = [json.loads(line) for line in result.stdout.splitlines()]
    assert "loss_spike" in {each.get("detector") for each in objects}
    assert objects[-1]["monitored"] == ["loss"]
    assert "without names" not in result.stderr


def test_columns_that_grow_are_followed(tmp_path):
    path = tmp_path / "losses.log"
    path.write_text("".join(rows()[:20]))
    records = open_log(path).follow()
    assert [next(records).event for _ in range(21)].count(Event.STEP) == 20
    assert next(records) is None
    with path.open("a") as file:
        file.write(rows()[20])
    assert next(records).step == 210


MONITOR_HEADER = '#{"t_start": 1700000000.5, "env_id": "Pole-v1"}\n'
"""First line of a file of the Monitor wrapper; its columns are named r, l and t."""


@pytest.mark.parametrize("others", ["", ",is_success"])
def test_a_monitor_file_has_the_reward_of_each_episode(tmp_path, others):
    path = tmp_path / "0.monitor.csv"
    cell = ",0.0" if others else ""
    episodes = [f"{n / 2:.6f},{100 + n},{3.5 * n:.3f}{cell}\n" for n in range(1, 41)]
    path.write_text(f"{MONITOR_HEADER}r,l,t{others}\n{''.join(episodes)}")
    records = steps(path)

    assert [record.step for record in records] == [*range(1, 41)]
    assert [record.values["reward"] for record in records] == [n / 2 for n in range(1, 41)]
    assert records[0].values["episode_length"] == 101.0


def test_other_columns_named_by_letters_keep_their_names(tmp_path):
    path = tmp_path / "orbit.csv"
    path.write_text("r,x,t\n" + "".join(f"{n}.5,{2 * n},{3 * n}\n" for n in range(20)))

    assert "reward" not in steps(path)[-1].values
