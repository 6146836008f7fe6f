"""The collective's beginnings: the agreement of the ranks, and runs that never come to one."""

import threading

import pytest

from sentinel.client.collective import aggregation
from sentinel.client.collective.aggregation import (
    CollectiveAggregation,
    CollectiveOffError,
    CollectiveRecorder,
)
from sentinel.client.collective.readiness import (
    MAX_ROUNDS,
    MIN_POLLS,
    POLL_INTERVAL_SECONDS,
    READY_TIMEOUT_SECONDS,
    NotReadyError,
    ReadinessCheck,
    format_ranks,
)
from sentinel.client.guard import ErrorGuard
from sentinel.transport.identity import Identity
from sentinel.transport.record_codec import RecordDecoder
from sentinel.transport.ring import RingCursor, RingReader, RingWriter


class Store:
    """As torch's, in one process."""

    def __init__(self):
        self.kept = {}

    def add(self, key, amount):
        self.kept[key] = self.kept.get(key, 0) + amount
        return self.kept[key]

    def set(self, key, value):
        self.kept[key] = value

    def get(self, key):
        return self.kept[key]

    def check(self, keys):
        return all(key in self.kept for key in keys)


def stepping(ranks, *, pace, steps=2000):
    """Ranks that take their steps together: what each came to, and at which beat."""
    answers = {}
    for beat in range(1, steps):
        for at, quorum in enumerate(ranks):
            if at not in answers:
                try:
                    start = quorum.poll(beat, beat * pace(beat))
                except NotReadyError as reason:
                    start = str(reason)
                if start is not None:
                    answers[at] = start
        if len(answers) == len(ranks):
            break
    return answers


@pytest.mark.parametrize("pace", [0.001, 0.02, 0.3, 5.0])
def test_ranks_that_step_together_begin_at_one_step(pace):
    store = Store()
    ranks = [ReadinessCheck(store, rank, 4, "word", rank // 2) for rank in range(4)]

    answers = stepping(ranks, pace=lambda _: pace, steps=10_000)

    assert len(set(answers.values())) == 1
    start = answers[0]
    assert start.interval_steps == max(1, min(10, int(1 / pace)))
    assert start.node == 0
    assert start.step_index * pace < 3.0 + 10 * pace


def test_where_the_pace_leaps_another_step_is_named():
    """The first steps compile: the one named by their pace comes before all have looked again."""
    store = Store()
    ranks = [ReadinessCheck(store, rank, 3, "word", rank) for rank in range(3)]
    clock, beat, answers = 0.0, 0, {}
    while len(answers) < 3:
        beat += 1
        clock += 30.0 if beat < 3 else 0.01
        for rank, quorum in enumerate(ranks):
            if rank not in answers and (start := quorum.poll(beat, clock)):
                answers[rank] = start
        assert beat < 5000

    assert len(set(answers.values())) == 1


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["a", None, "a"], "no quorum: rank 1 without sentinel, or without the collective"),
        (["a", "b", "a"], "no quorum: ranks of another version of sentinel"),
    ],
)
def test_without_all_ranks_there_is_none_and_rank_0_says_who(words, reason):
    store = Store()
    ranks = [ReadinessCheck(store, r, 3, word, r) for r, word in enumerate(words) if word]
    answers = stepping(ranks, pace=lambda _: 0.1)

    assert answers[0] == reason
    assert set(answers.values()) == {reason, "no quorum"}
    assert ranks[0].poll_count >= READY_TIMEOUT_SECONDS / (POLL_INTERVAL_SECONDS + 0.2) > MIN_POLLS


def test_a_rank_that_never_agrees_in_time_is_named():
    store = Store()
    ranks = [ReadinessCheck(store, rank, 3, "word", rank) for rank in range(3)]
    ranks[2].poll(1, 0.0)
    answers = stepping(ranks[:2], pace=lambda _: 0.02, steps=100_000)

    assert answers == {0: "no quorum: rank 2 did not agree in time", 1: "no quorum"}
    assert ranks[0].round_number == MAX_ROUNDS


def test_a_named_step_that_does_not_come_is_taken_back_by_whoever_sees_it_first():
    """Steps turn slow at once; meanwhile the other nodes have no agent."""
    store = Store()
    ranks = [ReadinessCheck(store, rank, 3, "word", rank) for rank in range(3)]
    clock, beat, answers = 0.0, 0, {}
    while len(answers) < 3:
        beat += 1
        clock += 60.0 if all(quorum.schedule for quorum in ranks) else 0.01
        for rank, quorum in enumerate(ranks):
            try:
                assert rank in answers or quorum.poll(beat, clock) is None
            except NotReadyError as reason:
                answers[rank] = str(reason)

    assert answers[0] == "no quorum: the step to begin at did not come in time"
    assert store.add("ready/0", 0) <= 0


def test_a_step_taken_back_by_one_rank_is_begun_by_none():
    store = Store()
    ranks = [ReadinessCheck(store, rank, 3, "word", rank) for rank in range(3)]
    beat = 0
    while not all(quorum.schedule for quorum in ranks):
        beat += 1
        for quorum in ranks:
            quorum.poll(beat, beat * 0.01)
    with pytest.raises(NotReadyError):
        ranks[2].poll(beat + MIN_POLLS, 1000.0)

    assert ranks[0].poll(ranks[0].schedule.step_index, 1000.0) is None
    assert (ranks[0].round_number, ranks[0].schedule) == (1, None)


def test_a_store_that_is_gone_is_told():
    class Gone(Store):
        def add(self, key, amount):
            raise RuntimeError(key, amount)

    with pytest.raises(NotReadyError, match="does not answer"):
        ReadinessCheck(Gone(), 0, 2, "word", 0).poll(1, 0.0)


