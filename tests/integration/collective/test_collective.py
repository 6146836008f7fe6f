"""The collective on real ranks: rank 0 receives every record, and exit codes do not change."""

import math
import os
import signal
import struct
from pathlib import Path

import pytest
from support.collective_jobs import job
from support.fork_server import TORCH
from support.rank_processes import until

from sentinel.aggregate.aligner import Aligner
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.transport.record_codec import RecordDecoder
from sentinel.transport.ring import RingCursor, RingReader

SHORT_TIMES = {"LEAD_SECONDS": 0.3, "POLL_INTERVAL_SECONDS": 0.02, "READY_TIMEOUT_SECONDS": 5.0}
"""Seconds; shorter than the defaults, to keep the tests fast."""
SHORT_TIMEOUTS = {
    **SHORT_TIMES,
    "GATHER_TIMEOUT_SECONDS": 1.0,
    "MIN_STEPS_BEFORE_TIMEOUT": 50,
    "ANSWER_TIMEOUT_SECONDS": 1.0,
}
"""Enough steps that a rank on a busy machine is slow without being reported."""

LINES = (Path(__file__).parents[2] / "support" / "collective_ranks.py").read_text().splitlines()
RAISING_LINE = next(at for at, line in enumerate(LINES, 1) if "raise ValueError" in line)


@pytest.fixture(scope="module")
def server(fork_server):
    return fork_server(*TORCH)


def bits(record):
    """All fields of a record, with NaN equal to NaN and -0.0 different from 0.0."""
    values = {name: struct.pack("<d", value) for name, value in record.values.items()}
    return (
        record.step,
        record.step_index,
        record.time,
        record.event,
        values,
        dict(record.attributes),
    )


def combined(by_rank):
    """The step records of the run, combined from those of the ranks as the agent does."""
    aligner, aligned = Aligner(), []
    all_records = [record for records in by_rank.values() for record in records]
    for record in sorted(all_records, key=lambda r: (r.time, r.rank)):
        aligned += aligner.process(record)
    aligned += aligner.process(Record("gathered", WHOLE_RUN, 0, 1e12, Event.HEARTBEAT))
    return [r for r in aligned if r.rank == WHOLE_RUN and r.event is Event.STEP]


def test_the_direct_and_the_collective_path_give_identical_records(server, tmp_path):
    with job(
        server, tmp_path, (0, 0, 1, 1), constants={**SHORT_TIMES, "DRAIN_SECONDS": 60.0}, steps=200
    ) as running:
        rings = [running.runtime(1) / "gathered" / f"0-{rank}.ring" for rank in (2, 3)]
        links = [tmp_path / ring.name for ring in rings]
        for ring, link in zip(rings, links, strict=True):
            until(ring.exists, 240.0, "the rank's own ring")
            os.link(ring, link)
        codes = running.wait()
        direct = {}
        for rank, link in zip((2, 3), links, strict=True):
            decoder = RecordDecoder("gathered", 0, rank)
            found = map(decoder.decode, RingReader(link).read(RingCursor()).payloads)
            direct[rank] = [record for record in found if record is not None]
        gathered = {rank: records for rank, (_, records) in running.rings(0).items()}
        headers = {rank: header for rank, (header, _) in running.rings(0).items()}

        assert codes == [0] * 4, [running.output(rank) for rank in range(4)]
        assert running.collective(0, 0) == [running.collective(0, 2)[0]]
        assert running.collective(0, 0)[0].startswith("on: every ")

    assert sorted(gathered) == [0, 1, 2, 3]
    for rank in (2, 3):
        assert len(direct[rank]) > 200
        assert [*map(bits, gathered[rank])] == [*map(bits, direct[rank])]
        identity = headers[rank].identity
        assert (
            identity.rank,
            identity.local_rank,
            identity.local_world_size,
            identity.world_size,
        ) == (
            rank,
            rank - 2,
            2,
            4,
        )
        assert (headers[rank].outcome, headers[rank].last_step_index) == ("finished", 200)
    expected, actual = combined({**gathered, **direct}), combined(gathered)
    assert len(actual) == 200
    assert all(len(record.spread["x"].bad_ranks) == 0 for record in actual)
    assert [*map(repr, expected)] == [*map(repr, actual)]
    means = [record.values["x"] for record in actual]
    expected_means = [sum((r + n / 1000) * (r + 1) for r in range(4)) / 10 for n in range(1, 201)]
    assert all(map(lambda a, b: math.isclose(a, b, rel_tol=1e-12), means, expected_means))


def test_rings_that_no_agent_reads_are_removed(server, tmp_path):
    with job(
        server, tmp_path, (0, 1), constants={**SHORT_TIMES, "DRAIN_SECONDS": 60.0}, steps=100
    ) as running:
        assert running.wait() == [0, 0]
        assert running.rings(1) == {}
        assert len(running.rings(0)) == 2


