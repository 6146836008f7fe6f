"""A log that is imported into a database is read like any other run."""

from __future__ import annotations

import json
import os
import time

import pytest
from support.event_files import event, event_file, field
from support.images import png
from support.log_files import FORMATS
from support.replays import collapse_rows

from sentinel.config.settings import load_replay_settings
from sentinel.pipeline import pipeline
from sentinel.pipeline.replay import replay_records
from sentinel.readers.format_detection import open_log
from sentinel.store.imports.log_import import SETTLED_SECONDS, LogImport, is_settled
from sentinel.store.run_reader import RunReader

ROWS = [row | {"time": 1.7e9 + row["step"]} for row in collapse_rows()]


@pytest.fixture(scope="module")
def settings():
    return load_replay_settings((), {})


def import_log(path, settings, database, run=""):
    with LogImport(path, settings, database, run) as importing:
        return importing.read()


def append(path, rows):
    with path.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def incidents(reader):
    keys = ("detector", "severity", "onset_step", "opened_step", "resolved_step", "case")
    return sorted(tuple(str(each[key]) for key in keys) for each in reader.incidents())


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_log_of_every_format_becomes_a_run(tmp_path, settings, name):
    path = FORMATS[name](tmp_path, ROWS)
    import_log(path, settings, tmp_path / "imported.db", run="mine")
    reader = RunReader(tmp_path / "imported.db")
    series = reader.series(["loss"], points=5000)["series"]
    assert series["loss"]["count"] == len(ROWS)
    assert {each["detector"] for each in reader.incidents()} >= {"kl_blowup"}
    assert {each["run"] for each in reader.incidents()} == {"mine"}


def test_incidents_cases_and_onsets_are_those_of_a_replay(tmp_path, settings):
    path = FORMATS["jsonl"](tmp_path, ROWS)
    imported = import_log(path, settings, tmp_path / "imported.db")
    replayed = replay_records(open_log(path), pipeline.build(settings))
    assert imported.incidents == replayed.incidents
    reader = RunReader(tmp_path / "imported.db")
    stored = {each["name"]: each for each in reader.incidents()}
    assert stored.keys() == {each.incident.name for each in replayed.incidents}
    for each in replayed.incidents:
        found = stored[each.incident.name]
        assert found["case"] == each.case_name
        assert found["onset_step"] == each.incident.onset_step
        assert found["last_good_step"] == each.incident.last_good_step


def test_rows_without_a_time_end_when_the_log_was_written(tmp_path, settings):
    rows = [{name: x for name, x in row.items() if name != "time"} for row in ROWS]
    path = FORMATS["jsonl"](tmp_path, rows)
    os.utime(path, (1.7e9, 1.7e9))
    import_log(path, settings, tmp_path / "imported.db")
    times = RunReader(tmp_path / "imported.db").series(["loss"], axis="time", points=5000)
    x = times["series"]["loss"]["x"]
    assert 1.7e9 - len(rows) <= x[0] < x[-1] <= 1.7e9


@pytest.mark.parametrize(
    ("ending", "outcome"), [({}, "unknown"), ({"train_runtime": 9.0}, "finished")]
)
def test_the_end_of_a_run_is_known_only_if_the_log_states_it(tmp_path, settings, ending, outcome):
    path = FORMATS["jsonl"](tmp_path, [*ROWS[:5], {"step": 6, "loss": 1.0, **ending}])
    import_log(path, settings, tmp_path / "imported.db")
    events = RunReader(tmp_path / "imported.db").timeline()["events"]
    assert events[-1]["event"] == "stop"
    assert (outcome in events[-1]["text"]) or outcome == "unknown"


