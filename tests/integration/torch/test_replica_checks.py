"""DDP with two processes: what is not equal, or must not be, between ranks."""

import json

import pytest

from sentinel.config.settings import load_settings
from sentinel.model.record import Event
from sentinel.pipeline.pipeline import build

SCRIPT = r"""
import json, os, time
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
import sentinel

kept_alive = []
dist.init_process_group("gloo")
rank, mesh = dist.get_rank(), init_device_mesh("cpu", (2,))

def train_divided(*, is_changed):
    # The first layer is divided by columns, the last one by rows; the norm is on each rank.
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Linear(8, 32), torch.nn.Linear(32, 1))
    parallelize_module(net, mesh, {"1": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
    for step in range(16):
        torch.manual_seed(step)
        inputs = torch.randn(4, 8)
        optimizer.zero_grad()
        (net(inputs) - inputs.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
        if is_changed and step == 7 and rank == 1:
            with torch.no_grad():
                net[0].bias[3] += 1e-6

def train_sharded(kind):
    # The norm is sharded with the root, so it is whole from the forward to the backward pass.
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 32), torch.nn.LayerNorm(32), torch.nn.Linear(32, 1)
    net = torch.nn.Sequential(*layers)
    own = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    for each in (net[0], net[2], net):
        fully_shard(each, mesh=mesh if kind == "sharded" else own)
    optimizer = torch.optim.AdamW(net.parameters())
    for step in range(16):
        inputs = torch.randn(4, 8)
        optimizer.zero_grad()
        (net(inputs) - inputs.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
        if kind == "one part" and step == 7 and rank == 1:
            with torch.no_grad():
                net[2].weight._local_tensor[0, 3] += 1e-6

def train_with_divided_states(kind):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.AdamW, lr=1e-3)
    torch.manual_seed(1 + rank)
    for step in range(16):
        inputs = torch.randn(4, 8)
        optimizer.zero_grad()
        (net(inputs) - inputs.sum(1, keepdim=True)).square().mean().backward()
        for each in net.parameters():
            dist.all_reduce(each.grad)
        if kind == "not sent" and step == 9:
            # What this rank updates is lost on the way to the other one.
            optimizer._sync_params = lambda: None
        optimizer.step()

def train(kind):
    if kind in ("sharded", "sharded replicas", "one part"):
        return train_sharded(kind)
    if kind in ("divided states", "not sent"):
        return train_with_divided_states(kind)
    if kind in ("divided", "one norm"):
        return train_divided(is_changed=kind == "one norm")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    model = DistributedDataParallel(net)
    kept_alive.append(model)
    optimizer = torch.optim.AdamW(model.parameters())
    data = TensorDataset(torch.randn(80, 8))
    sampler = None if kind == "same data" else DistributedSampler(data)
    loader = DataLoader(data, 4, sampler=sampler)
    step = 0
    for epoch in range(2):
        if sampler is not None and kind != "same order":
            sampler.set_epoch(epoch)
        for (inputs,) in loader:
            step += 1
            optimizer.zero_grad()
            trained = net if kind == "unwrapped" and step > 6 else model
            (trained(inputs) - inputs.sum(1, keepdim=True)).square().mean().backward()
            optimizer.step()
            if kind == "one element" and step == 7 and rank == 1:
                with torch.no_grad():
                    net[2].weight[0, 3] += 1e-6

for kind in json.loads(os.environ["KINDS"]):
    sentinel.monitor(run=kind.replace(" ", "-"), agent=False)(train)(kind)
dist.barrier()
# Gloo's threads may still be at work; torn down under them, PyTorch can wait for ever.
time.sleep(0.2)
"""
KINDS = {
    "healthy": "",
    "one element": "replicas_differ",
    "unwrapped": "replicas_differ",
    "same data": "repeated_batches",
    "same order": "repeated_batches",
    "divided": "",
    "one norm": "replicas_differ",
    "sharded": "",
    "sharded replicas": "",
    "one part": "replicas_differ",
    "divided states": "",
    "not sent": "replicas_differ",
}


@pytest.fixture
def launched(run_ranks, recorded):
    run_ranks(SCRIPT, KINDS=json.dumps(list(KINDS)))
    return recorded()


def findings(records, run):
    """The newest finding of each detector of the checks, for one of the runs."""
    own = sorted(
        (r for logged in records.values() for r in logged if r.run.startswith(run)),
        key=lambda each: (each.step_index, each.rank),
    )
    pipeline, found = build(load_settings()), {}
    for record in own:
        for result in pipeline.process(record):
            if result.record.event is Event.CHECK:
                found |= result.findings
    return found


def test_ranks_are_compared(launched):
    found = {kind: findings(launched, kind.replace(" ", "-")) for kind in KINDS}

    assert {kind: "".join(each) for kind, each in found.items()} == KINDS
    element = found["one element"]["replicas_differ"]
    assert element.evidence["first_layer"] == "2"
    assert element.evidence["layers_that_differ"] == 1.0
    norm = found["one norm"]["replicas_differ"]
    assert norm.evidence["first_layer"] == "0"
    assert "divide one model" in norm.summary
    assert "tensor-parallel" in norm.remedy
    assert found["one part"]["replicas_differ"].evidence["first_layer"] == "2"
    assert "ranks 0-1 differ" in found["not sent"]["replicas_differ"].summary
    assert "set_epoch" in found["same order"]["repeated_batches"].remedy
    assert "DistributedSampler" in found["same data"]["repeated_batches"].remedy
