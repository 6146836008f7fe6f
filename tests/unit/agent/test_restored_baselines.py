"""An agent that starts again continues with the baseline of the training that it left."""

from __future__ import annotations

from contextlib import closing

from support.results import NOW

from sentinel.agent.processor import RunProcessor
from sentinel.config.settings import load_settings
from sentinel.model.counters import Counters
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.signals.hardware import NodeMeasurements
from sentinel.stats.baseline import TrajectoryPrior
from sentinel.store.baselines import BaselineStore, StoredRun
from sentinel.store.database import connect

PRIOR = TrajectoryPrior(sigma=0.3, weight=64.0, course=((0.0, 0.0), (1.0, 1.0)))


def record(event, step=0, values=None, **attributes):
    return Record("live", WHOLE_RUN, step, NOW + step, event, values or {}, attributes)


def test_a_training_has_its_baseline_again_if_the_agent_is_killed_right_after_its_start(tmp_path):
    """The journal has the end of the training before, which drops the baseline of that one."""
    path, settings = tmp_path / "sentinel.db", load_settings({})
    store = BaselineStore(tmp_path / "baselines")
    store.add({"script": "train.py", "beta": 0.1}, StoredRun("other", NOW, 9, {"kl_ref": PRIOR}))
    priors, expected = [], store.load_all()[0].pooled_priors()
    for records in (
        [
            record(Event.START, script="train.py"),
            record(Event.METADATA, values={"beta": 0.04}),
            record(Event.STEP, 1, {"kl_ref": 0.1}),
            record(Event.TRAINING, 1, {"training_number": 2.0}),
            record(Event.METADATA, 1, {"beta": 0.1}),
            record(Event.STEP, 2, {"kl_ref": 0.1}),
        ],
        [],
    ):
        with closing(connect(path)) as connection:
            processor = RunProcessor(
                *("live", path, connection, settings, Counters()),
                sinks={},
                read_node=NodeMeasurements,
                live_rings=list,
                clock=lambda: NOW,
            )
            processor.restore()
            for each in records:
                processor.process(each)
            processor.persist()
            priors.append(processor.pipeline.engine.baselines["live"].priors)

    assert priors == [expected, expected]
