"""What a loss function changes in a trainer is undone: attributes, containers, small tensors."""

from collections import defaultdict, deque
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from sentinel.insight.callbacks.plain_state import copy_of_inputs, plain_state_preserved
from sentinel.insight.callbacks.time_budget import TimeBudget


class Trainer:
    def __init__(self):
        self.count = 1
        self.metrics = {"train": defaultdict(list, loss=[1.0])}
        self.texts = deque(["a"], maxlen=2)
        self.seen = {1}
        self.moments = torch.zeros(3)
        self.same = self.metrics["train"]


def change(trainer):
    trainer.count += 1
    trainer.added = True
    trainer.metrics["train"]["loss"].append(2.0)
    trainer.metrics["train"]["kl"].append(0.1)
    trainer.texts.append("b")
    trainer.texts.append("c")
    trainer.seen.add(2)
    trainer.moments += 1
    del trainer.same


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_everything_is_as_it_was(error):
    trainer = Trainer()
    before = dict(vars(trainer))

    raised = nullcontext() if error is None else pytest.raises(error)
    with raised, plain_state_preserved([trainer]):
        change(trainer)
        if error is not None:
            raise error

    assert {name: id(each) for name, each in vars(trainer).items()} == {
        name: id(each) for name, each in before.items()
    }
    assert trainer.metrics == {"train": {"loss": [1.0]}}
    assert [*trainer.texts] == ["a"]
    assert trainer.seen == {1}
    assert trainer.moments.tolist() == [0.0, 0.0, 0.0]


def test_an_object_that_refers_to_itself_ends():
    trainer = Trainer()
    trainer.metrics["own"] = trainer.metrics

    with plain_state_preserved([trainer]):
        trainer.metrics["train"]["loss"].clear()

    assert trainer.metrics["train"]["loss"] == [1.0]


def test_inputs_are_copied_with_their_types():
    whole = torch.arange(10.0)
    inputs = {"ids": whole[:2], "rows": [whole, "text"], "pair": (1, whole)}

    found = copy_of_inputs(inputs)
    whole.zero_()

    assert found["ids"].tolist() == [0.0, 1.0]
    assert found["ids"].untyped_storage().nbytes() == 8
    assert found["rows"][0].sum() == 45
    assert type(found["pair"]) is tuple


def test_a_budget_is_a_share_of_the_whole_time():
    now = [0.0]
    budget = TimeBudget(0.05, clock=lambda: now[0])
    budget.start()
    now[0] = 95.0
    available = budget.available_seconds()
    assert available == pytest.approx(5.0)
    with budget.spend():
        now[0] += available
    assert budget.available_seconds() == pytest.approx(0.0)
    assert budget.spent_seconds / now[0] == pytest.approx(0.05)
    assert TimeBudget(None).available_seconds() is None
    assert TimeBudget(1).available_seconds() is None


def test_a_large_dict_is_restored_without_a_look_into_its_items():
    owner = SimpleNamespace(counts=dict.fromkeys(range(10001), 0))

    with plain_state_preserved([owner]):
        owner.counts[0] = 1
        owner.counts["new"] = 2

    assert owner.counts == dict.fromkeys(range(10001), 0)