def test_ranks_are_told_by_number():
    assert format_ranks([3]) == "rank 3"
    assert format_ranks([1, 2, 5]) == "ranks 1, 2 and 5"
    assert format_ranks([*range(30)]).endswith("15 and 14 others")


class Watched:
    """A rank whose steps drive a collective, in a process without a process group."""

    def __init__(self, folder, rank):
        self.served = 0
        who = Identity("run", 0, rank, 0, 2, 1)
        self.ring = RingWriter(folder / f"0-{rank}.ring", who)
        guard = ErrorGuard(self.ring.count_error)
        self.recorder = CollectiveRecorder(self.ring, guard, lambda: None, who, self._serve)

    def _serve(self):
        self.served += 1

    def said(self):
        reader, unpacker = RingReader(self.ring.path), RecordDecoder("run", 0, 0)
        records = map(unpacker.decode, reader.read(RingCursor()).payloads)
        return [r.attributes["collective"] for r in records if r and "collective" in r.attributes]


@pytest.mark.parametrize(("rank", "served"), [(0, 0), (1, 1)])
def test_without_a_process_group_every_node_is_served_by_its_own_agent(
    tmp_path, monkeypatch, rank, served
):
    monkeypatch.setattr(aggregation, "DEADLINE", -1.0)
    monkeypatch.setattr(aggregation, "PAUSE", 0.0)
    watched = Watched(tmp_path, rank)
    for step in range(2 * MIN_POLLS):
        watched.recorder.log({"x": 1.0}, step=step)

    assert watched.said() == ["off: the training has no process group"]
    watched.recorder.close({"outcome": "finished"})
    assert watched.served == served


def test_a_run_that_ends_before_there_is_a_quorum_is_served_at_its_end(tmp_path):
    watched = Watched(tmp_path, 1)
    watched.recorder.log({"x": 1.0}, step=1)
    assert watched.served == 0

    watched.recorder.close({"outcome": "exception"})

    assert watched.served == 1


def test_only_the_thread_that_began_the_run_has_to_do_with_it(tmp_path):
    turns = []
    ring = RingWriter(tmp_path / "0-0.ring", Identity("run", world_size=2))
    ours = CollectiveAggregation(ring, Identity("run", world_size=2), lambda _: None, lambda: None)
    ours._stage = turns.append
    other = threading.Thread(target=ours.step, args=(1,))
    other.start()
    other.join()
    ours.step(2)

    assert turns == [2]


def test_a_run_whose_steps_are_all_taken_in_another_thread_is_served(tmp_path, monkeypatch):
    monkeypatch.setattr(aggregation, "DEADLINE", -1.0)
    watched = Watched(tmp_path, 1)
    other = threading.Thread(target=watched.recorder.log, args=({"x": 1.0}, 1))
    other.start()
    other.join()

    assert watched.said() == [
        "off: steps are taken in another thread than the one that began the run"
    ]
    assert watched.served == 1


class Slow:
    """A gather that never comes to its end."""

    busy, left = True, False

    def done(self):
        return False


def test_patience_is_for_steps_however_many_logs_speak_of_one(tmp_path, monkeypatch):
    monkeypatch.setattr(aggregation, "GATHER_TIMEOUT_SECONDS", -1.0)
    ring = RingWriter(tmp_path / "0-1.ring", Identity("run", rank=1, world_size=2))
    ours = CollectiveAggregation(
        ring, Identity("run", rank=1, world_size=2), lambda _: None, lambda: None
    )
    ours._gather_group, ours._last_waited_index = Slow(), 7
    for beat in (7, 7, 7, 8, 8, 8, 9, 9, 9):
        ours._gather_if_due(beat)

    with pytest.raises(CollectiveOffError, match="timed out"):
        ours._gather_if_due(10)


def broken(_):
    raise ZeroDivisionError


@pytest.mark.quiet
def test_an_error_of_ours_ends_it_and_the_node_is_served(tmp_path):
    watched = Watched(tmp_path, 1)
    watched.recorder.collective._stage = broken
    for step in range(3):
        watched.recorder.log({"x": 1.0}, step=step)

    assert watched.served == 1
    assert watched.said() == ["off: ZeroDivisionError"]
    assert watched.recorder.try_lock.guard.own_errors == 1


@pytest.mark.quiet
def test_an_error_of_ours_leaves_no_ring_that_looks_like_a_rank_that_ended(tmp_path):
    watched, ended = Watched(tmp_path, 0), []

    class Kept:
        def close(self, outcome, facts):
            ended.append((outcome, facts))

    watched.recorder.collective._replica_rings.by_rank[1] = Kept()
    watched.recorder.collective._stage = broken
    watched.recorder.log({"x": 1.0}, step=1)

    assert ended == [("unknown", {"collective": "off: ZeroDivisionError"})]


def test_a_forked_child_has_no_part_in_it_and_no_mirrors(tmp_path):
    watched, left = Watched(tmp_path, 0), []
    ours = watched.recorder.collective
    ours._replica_rings.abandon = lambda: left.append("mirrors")
    watched.recorder.abandon()

    assert (left, ours._stage) == (["mirrors"], None)


@pytest.mark.quiet
def test_an_error_while_it_is_given_up_leaves_no_node_alone(tmp_path):
    watched = Watched(tmp_path, 1)

    def over(beat):
        raise CollectiveOffError(beat)

    ours = watched.recorder.collective
    ours._stage, ours._send_final_chunk, ours._gather_group = over, broken, object()
    watched.recorder.log({"x": 1.0}, step=1)

    assert watched.served == 1
