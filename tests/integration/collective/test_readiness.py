"""How ranks agree to gather, and runs that never start to gather."""

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
    """An in-process replacement for the store of torch."""

    def __init__(self):
        self.entries = {}

    def add(self, key, amount):
        self.entries[key] = self.entries.get(key, 0) + amount
        return self.entries[key]

    def set(self, key, value):
        self.entries[key] = value

    def get(self, key):
        return self.entries[key]

    def check(self, keys):
        return all(key in self.entries for key in keys)


def step_until_agreed(ranks, *, seconds_per_step, steps=2000):
    """Step all ranks together; returns the schedule, or the reason against one, of each rank."""
    answers = {}
    for step_index in range(1, steps):
        for at, check in enumerate(ranks):
            if at not in answers:
                try:
                    start = check.poll(step_index, step_index * seconds_per_step(step_index))
                except NotReadyError as reason:
                    start = str(reason)
                if start is not None:
                    answers[at] = start
        if len(answers) == len(ranks):
            break
    return answers


@pytest.mark.parametrize("seconds", [0.001, 0.02, 0.3, 5.0])
def test_ranks_that_step_together_start_at_the_same_step(seconds):
    store = Store()
    ranks = [ReadinessCheck(store, rank, 4, "fingerprint", rank // 2) for rank in range(4)]

    answers = step_until_agreed(ranks, seconds_per_step=lambda _: seconds, steps=10_000)

    assert len(set(answers.values())) == 1
    start = answers[0]
    assert start.interval_steps == max(1, min(10, int(1 / seconds)))
    assert start.head_node_id == 0
    assert start.step_index * seconds < 3.0 + 10 * seconds


def test_another_step_is_scheduled_when_the_step_time_changes():
    """The first steps are slow; the step scheduled from them comes before all ranks polled."""
    store = Store()
    ranks = [ReadinessCheck(store, rank, 3, "fingerprint", rank) for rank in range(3)]
    clock, step_index, answers = 0.0, 0, {}
    while len(answers) < 3:
        step_index += 1
        clock += 30.0 if step_index < 3 else 0.01
        for rank, check in enumerate(ranks):
            if rank not in answers and (start := check.poll(step_index, clock)):
                answers[rank] = start
        assert step_index < 5000

    assert len(set(answers.values())) == 1


@pytest.mark.parametrize(
    ("fingerprints", "reason"),
    [
        (["a", None, "a"], "not ready: rank 1 without sentinel, or without the collective"),
        (["a", "b", "a"], "not ready: ranks run different versions of sentinel"),
    ],
)
def test_missing_ranks_are_named_by_rank_0(fingerprints, reason):
    store = Store()
    ranks = [ReadinessCheck(store, r, 3, text, r) for r, text in enumerate(fingerprints) if text]
    answers = step_until_agreed(ranks, seconds_per_step=lambda _: 0.1)

    assert answers[0] == reason
    assert set(answers.values()) == {reason, "not ready"}
    assert ranks[0].poll_count >= READY_TIMEOUT_SECONDS / (POLL_INTERVAL_SECONDS + 0.2) > MIN_POLLS


def test_a_rank_that_never_confirms_in_time_is_named():
    store = Store()
    ranks = [ReadinessCheck(store, rank, 3, "fingerprint", rank) for rank in range(3)]
    ranks[2].poll(1, 0.0)
    answers = step_until_agreed(ranks[:2], seconds_per_step=lambda _: 0.02, steps=100_000)

    assert answers == {0: "not ready: rank 2 did not confirm in time", 1: "not ready"}
    assert ranks[0].round_number == MAX_ROUNDS


def test_a_scheduled_step_that_does_not_come_is_withdrawn():
    """Steps suddenly become slow; meanwhile the other nodes have no agent."""
    store = Store()
    ranks = [ReadinessCheck(store, rank, 3, "fingerprint", rank) for rank in range(3)]
    clock, step_index, answers = 0.0, 0, {}
    while len(answers) < 3:
        step_index += 1
        clock += 60.0 if all(check.schedule for check in ranks) else 0.01
        for rank, check in enumerate(ranks):
            try:
                assert rank in answers or check.poll(step_index, clock) is None
            except NotReadyError as reason:
                answers[rank] = str(reason)

    assert answers[0] == "not ready: the scheduled step did not come in time"
    assert store.add("ready/0", 0) <= 0


def test_a_step_withdrawn_by_one_rank_is_started_by_none():
    store = Store()
    ranks = [ReadinessCheck(store, rank, 3, "fingerprint", rank) for rank in range(3)]
    step_index = 0
    while not all(check.schedule for check in ranks):
        step_index += 1
        for check in ranks:
            check.poll(step_index, step_index * 0.01)
    with pytest.raises(NotReadyError):
        ranks[2].poll(step_index + MIN_POLLS, 1000.0)

    assert ranks[0].poll(ranks[0].schedule.step_index, 1000.0) is None
    assert (ranks[0].round_number, ranks[0].schedule) == (1, None)


def test_an_unreachable_store_is_reported():
    class BrokenStore(Store):
        def add(self, key, amount):
            raise RuntimeError(key, amount)

    with pytest.raises(NotReadyError, match="does not answer"):
        ReadinessCheck(BrokenStore(), 0, 2, "fingerprint", 0).poll(1, 0.0)


def test_ranks_are_formatted_by_number():
    assert format_ranks([3]) == "rank 3"
    assert format_ranks([1, 2, 5]) == "ranks 1, 2 and 5"
    assert format_ranks([*range(30)]).endswith("15 and 14 others")


class CollectiveRank:
    """A rank with a collective recorder, in a process without a process group."""

    def __init__(self, folder, rank):
        self.agent_starts = 0
        identity = Identity("run", 0, rank, 0, 2, 1)
        self.ring = RingWriter(folder / f"0-{rank}.ring", identity)
        guard = ErrorGuard(self.ring.count_error)
        self.recorder = CollectiveRecorder(
            self.ring, guard, lambda: None, identity, self._start_agent
        )

    def _start_agent(self):
        self.agent_starts += 1

    def states(self):
        reader, decoder = RingReader(self.ring.path), RecordDecoder("run", 0, 0)
        records = map(decoder.decode, reader.read(RingCursor()).payloads)
        return [r.attributes["collective"] for r in records if r and "collective" in r.attributes]


@pytest.mark.parametrize(("number", "starts"), [(0, 0), (1, 1)])
def test_without_a_process_group_every_node_starts_its_own_agent(
    tmp_path, monkeypatch, number, starts
):
    monkeypatch.setattr(aggregation, "READY_TIMEOUT_SECONDS", -1.0)
    monkeypatch.setattr(aggregation, "POLL_INTERVAL_SECONDS", 0.0)
    rank = CollectiveRank(tmp_path, number)
    for step in range(2 * MIN_POLLS):
        rank.recorder.log({"x": 1.0}, step=step)

    assert rank.states() == ["off: the training has no process group"]
    rank.recorder.close({"outcome": "finished"})
    assert rank.agent_starts == starts


def test_a_run_that_ends_before_gathering_starts_its_agent_at_the_end(tmp_path):
    rank = CollectiveRank(tmp_path, 1)
    rank.recorder.log({"x": 1.0}, step=1)
    assert rank.agent_starts == 0

    rank.recorder.close({"outcome": "exception"})

    assert rank.agent_starts == 1


def test_only_the_thread_that_began_the_run_gathers(tmp_path):
    steps_seen = []
    ring = RingWriter(tmp_path / "0-0.ring", Identity("run", world_size=2))
    aggregated = CollectiveAggregation(
        ring, Identity("run", world_size=2), lambda _: None, lambda: None
    )
    aggregated._stage = steps_seen.append
    other = threading.Thread(target=aggregated.step, args=(1,))
    other.start()
    other.join()
    aggregated.step(2)

    assert steps_seen == [2]


def test_a_run_that_steps_in_another_thread_starts_its_agent(tmp_path, monkeypatch):
    monkeypatch.setattr(aggregation, "READY_TIMEOUT_SECONDS", -1.0)
    rank = CollectiveRank(tmp_path, 1)
    other = threading.Thread(target=rank.recorder.log, args=({"x": 1.0}, 1))
    other.start()
    other.join()

    assert rank.states() == [
        "off: steps are taken in a different thread from the one that began the run"
    ]
    assert rank.agent_starts == 1


class EndlessGather:
    """A gather that never completes."""

    busy, dismissed = True, False

    def poll_gather(self):
        return False


def test_the_timeout_counts_steps_not_logs(tmp_path, monkeypatch):
    monkeypatch.setattr(aggregation, "GATHER_TIMEOUT_SECONDS", -1.0)
    ring = RingWriter(tmp_path / "0-1.ring", Identity("run", rank=1, world_size=2))
    aggregated = CollectiveAggregation(
        ring, Identity("run", rank=1, world_size=2), lambda _: None, lambda: None
    )
    aggregated._gather_group, aggregated._last_waited_index = EndlessGather(), 7
    for step_index in (7, 7, 7, 8, 8, 8, 9, 9, 9):
        aggregated._gather_if_due(step_index)

    with pytest.raises(CollectiveOffError, match="timed out"):
        aggregated._gather_if_due(10)


def fail(_):
    raise ZeroDivisionError


@pytest.mark.swallows_errors
def test_an_internal_error_stops_the_gather_and_starts_the_agent(tmp_path):
    rank = CollectiveRank(tmp_path, 1)
    rank.recorder.collective._stage = fail
    for step in range(3):
        rank.recorder.log({"x": 1.0}, step=step)

    assert rank.agent_starts == 1
    assert rank.states() == ["off: ZeroDivisionError"]
    assert rank.recorder.try_lock.guard.own_errors == 1


@pytest.mark.swallows_errors
def test_after_an_internal_error_replica_rings_do_not_look_finished(tmp_path):
    rank, ended = CollectiveRank(tmp_path, 0), []

    class FakeReplica:
        def close(self, outcome, attributes):
            ended.append((outcome, attributes))

    rank.recorder.collective._replica_rings.by_rank[1] = FakeReplica()
    rank.recorder.collective._stage = fail
    rank.recorder.log({"x": 1.0}, step=1)

    assert ended == [("unknown", {"collective": "off: ZeroDivisionError"})]


def test_a_forked_child_releases_the_replica_rings(tmp_path):
    rank, released = CollectiveRank(tmp_path, 0), []
    aggregated = rank.recorder.collective
    aggregated._replica_rings.abandon = lambda: released.append("replica rings")
    rank.recorder.abandon()

    assert (released, aggregated._stage) == (["replica rings"], None)


@pytest.mark.swallows_errors
def test_an_error_while_switching_off_still_starts_the_agent(tmp_path):
    rank = CollectiveRank(tmp_path, 1)

    def switch_off(step_index):
        raise CollectiveOffError(step_index)

    aggregated = rank.recorder.collective
    aggregated._stage, aggregated._send_final_chunk, aggregated._gather_group = (
        switch_off,
        fail,
        object(),
    )
    rank.recorder.log({"x": 1.0}, step=1)

    assert rank.agent_starts == 1
