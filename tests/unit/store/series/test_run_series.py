"""Series of charts: few points, no hidden extreme or NaN, the same as from all records."""

from __future__ import annotations

import random
import threading
from contextlib import closing, contextmanager
from dataclasses import replace
from math import fsum, inf, isclose, isfinite, nan

import pytest
from hypothesis import given
from hypothesis import settings as budget
from hypothesis import strategies as st
from support.run_databases import NOW, step_record, write_records

from sentinel.model.record import Event
from sentinel.pipeline.engine import Result
from sentinel.store.database import connect, transaction
from sentinel.store.history import History
from sentinel.store.retention import HistoryRetention
from sentinel.store.run_reader import RunReader, series_path
from sentinel.store.series import run_series, track

NUMBERS = st.one_of(
    st.floats(-1e6, 1e6), st.sampled_from([nan, inf, -inf, 0.0, 1e308, -1e308, 5e-324])
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sentinel.db"


@contextmanager
def limited_buckets(count=32):
    """Buckets merge at once, so that short runs are as long ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(track, "MAX_BUCKETS", count)
        patch.setattr(track, "MIN_BUCKETS", 8)
        patch.setattr(run_series, "MAX_BUCKETS", count)
        yield


@pytest.fixture
def few_buckets():
    with limited_buckets():
        yield


def records_of(path):
    with closing(connect(path)) as connection:
        return [*History(connection).records("run")]


def check_series(path, name, shown, start=-inf, end=inf):
    """The points of a series against all records of the window: nothing hidden, nothing made up."""
    records = [
        each
        for each in records_of(path)
        if each.event is Event.STEP and name in each.values and start <= each.step <= end
    ]
    values = [each.values[name] for each in records]
    finite = [value for value in values if isfinite(value)]
    assert shown["count"] == len(finite)
    assert len(shown["x"]) == len(shown["mean"]) == len(shown["min"]) == len(shown["attempt"])
    assert shown["x"] == sorted(shown["x"])
    assert bool(shown["bad"]) == (len(finite) < len(values))
    assert set(shown["bad"]) <= set(shown["x"])
    at = 0
    for x, mean, low, high in zip(
        shown["x"], shown["mean"], shown["min"], shown["max"], strict=True
    ):
        of_point = []
        while at < len(records) and records[at].step <= x:
            of_point.append(values[at])
            at += 1
        numbers = [value for value in of_point if isfinite(value)]
        assert (x in shown["bad"]) == (len(numbers) < len(of_point))
        if numbers:
            assert (low, high) == (min(numbers), max(numbers))
            expected = fsum(value / len(numbers) for value in numbers)
            # Values of very different size cancel out, and a part of the smallest one is zero.
            tolerance = max(1e-9 * max(abs(low), abs(high)), 1e-300)
            assert isclose(mean, expected, rel_tol=1e-9, abs_tol=tolerance)
        else:
            assert (mean, low, high) == (None, None, None)
    assert at == len(records)


@budget(max_examples=25, deadline=None)
@given(
    values=st.lists(st.one_of(st.none(), NUMBERS), min_size=1, max_size=150),
    points=st.integers(2, 40),
    pieces=st.integers(1, 4),
)
def test_no_extreme_and_no_nan_is_hidden(tmp_path_factory, values, points, pieces):
    path = tmp_path_factory.mktemp("run") / "sentinel.db"
    records = [
        replace(step_record(step, {}), values={"other": 1.0} | ({} if v is None else {"loss": v}))
        for step, v in enumerate(values, start=1)
    ]
    reader, size = RunReader(path), -(-len(records) // pieces)
    for at in range(0, len(records), size):
        write_records(path, records[at : at + size])
        with limited_buckets():
            shown = reader.series(["loss", "other"], points=points)["series"]
        assert all(len(each["x"]) <= max(points, 2) for each in shown.values())
        if "loss" in shown:
            check_series(path, "loss", shown["loss"])
        check_series(path, "other", shown["other"])


@pytest.mark.parametrize("seed", range(2))
def test_every_window_equals_the_records_in_it(path, few_buckets, seed):
    source = random.Random(seed)
    values = [nan if source.random() < 0.01 else source.gauss(0, 1) for _ in range(700)]
    records = [
        replace(step_record(step, {"loss": 1.0}, ranks=3), values={"loss": value})
        for step, value in enumerate(values, start=1)
    ]
    write_records(path, records)
    reader = RunReader(path)

    for _ in range(20):
        start = source.randint(1, 700)
        end = start + source.choice([0, 3, 30, 150])
        shown = reader.series(["loss"], points=40, start=start, end=end)["series"]
        check_series(path, "loss", shown["loss"], start, end)


def test_ranks_keep_their_extremes_and_the_worst_rank(path, few_buckets):
    records = [step_record(step, {"loss": 1.0, "kl_ref": 0.1}, ranks=8) for step in range(1, 301)]
    write_records(path, records)

    for name in ("loss", "kl_ref"):
        shown = RunReader(path).series([name], points=10)["series"][name]
        at = 0
        ranges = zip(
            shown["x"], shown["rank_min"], shown["rank_max"], shown["worst_rank"], strict=True
        )
        for x, low, high, worst in ranges:
            spreads = [each.spread[name] for each in records[at : int(x)]]
            at = int(x)
            # Of signals whose ranks are not stored singly, the range is stored as float32.
            assert isclose(low, min(each.min for each in spreads), rel_tol=1e-6)
            assert isclose(high, max(each.max for each in spreads), rel_tol=1e-6)
            assert worst in {each.max_rank for each in spreads}


def test_a_short_run_is_shown_record_by_record(path):
    write_records(path, [step_record(step, {"loss": step / 7}) for step in range(1, 101)])

    shown = RunReader(path).series(["loss"])["series"]["loss"]
    assert shown["is_raw"]
    assert shown["x"] == [*range(1, 101)]
    assert shown["mean"] == shown["min"] == shown["max"] == [step / 7 for step in range(1, 101)]
    assert shown["rank_min"] is None


def test_new_rows_continue_a_series(path):
    reader = RunReader(path)
    for first in (1, 31, 61):
        write_records(path, [step_record(s, {"loss": float(s)}) for s in range(first, first + 30)])
        answer = reader.series(["loss"])
        assert answer["last_id"] == first + 29
        assert answer["series"]["loss"]["x"] == [*range(1, first + 30)]
    write_records(path, [step_record(91, {"reward": 1.0})])
    assert reader.series(["reward"])["series"]["reward"]["x"] == [91]


def two_trainings():
    """The second one continues the step numbers of the first."""
    yield from (step_record(step, {"loss": 1.0}) for step in range(1, 101))
    time = NOW + 100.5
    yield step_record(100, {"training_number": 2.0}, event=Event.TRAINING, time=time)
    yield from (step_record(step, {"loss": 3.0}) for step in range(101, 201))


def test_another_training_begins_a_curve_of_its_own(path, few_buckets):
    write_records(path, two_trainings())
    answer = RunReader(path).series(["loss"])
    loss = answer["series"]["loss"]
    first, second = answer["trainings"]

    assert {*loss["mean"]} == {1.0, 3.0}
    assert [mean == 3.0 for mean in loss["mean"]] == [each >= second for each in loss["attempt"]]
    assert {*loss["attempt"]} == {first, second}


def test_live_rows_are_of_the_training_that_the_series_has(path):
    reader = RunReader(path)
    write_records(path, two_trainings())
    rows = reader.rows_since(0)
    segments = dict(zip(rows["step"], rows["attempt"], strict=True))

    assert rows["trainings"] == reader.series(["loss"])["trainings"]
    assert [segments[step] for step in (1, 100, 101, 200)] == [0, 0, 1, 1]


def test_a_restart_and_a_step_that_goes_back_begin_attempts(path, few_buckets):
    records = [step_record(step, {"loss": 1.0, "tokens": 10.0}) for step in range(1, 101)]
    records += [
        step_record(step, {"loss": 2.0, "tokens": 10.0}, attempt=1, time=NOW + 200 + step)
        for step in range(51, 151)
    ]
    records += [
        step_record(step, {"loss": 3.0, "tokens": 10.0}, attempt=1, time=NOW + 400 + step)
        for step in range(101, 201)
    ]
    write_records(path, records)
    reader = RunReader(path)

    shown = reader.series(["loss"], points=30)["series"]["loss"]
    by_attempt = {}
    for x, attempt, mean in zip(shown["x"], shown["attempt"], shown["mean"], strict=True):
        by_attempt.setdefault(attempt, []).append((x, mean))
    assert [mean for each in by_attempt.values() for _, mean in each] == [
        float(at + 1) for at, each in enumerate(by_attempt.values()) for _ in each
    ]
    assert [each[-1][0] for each in by_attempt.values()] == [100, 150, 200]
    tokens = reader.series(["loss"], points=30, axis="tokens")
    assert tokens["axis"] == "tokens"
    assert max(tokens["series"]["loss"]["x"]) == pytest.approx(2000, rel=0.05)


def test_tokens_are_the_axis_only_if_they_are_counted(path):
    write_records(path, [step_record(step, {"loss": 1.0}) for step in range(1, 11)])

    answer = RunReader(path).series(["loss"], axis="tokens", start=5.0)
    assert (answer["axis"], len(answer["series"]["loss"]["x"])) == ("step", 10)


def test_time_is_an_axis(path):
    write_records(path, [step_record(step, {"loss": 1.0}) for step in range(1, 101)])

    shown = RunReader(path).series(["loss"], axis="time", start=NOW + 20.0, end=NOW + 30.0)
    assert shown["series"]["loss"]["x"] == [NOW + step for step in range(20, 31)]


def test_another_axis_is_refused(path):
    write_records(path, [step_record(1, {"loss": 1.0})])

    with pytest.raises(ValueError, match="axis must be one of"):
        RunReader(path).series(["loss"], axis="epoch")


def test_evaluations_and_the_node_have_series_of_their_own(path):
    records = [step_record(step, {"loss": 1.0}) for step in range(1, 21)]
    records.insert(10, replace(step_record(10, {"eval_loss": 0.5}), event=Event.EVAL))
    heartbeat = {
        "gpu_utilisation": 0.5,
        "gpu_utilisation_min": 0.25,
        "gpu_utilisation_max": 0.75,
        "disk_free_output": 1e9,
        "idle_seconds": 3.0,
    }
    records.append(replace(step_record(20, {}), event=Event.HEARTBEAT, values=heartbeat))
    write_records(path, records)
    reader = RunReader(path)

    signals = {each["name"]: each for each in reader.signals()}
    assert [*signals] == ["loss", "eval/loss", "gpu_utilisation", "disk_free/output"]
    assert [each["group"] for each in signals.values()] == [
        "main", "evaluation", "machine", "machine",
    ]  # fmt: skip
    assert signals["eval/loss"]["is_monitored"]
    assert signals["gpu_utilisation"]["unit"] == "ratio"
    shown = reader.series([*signals])["series"]
    assert (shown["eval/loss"]["x"], shown["eval/loss"]["mean"]) == ([10], [0.5])
    assert (shown["gpu_utilisation"]["rank_min"], shown["gpu_utilisation"]["rank_max"]) == (
        [0.25], [0.75],
    )  # fmt: skip
    assert [each["latest"] for each in signals.values()] == [
        pytest.approx(1.0, rel=0.1), 0.5, 0.5, 1e9,
    ]  # fmt: skip


def test_signals_are_listed_with_the_main_ones_first(path):
    names = ["my/thing", "kl_coef", "step_time", "reward", "kl_ref", "reward_std", "loss"]
    write_records(path, [step_record(1, dict.fromkeys(names, 1.0))])

    signals = RunReader(path).signals()
    assert [(each["name"], each["group"]) for each in signals] == [
        ("loss", "main"), ("reward", "main"), ("kl_ref", "main"), ("step_time", "main"),
        ("kl_coef", "policy"), ("reward_std", "reward"), ("my/thing", "logged"),
    ]  # fmt: skip


def test_a_logged_signal_is_not_monitored_and_in_the_last_group(path):
    write_records(path, [step_record(1, {"my/thing": 1.0, "loss": 1.0})])

    *_, logged = RunReader(path).signals()
    assert (logged["name"], logged["group"], logged["is_monitored"]) == (
        "my/thing", "logged", False,
    )  # fmt: skip


def thin(path, full_steps=1000):
    with closing(connect(path)) as connection:
        thinner = HistoryRetention(History(connection), full_steps, 1 << 40)
        while thinner.run_slice(1.0):
            pass


@pytest.mark.parametrize("is_cached", [True, False], ids=["cached", "read after"])
def test_a_thinned_history_keeps_its_extremes(path, few_buckets, is_cached):
    source = random.Random(1)
    values = [source.gauss(0, 1) for _ in range(3000)]
    values[77], values[2900] = 50.0, -60.0
    records = [
        replace(step_record(step, {}), values={"loss": value})
        for step, value in enumerate(values, start=1)
    ]
    write_records(path, records)
    reader = RunReader(path)
    if is_cached:
        reader.series(["loss"])
    thin(path)
    if not is_cached:
        reader = RunReader(path)

    for points in (20, 5000):
        shown = reader.series(["loss"], points=points)["series"]["loss"]
        assert (max(shown["max"]), min(shown["min"])) == (50.0, -60.0)
        assert shown["count"] == 3000
    near = reader.series(["loss"], points=20, start=60, end=100)["series"]["loss"]
    assert max(near["max"]) == 50.0


def test_thinned_measurements_of_the_node_keep_the_range_of_its_gpus(path):
    values = {"gpu_power": 200.0, "gpu_power_min": 100.0, "gpu_power_max": 300.0}
    heartbeats = [
        replace(step_record(step, {}), event=Event.HEARTBEAT, values=values)
        for step in range(1, 1501)
    ]
    write_records(path, heartbeats)
    thin(path)

    shown = RunReader(path).series(["gpu_power"])["series"]["gpu_power"]
    assert shown["count"] == 1500
    assert {*shown["mean"]} == {200.0}
    assert ({*shown["rank_min"]}, {*shown["rank_max"]}) == ({100.0}, {300.0})


def test_rows_that_were_thinned_before_they_were_read_are_read_as_blocks(path):
    write_records(path, [step_record(step, {"loss": 1.0}) for step in range(1, 11)])
    reader = RunReader(path)
    reader.series(["loss"])
    write_records(path, [step_record(step, {"loss": 2.0}) for step in range(11, 2001)])
    thin(path)

    shown = reader.series(["loss"])["series"]["loss"]
    assert shown["count"] == 2000
    assert shown["x"][-1] == 2000


def test_records_that_are_read_again_replace_those_that_were_shown(path):
    write_records(path, [step_record(step, {"loss": 1.0}) for step in range(1, 101)])
    reader = RunReader(path)
    reader.series(["loss"])
    with closing(connect(path)) as connection:
        History(connection).delete_since(NOW + 51)
    write_records(path, [step_record(step, {"loss": 5.0}) for step in range(51, 120)])

    shown = reader.series(["loss"])["series"]["loss"]
    assert shown["x"] == [*range(1, 120)]
    assert min(shown["mean"][50:]) >= 5.0


def test_an_evaluation_that_is_read_again_does_not_hide_a_step(path):
    steps = [step_record(step, {"loss": 1.0}) for step in range(1, 11)]
    evaluation = replace(step_record(10, {"eval_loss": 1.0}, time=NOW + 10.5), event=Event.EVAL)
    write_records(path, [*steps, evaluation])
    reader = RunReader(path)
    reader.series(["loss"])
    with closing(connect(path)) as connection:
        History(connection).delete_since(NOW + 10.2)
    write_records(path, [step_record(11, {"loss": 1.0}, time=NOW + 10.4), evaluation])

    shown = reader.series(["loss", "eval/loss"])["series"]
    assert shown["loss"]["x"] == [*range(1, 12)]
    assert shown["eval/loss"]["x"] == [10]


def test_the_number_of_signals_is_bounded(path, monkeypatch):
    monkeypatch.setattr(track, "MAX_SIGNALS", 20)
    records = [step_record(step, {f"my/{step}_{at}": 1.0 for at in range(3)}) for step in range(9)]
    write_records(path, records)

    assert len(RunReader(path).signals()) == 20


def test_a_replaced_database_is_read_anew(path, tmp_path):
    write_records(path, [step_record(step, {"loss": 1.0}) for step in range(1, 101)])
    reader = RunReader(path)
    reader.series(["loss"])
    other = tmp_path / "other.db"
    write_records(other, [step_record(step, {"loss": 9.0}) for step in range(1, 101)])
    other.rename(path)

    assert min(reader.series(["loss"])["series"]["loss"]["mean"]) >= 9.0


def test_a_damaged_row_is_reported_and_left_out(path):
    write_records(path, [step_record(step, {"loss": float(step)}) for step in range(1, 21)])
    with closing(connect(path)) as connection:
        connection.execute("update step set vals = x'0102' where step = 7")
        connection.execute("update step set layout = 99 where step = 9")
    reported = []

    shown = RunReader(path, reported.append).series(["loss"])["series"]["loss"]
    assert shown["x"] == [step for step in range(1, 21) if step not in {7, 9}]
    assert len(reported) == 2
    assert "history" in str(reported[0])


def test_a_damaged_layout_is_reported_for_each_row(path):
    write_records(path, [step_record(step, {"loss": 1.0}, ranks=4) for step in range(1, 4)])
    with closing(connect(path)) as connection:
        connection.execute("update layout set body = replace(body, '4d', '4!')")
    reported = []

    assert RunReader(path, reported.append).series(["loss"])["series"] == {}
    assert len(reported) == 3


def test_an_error_of_a_decoder_is_no_damage(path, monkeypatch, caplog):
    """Else the agent would replace a database in which nothing is wrong."""
    write_records(path, [step_record(step, {"loss": 1.0}) for step in range(1, 4)])
    monkeypatch.setattr(track, "summarize", lambda column: column.missing)
    reported = []

    assert RunReader(path, reported.append).series(["loss"])["series"] == {}
    assert reported == []
    assert "left out of its series" in caplog.text


def test_reading_never_delays_a_writer(path):
    """A writer with the default timeout commits while a reader reads again and again."""
    write_records(path, [step_record(step, {"loss": 1.0}, ranks=4) for step in range(1, 2001)])
    reader, errors = RunReader(path), []
    is_done = threading.Event()

    def read():
        try:
            while not is_done.is_set():
                shown = reader.series(["loss"])["series"]["loss"]
                assert shown["x"] == sorted(shown["x"])
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    with closing(connect(path)) as connection:
        connection.execute("pragma busy_timeout=0")
        history = History(connection)
        for step in range(2001, 2301):
            with transaction(connection, mode="immediate"):
                history.update(Result(step_record(step, {"loss": 1.0}, ranks=4)))
    is_done.set()
    for thread in threads:
        thread.join()

    assert errors == []
    assert reader.series(["loss"], points=5000)["series"]["loss"]["count"] == 2300


def test_memory_is_bounded_however_often_the_run_restarts(path, few_buckets):
    records = [
        step_record(1 + at % 3, {"loss": 1.0}, attempt=at // 3, time=NOW + at) for at in range(900)
    ]
    write_records(path, records)
    reader = RunReader(path)

    assert reader.series(["loss"], points=5000)["series"]["loss"]["count"] == 900
    assert all(len(track.spans) <= 33 for track in reader._series.tracks.values())


def test_the_last_value_is_that_of_the_newest_row_that_has_the_signal(path, few_buckets):
    """Loss and reward are logged in turn, and the points of both are means."""
    records = [
        step_record(step, {"reward" if step % 2 else "loss": float(step), "kl_ref": 1.0})
        for step in range(1, 400)
    ]
    write_records(path, [*records, step_record(400, {"kl_ref": nan})])

    shown = RunReader(path).series(["loss", "reward", "kl_ref"])["series"]
    assert [each["last"] for each in shown.values()] == [398.0, 399.0, None]
    assert shown["loss"]["mean"][-1] < 398.0


@pytest.fixture
def few_rows(monkeypatch):
    monkeypatch.setattr("sentinel.store.run_reader.MIN_STORED_ROWS", 10)


def eventful_records(first, end):
    """Steps with ranks and tokens, evaluations, and a restart at step 70."""
    for step in range(first, end):
        values = {"loss": nan if step == 40 else step % 7, "tokens": 5.0, f"my/{step // 50}": 1.0}
        yield step_record(step, values, ranks=4, attempt=int(step > 70))
        if step % 10 == 0:
            yield step_record(step, {"loss": 0.5}, event=Event.EVAL, attempt=int(step > 70))


def all_series(reader):
    names = [each["name"] for each in reader.signals()]
    return reader.signals(), reader.series(names, axis="tokens"), reader.series(names, start=90)


def test_the_next_reader_reads_only_what_is_new(path, few_buckets, few_rows, monkeypatch):
    write_records(path, eventful_records(1, 123))
    first = RunReader(path, stores_series=True)
    shown = all_series(first)
    decoded = []
    add = track.RowDecoder.add
    monkeypatch.setattr(
        track.RowDecoder, "add", lambda *args: decoded.extend(args[1]) or add(*args)
    )
    again = RunReader(path, stores_series=True)
    assert again.series([])["last_id"] == first.series([])["last_id"]
    assert not decoded
    assert all_series(again) == shown
    decoded.clear()
    write_records(path, eventful_records(123, 126))
    third = RunReader(path, stores_series=True)
    third.series([])
    assert len(decoded) == 3
    assert all_series(third) == all_series(first) == all_series(RunReader(path))


def test_a_live_read_takes_the_new_rows_only(path, few_buckets, monkeypatch):
    """However many rows a bucket of a long run has."""
    write_records(path, eventful_records(1, 70))
    reader = RunReader(path)
    reader.series([])
    decoded = []
    add = track.RowDecoder.add
    monkeypatch.setattr(
        track.RowDecoder, "add", lambda *args: decoded.extend(args[1]) or add(*args)
    )
    for step in range(71, 80):
        write_records(path, [step_record(step, {"loss": float(step)})])
        decoded.clear()
        shown = reader.series(["loss"], points=8)["series"]["loss"]
        assert shown["x"][-1] == step
        # The new one, and the newest of each layout and event for the last values.
        assert len(decoded) <= 1 + 4
    check_series(path, "loss", shown)


@pytest.mark.parametrize("damage", ["cut", "flipped", "other version", "other file"])
def test_stored_series_of_something_else_are_read_anew(path, few_rows, monkeypatch, damage):
    write_records(path, eventful_records(1, 60))
    shown = all_series(RunReader(path, stores_series=True))
    stored = series_path(path)
    content = stored.read_bytes()
    if damage == "cut":
        stored.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        stored.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    elif damage == "other version":
        monkeypatch.setattr(run_series, "__version__", "0")
    else:
        path.rename(path.with_name("old.db"))
        write_records(path, eventful_records(1, 50))
        shown = all_series(RunReader(path))
    assert all_series(RunReader(path, stores_series=True)) == shown


def test_stored_series_of_records_that_are_read_again_are_read_anew(path, few_rows):
    write_records(path, eventful_records(1, 60))
    RunReader(path, stores_series=True).series([])
    with closing(connect(path)) as connection:
        connection.execute("delete from step where id > 30")
    write_records(path, [step_record(step, {"loss": 9.0}) for step in range(28, 90)])
    assert all_series(RunReader(path, stores_series=True)) == all_series(RunReader(path))


def test_a_directory_that_cannot_be_written_has_no_stored_series(path, few_rows, monkeypatch):
    write_records(path, eventful_records(1, 60))

    def refuse(*_args):
        raise PermissionError

    monkeypatch.setattr("sentinel.store.run_reader.replace_file", refuse)
    assert all_series(RunReader(path, stores_series=True)) == all_series(RunReader(path))
    assert not series_path(path).exists()
