"""About: a run is known by what it says, then by what its keys give away."""

from __future__ import annotations

from dataclasses import replace

from sentinel.aggregate.aligner import Aligner
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.signals.run_metadata import MAX_DETECTION_KEYS, RunMetadata

TRL = {"framework": "trl", "framework_version": "1.16.0", "algorithm": "grpo"}


def test_only_what_decides_what_keys_mean_is_kept():
    about = RunMetadata()
    about.update_metadata({**TRL, "model": "qwen", "kl_estimator": "k3"})

    assert about.metadata == {**TRL, "kl_estimator": "k3"}


def test_a_framework_that_others_are_built_on_does_not_unsay_them():
    about = RunMetadata(dict(TRL))
    about.update_metadata({"framework": "accelerate", "framework_version": "1.15.0"})

    assert about.metadata == TRL
    about.update_metadata({"framework": "verl", "framework_version": "0.9.1"})
    assert about.key_map.framework == "verl"


def test_late_facts_only_fill_what_is_missing():
    about = RunMetadata(dict(TRL))
    about.update_metadata({"framework": "verl", "kl_penalty": "kl"}, fill_missing_only=True)

    assert about.metadata == {**TRL, "kl_penalty": "kl"}


def test_keys_are_put_together_until_they_tell():
    about = RunMetadata()
    about.detect_framework(["loss"])
    about.detect_framework(["rewards/chosen"])
    assert about.metadata == {}
    about.detect_framework(["kl"])

    assert about.metadata == {"framework": "trl", "algorithm": "kto"}
    assert about.observed_keys == set()


def test_what_is_said_counts_for_more_than_keys():
    about = RunMetadata(dict(TRL))
    about.detect_framework(["actor/pg_loss"])

    assert about.metadata == TRL


def test_a_trainer_that_invents_keys_is_not_listened_to_for_ever():
    about = RunMetadata()
    for number in range(2 * MAX_DETECTION_KEYS):
        about.detect_framework([f"key {number}"])

    assert len(about.observed_keys) == MAX_DETECTION_KEYS


def test_where_each_rank_is_is_remembered_of_what_it_says_when_it_starts():
    about = RunMetadata()
    about.update_from_start(Record("run", 3, 0, 0.0, Event.START, attributes={"host": "node-1"}))
    about.update_from_start(Record("run", 4, 0, 0.0, Event.START))

    assert about.host_by_rank == {3: "node-1"}


def test_a_step_tells_where_the_ranks_are_that_differ_and_another_attempt_has_other_places():
    def moved(hosts, attempt):
        for rank, host in hosts.items():
            start = Record("run", rank, 0, 1.0, Event.START, {"local_world_size": 1.0})
            yield from aligner.process(replace(start, attributes={"host": host}, attempt=attempt))
        for rank in hosts:
            rate = {"learning_rate": 0.2 if rank == 2 else 0.1}
            said = Record("run", rank, 1, 2.0, values=rate, attempt=attempt, step_index=1)
            yield from aligner.process(said)
        yield from aligner.process(Record("run", WHOLE_RUN, 0, 50.0 + attempt, Event.HEARTBEAT))

    aligner = Aligner()
    first = [*moved({0: "a", 1: "a", 2: "b"}, 0)]
    again = [*moved({0: "c", 1: "c", 2: "d"}, 1)]

    for records, host in ((first, "b"), (again, "d")):
        (step,) = (r for r in records if r.rank == WHOLE_RUN and r.event is Event.STEP)
        assert {key: text for key, text in step.attributes.items() if "/" in key} == {
            "host/2": host
        }
