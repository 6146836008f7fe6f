"""Console output: what is read of the lines of well-known trainers, and what is not."""

from __future__ import annotations

import json
from dataclasses import replace
from math import isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.console_logs import CONSOLE_LOGS

from sentinel.model.record import Event
from sentinel.readers import console
from sentinel.readers.console import MAX_KINDS, MAX_TABLE_ROWS, ConsoleParser
from sentinel.readers.console_line import parse_console_line
from sentinel.readers.format_detection import find_reader, open_log


def rows(text):
    """The rows of a text, with the position of each."""
    parser, position, found = ConsoleParser(), 0, []
    for line in text.encode().splitlines(keepends=True):
        position += len(line)
        if line.strip():
            found += parser.add(line, position)
    return [row for row, _ in [*found, *parser.flush()]]


@pytest.mark.parametrize(
    "line",
    [
        "step {} loss nan",
        "step {} loss  nan",
        "step {}: loss nan (nan)",
        "step {} loss -inf lr 1e-3",
        "step {} | loss: nan | lr: 1e-3",
        "Epoch: [1][{}/100] Time 0.1 (0.2) Loss nan (nan) Acc 3.0 (2.0)",
    ],
)
def test_a_loss_that_is_not_finite_is_read(tmp_path, line):
    path = tmp_path / "train.log"
    path.write_text("".join(f"{line.format(step)}\n" for step in range(1, 41)))
    losses = [record.values["loss"] for record in open_log(path) if "loss" in record.values]

    assert len(losses) == 40
    assert not any(map(isfinite, losses))


@pytest.mark.parametrize("name", CONSOLE_LOGS)
def test_the_lines_of_a_trainer_are_read(tmp_path, name):
    log = CONSOLE_LOGS[name]
    path = tmp_path / "nohup.out"
    path.write_bytes(log.text.encode())
    attributes, steps, values = {}, [], []
    for record in open_log(path):
        attributes = attributes | record.attributes
        signal = next((n for n, key in record.attributes.items() if key == log.key), log.key)
        if record.event is Event.STEP and signal in record.values:
            steps.append(record.step)
            values.append(record.values[signal])

    assert find_reader(path)[0].FORMAT_NAME == "Console output"
    assert steps == log.steps
    assert (values[0], values[-1]) == pytest.approx((log.first, log.last))


@pytest.mark.parametrize(
    "text",
    [
        "We trained 3 models in 20 minutes.\nThen 5 models in 30 minutes.\n",
        "epochs: 10\nlr: 0.1\nbatch_size: 32\n",
        "torch 2.1.0\nnumpy 1.26.4\nrequests 2.31.0\n",
        "def step(n):\n    return n + 1\n",
        '{\n  "lr": 0.1,\n  "steps": 10\n}\n',
        "Then 5 models in 30 minutes.\nThen 6 models in 31 minutes.\n" * 2,
        "From step 3, C is false.\nIn case 2, if A is 1 we know by step 4 that B is 0, too.\n" * 4,
        "Epochs: 10\nweight decay: 0.1\nEpochs: 20\nweight decay: 0.2\n",
        "127.0.0.1 - - [01/Jan/2024:12:00:00] 200 512\n" * 9,
    ],
)
def test_other_text_is_no_log(tmp_path, text):
    path = tmp_path / "notes.txt"
    path.write_text(text)

    with pytest.raises(ValueError, match="its format is not known"):
        open_log(path)


