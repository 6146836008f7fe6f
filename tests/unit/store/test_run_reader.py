"""Everything that a page shows of a run is read from its database, also after the run."""

from __future__ import annotations

import json
import struct
from contextlib import closing
from dataclasses import replace

import pytest
from support.notifications import NOW, make_notification, with_diagnosis
from support.run_databases import step_record, write_records

from sentinel.aggregate.combine import compute_spread
from sentinel.model.finding import Severity
from sentinel.model.notification import NotificationReason
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.notify import outbox
from sentinel.pipeline.engine import Result, Threshold
from sentinel.store import silences
from sentinel.store.cases import case_with_message
from sentinel.store.database import SCHEMA_VERSION, NewerSchemaError, connect
from sentinel.store.history import History
from sentinel.store.media import MediaStore, media_body
from sentinel.store.run_reader import RunReader
from sentinel.store.samples import SampleStore

INCIDENT = "grpo-7b/kl_blowup#1"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sentinel.db"


@pytest.fixture
def connection(path):
    with closing(connect(path)) as connection:
        yield connection


@pytest.fixture
def reader(path, connection):
    return RunReader(path, clock=lambda: NOW + 1000.0)


def sample(step, text, rank=0):
    attributes = {"prompt": f"Question {step}", "completion": text}
    values = {"reward": float(step), "advantage": float("nan")}
    return Record("grpo-7b", rank, step, NOW + step, Event.SAMPLE, values, attributes)


def store_case(connection, notification, **result):
    record = Record("grpo-7b", WHOLE_RUN, notification.step, notification.time, Event.STEP)
    History(connection).update(
        Result(record, notifications=(notification,), case_notifications=(notification,), **result)
    )


def test_a_case_of_the_past_has_the_text_that_it_had(reader, connection):
    notification = with_diagnosis()
    store_case(connection, notification)

    (case,) = reader.cases()
    expected = case_with_message(notification, NOW + 1000.0)
    assert case == json.loads(json.dumps(expected)) | {"feedback": None}
    assert case["state"] == "firing"
    assert case["message"]["remedy"]


def test_a_resolved_case_says_when_it_was_over(reader, connection):
    store_case(connection, make_notification())
    store_case(connection, make_notification(NotificationReason.RESOLVED))

    (case,) = reader.cases()
    assert (case["state"], case["resolved_step"], case["resolved_time"]) == (
        "resolved", 120, NOW + 60,
    )  # fmt: skip
    assert case["message"]["subject"] == "KL is 2 nats"
    assert case["opened_time"] == NOW


@pytest.mark.parametrize(("text", "reports"), [("{", 1), ("", 0)], ids=["damaged", "not stored"])
def test_a_case_without_its_notification_has_a_shorter_text(path, connection, text, reports):
    store_case(connection, with_diagnosis())
    expected = RunReader(path).cases()[0]
    connection.execute("update case_history set notification = ?", [text])
    reported = []

    (case,) = RunReader(path, reported.append).cases()
    assert case.keys() == expected.keys()
    assert case["message"].keys() == expected["message"].keys()
    assert case["detector"] == expected["detector"] == "kl_blowup"
    assert case["message"]["subject"] == expected["subject"]
    assert case["message"]["facts"]
    assert len(reported) == reports


def test_incidents_deliveries_and_metadata_are_listed(reader, connection):
    notification = make_notification()
    store_case(connection, notification)
    outbox.enqueue(connection, notification, ["webhook", "slack"], NOW)
    outbox.mark_delivered(connection, outbox.idempotency_key(notification, "slack"), NOW + 5)
    start = Record("grpo-7b", WHOLE_RUN, 0, NOW, Event.START, {"lr": 0.1}, {"framework": "trl"})
    History(connection).update(Result(start))

    assert [each["name"] for each in reader.incidents()] == [INCIDENT]
    assert {each["sink"]: each["state"] for each in reader.deliveries()} == {
        "webhook": "queued",
        "slack": "delivered",
    }
    assert reader.metadata() == {"framework": "trl", "lr": 0.1}


