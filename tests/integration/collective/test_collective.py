"""The collective, on real ranks: what rank 0 is handed is what each said, and no end is changed."""

import math
import os
import signal
import struct

import pytest
from support.collective_jobs import job
from support.rank_processes import until

from sentinel.aggregate.aligner import Aligner
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.transport.record_codec import RecordDecoder
from sentinel.transport.ring import RingCursor, RingReader

SOON = {"AHEAD": 0.3, "PAUSE": 0.02, "DEADLINE": 5.0}
"""Seconds: these tests need not be as patient as a training."""
HASTY = {**SOON, "PATIENCE": 1.0, "FEWEST_POLLS": 50, "ANSWER_SECONDS": 1.0}
"""As many steps that a busy machine's threads may take, lest one is told of that is only slow."""


def bits(record):
    """All of a record, so that NaN equals NaN and -0.0 is not 0.0."""
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
    """The run's records of its steps, as the agent makes them of those of the ranks."""
    aligner, made = Aligner(), []
    everyone = [record for records in by_rank.values() for record in records]
    for record in sorted(everyone, key=lambda r: (r.time, r.rank)):
        made += aligner.process(record)
    made += aligner.process(Record("gathered", WHOLE_RUN, 0, 1e12, Event.HEARTBEAT))
    return [r for r in made if r.rank == WHOLE_RUN and r.event is Event.STEP]


def test_both_paths_give_the_same_records_to_the_last_bit(tmp_path):
    with job(tmp_path, (0, 0, 1, 1), constants={**SOON, "SETTLE": 60.0}, steps=200) as running:
        rings = [running.runtime(1) / "gathered" / f"0-{rank}.ring" for rank in (2, 3)]
        kept = [tmp_path / ring.name for ring in rings]
        for ring, link in zip(rings, kept, strict=True):
            until(ring.exists, 120, "the rank's own ring")
            os.link(ring, link)
        codes = running.ended()
        direct = {}
        for rank, link in zip((2, 3), kept, strict=True):
            unpacker = RecordDecoder("gathered", 0, rank)
            found = map(unpacker.decode, RingReader(link).read(RingCursor()).payloads)
            direct[rank] = [record for record in found if record is not None]
        gathered = {rank: records for rank, (_, records) in running.rings(0).items()}
        headers = {rank: header for rank, (header, _) in running.rings(0).items()}

        assert codes == [0] * 4, [running.said(rank) for rank in range(4)]
        assert running.collective(0, 0) == [running.collective(0, 2)[0]]
        assert running.collective(0, 0)[0].startswith("on: every ")

    assert sorted(gathered) == [0, 1, 2, 3]
    for rank in (2, 3):
        assert len(direct[rank]) > 200
        assert [*map(bits, gathered[rank])] == [*map(bits, direct[rank])]
        who = headers[rank].identity
        assert (who.rank, who.local_rank, who.local_world_size, who.world_size) == (
            rank,
            rank - 2,
            2,
            4,
        )
        assert (headers[rank].outcome, headers[rank].last_step_index) == ("finished", 200)
    theirs, ours = combined({**gathered, **direct}), combined(gathered)
    assert len(ours) == 200
    assert all(len(record.spread["x"].bad_ranks) == 0 for record in ours)
    assert [*map(repr, theirs)] == [*map(repr, ours)]
    means = [record.values["x"] for record in ours]
    truth = [sum((r + n / 1000) * (r + 1) for r in range(4)) / 10 for n in range(1, 201)]
    assert all(map(lambda a, b: math.isclose(a, b, rel_tol=1e-12), means, truth))


def test_the_rings_of_nodes_that_nobody_reads_are_not_left_behind(tmp_path):
    with job(tmp_path, (0, 1), constants={**SOON, "SETTLE": 60.0}, steps=100) as running:
        assert running.ended() == [0, 0]
        assert running.rings(1) == {}
        assert len(running.rings(0)) == 2


