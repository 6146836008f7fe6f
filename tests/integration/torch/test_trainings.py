"""Several trainings in one process are judged by themselves; a fault in one is found and dated.

Each trial is a real training whose records go through the pipeline. `OVER` is far below the loss at
which each training begins, so that one that is judged by the last one has a jump.
"""

import copy
from dataclasses import dataclass, field

import pytest
import torch
from support.recorded_rings import read_rings
from support.training_loops import monitored

import sentinel
from sentinel.client.capture import grad_norm
from sentinel.client.capture.loop import OTHER_STEPS_MARGIN
from sentinel.config.settings import Settings
from sentinel.model.notification import NotificationReason
from sentinel.model.record import WHOLE_RUN, Event
from sentinel.pipeline.pipeline import build

STEPS, CLASSES, INPUTS = 100, 10, 16
JUMPS = {"loss_spike", "loss_divergence", "grad_explosion"}
OVER = 0.8


@pytest.fixture(autouse=True)
def gradient_norm_of_every_step(monkeypatch):
    """The steps at which it is measured depend on the speed of the machine otherwise."""
    monkeypatch.setattr(grad_norm, "CHEAP_STRIDE_STEPS", 1)
    monkeypatch.setattr(grad_norm, "MAX_STRIDE_STEPS", 1)


@dataclass
class Judged:
    """What the pipeline found in the records of a run."""

    trainings: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    messages: list[tuple[str, str, int]] = field(default_factory=list)


def judged():
    pipeline, found = build(Settings(sinks={})), Judged()
    for record in read_rings()[0]:
        for result in pipeline.process(record):
            if result.record.rank != WHOLE_RUN:
                continue
            if result.record.event is Event.TRAINING:
                found.trainings.append(result.record.values["training_number"])
            if result.record.event is Event.STEP:
                found.losses.append(result.record.values["loss"])
            found.messages += [
                (each.incident.key.detector, each.incident.severity.value, each.onset_step)
                for each in result.case_notifications
                if each.reason is not NotificationReason.UPDATED
            ]
    return found


class Task:
    """A model with its optimizer and samples of ten classes."""

    def __init__(self, seed=0, width=64, rate=1e-2):
        torch.manual_seed(seed)
        self.net = torch.nn.Sequential(
            torch.nn.Linear(INPUTS, width), torch.nn.ReLU(), torch.nn.Linear(width, CLASSES)
        )
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=rate)
        self.samples = torch.Generator().manual_seed(seed)
        truth = torch.randn(INPUTS, CLASSES, generator=torch.Generator().manual_seed(1))
        self.x = torch.randn(2048, INPUTS, generator=self.samples)
        noise = 0.3 * torch.randn(2048, CLASSES, generator=self.samples)
        self.y = (self.x @ truth + noise).argmax(1)

    def loss_of(self, batch):
        return torch.nn.functional.cross_entropy(self.net(self.x[batch]), self.y[batch])

    def step(self, change=lambda loss: loss, loss_of=None):
        batch = torch.randint(0, len(self.x), (64,), generator=self.samples)
        loss = (loss_of or self.loss_of)(batch)
        self.optimizer.zero_grad()
        change(loss).backward()
        self.optimizer.step()

    def train(self, steps=STEPS):
        for _ in range(steps):
            self.step()
        return self


def folds():
    with monitored:
        for fold in range(3):
            Task(fold).train()


def folds_that_restore_their_best_weights():
    with monitored:
        for fold in range(3):
            task = Task(fold)
            task.train()
            task.net.load_state_dict({k: v.clone() for k, v in task.net.state_dict().items()})


def rates():
    with monitored:
        for rate in (5e-3, 1e-2, 2e-2):
            Task(1, rate=rate).train()


def calls():
    for call in range(3):
        with monitored:
            Task(call).train()


def numbered_calls():
    for call in range(3):
        task = Task(call)
        with monitored:
            for step in range(STEPS):
                task.step()
                sentinel.log({}, step=step + 1)


def renew_optimizer(task):
    task.optimizer = torch.optim.Adam(task.net.parameters(), lr=1e-2)


def folds_that_reset_the_model():
    with monitored:
        task = Task()
        for fold in range(3):
            if fold:
                task.net.apply(lambda layer: getattr(layer, "reset_parameters", int)())
                renew_optimizer(task)
            task.train()


