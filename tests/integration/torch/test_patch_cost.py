"""The patches of PyTorch take few bytecodes a step, since times depend on the load."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
MAX_BYTECODES, MAX_ROW_BYTECODES = 2450, 440
"""Of a step with a data loader, a backward pass, clipping and an optimizer, and of noting its rows.
Python 3.11: 2,443 and 434."""

# In a process of its own: integrations that other tests have loaded add to the patches.
PROGRAM = """
import sys
from pathlib import Path

import torch
from support.training_loops import monitored
from torch.nn.utils import clip_grad_norm_

import sentinel
from sentinel.client import session

PACKAGE = str(Path(sentinel.__file__).parent)
count = 0


def trace(frame, event, _):
    global count
    if not frame.f_code.co_filename.startswith(PACKAGE):
        return None
    frame.f_trace_opcodes = True
    count += event == "opcode"
    return trace


net = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
batches = iter(torch.utils.data.DataLoader(torch.randn(400, 16), batch_size=4))


def some_steps():
    for _ in range(10):
        optimizer.zero_grad()
        net(next(batches)).pow(2).mean().backward()
        clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()


def measure():
    global count
    with monitored:
        # The checks of the training observe the first 20 steps.
        for _ in range(3):
            some_steps()
        count = 0
        sys.settrace(trace)
        some_steps()
        sys.settrace(None)
    return count / 10


with_rows = measure()
session.DrawnRows = lambda *_: None
print(with_rows, measure())
"""


def test_the_patches_take_few_bytecodes_a_step():
    path = [str(ROOT), str(ROOT / "tests")]
    program = f"import sys\nsys.path[:0] = {path}\n{PROGRAM}"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert result.returncode == 0, result.stderr
    with_rows, without = map(float, result.stdout.splitlines()[-1].split())
    assert 0 < without < MAX_BYTECODES
    assert 0 < with_rows - without < MAX_ROW_BYTECODES