def test_images_and_histograms_are_read_from_where_they_are(tmp_path, settings):
    image = (
        b"\x09"
        + bytes(8)
        + b"\x10\x05"
        + field(5, field(1, field(1, b"drawn") + field(4, field(4, png(48, 32)))))
    )
    path = event_file(tmp_path / "run", event(1, "loss", 2.0), image)
    import_log(path, settings, tmp_path / "imported.db")
    reader = RunReader(tmp_path / "imported.db")
    (media,) = reader.media()
    assert (media["name"], media["width"], media["height"]) == ("drawn", 48, 32)
    assert reader.media_body(media["id"]) == ("image/png", png(48, 32))
    # What is at that place later is shown only if it is an image.
    path.write_bytes(b"secret" * 1000)
    with pytest.raises(ValueError, match="no image"):
        reader.media_body(media["id"])


def test_samples_of_trl_beside_the_log(tmp_path, settings):
    output = tmp_path / "output"
    (output / "completions").mkdir(parents=True)
    FORMATS["trainer_state"](output, ROWS[:20])
    for step in (1, 2):
        row = {"step": step, "prompt": "2+2", "completion": f"{step}", "reward": 1.0}
        (output / "completions" / f"completions_{step}.jsonl").write_text(json.dumps(row) + "\n")
    (output / "completions" / "completions_3.jsonl").write_text("{damaged")
    import_log(output, settings, tmp_path / "imported.db")
    reader = RunReader(tmp_path / "imported.db")
    assert [(each["step"], each["completion"]) for each in reader.samples()] == [(1, "1"), (2, "2")]


def test_a_log_that_cannot_be_read_is_refused(tmp_path, settings):
    path = tmp_path / "log.txt"
    path.write_text("nothing\n")
    with pytest.raises(ValueError, match="format is not known"):
        import_log(path, settings, tmp_path / "imported.db")
    path = FORMATS["jsonl"](tmp_path, [{"event": "start"}])
    path.write_text('{"note": "no number"}\n')
    with pytest.raises(ValueError, match="no record"):
        import_log(path, settings, tmp_path / "second.db")


def test_what_is_appended_to_a_log_is_followed_until_it_is_settled(tmp_path, settings):
    path = FORMATS["jsonl"](tmp_path, ROWS[:300])
    reader_counts, now = [], [time.time()]
    appended = [ROWS[300:310], ROWS[310:]]

    def wait(_seconds):
        reader_counts.append(
            RunReader(tmp_path / "imported.db").series(["loss"])["series"]["loss"]["count"]
        )
        if appended:
            append(path, appended.pop(0))
        else:
            now[0] += SETTLED_SECONDS + 1
        return True

    with LogImport(path, settings, tmp_path / "imported.db", "mine") as importing:
        assert importing.follow(wait, clock=lambda: now[0])
    assert (reader_counts[0], reader_counts[-1]) == (300, len(ROWS))
    reader = RunReader(tmp_path / "imported.db")
    end = reader.timeline()["events"][-1]
    # The wait for further rows is no part of the run.
    assert (end["event"], end["time"]) == ("stop", ROWS[-1]["time"])
    import_log(path, settings, tmp_path / "again.db", run="mine")
    assert incidents(reader) == incidents(RunReader(tmp_path / "again.db"))


def test_rows_without_times_were_written_with_the_log_though_it_is_followed(tmp_path, settings):
    rows = [{key: value for key, value in row.items() if key != "time"} for row in ROWS[:20]]
    path = FORMATS["jsonl"](tmp_path, rows)
    written = time.time() - SETTLED_SECONDS / 2
    os.utime(path, (written, written))
    with LogImport(path, settings, tmp_path / "imported.db") as importing:
        assert not importing.follow(lambda _: False)
    series = RunReader(tmp_path / "imported.db").series(["loss"], axis="time")["series"]["loss"]
    assert len(series["x"]) == len(rows)
    assert series["x"][-1] == pytest.approx(written)


def test_a_log_that_cannot_be_followed_is_settled(tmp_path):
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(b"\x1f\x8b" + bytes(20))
    assert is_settled(path, time.time())
    path = FORMATS["jsonl"](tmp_path, ROWS[:3])
    assert not is_settled(path, time.time())
    assert is_settled(path, time.time() + SETTLED_SECONDS + 1)