def folds_from_the_initial_weights():
    task = Task()
    initial = copy.deepcopy(task.net.state_dict())
    for _ in range(3):
        task.net.load_state_dict(initial)
        renew_optimizer(task)
        yield task


def folds_that_load_the_initial_weights():
    with monitored:
        for task in folds_from_the_initial_weights():
            task.train()


def numbered_folds_that_load_the_initial_weights():
    with monitored:
        for task in folds_from_the_initial_weights():
            for step in range(STEPS):
                task.step()
                sentinel.log({}, step=step + 1)


def preference_loss(task):
    """That of DPO against the model as it is now, ln 2 at first."""
    reference = copy.deepcopy(task.net)

    def loss_of(batch):
        chosen = task.y[batch, None]
        rejected = (chosen + 1) % CLASSES
        scores = task.net(task.x[batch]) - reference(task.x[batch]).detach()
        gain = scores.gather(1, chosen) - scores.gather(1, rejected)
        return -torch.nn.functional.logsigmoid(0.1 * gain).mean()

    return loss_of


def sft_and_dpo():
    with monitored:
        task = Task().train(2 * STEPS)
        task.optimizer = torch.optim.Adam(task.net.parameters(), lr=1e-2)
        loss_of = preference_loss(task)
        for _ in range(STEPS):
            task.step(loss_of=loss_of)


@pytest.mark.parametrize(
    ("trial", "count"),
    [
        (folds, 3),
        (folds_that_restore_their_best_weights, 3),
        (rates, 3),
        (calls, 3),
        (numbered_calls, 3),
        (folds_that_reset_the_model, 3),
        (folds_that_load_the_initial_weights, 3),
        (numbered_folds_that_load_the_initial_weights, 3),
    ],
)
def test_each_training_is_judged_by_itself(trial, count):
    trial()
    found = judged()

    assert found.trainings == [float(number) for number in range(2, count + 1)]
    assert found.losses[STEPS - 1] < OVER < 2.0 < found.losses[STEPS]
    assert found.messages == []


def pre_training_and_fine_tuning():
    """The body is trained on, below a new head for other classes."""
    with monitored:
        task = Task().train(2 * STEPS)
        task.net[2] = torch.nn.Linear(64, CLASSES)
        task.y = (task.x @ torch.randn(INPUTS, CLASSES)).argmax(1)
        task.optimizer = torch.optim.Adam(task.net.parameters(), lr=1e-2)
        task.train()


@pytest.mark.parametrize("trial", [sft_and_dpo, pre_training_and_fine_tuning])
def test_another_task_for_the_same_model_is_another_training(trial):
    """The loss of DPO begins at ln 2, which is above that at which the SFT ended."""
    trial()
    found = judged()

    assert found.trainings == [2.0]
    assert found.losses[2 * STEPS - 1] < 0.5 < found.losses[2 * STEPS]
    assert found.messages == []


@pytest.mark.parametrize("width", [32, 96])
def test_a_training_beside_the_model_of_the_last_one_is_noticed_within_some_steps(width):
    """The optimizer of the first training still exists and might take its next step."""
    with monitored:
        tasks = [Task(0)]
        tasks[0].train()
        tasks.append(Task(1, width).train())
    found = judged()

    assert found.trainings == [2.0]
    assert len(found.losses) == 2 * STEPS - OTHER_STEPS_MARGIN
    assert found.messages == []


def gan():
    with monitored:
        one, other = Task(0), Task(1, width=96)
        for _ in range(STEPS):
            one.step()
            other.step()


def larger_optimizer_that_joins_late():
    with monitored:
        one, other = Task(0), Task(1, width=96)
        for step in range(STEPS):
            one.step()
            if step > STEPS // 2:
                other.step()


def optimizer_over_more_of_the_model():
    with monitored:
        task = Task()
        task.optimizer = torch.optim.Adam(task.net[2].parameters(), lr=1e-2)
        task.train()
        task.optimizer = torch.optim.Adam(task.net.parameters(), lr=1e-2)
        task.train()
        task.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]})
        task.train(40)


