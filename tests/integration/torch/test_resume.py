"""Going back to a checkpoint within one process is a resume, however the state is loaded."""

import copy

import pytest
import torch
from support.recorded_rings import read_rings
from support.training_loops import batch, column, loss_of, model, monitored
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import sentinel
from sentinel.client.capture.state_loads import MAX_LOADS
from sentinel.config.settings import Settings
from sentinel.model.record import STATE_LOADED_KEY, Event
from sentinel.pipeline.pipeline import build


class Rollback:
    """A training loop that goes back from step 12 to step 6, with the state of step 6."""

    def __init__(self):
        self.net = model()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)
        self.saved = {}

    def train(self, begin, end):
        for step in range(begin, end + 1):
            self.optimizer.zero_grad()
            loss = loss_of(self.net, batch(step))
            loss.backward()
            self.optimizer.step()
            sentinel.log({"train_loss": loss.item()}, step=step)
            if step == 6:
                parts = {"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}
                self.saved = copy.deepcopy(parts)

    def run(self, go_back):
        with monitored:
            self.train(1, 12)
            go_back(self)
            self.train(7, 16)


def load_model(loop):
    loop.net.load_state_dict(loop.saved["net"])


def load_optimizer(loop):
    loop.optimizer.load_state_dict(loop.saved["optimizer"])


def copy_and_declare(loop):
    with torch.no_grad():
        for name, parameter in loop.net.named_parameters():
            parameter.copy_(loop.saved["net"][name])
    sentinel.mark("resume")


def load_another_model(loop):
    model(1).load_state_dict(loop.saved["net"])


def regressions(records):
    pipeline = build(Settings(sinks={}))
    results = (result for record in records for result in pipeline.process(record))
    return [result for result in results if "step_regression" in result.findings]


@pytest.mark.parametrize("go_back", [load_model, load_optimizer, copy_and_declare])
def test_a_loaded_or_declared_state_is_a_resume(go_back):
    Rollback().run(go_back)
    records = read_rings()[0]

    loads = [r for r in records if r.event is Event.METADATA and STATE_LOADED_KEY in r.values]
    assert [record.values[STATE_LOADED_KEY] for record in loads] == [12.0]
    assert regressions(records) == []


def test_a_step_that_goes_back_with_another_models_state_is_reported():
    Rollback().run(load_another_model)

    assert regressions(read_rings()[0])


def test_loads_before_the_first_step_and_at_every_step_record_little():
    loop = Rollback()
    with monitored:
        loop.net.load_state_dict(loop.net.state_dict())
        for step in range(1, MAX_LOADS + 4):
            loop.train(step, step)
            loop.net.load_state_dict(loop.net.state_dict())
    loads = [record for record in read_rings()[0] if STATE_LOADED_KEY in record.values]

    assert [record.step for record in loads] == list(range(1, MAX_LOADS + 1))


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.SGD])
def test_the_step_that_creates_the_state_of_an_optimizer_for_a_checkpoint_is_not_counted(
    recorded, make
):
    """It has the rate 0. An optimizer without a state gets one at each checkpoint."""
    loop = Rollback()
    loop.optimizer = make(loop.net.parameters(), lr=0.01)
    with monitored:
        saved = copy.deepcopy(get_state_dict(loop.net, loop.optimizer))
        set_state_dict(
            loop.net, loop.optimizer, model_state_dict=saved[0], optim_state_dict=saved[1]
        )
        for step in range(1, 4):
            loop.train(step, step)
            loop.optimizer.zero_grad()
            get_state_dict(loop.net, loop.optimizer)

    assert column(recorded, "learning_rate") == [0.01] * 3


def test_a_step_at_rate_0_without_a_backward_pass_is_counted(recorded):
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    with monitored:
        for _ in range(3):
            weight.grad = torch.zeros(2)
            optimizer.step()

    assert column(recorded, "learning_rate") == [0.0] * 3
