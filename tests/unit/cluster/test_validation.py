"""Unsound: whatever a node that has the secret says, its head lives on, once restarted as well."""

from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import generate_latest
from support.heads import House
from support.message_stores import refusals

from sentinel.agent.processor import RunProcessor
from sentinel.cluster.server import Hello
from sentinel.config.settings import Settings
from sentinel.model.counters import Counters
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.model.record_batch import RecordBatch
from sentinel.signals.hardware import NodeMeasurements
from sentinel.store.database import transaction

FAR = 2**63 - 1
HALF = "\ud800"
"""A half of a character, which no database takes for text."""


class Judging(House):
    """A head, all that becomes of what it hears, and the real database of both."""

    def begin(self, path=None):
        super().begin(path)
        self.judge = RunProcessor(
            "run",
            self.path,
            self.connection,
            Settings(),
            Counters(),
            sinks={},
            read_node=NodeMeasurements,
            live_rings=list,
            clock=lambda: self.now,
        )
        self.judge.restore()

    def turn(self, *local, seconds=0.5):
        self.now += seconds
        entries = self.head.merge(local)
        with transaction(self.connection):
            for entry in entries:
                self.judge.process(entry)
            self.judge.persist()
            self.head.persist()
            self.judge.snapshot()
        self.head.after_commit()
        return entries

    def close(self):
        self.judge.onset_worker.stop(30.0)
        self.connection.close()

    def hears(self, *told, first=1, last=1, clock=None):
        """All nodes run; one says this; its head goes on, and another after it."""
        node = self.running()
        clock = self.now if clock is None else clock
        data = node.writer.write(told, first, last, clock)
        self.hub.parcels.append((node.slot, data))
        self.wait(2)
        self.close()
        self.begin()
        self.wait(2)
        generate_latest(self.judge.exposition.registry)
        self.close()


@pytest.fixture
def judging(tmp_path):
    return Judging(tmp_path / "sentinel.db")


def record(event=Event.HEARTBEAT, rank=WHOLE_RUN, step=1, time=1_000_000.0, *, more=(), **facts):
    values = {"ranks_running": 0.0, "ranks_gone": 1.0, "ranks_failed": 0.0, "idle_seconds": 1.0}
    values = {**(values if event is Event.HEARTBEAT else {}), **dict(more)}
    return Record("mine", rank, step, time, event, values, facts, step_index=2, sequence=2)


DEAD = {"cause": "died", "died_ranks": "2", "failed_seconds_ago": "1.0"}
UNSOUND = {
    "fell ago": record(**{**DEAD, "failed_seconds_ago": "x"}),
    "fell at no time": record(**{**DEAD, "failed_seconds_ago": "nan"}),
    "died_ranks": record(**{**DEAD, "died_ranks": "x"}),
    "gone, as no rank is spelled": record(**{**DEAD, "died_ranks": "02"}),
    "nobody gone": record(**{**DEAD, "died_ranks": ""}),
    "failed_ranks": record(cause="exit", failed_ranks="1,,2", failed_seconds_ago="1.0"),
    "endless": record(**{**DEAD, "died_ranks": "9" * 5000}),
    "straggler_ranks": record(straggler_ranks="x", straggler_progress="1,1"),
    "behind at": record(straggler_ranks="2", straggler_progress="x"),
    "counts": record(more={"ranks_running": nan}),
    "bytes": record(more={"host_memory_used": 1e308}),
    "world": record(Event.START, 2, more={"world_size": nan}),
    "node": record(Event.START, 2, more={"local_world_size": inf}),
    "no rank": record(Event.START),
    "below": record(Event.STEP, -2),
    "beyond": record(Event.STEP, FAR),
    "never": record(Event.STEP, 2, time=nan),
    "failed_before": record(Event.STEP, 2, time=-inf),
}


@pytest.mark.parametrize("said", UNSOUND.values(), ids=UNSOUND)
def test_what_cannot_be_counted_with_is_refused_whole(judging, said):
    judging.has_seen_rank(said)

    assert refusals(judging.counters)["damaged"] == 1.0


@pytest.mark.parametrize(
    "parcel",
    [{"last": 2**63}, {"first": 2**64 - 1}, {"clock": nan}, {"clock": -inf}, {"clock": 1e300}],
    ids=str,
)
def test_a_parcel_whose_numbers_no_agent_has_is_refused(judging, parcel):
    judging.has_seen_rank(record(Event.STEP, 2), **parcel)

    assert refusals(judging.counters)["damaged"] == 1.0


@pytest.mark.parametrize("event", [Event.SAMPLE, Event.METADATA])
def test_facts_and_texts_of_the_whole_run_are_heard(judging, event):
    judging.has_seen_rank(record(event))

    assert refusals(judging.counters) == {}


def test_a_machine_of_which_something_is_no_number_is_heard(judging):
    judging.has_seen_rank(record(more={"host_memory_used": nan, "gpu_temperature_max": nan}))

    assert refusals(judging.counters) == {}


