"""Run metadata comes from the run, and otherwise from its keys."""

from __future__ import annotations

from dataclasses import replace

from sentinel.aggregate.aligner import Aligner
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.signals.run_metadata import MAX_DETECTION_KEYS, RunMetadata

TRL = {"framework": "trl", "framework_version": "1.16.0", "algorithm": "grpo"}


def test_only_metadata_that_keys_depend_on_is_stored():
    run = RunMetadata()
    run.update_metadata({**TRL, "model": "qwen", "kl_estimator": "k3"})

    assert run.metadata == {**TRL, "kl_estimator": "k3"}


def test_a_generic_framework_does_not_replace_a_specific_one():
    run = RunMetadata(dict(TRL))
    run.update_metadata({"framework": "accelerate", "framework_version": "1.15.0"})

    assert run.metadata == TRL
    run.update_metadata({"framework": "verl", "framework_version": "0.9.1"})
    assert run.key_map.framework == "verl"


def test_fill_missing_only_does_not_replace_values():
    run = RunMetadata(dict(TRL))
    run.update_metadata({"framework": "verl", "kl_penalty": "kl"}, fill_missing_only=True)

    assert run.metadata == {**TRL, "kl_penalty": "kl"}


def test_keys_are_collected_until_they_identify_a_framework():
    run = RunMetadata()
    run.detect_framework(["loss"])
    run.detect_framework(["rewards/chosen"])
    assert run.metadata == {}
    run.detect_framework(["kl"])

    assert run.metadata == {"framework": "trl", "algorithm": "kto"}
    assert run.observed_keys == set()


def test_reported_metadata_takes_precedence_over_keys():
    run = RunMetadata(dict(TRL))
    run.detect_framework(["actor/pg_loss"])

    assert run.metadata == TRL


def test_the_number_of_observed_keys_is_limited():
    run = RunMetadata()
    for number in range(2 * MAX_DETECTION_KEYS):
        run.detect_framework([f"key {number}"])

    assert len(run.observed_keys) == MAX_DETECTION_KEYS


def test_the_host_of_each_rank_is_stored_at_its_start():
    run = RunMetadata()
    run.update_from_start(Record("run", 3, 0, 0.0, Event.START, attributes={"host": "node-1"}))
    run.update_from_start(Record("run", 4, 0, 0.0, Event.START))

    assert run.host_by_rank == {3: "node-1"}


def test_a_step_names_the_hosts_of_differing_ranks_of_the_current_attempt():
    def run_attempt(hosts, attempt):
        for rank, host in hosts.items():
            start = Record("run", rank, 0, 1.0, Event.START, {"local_world_size": 1.0})
            yield from aligner.process(replace(start, attributes={"host": host}, attempt=attempt))
        for rank in hosts:
            rate = {"learning_rate": 0.2 if rank == 2 else 0.1}
            record = Record("run", rank, 1, 2.0, values=rate, attempt=attempt, step_index=1)
            yield from aligner.process(record)
        yield from aligner.process(Record("run", WHOLE_RUN, 0, 50.0 + attempt, Event.HEARTBEAT))

    aligner = Aligner()
    first = [*run_attempt({0: "a", 1: "a", 2: "b"}, 0)]
    again = [*run_attempt({0: "c", 1: "c", 2: "d"}, 1)]

    for records, host in ((first, "b"), (again, "d")):
        (step,) = (r for r in records if r.rank == WHOLE_RUN and r.event is Event.STEP)
        assert {key: text for key, text in step.attributes.items() if "/" in key} == {
            "host/2": host
        }