def test_without_all_ranks_nothing_is_gathered(server, tmp_path):
    with job(
        server,
        tmp_path,
        (0, 1, 2),
        without=[1],
        constants={**SHORT_TIMEOUTS, "READY_TIMEOUT_SECONDS": 1.0},
    ) as running:
        assert running.wait() == [0, 0, 0]
        assert running.collective(0, 0) == [
            "off: not ready: rank 1 without sentinel, or without the collective"
        ]
        assert running.collective(2, 2) == ["off: not ready"]
        assert sorted(running.rings(0)) == [0]


@pytest.mark.fault("T8")
def test_a_silent_rank_stops_the_gather_and_training_continues(server, tmp_path):
    """It takes part in the collectives of the training, but not in the gather."""
    plan = {"ending": "silent", "failing_ranks": [2], "steps": 700, "constants": SHORT_TIMEOUTS}
    with job(server, tmp_path, (0, 1, 2), **plan) as running:
        assert running.wait() == [0, 0, 0]
        states = running.collective(0, 0)
        rings = running.rings(0)
        assert states[-1] == "off: timed out: rank 2 did not answer"
        assert running.collective(1, 1)[-1] == "off: rank 0 stopped gathering"
        assert {rings[rank][0].outcome for rank in (1, 2)} == {"finished"}
        assert rings[2][1][-1].attributes["collective"] == states[-1]
        # The direct path has all records.
        assert running.rings(1)[1][0].last_step_index == 700


def test_a_killed_rank_is_reported_as_died(server, tmp_path):
    plan = {"ending": "kill", "failing_ranks": [2], "constants": SHORT_TIMES}
    with job(server, tmp_path, (0, 1, 2), **plan) as running:
        codes = running.wait()
        rings = running.rings(0)
        assert codes == [1, 1, -signal.SIGKILL]
        assert running.collective(0, 0)[-1] == "off: rank 2 lost"
        assert rings[2][1][-1].attributes["outcome"] == "died"
        assert rings[0][1][-1].attributes["outcome"] == "exception"


def test_a_rank_that_raises_reports_its_own_outcome(server, tmp_path):
    plan = {
        "ending": "raise",
        "failing_ranks": [1],
        "lockstep": False,
        "steps": 600,
        "constants": SHORT_TIMEOUTS,
    }
    with job(server, tmp_path, (0, 1), **plan) as running:
        assert running.wait() == [0, 1]
        replica = running.rings(0)[1]
        assert running.collective(0, 0)[-1] == "off: rank 1 ended"
        assert replica[0].outcome == "exception"
        assert replica[1][-1].attributes == {
            "outcome": "exception",
            "exception": "ValueError",
            "message": "on purpose",
            "location": f"collective_ranks.py:{RAISING_LINE} in fail_as_planned",
        }


@pytest.mark.fault("T8")
def test_a_stopped_rank_is_named_while_the_others_continue(server, tmp_path):
    plan = {
        "ending": "stop",
        "failing_ranks": [1],
        "lockstep": False,
        "steps": 900,
        "constants": SHORT_TIMEOUTS,
    }
    with job(server, tmp_path, (0, 1, 2), **plan) as running:
        assert [running.ranks[rank].wait(240) for rank in (0, 2)] == [0, 0]
        assert running.collective(0, 0)[-1] == "off: timed out: rank 1 did not answer"
        os.kill(running.ranks[1].pid, signal.SIGCONT)
        assert running.ranks[1].wait(240) == 0


def test_ranks_that_pause_together_continue_gathering(server, tmp_path):
    """A stopped rank blocks the others in their own collective: no gather starts or fails."""
    plan = {
        "ending": "stop",
        "failing_ranks": [1],
        "steps": 200,
        "constants": {**SHORT_TIMEOUTS, "DRAIN_SECONDS": 60.0},
    }
    with job(server, tmp_path, (0, 1), **plan) as running:
        until(lambda: "stopping" in running.output(1), 240.0, "the rank to be stopped")
        with pytest.raises(Exception, match="timed out"):
            running.ranks[0].wait(3.0)
        os.kill(running.ranks[1].pid, signal.SIGCONT)
        assert running.wait() == [0, 0]
        assert running.rings(0)[1][0].last_step_index == 200
        assert len(running.collective(0, 0)) == 1


ENDINGS = {"return": 0, "destroy": 0, "raise": 1, "exit": 3, "term": -signal.SIGTERM}


@pytest.mark.parametrize("ending", ENDINGS)
def test_exit_codes_do_not_change(server, tmp_path, ending):
    """A few runs; `benchmarks/exits.py` makes a thousand."""
    plan = {"ending": ending, "steps": 120, "constants": SHORT_TIMES}
    with job(server, tmp_path, (0, 1, 2), **plan) as running:
        assert running.wait() == [ENDINGS[ending]] * 3, [running.output(r) for r in range(3)]
        assert running.collective(0, 0)[0].startswith("on: ")