@pytest.mark.parametrize("name", ["host", "run", "spool", "elder"])
def test_a_node_whose_card_is_no_text_is_not_welcomed(judging, name):
    judging.server.waiting.append(Hello(7, {"host": "b", "run": "r", "spool": "s", name: HALF}))
    judging.wait(1)
    judging.close()

    assert judging.server.dropped == [7]
    assert (refusals(judging.counters)["damaged"], judging.head_address.established_head) == (
        1.0,
        "",
    )


TEXTS = st.sampled_from(
    ["", "x", "0", "2", "2,3", "-1", "nan", "1e999", HALF, "died", "exit", "exception", "running",
     "yes", "undecided", "node_lost", "signal", "finished", "unknown", "interrupted", "9" * 5000, "1,1", "3.5", "2:3"]
)  # fmt: skip
NUMBERS = st.sampled_from(
    [0.0, 1.0, 2.0, 4.0, -1.0, 0.5, nan, inf, -inf, 1e308, -1e308, 1e18, 2.0**31, 1e6]
)
COUNTS = st.sampled_from([0, 1, 2, 3, 30, 2**31 - 1, FAR, -1, -FAR])
FACTS = ["state", "cause", "died_ranks", "failed_ranks", "straggler_ranks", "straggler_progress", "straggler_step", "blocked_by", "code",
         "all_behind", "failed_seconds_ago", "elastic_restart", "launcher", "failure_origin", "lost_ranks", "lost_nodes", "unreachable_ranks",
         "final", "signal", "exit_code", "failed_before", "exception", "outcome", "collective", "via_collective",
         "host", "pid", "master_port", "framework", "algorithm", "name", "edge", "prompt", "max_gap_seconds",
         "completion", "global_step", "missing", HALF]  # fmt: skip
VALUES = ["loss", "grad_norm", "reward", "kl", "lr", "world_size", "local_world_size", "epoch",
          "expected_ranks", "local_rank", "ranks_running", "ranks_gone", "ranks_failed", "length",
          "idle_seconds", "nodes_lost", "lost_seconds", "host_memory_used", "gpu_ranks",
          "gpu_ecc_errors", "gpu_utilisation", "disk_free_output", "advantage", HALF]  # fmt: skip
OURS = st.just(["loss"])
"""What the ranks of other nodes speak of, too: then they are on one sheet."""
TIMES = st.sampled_from([0.0, 1.0, 999_990.0, 1_000_001.0, 1e10, 1e11, 1e300, nan, inf, -inf])
RECORDS = st.builds(
    Record,
    run=st.just("mine"),
    rank=st.sampled_from([WHOLE_RUN, 0, 2, 3, 3, 7, 2**31 - 1, FAR, -2]),
    step=COUNTS,
    time=TIMES,
    event=st.sampled_from(Event),
    values=st.dictionaries(st.sampled_from(VALUES), NUMBERS, max_size=6),
    facts=st.dictionaries(st.sampled_from(FACTS), TEXTS, max_size=6),
    attempt=st.sampled_from([0, 0, 0, 1, 40, -1, FAR]),
    beat=COUNTS,
    sequence=st.integers(0, 2**32 - 1),
)


@st.composite
def sheets(draw):
    ranks = draw(st.lists(st.sampled_from([0, 2, 3, 7, FAR, -2]), min_size=2, unique=True))
    names = draw(st.one_of(OURS, st.lists(st.sampled_from(VALUES), max_size=3, unique=True)))
    return RecordBatch(
        "mine", draw(st.sampled_from([0, 1, FAR])), draw(COUNTS), draw(COUNTS), tuple(names),
        tuple(ranks),
        tuple(draw(TIMES) for _ in ranks),
        tuple(draw(st.integers(0, 2**32 - 1)) for _ in ranks),
        tuple(tuple(draw(NUMBERS) for _ in names) for _ in ranks),
    )  # fmt: skip


PARCELS = st.tuples(
    st.lists(st.one_of(RECORDS, RECORDS, sheets()), max_size=4),
    st.sampled_from([0, 1, 2, 3, 2**63 - 1, 2**63, 2**64 - 1]),
    TIMES,
)


@pytest.mark.quiet
@settings(
    max_examples=settings.default.max_examples // 4,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(parcels=st.lists(PARCELS, min_size=1, max_size=3))
def test_no_parcel_of_a_node_ends_its_head(tmp_path_factory, parcels):
    """Said by one that has the secret, whatever it is; it may be refused, or left aside."""
    house = Judging(tmp_path_factory.mktemp("head") / "sentinel.db")
    node = house.running()
    for step, (told, row, clock) in enumerate(parcels, 1):
        if node.slot in house.hub.dropped:
            node.hello()
            house.turn()
        data = node.writer.write(told, row, row, clock)
        house.hub.parcels.append((node.slot, data))
        house.turn(*house.own.says(step=step), house.own.tick())
    house.wait(2)
    house.close()
    house.begin()
    house.wait(2)
    house.close()
