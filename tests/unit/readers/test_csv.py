"""CSV tables: generic ones, Lightning's with empty cells, DeepSpeed's file per metric."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest

from sentinel.model.record import Event
from sentinel.readers import csv, deepspeed_csv, jsonl
from sentinel.readers.format_detection import open_log
from sentinel.readers.last_step import read_last_step


def table(path, *lines):
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def step_values(records, event=Event.STEP):
    return [(r.step, dict(r.values)) for r in records if r and r.event is event]


def drain(following):
    records_found = []
    while (record := next(following)) is not None:
        records_found.append(record)
    return records_found


def test_validation_on_its_own_line_is_an_evaluation(tmp_path):
    path = table(
        tmp_path / "metrics.csv",
        "epoch,step,train_loss,val_loss",
        "0,9,2.5,",
        "0,9,,2.75",
        "0,19,nan,",
    )
    records = list(csv.read(path))
    assert next((step, values["loss"]) for step, values in step_values(records)) == (9, 2.5)
    assert [step for step, _ in step_values(records, Event.EVAL)] == [9]
    assert records[0].event is Event.START


def test_the_index_of_a_pandas_table_is_the_step_of_its_metrics(tmp_path):
    path = table(tmp_path / "log.csv", ",Reward,Actor Loss", "0,-5.5,0.0", "1,-4.5,0.25")
    assert csv.can_read(path, path.read_bytes())
    assert [(s, v["reward"]) for s, v in step_values(csv.read(path))] == [(0, -5.5), (1, -4.5)]
    assert not csv.can_read(path, b",name,age\n0,Ada,36\n")


def test_the_iteration_of_a_training_loop_is_the_step(tmp_path):
    path = table(tmp_path / "log.csv", "time,global_iter,train_loss", "x,1,2.5", "x,2,2.25")
    assert [(s, v["loss"]) for s, v in step_values(csv.read(path))] == [(1, 2.5), (2, 2.25)]


@pytest.mark.parametrize("length", ["steps", "timesteps"])
def test_the_number_of_an_episode_is_the_step_beside_its_length(tmp_path, length):
    episodes = [f"{n},{n / 4},{200 - 7 * n}" for n in range(1, 9)]
    path = table(tmp_path / "training_log.csv", f"episode,reward,{length}", *episodes)
    assert [step for step, _ in step_values(csv.read(path))] == [*range(1, 9)]
    counted = table(tmp_path / "log.csv", f"{length},reward", "200,1.5", "400,2.5")
    assert [step for step, _ in step_values(csv.read(counted))] == [200, 400]


@pytest.mark.parametrize("separator", [",", "\t", ";"])
def test_separators_and_spaces(tmp_path, separator):
    path = table(tmp_path / "log.txt", f"Step{separator} loss", f"1{separator} 2.5")
    assert csv.can_read(path, path.read_bytes())
    assert [(s, v["loss"]) for s, v in step_values(csv.read(path))] == [(1, 2.5)]


def test_decimal_commas_between_semicolons(tmp_path):
    path = table(tmp_path / "log.csv", "step;loss;lr", "1;2,5;1e-3", "2;-0,25;1,5E-4", "3;;,5")

    found = step_values(csv.read(path))
    assert [(step, values.get("loss")) for step, values in found] == [
        (1, 2.5),
        (2, -0.25),
        (3, None),
    ]
    assert [values["learning_rate"] for _, values in found] == [1e-3, 1.5e-4, 0.5]
    assert read_last_step(path, "CSV") == 3


@pytest.mark.parametrize(
    "head",
    [b"", b"1,2\n3,4\n", b"a,b\n1,2\n", b"step\n1\n", b'{"step": 1, "loss": 2}\n', b"\xff\0,\n"],
)
def test_a_file_without_a_step_column_is_not_read(tmp_path, head):
    assert not csv.can_read(tmp_path / "log", head)


def test_a_bad_line_is_counted_and_a_second_header_replaces_the_first(tmp_path):
    path = table(
        tmp_path / "a.csv",
        "step,loss",
        "1,2.5",
        "2",
        "x,y",
        '"3,1',
        "step,loss,reward",
        "4,2.0,0.5",
    )
    reader = csv.read(path)
    assert [(s, v.get("reward")) for s, v in step_values(reader)] == [(1, None), (4, 0.5)]
    assert reader.skipped == 3


def test_the_files_of_deepspeed_are_joined_by_step(tmp_path):
    monitor = pytest.importorskip("deepspeed.monitor.csv_monitor")

    class Settings:
        enabled, output_path, job_name = True, str(tmp_path), "job"

    class Monitor(monitor.csvMonitor):
        def setup_log_dir(self, base=""):
            (tmp_path / "job").mkdir(exist_ok=True)
            return str(tmp_path / "job")

    import deepspeed.comm as dist

    rank, dist.get_rank = dist.get_rank, lambda: 0
    try:
        for begin in (1, 3):
            writer = Monitor(Settings())
            for step in range(begin, begin + 4):
                writer.write_events([("Train/Samples/train_loss", 1.0 / step**begin, 8 * step)])
                writer.write_events([("Train/Samples/lr", 0.001, 8 * step)])
    finally:
        dist.get_rank = rank
    rows = step_values(open_log(tmp_path / "job"))
    assert [step for step, _ in rows] == [8, 16, 24, 32, 24, 32, 40, 48]
    assert [(v["loss"], v["learning_rate"]) for _, v in rows][:2] == [(1.0, 0.001), (0.5, 0.001)]


def test_a_growing_table_is_followed_line_by_line(tmp_path):
    path = table(tmp_path / "a.csv", "step,loss", "1,2.5")
    reader = csv.read(path)
    following = reader.follow()
    assert step_values(drain(following))[0][0] == 1
    with path.open("a") as file:
        file.write("2,1.")
        file.flush()
        assert drain(following) == []
        file.write("25\n")
    assert [(s, v["loss"]) for s, v in step_values(drain(following))] == [(2, 1.25)]
    assert reader.position == 2


def test_a_table_rewritten_with_another_column_continues(tmp_path):
    path = table(tmp_path / "a.csv", "step,loss", "1,2.5", "2,2.25")
    following = csv.read(path).follow()
    assert len(step_values(drain(following))) == 2
    table(path, "step,loss,val", "1,2.5,", "2,2.25,", "3,2.0,1.0")
    records = drain(following)
    assert [(r.event, r.step, r.attempt) for r in records] == [(Event.STEP, 3, 0)]


@pytest.mark.parametrize("source", [csv, jsonl])
def test_a_log_that_is_started_over_is_a_new_attempt(tmp_path, source):
    def write(losses):
        if source is csv:
            return table(
                tmp_path / "log", "step,loss", *(f"{s},{v}" for s, v in enumerate(losses, 1))
            )
        return table(
            tmp_path / "log", *(json.dumps({"step": s, "loss": v}) for s, v in enumerate(losses, 1))
        )

    following = source.read(write([2.5, 2.25])).follow()
    assert len(drain(following)) == 3
    write([2.75])
    records = drain(following)
    assert [(r.event, r.step, r.attempt) for r in records] == [
        (Event.START, 1, 1),
        (Event.STEP, 1, 1),
    ]


def deepspeed(folder):
    """DeepSpeed's own writer of that directory, as a function of name, value and samples."""
    monitor = pytest.importorskip("deepspeed.monitor.csv_monitor")
    folder.mkdir(exist_ok=True)

    class Settings:
        enabled, output_path, job_name = True, str(folder.parent), folder.name

    class Monitor(monitor.csvMonitor):
        def setup_log_dir(self):
            return str(folder)

    writer = Monitor(Settings())

    def write(*events):
        rank, monitor.dist.get_rank = monitor.dist.get_rank, lambda: 0
        try:
            writer.write_events([(f"Train/Samples/{n}", v, s) for n, v, s in events])
        finally:
            monitor.dist.get_rank = rank

    return write


