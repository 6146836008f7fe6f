"""About: a run is known by what it says, then by what its keys give away."""

from __future__ import annotations

from dataclasses import replace

from sentinel.aggregate.aligner import Aligner
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.signals.run_metadata import MOST_KEYS, About

TRL = {"framework": "trl", "framework_version": "1.16.0", "algorithm": "grpo"}


def test_only_what_decides_what_keys_mean_is_kept():
    about = About()
    about.learn({**TRL, "model": "qwen", "kl_estimator": "k3"})

    assert about.facts == {**TRL, "kl_estimator": "k3"}


def test_a_framework_that_others_are_built_on_does_not_unsay_them():
    about = About(dict(TRL))
    about.learn({"framework": "accelerate", "framework_version": "1.15.0"})

    assert about.facts == TRL
    about.learn({"framework": "verl", "framework_version": "0.9.1"})
    assert about.dialect.framework == "verl"


def test_late_facts_only_fill_what_is_missing():
    about = About(dict(TRL))
    about.learn({"framework": "verl", "kl_penalty": "kl"}, late=True)

    assert about.facts == {**TRL, "kl_penalty": "kl"}


def test_keys_are_put_together_until_they_tell():
    about = About()
    about.hear(["loss"])
    about.hear(["rewards/chosen"])
    assert about.facts == {}
    about.hear(["kl"])

    assert about.facts == {"framework": "trl", "algorithm": "kto"}
    assert about.keys == set()


def test_what_is_said_counts_for_more_than_keys():
    about = About(dict(TRL))
    about.hear(["actor/pg_loss"])

    assert about.facts == TRL


def test_a_trainer_that_invents_keys_is_not_listened_to_for_ever():
    about = About()
    for number in range(2 * MOST_KEYS):
        about.hear([f"key {number}"])

    assert len(about.keys) == MOST_KEYS


def test_where_each_rank_is_is_remembered_of_what_it_says_when_it_starts():
    about = About()
    about.meet(Record("run", 3, 0, 0.0, Event.START, facts={"host": "node-1"}))
    about.meet(Record("run", 4, 0, 0.0, Event.START))

    assert about.hosts == {3: "node-1"}


def test_a_step_tells_where_the_ranks_are_that_differ_and_another_attempt_has_other_places():
    def moved(hosts, attempt):
        for rank, host in hosts.items():
            start = Record("run", rank, 0, 1.0, Event.START, {"local_world_size": 1.0})
            yield from aligner.feed(replace(start, facts={"host": host}, attempt=attempt))
        for rank in hosts:
            rate = {"learning_rate": 0.2 if rank == 2 else 0.1}
            said = Record("run", rank, 1, 2.0, values=rate, attempt=attempt, beat=1)
            yield from aligner.feed(said)
        yield from aligner.feed(Record("run", WHOLE_RUN, 0, 50.0 + attempt, Event.TICK))

    aligner = Aligner()
    first = [*moved({0: "a", 1: "a", 2: "b"}, 0)]
    again = [*moved({0: "c", 1: "c", 2: "d"}, 1)]

    for records, host in ((first, "b"), (again, "d")):
        (step,) = (r for r in records if r.rank == WHOLE_RUN and r.event is Event.STEP)
        assert {key: text for key, text in step.facts.items() if "/" in key} == {"host/2": host}