def test_the_timeline_has_acknowledgements_silences_and_events(reader, connection, path):
    events = [Event.START, *[Event.STEP] * 200, Event.SAVE, Event.STOP]
    records = [
        replace(
            step_record(at, {"kl_ref": 0.1}, time=NOW + at),
            event=event,
            attributes={"outcome": "finished"} if event is Event.STOP else {},
        )
        for at, event in enumerate(events)
    ]
    write_records(path, records)
    fired = make_notification()
    incident = replace(fired.incident, opened_step=100, opened_time=NOW + 100)
    store_case(connection, replace(fired, incident=incident))
    silences.add_silence(connection, silences.Silence("kl_blowup", NOW + 110, NOW + 120, "ana"))
    connection.execute(
        "insert into ack values(?, ?, ?, 'bo', 'mine')",
        (INCIDENT, Severity.CRITICAL.value, NOW + 150),
    )

    timeline = reader.timeline()
    (detector,) = timeline["detectors"]
    assert detector["detector"] == "kl_blowup"
    assert [
        (each["state"], each["from_step"], each["to_step"]) for each in detector["intervals"]
    ] == [
        ("firing", 100, 110),
        ("silenced", 110, 120),
        ("firing", 120, 150),
        ("acknowledged", 150, None),
    ]
    assert detector["intervals"][-1]["to_time"] is None
    assert {each["incident"] for each in detector["intervals"]} == {INCIDENT}
    assert [(each["event"], each["step"], each["text"]) for each in timeline["events"]] == [
        ("start", 0, "started"),
        ("save", 201, "checkpoint"),
        ("stop", 202, "finished"),
    ]


def test_thresholds_are_listed_by_signal(reader, connection):
    history = History(connection)
    for step, value in enumerate([1.0, 1.001, 2.0], start=1):
        record = step_record(step, {"kl_ref": 0.1})
        history.update(Result(record, thresholds={"kl_blowup": Threshold("kl_ref", value)}))

    (line,) = reader.thresholds(["kl_ref", "loss"])["kl_ref"]
    assert (line["detector"], line["x"], line["value"]) == ("kl_blowup", [1, 3], [1.0, 2.0])
    assert reader.thresholds(["loss"]) == {}


def test_samples_are_searched_and_paged(reader, connection):
    store = SampleStore(connection)
    for step in range(1, 31):
        store.update(Result(sample(step, "The sky is BLUE." if step % 3 == 0 else "No idea.")))

    assert [each["step"] for each in reader.samples(limit=2)] == [29, 30]
    found = reader.samples(limit=4, search="blue")
    assert [each["step"] for each in found] == [21, 24, 27, 30]
    earlier = reader.samples(limit=4, search="blue", before=found[0]["id"])
    assert [each["step"] for each in earlier] == [9, 12, 15, 18]
    assert [each["step"] for each in reader.samples(search="question 7")] == [7]
    assert reader.samples(step=5)[0]["advantage"] is None
    assert reader.sample_steps() == [(step, 1) for step in range(1, 31)]


def test_media_are_stored_or_read_from_their_file(reader, connection, tmp_path):
    image = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 2, 1)
    log = tmp_path / "events.out"
    log.write_bytes(b"...." + image + b"....")
    store = MediaStore(connection)
    store.add("weights", 3, NOW, "histogram", "application/json", body=b'{"counts": [1]}')
    place = {"source": log, "offset": 4, "length": len(image)}
    store.add("image", 4, NOW, "image", "image/png", width=2, height=1, **place)

    newest, oldest = reader.media()
    assert (newest["name"], newest["width"], oldest["kind"]) == ("image", 2, "histogram")
    assert reader.media_body(newest["id"]) == ("image/png", image)
    assert reader.media_body(oldest["id"])[1] == b'{"counts": [1]}'
    assert [each["name"] for each in reader.media(kind="image")] == ["image"]
    with pytest.raises(KeyError):
        reader.media_body(99)
    log.write_bytes(b"")
    with pytest.raises(ValueError, match="no image there any more"):
        reader.media_body(newest["id"])


@pytest.mark.parametrize("limits", [{"max_rows": 100}, {"max_bytes": 100 * 50}])
def test_media_are_bounded(connection, limits):
    store = MediaStore(connection, **limits)
    for step in range(1000):
        store.add("weights", step, NOW, "histogram", "application/json", body=50 * b"1")

    count, last = connection.execute("select count(*), max(step) from media").fetchone()
    assert last == 999
    assert count <= 164
    assert media_body(connection, 1000)[1] == 50 * b"1"


def test_rows_have_the_range_and_the_worst_of_the_ranks(reader, path):
    spread = compute_spread(range(3), (1.0, 4.0, 2.5), keep_values=True)
    record = replace(step_record(1, {"loss": 2.5, "kl_ref": 0.1}), spread={"loss": spread})
    write_records(path, [record])

    expected = {"rank_min": [1.0], "rank_max": [4.0], "worst_rank": [1]}
    assert reader.rows_since(0)["ranks"] == {"loss": expected}


