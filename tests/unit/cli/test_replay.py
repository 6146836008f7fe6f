"""`sentinel replay`: its JSON lines, tables, messages and exit codes."""

import gc
import io
import itertools
import json
import sqlite3
from contextlib import closing
from typing import ClassVar

import pytest
from rich.console import Console
from support.replays import (
    REWOUND_ROWS,
    collapse_rows,
    healthy_rows,
    log,
    replay_incidents,
    run_replay,
)
from support.synthetic_runs import rl_run

from sentinel.cli._progress import ProgressBar
from sentinel.pipeline import parallel
from sentinel.pipeline.replay import OBJECTS_PER_COLLECTION

__all__ = ["log"]

KEYS = [
    "type",
    "detector",
    "severity",
    "signal",
    "onset_step",
    "opened_step",
    "resolved_step",
    "rank",
    "episode",
    "flaps",
    "last_good_step",
    "onset",
    "summary",
    "evidence",
    "remedy",
    "case",
]


def test_each_incident_is_a_line_and_the_summary_is_the_last(log):
    incidents, summary = replay_incidents(log([*collapse_rows(), "broken", {"note": "nothing"}]))

    assert {tuple(incident) for incident in incidents} == {tuple(KEYS)}
    assert incidents[0]["detector"] == "kl_blowup"
    assert incidents[0]["severity"] == "critical"
    assert 301 <= incidents[0]["onset_step"] <= incidents[0]["opened_step"] <= 320
    assert incidents[0]["resolved_step"] is None
    assert incidents[0]["rank"] is None
    assert summary == {
        "type": "summary",
        "records": 331,
        "skipped": 2,
        "steps": 330,
        "incidents": len(incidents),
        "monitored": ["loss", "kl_ref"],
        "unmonitored": [],
    }


def test_the_onset_is_estimated_when_the_incident_opens(log):
    """Later rows do not change it."""
    once, _ = replay_incidents(log(collapse_rows()))
    again, _ = replay_incidents(
        log(collapse_rows() + [{"step": n, "kl": 0.02} for n in range(331, 400)])
    )
    onset = once[0]["onset"]

    assert 299 <= onset["earliest"] <= onset["step"] <= onset["latest"] <= 320
    assert onset["last_good_step"] is None
    assert again[0]["onset"] == onset


def test_a_healthy_run_has_only_a_summary(log):
    incidents, summary = replay_incidents(log(healthy_rows()))

    assert incidents == []
    assert summary["incidents"] == 0


def test_a_resolved_incident_is_one_line_with_its_resolution(log):
    rows = [*collapse_rows(), *({"step": n, "kl": 0.02} for n in range(331, 400))]
    incidents, _ = replay_incidents(log(rows))

    assert [i["detector"] for i in incidents].count("kl_blowup") == 1
    assert incidents[0]["detector"] == "kl_blowup"
    assert 331 <= incidents[0]["resolved_step"] <= 364
    evidence = incidents[0]["evidence"]
    assert evidence["median_kl_nats"] > 10 * evidence["kl_nats_expected"], (
        "the evidence of the problem, not of its end"
    )


def test_an_incident_of_severity_info_opens_when_its_severity_rises(log):
    """One NaN gradient norm is severity info, two in a row are a warning."""
    norms = [1.0] * 20 + ["NaN", 1.0, 1.0, "NaN", "NaN"]
    incidents, _ = replay_incidents(
        log({"step": s, "grad_norm": g} for s, g in enumerate(norms, start=1))
    )

    assert [(i["severity"], i["onset_step"], i["opened_step"]) for i in incidents] == [
        ("warning", 21, 25)
    ]


def test_infinite_numbers_are_text_in_json(log):
    incidents, _ = replay_incidents(
        log([{"step": 1, "loss": 1.0}, {"step": 2, "loss": "Infinity"}])
    )

    assert incidents[0]["evidence"]["loss"] == "inf"


def test_an_incident_of_a_log_has_no_rank(log):
    incidents, _ = replay_incidents(log([{"step": 1, "loss": "NaN"}]))

    assert incidents[0]["rank"] is None


@pytest.mark.parametrize(
    ("rows", "fail_on", "code"),
    [
        (list(healthy_rows()), "warning", 0),
        (collapse_rows(), None, 0),
        (collapse_rows(), "warning", 3),
        (collapse_rows(), "critical", 3),
        (REWOUND_ROWS, "critical", 0),
        (REWOUND_ROWS, "warning", 3),
    ],
)
def test_the_exit_code_follows_fail_on(log, rows, fail_on, code):
    options = ["--fail-on", fail_on] if fail_on else []

    assert run_replay(log(rows), *options).exit_code == code


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", b"\x7f\x8b\x08\x00", b"{\n"])
def test_an_unreadable_log_is_one_line_and_exit_2(tmp_path, content):
    path = tmp_path / "log.bin"
    path.write_bytes(content)
    result = run_replay(path, "--json")

    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert str(path) in result.stderr
    assert "JSONL" in result.stderr


def test_a_detector_that_failed_is_named(log, monkeypatch):
    """Without that, its missing findings would look like health."""

    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr("sentinel.detectors.loss_plateau.LossPlateau.update", broken)
    result = run_replay(log(healthy_rows()), "--json")

    assert json.loads(result.stdout.splitlines()[-1])["failed"] == ["loss_plateau"]
    assert "loss_plateau failed" in result.stderr


def test_a_missing_file_and_a_folder_without_a_log_are_exit_2(tmp_path):
    missing, empty = run_replay(tmp_path / "none"), run_replay(tmp_path)

    assert (missing.exit_code, empty.exit_code) == (2, 2)
    assert "none" in missing.stderr


def test_the_tables_show_incidents_and_remedies(log):
    result = run_replay(log(collapse_rows()))

    assert "kl_blowup" in result.stdout
    assert "checkpoint before the onset" in " ".join(result.stdout.split())


def test_a_healthy_run_is_one_sentence(log):
    assert run_replay(log(healthy_rows())).stdout == "No incident in 200 steps.\n"


def test_a_trainer_state_is_replayed_through_the_same_detectors(tmp_path):
    """The step counter of huggingface/trl#2124 in the file that transformers writes."""
    history = [{"step": step, "loss": 1.0} for step in range(500, 4501, 100)]
    state = {"log_history": history, "max_steps": 4000, "save_steps": 500}
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps(state))
    incidents, _ = replay_incidents(path)

    assert ("checkpoint_cadence", 4100) in [(i["detector"], i["opened_step"]) for i in incidents]


