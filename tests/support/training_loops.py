"""Small training loops, and the records of a run."""

import torch

import sentinel
from sentinel.model.record import Event

monitored = sentinel.monitor(run="test", agent=False)


def steps(recorded):
    """The STEP records of rank 0; `recorded` is the fixture."""
    return [record for record in recorded()[0] if record.event is Event.STEP]


def column(recorded, name):
    """Values of that name, one per training step of rank 0 that has one."""
    return [record.values[name] for record in steps(recorded) if name in record.values]


def model(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def batch(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(16, 4, generator=generator)


def norm(parameters):
    """The gradient norm, computed without PyTorch's clipping."""
    return sum(float((p.grad.double() ** 2).sum()) for p in parameters) ** 0.5


def loss_of(net, x):
    return ((net(x) - x.sum(1, keepdim=True)) ** 2).mean()
