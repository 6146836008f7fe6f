"""Another training of a run, and another stage of it, start levels anew; what is broken stays."""

from dataclasses import replace
from math import exp, log, nan
from random import Random

import pytest

from sentinel.config.settings import Settings
from sentinel.model.incident import Resolution
from sentinel.model.notification import NotificationReason
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline.pipeline import build
from sentinel.testing import event, steps


def falling(start, end, count, seed=0, noise=0.02):
    rng = Random(seed)
    return [
        (end + (start - end) * exp(-at / 20)) * exp(rng.gauss(0.0, noise)) for at in range(count)
    ]


def training(losses, first=1, attempt=0, **more):
    series = {"loss": losses, **more}
    return [replace(each, attempt=attempt) for each in steps(first=first, **series)]


def begin(kind, step, attempt=0, **values):
    return replace(event(kind, step, **values), attempt=attempt)


COUNT = 200
NEW = begin(Event.TRAINING, COUNT, training_number=2.0)
STAGE = begin(Event.STAGE, COUNT, stage_number=1.0)
HIGH = [4.0 + at / 100 for at in range(10)]
SFT, DPO = falling(7.0, 0.3, COUNT), falling(log(2.0), 0.55, COUNT, seed=1)
"""A loss of DPO begins at ln 2, far above the last one of a supervised training before it."""


class Judge:
    """A pipeline, its messages, and the resolutions of the incidents that ended."""

    def __init__(self):
        self.pipeline = build(Settings(sinks={}))
        self.messages, self.ends = [], {}

    def process(self, *records):
        for record in records:
            for result in self.pipeline.process(record):
                for each in result.notifications:
                    if each.reason is NotificationReason.RESOLVED:
                        self.ends[each.incident.key.detector] = each.incident.resolution
                self.messages += [
                    each
                    for each in result.case_notifications
                    if each.reason is not NotificationReason.UPDATED
                ]
        return self

    @property
    def found(self):
        return [(each.incident.key.detector, each.reason.value) for each in self.messages]


def test_a_loss_that_begins_higher_than_the_last_one_ended_is_compared_with_itself():
    alone = Judge().process(*training(SFT), *training(DPO, first=COUNT + 1))
    judged = Judge().process(*training(SFT), NEW, *training(DPO, first=COUNT + 1))

    assert ("loss_spike", "opened") in alone.found
    assert judged.found == []


def test_attempts_of_one_process_are_trainings_of_their_own():
    """A notebook cell that runs again, or a decorated function that is called again."""
    calls = [
        [begin(Event.START, 0, call), *training(SFT, attempt=call),
         begin(Event.STOP, COUNT, call)]
        for call in range(3)
    ]  # fmt: skip

    assert Judge().process(*(record for call in calls for record in call)).found == []


def test_a_fault_of_the_second_training_is_found_and_dated_in_it():
    losses = [*falling(7.0, 0.3, COUNT, seed=2), *HIGH]
    judge = Judge().process(*training(SFT), NEW, *training(losses, first=COUNT + 1))

    assert judge.found[0] == ("loss_spike", "opened")
    assert judge.messages[0].onset_step == 2 * COUNT + 1


def test_open_incidents_of_a_training_end_with_it():
    risen = [*SFT, *HIGH[:5]]
    judge = Judge().process(*training(risen), NEW, *training(DPO, first=len(risen) + 1))

    assert set(judge.ends.values()) == {Resolution.TRAINING_FINISHED}
    assert judge.found[-1] == ("loss_spike", "resolved")


@pytest.mark.parametrize("last", [(), (event(Event.EVAL, COUNT + 5, eval_accuracy=0.1),)])
def test_a_training_that_ends_with_lost_weights_is_reported_as_ended_while_firing(last):
    lost = [*SFT, *[nan] * 5]
    judge = Judge().process(*training(lost), *last, NEW, *training(DPO, first=COUNT + 6))

    *_, ended, closed = judge.messages
    assert ended.reason is NotificationReason.ENDED
    assert ended.incident.resolution is Resolution.TRAINING_FINISHED
    # It only closes alerts: the weights that were saved are still lost.
    assert closed.is_silent
    assert closed.incident.lasted_until is Resolution.TRAINING_FINISHED


def test_the_same_fault_is_found_again_in_another_training():
    lost = [*SFT, *[nan] * 5]
    judge = Judge().process(*training(lost), NEW, *training(lost, first=COUNT + 6))

    assert judge.found.count(("nan_or_inf", "opened")) == 2


def test_checkpoints_of_another_training_are_none_to_go_back_to():
    losses = [*falling(7.0, 0.3, COUNT, seed=2), *HIGH]
    judge = Judge().process(
        *training(SFT), begin(Event.SAVE, COUNT), NEW, *training(losses, first=COUNT + 1)
    )

    assert judge.messages[0].last_good_step is None


