"""Samples: the texts of a step become signals of the run, and stay where they belong."""

from __future__ import annotations

import json
import logging
from contextlib import closing

import pytest

from sentinel.agent import Agent
from sentinel.engine import Verdict
from sentinel.fold import Fold
from sentinel.hook.guard import Guard
from sentinel.hook.recorder import Recorder
from sentinel.hook.texts import Batch
from sentinel.outlets.database import connect
from sentinel.outlets.journal import decode, encode
from sentinel.outlets.samples import Samples as Shelf
from sentinel.record import WHOLE_RUN, Event, Record
from sentinel.samples import JUDGED, OPEN_STEPS, Samples
from sentinel.settings import load
from sentinel.snapshot import freeze, thaw
from sentinel.tally import Tally
from sentinel.wire.identity import Identity
from sentinel.wire.pack import Moment
from sentinel.wire.places import ring_path, run_dir
from sentinel.wire.ring import RingWriter

CANARY = "CANARY-7c1e"
SENT_AWAY = {"outbox": "page", "incident": "body", "step": "facts"}
"""Columns of what is shown to others, or sent."""


def sample(step, said="a b c d a b c d", *, rank=0, beat=None, time=100.0, attempt=0, **values):
    return Record(
        "run",
        rank,
        step,
        time,
        Event.SAMPLE,
        values={"length": float(len(said)), **values},
        facts={"prompt": "p", "completion": said},
        attempt=attempt,
        beat=step if beat is None else beat,
    )


def whole(event, step=0, time=100.0, **values):
    return Record("run", WHOLE_RUN, step, time, event, values=values, beat=step)


def judged(stage, *records):
    """Statistics that come of these."""
    told = [made for record in records for made in stage.feed(record)]
    return [r for r in told if r.event is Event.SAMPLE and r.rank == WHOLE_RUN]


def test_a_step_is_judged_once_the_run_has_moved_past_it():
    stage = Samples()
    texts = [sample(4, "a b c d a b c d", rank=0), sample(4, "e f", rank=1, finished=0.0)]

    assert judged(stage, *texts, whole(Event.STEP, 4)) == []
    (record,) = judged(stage, whole(Event.STEP, 5))

    assert (record.step, record.beat, record.facts) == (4, 4, {})
    assert record.values["sample_repetition"] == pytest.approx(0.1)
    assert record.values["sample_truncated"] == 1.0
    assert record.values["sample_length"] == pytest.approx(9.0)
    assert judged(stage, whole(Event.STEP, 6)) == []


def test_a_step_nobody_moves_past_is_judged_when_its_texts_are_old():
    stage = Samples()

    assert judged(stage, sample(4), whole(Event.TICK, time=105.0)) == []
    assert len(judged(stage, whole(Event.TICK, time=110.0))) == 1


@pytest.mark.parametrize("end", [Event.STOP, Event.START])
def test_what_is_open_at_the_end_is_judged_before_it(end):
    stage = Samples()
    told = [made for record in (sample(4), whole(end)) for made in stage.feed(record)]

    assert [(r.event, r.rank) for r in told] == [
        (Event.SAMPLE, 0),
        (Event.SAMPLE, WHOLE_RUN),
        (end, WHOLE_RUN),
    ]


def test_a_cut_text_is_judged_without_what_we_put_into_it():
    said = "a b c d […9 characters left out…] a b c d"
    (record,) = judged(Samples(), sample(1, said, first=7.0, last=7.0), whole(Event.STOP))

    assert record.values["sample_repetition"] == 0.5
    assert record.values["sample_distinct_1"] == 0.5


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -5.0, 1e300])
def test_numbers_that_make_no_sense_do_no_harm(odd):
    told = sample(1, first=odd, last=odd, finished=odd, length=odd)
    assert len(judged(Samples(), told, whole(Event.STOP))) == 1