def test_the_refusal_of_a_text_has_its_reason(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("We trained 3 models.\n")

    with pytest.raises(ValueError, match="no two of its lines have the same metrics"):
        open_log(path)
    path.write_bytes(b"\x01\0\2" * 99)
    with pytest.raises(ValueError, match="its format is not known; readable"):
        open_log(path)


def test_an_evaluation_is_a_series_of_its_own():
    found = rows(CONSOLE_LOGS["mnist"].text + CONSOLE_LOGS["mnist"].text)

    assert found[-1] == {"step": 3200, "val/Average loss": 0.0532, "val/Accuracy": 0.9823}


def test_the_lines_of_one_rank_are_read():
    parser = ConsoleParser()
    for rank in (1, 0, 1, 0):
        parser.add(f"[rank{rank}]: step {rank} loss 0.5".encode(), 1)

    assert parser.problem == "it is of rank 0; the lines of rank 1 are read"


def test_ranks_that_write_other_keys_are_read():
    found = rows(
        "".join(f"[rank0]: step {n} memory 1.5\n[rank7]: step {n} loss 0.5\n" for n in range(3))
    )

    assert [row for row in found if "loss" in row] == [{"step": n, "loss": 0.5} for n in (1, 2)]


def test_a_configuration_is_no_row():
    found = rows("params: {'policy': 'mlp', 'lr': 0.1}\n" * 3 + "{'loss': 0.5, 'memory': '1 GB'}\n")

    assert found == [{"loss": 0.5, "memory": "1 GB"}]


def test_an_evaluation_by_its_first_word_is_a_series_of_its_own():
    found = rows(CONSOLE_LOGS["leading_counts"].text)

    assert found[-1] == {"step": 50, "val/loss": 9.5, "val/acc": 0.4}


def test_the_columns_of_another_table_are_not_read_by_an_earlier_header():
    found = rows(CONSOLE_LOGS["ultralytics"].text)

    assert {row.get("box_loss") for row in found} == {None, 2.4, 2.3, 2.2, 2.1, 2.0}


def test_a_first_row_that_lies_behind_its_second_one_is_dropped():
    found = rows("step 9: loss 1.5\n" * 3 + "step 5: acc 0.5\n" + "step 4: acc 0.5\n" * 2)

    assert [row["step"] for row in found] == [9, 9, 4, 4]


@pytest.mark.parametrize(
    "prefix",
    [
        "[2024-01-01 12:00:00,1] [INFO] [logging.py:96:log_dist] [Rank 0] ",
        "2024-01-01 12:00:00.1 | INFO     | core.trainer:after_iter:46 - ",
        "INFO:root:",
    ],
)
def test_what_precedes_a_message_is_no_metric(prefix):
    line = parse_console_line(f"{prefix}step=10, skipped=0, loss=0.5")

    assert (line.step, line.values) == (10.0, {"skipped": 0.0, "loss": 0.5})


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ("20ms", 20.0),
        ("3%", 3.0),
        ("1.2E+00", 1.2),
        ("1,234.5", 1234.5),
        ("12.5 (13.1)", 12.5),
        ("-.5", -0.5),
        ("inf", float("inf")),
        ("2M", 2e6),
        ("3/4", 0.75),
    ],
)
def test_numbers_with_units_and_means(value, number):
    assert parse_console_line(f"step 1 | x: {value} | y: 1").values == {"x": number, "y": 1.0}


ATOMS = [
    "a", " ", "1", ",", ".", "(", ")", "[", "]", "{", "}", "'a': 1", ":", "=", "|", "/", "%|", "-",
    "e", "nan", "step ", "epoch ", "loss: ", "INFO ", "\x1b[", "│", "━", "tensor(", "\t", "\0",
]  # fmt: skip
"""Parts of lines that the patterns of the parser match."""


@given(
    pieces=st.lists(st.tuples(st.sampled_from(ATOMS), st.sampled_from([1, 2, 4000])), max_size=12)
)
def test_no_line_raises_or_hangs(pieces):
    """A pattern that backtracks over 4,000 repetitions twice would take hours."""
    line = parse_console_line("".join(atom * count for atom, count in pieces)[:16_384])

    assert isinstance(line.problem, str)


@given(data=st.binary(max_size=2000))
def test_the_parser_takes_any_bytes(data):
    parser = ConsoleParser()
    for line in data.splitlines():
        parser.add(line, 1)
    parser.flush()


def test_memory_is_bounded_by_the_kinds_of_lines():
    parser = ConsoleParser()
    for number in range(3 * MAX_KINDS):
        parser.add(f"step {number} key{number}a 1".encode(), number)
        parser.add(b"| key%d | 1 |" % number, number)

    assert len(parser.kinds) <= MAX_KINDS
    assert len(parser.table) <= MAX_TABLE_ROWS


def test_a_bar_without_newlines_is_read_as_it_grows(tmp_path):
    path, now = tmp_path / "nohup.out", [0.0]
    path.write_text("\rTrain: 10%|█| 1/10 [00:01<00:09, 1.0s/it, loss=9.0]")
    reader = replace(open_log(path, is_live=True), clock=lambda: now[0])
    followed = reader.follow()
    found = []
    for step in range(2, 6):
        with path.open("a") as file:
            file.write(f"\rTrain: 10%|█| {step}/10 [00:01<00:09, 1.0s/it, loss={step}.0]")
        while (record := next(followed)) is not None:
            found.append(record)
    now[0] = 60.0
    found += [record for record in [next(followed), next(followed)] if record]

    assert [(r.step, r.values["loss"]) for r in found if r.event is Event.STEP] == [
        (1, 9.0), (2, 2.0), (3, 3.0), (4, 4.0),
    ]  # fmt: skip


def test_a_csv_that_counts_episodes_has_their_steps(tmp_path):
    for column in ("Episode", "total/episodes", "total/steps"):
        path = tmp_path / "progress.csv"
        path.write_text(f"{column},reward\n10,1.5\n20,2.5\n")

        assert [r.step for r in open_log(path) if r.event is Event.STEP] == [10, 20]


def test_a_bare_history_is_read(tmp_path):
    path = tmp_path / "log_history.json"
    path.write_text(json.dumps([{"step": 10, "loss": 2.0}, None, {"step": 20, "loss": 1.0}]))
    reader = open_log(path)

    assert [r.step for r in reader if r.event is Event.STEP] == [10, 20]
    assert reader.skipped == 1


