"""DDP with two processes: each rank records its own values."""

import json

from sentinel.model.record import Event

SCRIPT = r"""
import json, sys, time
import torch
import torch.distributed as dist
from torch.nn.utils import clip_grad_norm_
import sentinel

kept_alive = []

@sentinel.monitor(run="ddp", agent=False, max_steps=6)
def train():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    losses = []
    torch.manual_seed(rank)
    for step in range(100, 106):
        optimizer.zero_grad()
        loss = net(torch.randn(8, 4)).pow(2).mean()
        loss.backward()
        losses.append(loss.item())
        clip_grad_norm_(net.parameters(), 0.1)
        optimizer.step()
        sentinel.log({"kl": rank + step / 1000}, step=step, weight=8)
    sys.stdout.write(json.dumps([rank, losses]) + "\n")
    sys.stdout.flush()
    dist.barrier()
    # Gloo's threads may still be at work; torn down under them, PyTorch can wait for ever.
    kept_alive.append(net)
    time.sleep(0.2)

train()
"""


def test_each_rank_records_its_own_loss_and_the_common_norm(run_ranks, recorded, headers):
    output = run_ranks(SCRIPT)
    losses = dict(json.loads(line) for line in output.splitlines() if line.startswith("["))
    records = {
        rank: [r for r in logged if r.event is Event.STEP] for rank, logged in recorded().items()
    }

    assert sorted(records) == [0, 1]
    assert len({r.run for logged in records.values() for r in logged}) == 1
    for rank, logged in records.items():
        assert [r.values["loss"] for r in logged] == losses[rank]
        assert [(r.step, r.step_index) for r in logged] == [(100 + n, 1 + n) for n in range(6)]
        assert [r.values["kl"] for r in logged] == [rank + (100 + n) / 1000 for n in range(6)]
        assert headers()[rank].errors == 0
        assert headers()[rank].outcome == "finished"
    assert losses[0] != losses[1]
    norms = [[r.values["grad_norm"] for r in logged] for logged in records.values()]
    assert norms[0] == norms[1]
