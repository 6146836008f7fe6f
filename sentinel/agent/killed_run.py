"""Reports a run that was killed together with its agent, in the process of another run or `serve`.

The end of a container or job kills all its processes at once, and nothing of it can send an alert.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from sentinel.agent.config_alert import ConfigAlert
from sentinel.agent.processor import RunProcessor
from sentinel.config.settings import Settings
from sentinel.live.rings import LiveRings
from sentinel.model.counters import Counters
from sentinel.model.delivery import Sink
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.model.record_batch import coalesce
from sentinel.signals.hardware import NodeMeasurements
from sentinel.store import database
from sentinel.transport.paths import list_rings
from sentinel.transport.ring import read_header
from sentinel.transport.slurm_job import SlurmJob

_MAX_RECORDS = 10_000
"""Records that are processed in one transaction."""


def report_killed_run(
    run: str,
    path: Path,
    settings: Settings,
    sinks: dict[str, Sink],
    clock: Callable[[], float],
) -> bool:
    """Store how a run ended that was killed with its agent, and queue that; whether it was done.

    `path` is its database, `sinks` are its receivers. Records that no agent has read are read
    first, if they are in shared memory. Nothing is done for a run of which no rank is known, and
    for one on several nodes: the agents of the other nodes report the loss of this one. Raises
    sqlite3.Error, OSError, NewerSchemaError.
    """
    settings = settings.model_copy(update={"baselines": False, "ping_url": None})
    with closing(database.connect(path)) as connection:
        processor = RunProcessor(
            run,
            path,
            connection,
            settings,
            Counters(),
            sinks=sinks,
            read_node=NodeMeasurements,
            live_rings=list,
            clock=clock,
        )
        # The settings are those of this process.
        processor.config_alert = ConfigAlert(run, {}, was_notified=False)
        processor.restore()
        headers = filter(None, map(read_header, list_rings(run)))
        # When the ranks died is not known, but that they lived then.
        last_time = max((header.last_time for header in headers), default=0.0)
        rings = LiveRings(
            run,
            processor.counters,
            processor.journal.positions(),
            lambda: last_time,
            keep_messages=settings.privacy.messages,
        )
        rings.job_state.job = SlurmJob.of_metadata(processor.history.run_metadata.as_dict())
        with closing(rings):
            return _report(processor, rings)


def _report(processor: RunProcessor, rings: LiveRings) -> bool:
    """Read the rings to their end, and report that end; whether it was done."""
    _store(processor, rings, rings.poll(_MAX_RECORDS))
    while rings.has_unread:
        _store(processor, rings, rings.poll(_MAX_RECORDS))
    membership = processor.pipeline.aligner.steps.membership
    # Where ranks are on other nodes, they have time to join.
    if membership.join_seconds or not membership.started:
        return False
    if rings.ranks:
        rings.prepare_final_poll()
        _store(processor, rings, rings.poll())
    else:
        # No step waits for further values.
        now = processor.clock()
        _store(processor, rings, [Record(processor.run, WHOLE_RUN, 0, now, Event.HEARTBEAT, {})])
        ends = _ends(processor)
        _store(
            processor, rings, (rings.job_state.annotate_heartbeat(e, is_final=True) for e in ends)
        )
    with database.transaction(processor.connection, mode="immediate"):
        processor.snapshot()
    rings.remove_rings()
    return True


def _store(processor: RunProcessor, rings: LiveRings, records: Iterable[Record]) -> None:
    """Process records, and store the results and read positions, as the agent of the run does."""
    with database.transaction(processor.connection, mode="immediate"):
        for entry in coalesce(map(_with_agent, records)):
            processor.process(entry)
        processor.persist()
        processor.journal.store_positions(rings.positions())


def _with_agent(record: Record) -> Record:
    """The record; a heartbeat without an order of the deaths, which no agent has seen."""
    attributes = record.attributes
    if attributes.get("cause") != "died":
        return record
    ranks = {"culprit_ranks": attributes["died_ranks"], "following_ranks": ""}
    return replace(record, attributes={**attributes, **ranks, "agent_killed": "yes"})


def _ends(processor: RunProcessor) -> Iterator[Record]:
    """The records of the end of a run whose rings are gone, at the time of its last record."""
    last = processor.history.latest_records(processor.run)[-1]
    if last.event is Event.STOP:
        return
    ranks = sorted(processor.pipeline.aligner.steps.membership.started)
    end = replace(last, event=Event.STOP, values={}, attributes={"outcome": "died"}, spread={})
    for rank in ranks:
        yield replace(end, rank=rank)
    yield replace(
        end,
        rank=WHOLE_RUN,
        event=Event.HEARTBEAT,
        values={"ranks_running": 0.0, "ranks_gone": float(len(ranks)), "ranks_failed": 0.0},
        attributes={
            "state": "died",
            "cause": "died",
            "died_ranks": ",".join(map(str, ranks)),
        },
    )
