"""The name that a user gave a run is stored with its metadata, and shown in the list of runs."""

from __future__ import annotations

from contextlib import closing

import pytest
from support.notifications import NOW

from sentinel.agent.processor import RunProcessor
from sentinel.config.settings import load_settings
from sentinel.metrics.stored_state import stored_summary
from sentinel.model.counters import Counters
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.signals.hardware import NodeMeasurements
from sentinel.signals.run_metadata import NAME_KEY
from sentinel.store import database
from sentinel.transport.launch_status import LaunchStatus
from sentinel.transport.paths import DATABASE_NAME, run_dir
from sentinel.transport.process import Process

RUN = "llama-3-0a1b2c"


@pytest.fixture
def start_agent():
    """Starts the processor of an agent that reads these attributes of the start of the run."""

    def start(**attributes):
        path = run_dir(RUN) / DATABASE_NAME
        with closing(database.connect(path)) as connection:
            processor = RunProcessor(
                *(RUN, path, connection, load_settings({}), Counters()),
                sinks={},
                read_node=NodeMeasurements,
                live_rings=list,
                clock=lambda: NOW,
            )
            processor.restore()
            processor.process(Record(RUN, WHOLE_RUN, 0, NOW, Event.START, {}, attributes))
            processor.persist()

    return start


def stored_name():
    return stored_summary(RUN, run_dir(RUN) / DATABASE_NAME)["name"]


def launch(name):
    LaunchStatus(RUN, Process.current(), "python", NOW, name=name).write()


def test_a_run_has_the_name_of_its_command(start_agent):
    launch("Llama 3")
    start_agent()

    assert stored_name() == "Llama 3"


@pytest.mark.parametrize("name", ["", RUN])
def test_a_command_without_a_name_gives_none(start_agent, name):
    launch(name)
    start_agent()

    assert stored_name() == ""


def test_the_name_in_the_script_replaces_that_of_the_command(start_agent):
    launch("Llama 3")
    start_agent(**{NAME_KEY: "grpo"})
    start_agent()

    assert stored_name() == "grpo"