def inner_loops():
    """Each inner loop trains a copy with an optimizer of its own; then the model takes a step."""
    with monitored:
        outer = Task()
        for seed in range(40):
            inner = Task(seed)
            inner.net.load_state_dict(outer.net.state_dict())
            inner.train(3)
            outer.step()


def ensemble():
    """More optimizers in turn than the steps after which one counts as left."""
    with monitored:
        members = [Task(seed, width=8) for seed in range(OTHER_STEPS_MARGIN + 4)]
        for _ in range(12):
            for member in members:
                member.step()


def rollback_to_new_objects():
    with monitored:
        task = Task().train()
        resumed = Task()
        resumed.net.load_state_dict(task.net.state_dict())
        resumed.optimizer.load_state_dict(task.optimizer.state_dict())
        resumed.train()


def resume_in_another_call():
    with monitored:
        task = Task().train()
    resumed = Task()
    with monitored:
        resumed.net.load_state_dict(task.net.state_dict())
        resumed.optimizer.load_state_dict(task.optimizer.state_dict())
        resumed.train()


def declared_resume():
    with monitored:
        task = Task().train()
    with monitored:
        sentinel.mark("resume")
        task.train()


def epochs():
    with monitored:
        task = Task()
        for _ in range(4):
            task.optimizer = torch.optim.Adam(task.net.parameters(), lr=1e-2)
            task.train(50)