def test_a_declared_stage_starts_levels_anew_and_keeps_checkpoints():
    learned = falling(3.0, 0.3, COUNT, seed=3)
    unmarked = Judge().process(*training(SFT), *training(learned, first=COUNT + 1))
    marked = Judge().process(
        *training(SFT), begin(Event.SAVE, COUNT), STAGE, *training(learned, first=COUNT + 1)
    )
    assert unmarked.found
    assert 'sentinel.mark("stage")' in unmarked.messages[0].incident.remedy
    assert {each.incident.severity.value for each in unmarked.messages} == {"warning"}
    assert marked.found == []

    marked.process(*training(HIGH, first=2 * COUNT + 1))
    assert marked.messages[0].last_good_step == COUNT


def test_a_stage_ends_what_is_of_levels_and_nothing_that_is_broken():
    high = [*SFT, *HIGH]
    values = {"kl_ref": [-0.5] * len(high)}
    judge = Judge().process(*training(high, **values))
    opened = {key.detector for key in judge.pipeline.engine.incident_book.open_incidents}
    judge.process(STAGE)

    assert {"loss_spike", "kl_negative"} <= opened
    assert judge.ends["loss_spike"] is Resolution.STAGE_FINISHED
    assert "kl_negative" not in judge.ends


def test_a_nan_is_not_over_at_a_stage():
    judge = Judge().process(
        *training([*SFT, *[nan] * 5]), STAGE, *training([nan] * 5, first=COUNT + 6)
    )

    assert judge.ends == {}
    assert judge.found.count(("nan_or_inf", "opened")) == 1


def heartbeat(step, time, attempt=0, **values):
    return Record("run", WHOLE_RUN, step, time, Event.HEARTBEAT, values, attempt=attempt)


@pytest.mark.parametrize("kind", [Event.STAGE, Event.TRAINING])
def test_what_belongs_to_the_machine_goes_on(kind):
    full = {"disk_free": 1e6}
    judge = Judge().process(
        *training(SFT),
        heartbeat(COUNT, 300.0, **full),
        begin(kind, COUNT),
        heartbeat(COUNT, 301.0, **full),
    )

    assert judge.found == [("disk_filling", "opened")]


def test_a_failed_attempt_is_closed_by_the_training_that_follows():
    """A cell of a notebook raises, and the next one begins from the start."""
    failure = {"ranks_failed": 1.0, "ranks_running": 0.0, "ranks_gone": 1.0}
    failed = replace(
        heartbeat(COUNT, 300.0, **failure),
        attributes={
            "cause": "exception", "exception": "ValueError", "failed_ranks": "0", "final": "yes",
        },
    )  # fmt: skip
    judge = Judge().process(
        begin(Event.START, 0), *training(SFT), failed, begin(Event.START, 0, 1),
        *training(SFT, attempt=1),
    )  # fmt: skip

    assert judge.found == [("run_failed", "opened"), ("run_failed", "resolved")]
    assert judge.ends == {"run_failed": Resolution.RESTARTED}


def test_new_detectors_know_the_metadata_of_the_run():
    """The settings of a framework are reported before the first step of its training."""
    judge = Judge().process(
        begin(Event.START, 0, gradient_accumulation_steps=8.0, world_size=1.0), *training(SFT), NEW
    )
    detector = judge.pipeline.engine.detector("run", "metric_integrity")

    assert detector._accumulation_steps == 8.0


def test_an_agent_that_is_killed_continues_in_the_same_training():
    judge = Judge().process(
        begin(Event.START, 0), *training(SFT), NEW, *training(DPO, first=COUNT + 1)
    )
    restored = Judge()

    assert restored.pipeline.restore(judge.pipeline.serialize())
    restored.process(begin(Event.START, 0, 1), *training(SFT, attempt=1))
    assert restored.pipeline.trainings.number == 3
    assert restored.found == []


def test_what_another_training_lacks_is_not_taken_over_from_the_last_one():
    adapters = Record(
        "run", WHOLE_RUN, 0, 0.0, Event.METADATA,
        {"learning_rate": 1e-4}, {"framework": "trl", "peft_type": "LORA"},
    )  # fmt: skip
    start = begin(Event.START, 0)
    judge = Judge().process(start, adapters, *training(SFT), NEW)
    metadata = judge.pipeline.engine.case_book.run_metadata(start.run)

    assert "peft_type" not in metadata
    assert metadata["framework"] == "trl"

    again = Judge().process(start, adapters, *training(SFT), begin(Event.START, COUNT, 1), adapters)
    again.process(*training(SFT, attempt=1))
    assert again.pipeline.engine.case_book.run_metadata(start.run)["peft_type"] == "LORA"