def live(folder, clock):
    return replace(csv.read(folder), clock=lambda: clock[0]).follow()


def test_the_directory_of_deepspeed_is_followed_row_by_row(tmp_path):
    clock = [1.8e9]
    write = deepspeed(tmp_path / "job")
    write(("train_loss", 2.5, 8))
    following = live(tmp_path / "job", clock)
    assert drain(following) == [], "the learning rate of the step may be still to come"
    write(("lr", 0.001, 8))
    write(("train_loss", 2.25, 16), ("lr", 0.002, 16))
    rows = step_values(drain(following))
    assert [(s, v["loss"], v["learning_rate"]) for s, v in rows] == [(8, 2.5, 0.001)]
    clock[0] += deepspeed_csv.MAX_ROW_GAP_SECONDS
    rows = step_values(drain(following))
    assert [(s, v["loss"], v["learning_rate"]) for s, v in rows] == [(16, 2.25, 0.002)]
    assert drain(following) == []


def test_a_metric_file_that_appears_later_is_followed(tmp_path):
    clock = [1.8e9]
    write = deepspeed(tmp_path / "job")
    write(("train_loss", 2.5, 8), ("train_loss", 2.25, 16))
    following = live(tmp_path / "job", clock)
    drain(following)
    write(("train_loss", 2.0, 24), ("loss_scale", 64.0, 24), ("train_loss", 1.5, 32))
    rows = step_values(drain(following))
    assert [s for s, _ in rows] == [16, 24]
    assert 64.0 in rows[1][1].values()