def test_without_all_ranks_nothing_is_begun(tmp_path):
    with job(tmp_path, (0, 1, 2), without=[1], constants={**HASTY, "DEADLINE": 1.0}) as running:
        assert running.ended() == [0, 0, 0]
        assert running.collective(0, 0) == [
            "off: no quorum: rank 1 without sentinel, or without the collective"
        ]
        assert running.collective(2, 2) == ["off: no quorum"]
        assert sorted(running.rings(0)) == [0]


def test_a_rank_that_falls_silent_ends_it_and_training_goes_on(tmp_path):
    """It takes part in the training's own collectives, and never comes to ours."""
    plan = {"ending": "silent", "who": [2], "steps": 700, "constants": HASTY}
    with job(tmp_path, (0, 1, 2), **plan) as running:
        assert running.ended() == [0, 0, 0]
        told = running.collective(0, 0)
        rings = running.rings(0)
        assert told[-1] == "off: timed out: rank 2 did not come"
        assert running.collective(1, 1)[-1] == "off: rank 0 gathers no more"
        assert {rings[rank][0].outcome for rank in (1, 2)} == {"finished"}
        assert rings[2][1][-1].attributes["collective"] == told[-1]
        # The direct path has it all.
        assert running.rings(1)[1][0].last_step_index == 700


def test_a_rank_that_is_killed_is_told_of_as_dead(tmp_path):
    plan = {"ending": "kill", "who": [2], "constants": SOON}
    with job(tmp_path, (0, 1, 2), **plan) as running:
        codes = running.ended()
        rings = running.rings(0)
        assert codes == [1, 1, -signal.SIGKILL]
        assert running.collective(0, 0)[-1] == "off: rank 2 lost"
        assert rings[2][1][-1].attributes["outcome"] == "died"
        assert rings[0][1][-1].attributes["outcome"] == "exception"


def test_a_rank_that_raises_says_so_itself(tmp_path):
    plan = {"ending": "raise", "who": [1], "lockstep": False, "steps": 600, "constants": HASTY}
    with job(tmp_path, (0, 1), **plan) as running:
        assert running.ended() == [0, 1]
        mirrored = running.rings(0)[1]
        assert running.collective(0, 0)[-1] == "off: rank 1 ended"
        assert mirrored[0].outcome == "exception"
        assert mirrored[1][-1].attributes == {"outcome": "exception", "exception": "ValueError"}


def test_a_stopped_rank_is_named_while_the_others_train_on(tmp_path):
    plan = {"ending": "stop", "who": [1], "lockstep": False, "steps": 900, "constants": HASTY}
    with job(tmp_path, (0, 1, 2), **plan) as running:
        assert [running.ranks[rank].wait(240) for rank in (0, 2)] == [0, 0]
        assert running.collective(0, 0)[-1] == "off: timed out: rank 1 did not come"
        os.kill(running.ranks[1].pid, signal.SIGCONT)
        assert running.ranks[1].wait(240) == 0


def test_ranks_that_stand_still_together_go_on_gathering_together(tmp_path):
    """A stopped rank holds the others in their own collective: no gather is begun, none fails."""
    plan = {"ending": "stop", "who": [1], "steps": 200, "constants": {**HASTY, "SETTLE": 60.0}}
    with job(tmp_path, (0, 1), **plan) as running:
        until(lambda: "stopping" in running.said(1), 120, "the rank to be stopped")
        with pytest.raises(Exception, match="timed out"):
            running.ranks[0].wait(3.0)
        os.kill(running.ranks[1].pid, signal.SIGCONT)
        assert running.ended() == [0, 0]
        assert running.rings(0)[1][0].last_step_index == 200
        assert len(running.collective(0, 0)) == 1


ENDINGS = {"return": 0, "destroy": 0, "raise": 1, "exit": 3, "term": -signal.SIGTERM}


@pytest.mark.parametrize("ending", ENDINGS)
def test_exit_codes_are_those_of_the_training(tmp_path, ending):
    """A dozen; `benchmarks/collective_exits.py` makes a thousand."""
    plan = {"ending": ending, "steps": 120, "constants": SOON}
    with job(tmp_path, (0, 1, 2), **plan) as running:
        assert running.ended() == [ENDINGS[ending]] * 3, [running.said(r) for r in range(3)]
        assert running.collective(0, 0)[0].startswith("on: ")
