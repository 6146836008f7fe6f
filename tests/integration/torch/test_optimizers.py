"""Each training step is counted once, however optimizers are used."""

import pytest
import torch
from support.training_loops import batch, column, loss_of, model, monitored, norm, steps
from torch.nn.utils import clip_grad_norm_

import sentinel


def test_the_largest_of_two_optimizers_completes_the_step(recorded):
    """Actor and critic alternate; only the actor's steps are counted, with the actor's loss."""
    actor, critic = model(), torch.nn.Linear(4, 1)
    actor_optimizer = torch.optim.SGD(actor.parameters(), lr=0.01)
    critic_optimizer = torch.optim.SGD(critic.parameters(), lr=0.5)
    losses, norms = [], []
    with monitored:
        for step in range(4):
            critic.zero_grad()
            loss_of(critic, batch(step)).backward()
            clip_grad_norm_(critic.parameters(), 0.1)
            critic_optimizer.step()
            actor.zero_grad()
            loss = loss_of(actor, batch(step))
            loss.backward()
            losses.append(loss.item())
            norms.append(norm(actor.parameters()))
            clip_grad_norm_(actor.parameters(), 0.1)
            actor_optimizer.step()
            sentinel.log({"kl": float(step)}, step=step)

    records = steps(recorded)
    assert [record.values["optimizer_steps"] for record in records if "kl" in record.values] == [
        1,
        2,
        3,
        4,
    ]
    assert column(recorded, "loss")[1:] == losses[1:]
    assert column(recorded, "grad_norm")[1:] == pytest.approx(norms[1:], rel=1e-5)
    assert set(column(recorded, "learning_rate")[1:]) == {0.01}


def test_a_new_optimizer_for_the_same_model_continues_the_count(recorded):
    net = model()
    optimizers = []
    with monitored:
        for _ in range(3):
            optimizers.append(torch.optim.SGD(net.parameters(), lr=0.01))
            loss_of(net, batch(0)).backward()
            optimizers[-1].step()

    assert column(recorded, "optimizer_steps") == [1, 2, 3]


def step_alone(net, optimizer, step):
    optimizer.zero_grad()
    loss_of(net, batch(step)).backward()
    optimizer.step()


def alternate(critics=1, every=1):
    """Actor and critic, each after a backward pass of its own; `critics` steps of the critic."""
    actor, critic = model(), torch.nn.Linear(4, 1)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in (actor, critic)]

    def iterate(step):
        if step % every == 0:
            for _ in range(critics):
                step_alone(critic, optimizers[1], step)
        step_alone(actor, optimizers[0], step)

    return iterate


def step_parts(order):
    """Two optimizers for parts of one model step after one backward pass, or after two."""
    net = model()
    parts = [
        [p for p in net.parameters() if (p.ndim > 1) is is_matrix] for is_matrix in (True, False)
    ]
    optimizers = [torch.optim.SGD(part, lr=0.01) for part in parts]

    def iterate(step):
        for _ in range(2):
            loss_of(net, batch(step)).backward()
        for index in order:
            optimizers[index].step()
            optimizers[index].zero_grad()

    return iterate


@pytest.mark.parametrize(
    ("iterate", "is_alternating"),
    [
        pytest.param(alternate(), True, id="in turn"),
        pytest.param(alternate(critics=5), True, id="five steps of the smaller"),
        pytest.param(alternate(every=5), True, id="five steps of the larger"),
        pytest.param(alternate(every=50), False, id="another one now and then"),
        pytest.param(step_parts([0, 1]), False, id="parts of a model"),
        pytest.param(step_parts([1, 0]), False, id="parts of a model, the smaller first"),
    ],
)
def test_optimizers_that_step_in_turn_are_recorded(recorded, iterate, is_alternating):
    with monitored:
        for step in range(60):
            iterate(step)

    marks = column(recorded, "alternating_optimizers")
    assert marks == [1.0] * len(marks)
    assert bool(marks) is is_alternating


def test_an_unused_optimizer_is_replaced_by_the_next(recorded):
    """Another model of the same size is trained next, while the first still exists."""
    models = []
    with monitored:
        for _ in range(2):
            net = model()
            models.append((net, torch.optim.SGD(net.parameters(), lr=0.01)))
            for step in range(40):
                loss_of(net, batch(step)).backward()
                models[-1][1].step()

    assert column(recorded, "optimizer_steps")[-1] > 60
    assert column(recorded, "alternating_optimizers") == []


def test_the_last_loss_of_a_repeated_closure_is_recorded(recorded):
    net = model()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)
    losses = []

    def closure():
        optimizer.zero_grad()
        loss = loss_of(net, batch(0))
        loss.backward()
        losses.append(loss.item())
        return loss

    with monitored:
        optimizer.step(closure)
        ran = len(losses)
        optimizer.step(closure)

    assert ran > 1
    assert column(recorded, "loss") == [losses[ran - 1], losses[-1]]
    assert len(column(recorded, "grad_norm")) == 2


def test_a_wrapped_optimizer_counts_one_step(recorded):
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, inner):
            self.inner = inner
            super().__init__(inner.param_groups, {})

        def step(self, closure=None):
            return self.inner.step(closure)

    net = model()
    optimizer = Wrapper(torch.optim.SGD(net.parameters(), lr=0.01))
    with monitored:
        for step in range(3):
            loss_of(net, batch(step)).backward()
            optimizer.step()

    assert column(recorded, "optimizer_steps") == [1, 2, 3]


def test_counting_continues_after_a_step_that_raised(recorded):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def closure():
        raise RuntimeError

    with monitored:
        for _ in range(2):
            with pytest.raises(RuntimeError):
                optimizer.step(closure)
            loss_of(net, batch(0)).backward()
            optimizer.step()

    assert column(recorded, "optimizer_steps") == [1, 2]


def test_optimizers_stepping_inside_backward_are_counted_once(recorded):
    net = model()
    optimizers = {p: torch.optim.SGD([p], lr=0.01) for p in net.parameters()}

    def step_at_once(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(step_at_once)
    losses = []
    with monitored:
        for step in range(3):
            loss = loss_of(net, batch(step))
            loss.backward()
            losses.append(loss.item())

    assert column(recorded, "optimizer_steps") == [1, 2, 3]
    assert column(recorded, "loss") == losses