def resume_of_the_same_model():
    """Its weights and the state of its new optimizer are loaded, and the steps go back."""
    with monitored:
        task = Task()
        for step in range(STEPS):
            if step == STEPS // 2:
                saved = copy.deepcopy((task.net.state_dict(), task.optimizer.state_dict()))
            task.step()
            sentinel.log({}, step=step + 1)
        task.net.load_state_dict(saved[0])
        renew_optimizer(task)
        task.optimizer.load_state_dict(saved[1])
        for step in range(STEPS // 2, 2 * STEPS):
            task.step()
            sentinel.log({}, step=step + 1)


def declared_resume_without_the_state_of_the_optimizer():
    with monitored:
        task = Task().train()
        task.net.load_state_dict(copy.deepcopy(task.net.state_dict()))
        renew_optimizer(task)
        sentinel.mark("resume")
        task.train()


def weights_clipped_after_each_step():
    """What is written into the weights in between shows nothing about a new optimizer then."""
    with monitored:
        task = Task()
        for step in range(3 * STEPS):
            if step == 2 * STEPS:
                renew_optimizer(task)
            task.step()
            with torch.no_grad():
                for parameter in task.net.parameters():
                    parameter.clamp_(-2, 2)


def rollbacks_of_the_weights():
    with monitored:
        task = Task()
        for _ in range(3):
            task.train(50)
            task.net.load_state_dict(copy.deepcopy(task.net.state_dict()))


def inner_loops_over_one_model():
    """As in Reptile: each begins at weights that are set, with an optimizer of its own."""
    with monitored:
        task = Task()
        for _ in range(20):
            begin = copy.deepcopy(task.net.state_dict())
            renew_optimizer(task)
            task.train(6)
            end = task.net.state_dict()
            task.net.load_state_dict({k: (begin[k] + end[k]) / 2 for k in begin})


def turns_over_weights_that_are_set():
    """Two optimizers without a state, whose weights are set when one follows the other."""
    with monitored:
        task = Task()
        optimizers = [torch.optim.SGD(task.net.parameters(), lr=0.1) for _ in range(2)]
        task.optimizer = optimizers[1]
        task.train(4)
        for turn in range(6):
            task.optimizer = optimizers[turn % 2]
            task.train(40)
            task.net.load_state_dict(copy.deepcopy(task.net.state_dict()))


def turns_of_two_losses():
    """Each has an optimizer of its own over the same model."""
    with monitored:
        task = Task()
        optimizers = task.optimizer, torch.optim.Adam(task.net.parameters(), lr=1e-3)
        losses = None, preference_loss(task)
        for step in range(3 * STEPS):
            task.optimizer = optimizers[step % 2]
            task.step(loss_of=losses[step % 2])


class EmptyBetweenSteps(torch.optim.Optimizer):
    """Its groups are empty after a step, as those of DeepSpeed's ZeRO-3."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})
        self.held = self.param_groups[0]["params"]
        self.param_groups[0]["params"] = []

    @torch.no_grad()
    def step(self, closure=None):
        for each in self.held:
            each.sub_(self.param_groups[0]["lr"] * each.grad)
            each.grad = None


def optimizers_without_parameters():
    with monitored:
        task = Task()
        for _ in range(3):
            task.optimizer = EmptyBetweenSteps(task.net.parameters(), lr=0.1)
            task.train()


@pytest.mark.parametrize(
    "trial",
    [
        gan,
        epochs,
        resume_of_the_same_model,
        declared_resume_without_the_state_of_the_optimizer,
        weights_clipped_after_each_step,
        rollbacks_of_the_weights,
        inner_loops_over_one_model,
        turns_over_weights_that_are_set,
        turns_of_two_losses,
        optimizers_without_parameters,
        larger_optimizer_that_joins_late,
        optimizer_over_more_of_the_model,
        inner_loops,
        ensemble,
        rollback_to_new_objects,
        resume_in_another_call,
        declared_resume,
    ],
)
def test_it_stays_one_training(trial):
    trial()
    found = judged()

    assert found.trainings == []
    assert found.messages == []


def turns_of_policy_and_value():
    with monitored:
        policy, value = Task(0), Task(1)
        for _ in range(5):
            policy.train(60)
            value.train(60)


def long_inner_loops():
    with monitored:
        outer = Task()
        for seed in range(6):
            inner = Task(seed)
            inner.net.load_state_dict(outer.net.state_dict())
            inner.train(3 * OTHER_STEPS_MARGIN)
            outer.train(2)


@pytest.mark.parametrize(
    ("trial", "trainings"), [(turns_of_policy_and_value, [2.0]), (long_inner_loops, [])]
)
def test_optimizers_that_take_long_turns_are_one_training_once_one_returns(trial, trainings):
    trial()

    assert judged().trainings == trainings


def test_trainings_after_optimizers_that_took_turns_are_judged_by_themselves():
    """The objects of all trainings stay in use."""
    policy, value, later = Task(0), Task(1), []
    with monitored:
        for _ in range(3):
            policy.train(60)
            value.train(60)
        for seed in range(2, 5):
            later.append(Task(seed))
            later[-1].train(2 * STEPS)
    found = judged()

    assert found.trainings == [2.0, 3.0, 4.0, 5.0]
    assert found.messages == []


def test_probes_of_a_model_in_training_are_no_steps_of_it_once_it_goes_on():
    """The first one may be another training, until the optimizer of the model returns."""
    with monitored:
        task = Task()
        for probe in range(6):
            task.train(60)
            Task(10 + probe, width=8).train(40)
    found = judged()

    assert found.trainings == [2.0]
    assert len(found.losses) == 6 * 60 + 40 - OTHER_STEPS_MARGIN
    assert found.messages == []


@pytest.mark.parametrize(
    ("change", "detectors", "onset"),
    [
        (lambda step, loss: loss * float("nan") if step >= 50 else loss, {"nan_or_inf"}, 251),
        (lambda step, loss: loss * 40 if 80 <= step < 84 else loss, JUMPS, 281),
        (lambda step, loss: loss * (step - 60) if step > 64 else loss, JUMPS, 266),
    ],
)
def test_a_fault_of_the_third_fold_is_found_and_dated_in_it(change, detectors, onset):
    with monitored:
        for fold in range(3):
            task = Task(fold)
            for step in range(STEPS):
                task.step((lambda loss, at=step: change(at, loss)) if fold == 2 else lambda x: x)
    found = judged()

    assert found.trainings == [2.0, 3.0]
    assert found.messages
    assert found.messages[0][0] in detectors
    assert all(onset <= each[2] <= onset + 4 for each in found.messages)


def test_a_resume_without_the_state_of_the_optimizer_is_still_found():
    with monitored:
        task = Task()
        for step in range(STEPS):
            task.step()
            sentinel.log({}, step=step + 1)
    task.optimizer = torch.optim.Adam(task.net.parameters(), lr=0.3)
    with monitored:
        for step in range(STEPS, 2 * STEPS):
            task.step()
            sentinel.log({}, step=step + 1)
    found = judged()

    assert found.trainings == []
    assert found.messages[0][2] == STEPS + 1