def test_a_batch_size_behind_the_metrics_is_no_position():
    sized = rows("".join(f"[{n:04}/900] | loss 0.{n} | batch 16\n" for n in (10, 20, 30)))
    counted = rows("".join(f"[3/10] batch {n}: loss 0.{n}\n" for n in (10, 20, 30)))

    assert [row["step"] for row in sized] == [10, 20, 30]
    assert [row["step"] for row in counted] == [10, 20, 30]


def test_a_step_within_an_iteration_over_the_data_is_added_up():
    found = rows(
        "".join(
            f"iteration:{epoch} step:{batch}/50, loss: {2 - epoch / 10:.2f}\n"
            for epoch in (1, 2, 3)
            for batch in (20, 40)
        )
    )

    assert [row["step"] for row in found] == [20, 40, 70, 90, 120, 140]
    assert [row["epoch"] for row in found] == [1, 1, 2, 2, 3, 3]


def training_with_bar(total, interval=10):
    """What transformers prints of a training: bars, and dicts without a step."""
    for step in range(interval, total + 1, interval):
        yield f"{100 * step // total:3}%|##| {step}/{total} [00:01<00:01, 1.0it/s]"
        yield f"{{'loss': {2.0 - step / total:.3f}, 'epoch': {step / total:.2f}}}"


def test_the_bar_of_a_second_training_starts_the_steps_over():
    one = [*training_with_bar(50)]

    assert [row["step"] for row in rows("\n".join(one))] == [10, 20, 30, 40, 50]
    assert [row["step"] for row in rows("\n".join(one + one))] == [10, 20, 30, 40, 50] * 2


def test_a_training_with_fewer_steps_follows_one_that_has_ended():
    one, other = [*training_with_bar(50)], [*training_with_bar(30)]
    end = ["{'train_runtime': 12.5, 'train_loss': 1.4, 'epoch': 1.0}"]
    evaluated = ["100%|##| 7/7 [00:01<00:00, 1.0it/s]", "{'eval_loss': 1.25, 'epoch': 1.0}"]
    found = rows("\n".join([*one, *end, *evaluated, *other]))

    assert [row["step"] for row in found if "loss" in row] == [10, 20, 30, 40, 50, 10, 20, 30]
    assert [row.get("step") for row in found if "eval_loss" in row] == [None]


def test_dicts_that_were_written_at_once_keep_their_interval():
    lines = [*training_with_bar(60)]
    bars, dicts = lines[0::2], lines[1::2]
    buffered = [*bars[:2], *dicts[:2], *bars[2:4], *dicts[2:4], *bars[4:], *dicts[4:]]
    steps = [row["step"] for row in rows("\n".join(buffered))]

    assert steps == sorted(steps)


def test_the_output_before_the_first_step_is_no_metric():
    """Preparation of data, planned steps and parameters; then verl's line of each step."""
    steps = "".join(
        f"(TaskRunner pid=7) step:{n} - training/global_step:{n} - actor/entropy:0.5\n"
        "(TaskRunner pid=7)\n"
        for n in range(1, 4)
    )
    text = (
        "Filtering prompts longer than 1024 tokens (num_proc=32):   5%|5 | 46000/1000000 [00:01<]\n"
        "Filtering prompts longer than 1024 tokens (num_proc=32):  10%|# | 92000/1000000 [00:02<]\n"
        "Total steps: 3746, num_warmup_steps: 0\n"
        "Hyperparameters: {'lr': 0.1, 'total_timesteps': 500000}\n"
        "Environment parameters: {'balance': 10.0, 'window': 4}\n"
    ) + steps

    assert [(row["step"], row["actor/entropy"]) for row in rows(text)] == [
        (1, 0.5),
        (2, 0.5),
        (3, 0.5),
    ]


def test_pairs_before_a_dict_are_read_with_it():
    text = "".join(f"step {n} rl_loss: 0.5, data: {{'total_reward': {n}.0}}\n" for n in range(3))

    assert [(r["rl_loss"], r["total_reward"]) for r in rows(text)] == [
        (0.5, 0.0),
        (0.5, 1.0),
        (0.5, 2.0),
    ]


def test_a_number_of_steps_in_a_line_of_its_own_counts_them_if_it_grows():
    growing = "".join(f"num of updates: {n}000\nret loss: 0.{n}\n" for n in range(1, 5))
    planned = "Number of steps: 900\nret loss: 0.5\n" * 2

    assert [(row["step"], row["ret loss"]) for row in rows(growing)] == [
        (2000, 0.2), (3000, 0.3), (4000, 0.4)
    ]  # fmt: skip
    assert not any("step" in row for row in rows(planned))


def test_settings_in_json_do_not_hide_the_lines_below_them(tmp_path):
    path = tmp_path / "train.log"
    lines = [f"step {at} loss {1 / at:.4f}" for at in range(1, 20)]
    path.write_text("\n".join(["starting the run", '{"lr": 0.1, "model": "small"}', *lines]))

    module = find_reader(path)[0]
    assert module is console
    assert len(list(module.read(path))) >= len(lines) - 1
