"""No message of an authenticated node crashes the head, even after a restart."""

from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import generate_latest
from support.heads import HeadHarness
from support.message_stores import refusal_counts

from sentinel.agent.processor import RunProcessor
from sentinel.cluster.server import Hello
from sentinel.config.settings import Settings
from sentinel.model.counters import Counters
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.model.record_batch import RecordBatch, pack_row
from sentinel.signals.hardware import NodeMeasurements
from sentinel.store.database import transaction

LARGE = 2**63 - 1
LONE_SURROGATE = "\ud800"
"""A lone surrogate, which SQLite does not store."""


class PipelineHarness(HeadHarness):
    """A head, the processor of its records, and the database of both."""

    def start_agent(self, path=None):
        super().start_agent(path)
        self.processor = RunProcessor(
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
        self.processor.restore()

    def merge(self, *local_records, seconds=0.5):
        self.now += seconds
        entries = self.head.merge(local_records)
        with transaction(self.connection):
            for entry in entries:
                self.processor.process(entry)
            self.processor.persist()
            self.head.persist()
            self.processor.snapshot()
        self.head.after_commit()
        return entries

    def close(self):
        self.processor.onset_worker.stop(30.0)
        self.connection.close()

    def receive(self, *records, first=1, last=1, sender_time=None):
        """A node sends these records while all nodes run; then the head restarts and continues."""
        node = self.start_nodes()
        sender_time = self.now if sender_time is None else sender_time
        message = node.encoder.encode(records, first, last, sender_time)
        self.server.messages.append((node.slot, message))
        self.advance(2)
        self.close()
        self.start_agent()
        self.advance(2)
        generate_latest(self.processor.exposition.registry)
        self.close()


@pytest.fixture
def harness(tmp_path):
    return PipelineHarness(tmp_path / "sentinel.db")


def record(
    event=Event.HEARTBEAT, rank=WHOLE_RUN, step=1, time=1_000_000.0, *, more=(), **attributes
):
    values = {"ranks_running": 0.0, "ranks_gone": 1.0, "ranks_failed": 0.0, "idle_seconds": 1.0}
    values = {**(values if event is Event.HEARTBEAT else {}), **dict(more)}
    return Record("mine", rank, step, time, event, values, attributes, step_index=2, sequence=2)


DEATH = {"cause": "died", "died_ranks": "2", "failed_seconds_ago": "1.0"}
INVALID_RECORDS = {
    "failure time is no number": record(**{**DEATH, "failed_seconds_ago": "x"}),
    "failure time is NaN": record(**{**DEATH, "failed_seconds_ago": "nan"}),
    "died rank is no number": record(**{**DEATH, "died_ranks": "x"}),
    "died rank has a leading zero": record(**{**DEATH, "died_ranks": "02"}),
    "death without a rank": record(**{**DEATH, "died_ranks": ""}),
    "died rank is too long": record(**{**DEATH, "died_ranks": "9" * 5000}),
    "failed ranks have an empty item": record(
        cause="exit", failed_ranks="1,,2", failed_seconds_ago="1.0"
    ),
    "straggler is no number": record(straggler_ranks="x", straggler_progress="1,1"),
    "straggler progress is no number": record(straggler_ranks="2", straggler_progress="x"),
    "count is NaN": record(more={"ranks_running": nan}),
    "measurement is too large": record(more={"host_memory_used": 1e308}),
    "world size is NaN": record(Event.START, 2, more={"world_size": nan}),
    "local world size is infinite": record(Event.START, 2, more={"local_world_size": inf}),
    "start of the whole run": record(Event.START),
    "rank is too small": record(Event.STEP, -2),
    "rank is too large": record(Event.STEP, LARGE),
    "time is NaN": record(Event.STEP, 2, time=nan),
    "time is negative": record(Event.STEP, 2, time=-inf),
}


@pytest.mark.parametrize("invalid", INVALID_RECORDS.values(), ids=INVALID_RECORDS)
def test_a_message_with_an_invalid_record_is_refused(harness, invalid):
    harness.receive(invalid)

    assert refusal_counts(harness.counters)["damaged"] == 1.0


@pytest.mark.parametrize(
    "header",
    [
        {"last": 2**63},
        {"first": 2**64 - 1},
        {"sender_time": nan},
        {"sender_time": -inf},
        {"sender_time": 1e300},
    ],
    ids=str,
)
def test_a_message_with_an_invalid_header_is_refused(harness, header):
    harness.receive(record(Event.STEP, 2), **header)

    assert refusal_counts(harness.counters)["damaged"] == 1.0


@pytest.mark.parametrize("event", [Event.SAMPLE, Event.METADATA])
def test_metadata_and_samples_of_the_whole_run_are_accepted(harness, event):
    harness.receive(record(event))

    assert refusal_counts(harness.counters) == {}


def test_a_measurement_that_is_nan_is_accepted(harness):
    harness.receive(record(more={"host_memory_used": nan, "gpu_temperature_max": nan}))

    assert refusal_counts(harness.counters) == {}


@pytest.mark.parametrize("name", ["host", "run", "spool_id", "established_head"])
def test_a_node_info_with_a_lone_surrogate_is_refused(harness, name):
    harness.server.hellos.append(
        Hello(7, {"host": "b", "run": "r", "spool_id": "s", name: LONE_SURROGATE})
    )
    harness.advance(1)
    harness.close()

    assert harness.server.dropped_slots == [7]
    assert (refusal_counts(harness.counters)["damaged"], harness.head.established_head) == (
        1.0,
        "",
    )


TEXTS = st.sampled_from(
    ["", "x", "0", "2", "2,3", "-1", "nan", "1e999", LONE_SURROGATE, "died", "exit", "exception",
     "running", "yes", "undecided", "node_lost", "signal", "finished", "unknown", "interrupted",
     "9" * 5000, "1,1", "3.5", "2:3"]
)  # fmt: skip
NUMBERS = st.sampled_from(
    [0.0, 1.0, 2.0, 4.0, -1.0, 0.5, nan, inf, -inf, 1e308, -1e308, 1e18, 2.0**31, 1e6]
)
COUNTS = st.sampled_from([0, 1, 2, 3, 30, 2**31 - 1, LARGE, -1, -LARGE])
ATTRIBUTES = [
    "state", "cause", "died_ranks", "failed_ranks", "straggler_ranks", "straggler_progress",
    "straggler_step", "blocked_by", "code", "all_behind", "failed_seconds_ago", "elastic_restart",
    "launcher", "failure_origin", "lost_ranks", "lost_nodes", "unreachable_ranks", "final",
    "signal", "exit_code", "failed_before", "exception", "outcome", "collective", "via_collective",
    "host", "pid", "master_port", "framework", "algorithm", "name", "edge", "prompt",
    "max_gap_seconds", "completion", "global_step", "missing", LONE_SURROGATE,
]  # fmt: skip
VALUES = ["loss", "grad_norm", "reward", "kl", "lr", "world_size", "local_world_size", "epoch",
          "expected_ranks", "local_rank", "ranks_running", "ranks_gone", "ranks_failed", "length",
          "idle_seconds", "nodes_lost", "lost_seconds", "host_memory_used", "gpu_ranks",
          "gpu_ecc_errors", "gpu_utilisation", "disk_free_output", "advantage",
          LONE_SURROGATE]  # fmt: skip
COMMON_NAMES = st.just(["loss"])
"""The names that ranks of other nodes use too, so that they are in one batch."""
TIMES = st.sampled_from([0.0, 1.0, 999_990.0, 1_000_001.0, 1e10, 1e11, 1e300, nan, inf, -inf])
RECORDS = st.builds(
    Record,
    run=st.just("mine"),
    rank=st.sampled_from([WHOLE_RUN, 0, 2, 3, 3, 7, 2**31 - 1, LARGE, -2]),
    step=COUNTS,
    time=TIMES,
    event=st.sampled_from(Event),
    values=st.dictionaries(st.sampled_from(VALUES), NUMBERS, max_size=6),
    attributes=st.dictionaries(st.sampled_from(ATTRIBUTES), TEXTS, max_size=6),
    attempt=st.sampled_from([0, 0, 0, 1, 40, -1, LARGE]),
    step_index=COUNTS,
    sequence=st.integers(0, 2**32 - 1),
)


@st.composite
def record_batches(draw):
    ranks = draw(st.lists(st.sampled_from([0, 2, 3, 7, LARGE, -2]), min_size=2, unique=True))
    names = draw(
        st.one_of(COMMON_NAMES, st.lists(st.sampled_from(VALUES), max_size=3, unique=True))
    )
    return RecordBatch(
        "mine", draw(st.sampled_from([0, 1, LARGE])), draw(COUNTS), draw(COUNTS), tuple(names),
        tuple(ranks),
        tuple(draw(TIMES) for _ in ranks),
        tuple(draw(st.integers(0, 2**32 - 1)) for _ in ranks),
        pack_row([draw(NUMBERS) for _ in ranks for _ in names]),
    )  # fmt: skip


MESSAGES = st.tuples(
    st.lists(st.one_of(RECORDS, RECORDS, record_batches()), max_size=4),
    st.sampled_from([0, 1, 2, 3, 2**63 - 1, 2**63, 2**64 - 1]),
    TIMES,
)


@pytest.mark.swallows_errors
@settings(
    max_examples=settings.default.max_examples // 4,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(messages=st.lists(MESSAGES, min_size=1, max_size=3))
def test_no_message_of_a_node_crashes_the_head(tmp_path_factory, messages):
    """As sent by a node with the secret; any part may be refused or ignored."""
    harness = PipelineHarness(tmp_path_factory.mktemp("head") / "sentinel.db")
    node = harness.start_nodes()
    for step, (records, row, sender_time) in enumerate(messages, 1):
        if node.slot in harness.server.dropped_slots:
            node.send_hello()
            harness.merge()
        message = node.encoder.encode(records, row, row, sender_time)
        harness.server.messages.append((node.slot, message))
        harness.merge(*harness.own_node.records(step=step), harness.own_node.heartbeat())
    harness.advance(2)
    harness.close()
    harness.start_agent()
    harness.advance(2)
    harness.close()