def test_what_is_held_is_bounded():
    stage = Samples()
    found = judged(stage, *(sample(step) for step in range(3 * OPEN_STEPS)))
    for number in range(3 * JUDGED):
        judged(stage, sample(999, f"text {number}"))

    assert [record.step for record in found] == list(range(2 * OPEN_STEPS))
    assert len(stage.steps) == OPEN_STEPS
    assert len(stage.steps[0, 999].texts) == JUDGED


def test_a_fold_restored_in_the_middle_of_a_step_goes_on_as_if_nothing_had_been():
    def play(halt):
        fold, found = Fold({}, Tally()), []
        records = [sample(n // 2, f"a b c d {n} a b c d", rank=n % 2) for n in range(8)]
        records.append(whole(Event.TICK, time=200.0))
        for at, record in enumerate(records):
            if at == halt:
                state, fold = fold.freeze(), Fold({}, Tally())
                fold.restore(state)
            found += [verdict.record for verdict in fold.feed(decode(encode(record)))]
        return found

    assert all(play(halt) == play(None) for halt in range(9))


def test_texts_of_a_rank_pass_the_aligner_once():
    fold = Fold({}, Tally())
    assert [v.record.rank for v in fold.feed(sample(1, rank=3))] == [3]


def test_a_stage_with_any_text_in_it_can_be_stored():
    stage = Samples()
    judged(stage, sample(1, "\ud83d \x00 \x1b"))
    assert thaw(freeze(stage)) == stage


@pytest.fixture
def shelf(tmp_path):
    with closing(connect(tmp_path / "sentinel.db")) as connection:
        yield Shelf(connection, kept=5)


def kept(shelf, *records):
    for record in records:
        shelf.take(Verdict(record))


def test_only_the_newest_texts_stay(shelf):
    kept(shelf, *(sample(step, f"text {step}") for step in range(12)))

    assert [told["step"] for told in shelf.newest()] == [7, 8, 9, 10, 11]
    assert [told["completion"] for told in shelf.newest(step=9)] == ["text 9"]
    assert [told["step"] for told in shelf.newest(limit=2)] == [10, 11]
    assert shelf.newest(step=3) == shelf.newest(limit=0) == shelf.newest(limit=-1) == []


def test_a_text_is_told_with_all_that_is_known_of_it(shelf):
    values = {"reward": 0.5, "reward/short": -1.0, "advantage": 2.0, "finished": 0.0}
    kept(shelf, sample(7, "said", rank=2, attempt=1, prompt_length=1.0, **values))

    assert shelf.newest() == [
        {
            "attempt": 1,
            "step": 7,
            "rank": 2,
            "time": 100.0,
            "prompt": "p",
            "completion": "said",
            "rewards": {"": 0.5, "short": -1.0},
            "length": 4.0,
            "prompt_length": 1.0,
            "advantage": 2.0,
            "finished": False,
        }
    ]


@pytest.mark.parametrize("said", ["\ud83d", "a\x00b", "\x1b[2J", "'; drop table sample; --"])
def test_no_text_is_too_odd_to_be_kept(shelf, said):
    kept(shelf, sample(1, said))
    assert shelf.newest()[0]["completion"] == said


def test_statistics_and_steps_are_not_kept_as_texts(shelf):
    kept(shelf, whole(Event.SAMPLE, 1, sample_empty=0.0), whole(Event.STEP, 1, loss=1.0))
    assert shelf.newest() == []


@pytest.fixture
def served(tmp_path, monkeypatch):
    """Make an agent of the run `live`, with these settings."""
    monkeypatch.chdir(tmp_path)
    made = []

    def make(**settings):
        sinks = {"webhook": {"url": "http://127.0.0.1:9/nobody"}}
        made.append(Agent("live", load({"port": 0, "sinks": sinks, **settings})))
        return made[-1]

    yield make
    for agent in made:
        agent.connection.close()
        agent.presence.withdraw()


@pytest.fixture
def trainer():
    """A ring of the run `live`, and who writes to it."""
    ring = RingWriter(ring_path("live", 0, 0), Identity("live"))
    recorder = Recorder(ring, Guard(ring.fail, strict=True), lambda: None)
    recorder.say(Event.START, None, {"world_size": 1.0, "local_world_size": 1.0})
    yield recorder
    ring.abandon()


def turns(agent, condition):
    """Turn the crank until it holds."""
    for _ in range(200):
        agent.turn()
        if condition():
            return
        agent.stopping.wait(0.05)
    raise AssertionError("not within 200 turns")


def test_texts_from_the_ring_are_kept_and_become_signals(served, trainer):
    agent = served(samples_kept=3)
    trainer.sample(Batch(["q"] * 5, [f"a b c d {n}" for n in range(5)], [1.0] * 5), step=1)
    for _ in range(3):
        trainer.stepped({"loss": 1.0}, {})
    turns(agent, lambda: "sample_distinct_1" in shown(agent))

    assert [told["completion"] for told in agent.samples.newest()] == [
        "a b c d 2",
        "a b c d 3",
        "a b c d 4",
    ]
    assert shown(agent)["sample_distinct_1"] == pytest.approx(9 / 25)
    (told,) = [r for r in agent.history.all("live") if r.event is Event.SAMPLE]
    assert (told.step, told.values["sample_distinct_1"]) == (1, pytest.approx(9 / 25))


def shown(agent):
    """Values on the page: of signals, and of names of one's own."""
    state = agent.exposition.state()
    return {name: told["value"] for name, told in state["signals"].items()} | state["logged"]


def test_an_agent_that_takes_over_keeps_no_text_twice(served, trainer):
    first = served()
    trainer.sample(Batch(["q"] * 2, ["one", "two"]), step=1)
    turns(first, lambda: len(first.samples.newest()) == 2)
    first.connection.close()
    first.presence.withdraw()

    second = served()
    trainer.sample(Batch(["q"], ["three"]), step=1)
    turns(second, lambda: len(second.samples.newest()) > 2)

    assert [told["completion"] for told in second.samples.newest()] == ["one", "two", "three"]
    # What the first had heard of the step is not forgotten.
    assert len(second.fold.samples.steps[0, 1].texts) == 3


def test_texts_stay_out_of_pages_metrics_and_logs(served, trainer, caplog, capfd):
    """They may be anybody's words."""
    caplog.set_level(logging.DEBUG)
    agent = served(disable=["loss_plateau"])
    said = f"{CANARY} " * 50
    for step in range(1, 30):
        trainer.sample(Batch([said], [said], {"right": [float("nan")]}, [False]), step=step)
        trainer.log({"loss": float("nan"), "kl": 1e6}, step=step)
    trainer.close({"outcome": "exception", "exception": "RuntimeError"})
    turns(agent, agent.fold.firing)

    told = [json.dumps(agent.exposition.state(), default=str), caplog.text, *capfd.readouterr()]
    told += [f"{family}" for family in agent.exposition.collect()]
    for table, column in SENT_AWAY.items():
        rows = agent.connection.execute(f"select {column} from {table}").fetchall()
        assert rows
        told.append(f"{rows}")
    assert CANARY not in "\n".join(told)
    assert CANARY in agent.samples.newest()[0]["completion"]
    assert "right" not in f"{dict(agent.tally.counts)}"


def test_the_runs_directory_is_its_owners_alone(served):
    served()
    assert run_dir("live").stat().st_mode & 0o077 == 0


def test_a_moment_is_what_orders_a_sample(trainer):
    """A sample is no step: it takes none, and shifts no beat."""
    trainer.sample(Batch(["q"], ["a"]), step=100)
    assert (trainer.clock.beat, trainer.clock.step) == (0, 0)
    assert Moment(0, 0, 0.0).beat == trainer.clock.beat
