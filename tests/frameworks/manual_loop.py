"""A manual training loop, and access to its records."""

import torch
from support.training_loops import batch, loss_of, model, steps


def numbered_column(read_records, name):
    """Step and value of each training step that has this value."""
    return [(r.step, r.values[name]) for r in steps(read_records) if name in r.values]


def train(log, count=4):
    """A manual training loop that calls `log(values, step)` after each step."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    losses = []
    for step in range(count):
        loss = loss_of(net, batch(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
        log({"loss": losses[-1], "kl": 0.125 * step, "reward": -float(step)}, step)
    return losses