def test_a_replay_is_deterministic(log):
    series = rl_run(5, "kl_blowup", "severe").series
    rows = [
        dict(zip(("step", *series), row, strict=True))
        for row in zip(range(1, 10**6), *(s.tolist() for s in series.values()))  # noqa: B905
    ]
    path = log(rows)

    assert run_replay(path, "--json").stdout == run_replay(path, "--json").stdout


def test_the_choice_of_one_of_several_runs_is_a_notice_on_stderr(tmp_path):
    path = tmp_path / "project.db"
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("create table metrics(id, run_name, timestamp, step, metrics)")
        rows = [(n, f"run{n % 2}", "2026-01-01T00:00:00", n, '{"loss": 2.5}') for n in range(1, 10)]
        other.executemany("insert into metrics values(?, ?, ?, ?, ?)", rows)
    result = run_replay(path, "--json")

    assert f"{path}: it holds 2 runs (run1, run0); run1, which wrote last, is read" in result.stderr
    assert [json.loads(line)["steps"] for line in result.stdout.splitlines()] == [5]


@pytest.mark.parametrize("arguments", [["--json"], []])
def test_processes_print_of_the_logs_of_a_folder_what_one_process_prints(
    tmp_path, monkeypatch, arguments
):
    for name, rows in {"healthy": healthy_rows(), "sick": collapse_rows(), "bad": ["{"]}.items():
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    printed = []
    for cores in (1, 2):
        monkeypatch.setattr(parallel, "available_cores", lambda cores=cores: cores)
        result = run_replay(tmp_path, *arguments)
        printed.append((result.exit_code, result.stdout, result.stderr))

    assert printed[0] == printed[1]
    assert "kl_blowup" in printed[0][1]


def test_a_log_whose_process_is_killed_is_a_notice(tmp_path, monkeypatch):
    for name in ("killed", "other"):
        lines = map(json.dumps, healthy_rows())
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    monkeypatch.setattr(parallel, "available_cores", lambda: 2)
    monkeypatch.setattr(parallel, "map_in_processes", answers_of_killed)
    result = run_replay(tmp_path, "--json")

    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 1)
    notice = f"cannot read {tmp_path / 'killed.jsonl'}: its process was killed"
    assert notice in result.stderr


def answers_of_killed(function, items, _processes):
    for item in items:
        is_killed = item.path.stem == "killed"
        yield parallel.ProcessKilledError() if is_killed else function(item)


class WatchedBar(ProgressBar):
    """A progress bar whose time passes quickly, and that notes when garbage is collected."""

    output = io.StringIO()
    thresholds: ClassVar[set[int]] = set()

    def __init__(self, description):
        WatchedBar.output, clock = io.StringIO(), itertools.count()
        console = Console(file=self.output, force_terminal=True, width=200, color_system=None)
        super().__init__(description, console, lambda: self._note() or next(clock))

    def _note(self):
        self.thresholds.add(gc.get_threshold()[0])


def test_the_first_incident_is_shown_when_it_is_found(log, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("sentinel.cli._progress.ProgressBar", WatchedBar)
        plain = run_replay(log(collapse_rows()), "--json").stdout
    text = WatchedBar.output.getvalue()

    assert text.count("First incident: ") == 1
    assert "First incident: kl_blowup" in text
    assert "step 330" in text[text.index("First incident: ") :]
    assert run_replay(log(collapse_rows()), "--json").stdout == plain


def test_garbage_is_collected_rarely_during_a_replay(log, monkeypatch):
    """Detectors of users may create cycles of objects."""
    monkeypatch.setattr("sentinel.cli._progress.ProgressBar", WatchedBar)
    WatchedBar.thresholds.clear()
    former = gc.get_threshold()
    run_replay(log(healthy_rows()))

    assert gc.get_threshold() == former
    # The first one is from before it begins.
    assert WatchedBar.thresholds <= {former[0], OBJECTS_PER_COLLECTION}
    assert OBJECTS_PER_COLLECTION in WatchedBar.thresholds


@pytest.mark.parametrize("layout", ["pairs", "dict", "verl"])
def test_console_output_gives_the_incidents_of_the_same_run_as_json(log, tmp_path, layout):
    def line(row):
        values = {name: value for name, value in row.items() if name != "step"}
        if layout == "dict":
            return f"INFO - {row}"
        if layout == "verl":
            return " - ".join(f"{name}:{value}" for name, value in row.items())
        return f"[2024-01-01 12:00:00] step {row['step']} | " + ", ".join(
            f"{name} = {value}" for name, value in values.items()
        )

    path = tmp_path / "nohup.out"
    path.write_text("Loading 8 shards\n" + "".join(line(row) + "\n" for row in collapse_rows()))

    def dates(incidents):
        return [(each["detector"], each["onset_step"], each["opened_step"]) for each in incidents]

    expected = dates(replay_incidents(log(collapse_rows()))[0])

    assert "kl_blowup" in {name for name, _, _ in expected}
    assert dates(replay_incidents(path)[0]) == expected
