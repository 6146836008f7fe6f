"""The patches of PyTorch take few bytecodes a step, since times depend on the load."""

import sys
from pathlib import Path

import torch
from support.training_loops import monitored
from torch.nn.utils import clip_grad_norm_

import sentinel

PACKAGE = str(Path(sentinel.__file__).parent)
MAX_BYTECODES = 2800
"""Of a step with a data loader, a backward pass, clipping and an optimizer. Python 3.11: 2,630."""


def count_own_bytecodes(run):
    """Number of bytecodes of sentinel that `run` executes, in this thread."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return count


def test_the_patches_take_few_bytecodes_a_step():
    net = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    batches = iter(torch.utils.data.DataLoader(torch.randn(160, 16), batch_size=4))

    def step():
        optimizer.zero_grad()
        net(next(batches)).pow(2).mean().backward()
        clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()

    def some_steps():
        for _ in range(10):
            step()

    with monitored:
        some_steps()
        count = count_own_bytecodes(some_steps) / 10

    assert 0 < count < MAX_BYTECODES