def test_rows_follow_a_row(reader, path):
    records = [step_record(step, {"loss": float(step), "tokens": 5.0}) for step in range(1, 11)]
    records[6] = replace(records[6], values={"loss": float("nan")}, spread={})
    write_records(path, records)

    rows = reader.rows_since(5)
    assert (rows["last_id"], rows["step"]) == (10, [6, 7, 8, 9, 10])
    assert rows["values"]["loss"] == [6.0, None, 8.0, 9.0, 10.0]
    assert rows["bad"] == {"loss": [1]}
    assert rows["tokens"] == [30.0, 30.0, 35.0, 40.0, 45.0]
    assert reader.rows_since(0, limit=2)["last_id"] == 2
    assert reader.rows_since(10)["step"] == []


def test_the_grid_has_the_mean_of_each_rank(reader, path):
    records = [step_record(step, {"step_time": 0.5, "kl_ref": 0.1}, ranks=4) for step in range(100)]
    write_records(path, records)

    grid = reader.rank_grid("step_time", columns=10, start=0, end=49)
    assert (grid["signals"], grid["ranks"], len(grid["x"])) == (["step_time"], [0, 1, 2, 3], 10)
    first = [record.spread["step_time"].rank_values[2] for record in records[:5]]
    assert grid["values"][2][0] == pytest.approx(sum(first) / 5, rel=1e-6)
    assert reader.rank_grid("kl_ref")["ranks"] == []


def test_a_reader_leaves_the_files_of_a_past_run_as_they_are(path, tmp_path):
    write_records(path, [step_record(step, {"loss": 1.0}) for step in range(1, 11)])
    before = {each.name: each.stat().st_mtime_ns for each in tmp_path.iterdir()}
    assert [*before] == ["sentinel.db"]

    reader = RunReader(path)
    reader.series(["loss"])
    reader.cases()
    assert {each.name: each.stat().st_mtime_ns for each in tmp_path.iterdir()} == before


def test_a_database_of_an_earlier_version_is_migrated(path):
    write_records(path, [step_record(step, {"loss": 1.0}) for step in range(1, 11)])
    with closing(connect(path)) as old:
        for statement in (
            "alter table case_history drop column notification",
            "drop index block_by_first_id",
            "drop table threshold",
            "drop table media",
            "drop table sink_address",
            "drop table feedback",
            "create table onset(incident text primary key)",
            "pragma user_version=12",
        ):
            old.execute(statement)

    assert RunReader(path).series(["loss"])["series"]["loss"]["count"] == 10
    with closing(connect(path)) as connection:
        assert connection.execute("pragma user_version").fetchone() == (SCHEMA_VERSION,)


def test_a_database_that_cannot_be_read_is_refused(path, tmp_path):
    with pytest.raises(FileNotFoundError):
        RunReader(path).signals()
    path.touch()
    with pytest.raises(FileNotFoundError, match="no data yet"):
        RunReader(path).signals()
    assert path.stat().st_size == 0
    with closing(connect(path)) as connection:
        connection.execute(f"pragma user_version={SCHEMA_VERSION + 1}")
    with pytest.raises(NewerSchemaError):
        RunReader(path).signals()


def test_a_database_without_a_write_ahead_log_is_read_while_it_is_written(path):
    with closing(connect(path, "delete")) as connection:
        history = History(connection)
        reader = RunReader(path)
        for step in range(1, 4):
            history.update(Result(step_record(step, {"loss": 1.0})))
            assert reader.series(["loss"])["last_id"] == step
        assert not path.with_name(f"{path.name}-wal").exists()


def test_answers_are_json_without_nan(reader, path, connection):
    records = [step_record(step, {"loss": 1.0, "step_time": 1.0}, ranks=2) for step in range(1, 20)]
    records[3] = replace(records[3], values={"loss": float("inf"), "step_time": float("nan")})
    write_records(path, records)
    store_case(connection, make_notification(evidence={"kl": float("nan")}))
    SampleStore(connection).update(Result(sample(1, "text")))

    answers = [
        reader.signals(), reader.series(["loss", "step_time"]), reader.rank_grid("step_time"),
        reader.rows_since(0), reader.timeline(), reader.incidents(), reader.cases(),
        reader.samples(), reader.sample_steps(), reader.deliveries(), reader.metadata(),
        reader.media(), reader.thresholds(["loss"]),
    ]  # fmt: skip
    json.dumps(answers, allow_nan=False)