def test_a_growing_directory_yields_the_same_records_in_any_pieces(tmp_path):
    write = deepspeed(tmp_path / "whole")
    for step in range(1, 9):
        write(("train_loss", 1.0 / step, 8 * step), ("lr", 0.001, 8 * step))
    whole = step_values(csv.read(tmp_path / "whole"))
    assert len(whole) == 8
    files = {file.name: file.read_bytes() for file in (tmp_path / "whole").iterdir()}
    for seed in range(20):
        random, clock = Random(seed), [1.8e9]
        folder = tmp_path / f"grown{seed}"
        folder.mkdir()
        following, records_found = live(folder, clock), []
        written = dict.fromkeys(files, 0)
        while any(written[name] < len(data) for name, data in files.items()):
            # Both files grow at one pace, since a step is written to both before the next.
            share = min(1.0, max(n / len(files[k]) for k, n in written.items()) + random.random())
            for name, data in files.items():
                with (folder / name).open("ab") as file:
                    file.write(data[written[name] : int(share * len(data))])
                written[name] = int(share * len(data))
            records_found += step_values(drain(following))
        clock[0] += deepspeed_csv.MAX_ROW_GAP_SECONDS
        records_found += step_values(drain(following))
        values_by_step = {step: {} for step, _ in whole}
        for step, values in records_found:
            values_by_step[step] |= values
        assert list(values_by_step.items()) == whole


def test_an_invalid_line_in_a_metric_file_is_counted(tmp_path):
    folder = tmp_path / "job"
    folder.mkdir()
    bad = 'step,train_loss\n1,2.5\n\n"\nnan,1.0\nx,2\n2\n3,4,5\n\x00\ninf,1\n9,2.25\n'
    (folder / "Train_Samples_train_loss.csv").write_text(bad)
    reader = csv.read(folder)
    assert [(s, v["loss"]) for s, v in step_values(reader)] == [(1, 2.5), (9, 2.25)]
    assert reader.skipped == 7


def test_a_directory_that_is_started_over_is_a_new_attempt(tmp_path):
    clock, folder = [1.8e9], tmp_path / "job"
    write = deepspeed(folder)
    for step in range(1, 6):
        write(("train_loss", 2.0, 8 * step))
    following = live(folder, clock)
    drain(following)
    (folder / "Train_Samples_train_loss.csv").unlink()
    write = deepspeed(folder)
    write(("train_loss", 2.0, 8), ("train_loss", 2.0, 16))
    records = drain(following)
    assert [(r.event, r.step, r.attempt) for r in records] == [
        (Event.START, 8, 1),
        (Event.STEP, 8, 1),
    ]


def test_a_column_that_is_appended_later_leaves_the_others_readable(tmp_path):
    path = table(tmp_path / "log.csv", "step,loss", "1,0.5", "2,0.4,0.9", "3,0.3,", "4,0.2,no,x")
    reader = open_log(path)

    losses = [(step, values["loss"]) for step, values in step_values(reader)]
    assert losses == [(1, 0.5), (2, 0.4), (3, 0.3)]
    assert reader.skipped == 1
