"""Accelerate: the loss and the logs of loops with an Accelerator are recorded."""

import json
from pathlib import Path

import pytest
from requirements import need
from side_effects import patches, random_state, seed, weights
from support.training_loops import batch, column, loss_of, model, norm, steps

import sentinel
from sentinel.model.record import Event

need("accelerate")

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

watched = sentinel.monitor(run="test", agent=False, strict=True)
PATCHED = ("torch", "torch.nn.utils.clip_grad", "accelerate.accelerator")


@pytest.fixture
def accelerator():
    """Creates an accelerator that accumulates over two batches, on the CPU."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    def build(**settings):
        AcceleratorState._reset_state(reset_partial_state=True)
        return Accelerator(**{"cpu": True, "gradient_accumulation_steps": 2, **settings})

    yield build
    AcceleratorState._reset_state(reset_partial_state=True)


def loop(accelerator, count=4, log=None):
    """Trains a small net; returns each step's loss and norm, and the net."""
    import torch

    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    data = torch.utils.data.DataLoader([batch(n)[0] for n in range(count * 8)], batch_size=4)
    net, optimizer, data = accelerator.prepare(net, optimizer, data)
    losses, norms = [0.0], []
    for x in data:
        with accelerator.accumulate(net):
            with accelerator.autocast():
                loss = loss_of(net, x)
            accelerator.backward(loss)
            losses[-1] += loss.item() / accelerator.gradient_accumulation_steps
            if accelerator.sync_gradients:
                norms.append(norm(net.parameters()))
                accelerator.clip_grad_norm_(net.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            if log is not None:
                log(len(norms), losses[-1])
            losses.append(0.0)
    return losses[:-1], norms, net


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_the_loss_is_of_the_whole_step_and_the_norm_before_clipping(
    accelerator, recorded, reported_metadata, precision
):
    @watched
    def train():
        return loop(accelerator(mixed_precision=precision))

    losses, norms, _ = train()

    assert column(recorded, "loss") == pytest.approx(losses, rel=1e-6)
    assert column(recorded, "grad_norm") == pytest.approx(norms, rel=1e-5)
    assert [(r.step, r.step_index) for r in steps(recorded)] == [(n, n) for n in (1, 2, 3, 4)]
    known = reported_metadata()[0]
    assert known["framework"] == "accelerate"
    assert known["mixed_precision"] == precision
    assert known["distributed_type"] == "NO"
    assert known["gradient_accumulation_steps"] == 2.0


def test_an_accelerator_created_before_the_run_is_monitored(
    accelerator, recorded, reported_metadata
):
    early = accelerator()

    losses, _, _ = watched(loop)(early)

    assert column(recorded, "loss") == pytest.approx(losses, rel=1e-6)
    assert reported_metadata()[0]["gradient_accumulation_steps"] == 2.0


def test_logged_values_are_recorded_without_a_tracker(accelerator, recorded):
    import torch

    early = accelerator()

    def log(step, loss):
        early.log({"loss": loss, "reward": torch.tensor(0.5), "note": "fine"}, step=step)

    losses, _, _ = watched(loop)(early, log=log)

    assert [r.step for r in steps(recorded)] == [1, 2, 3, 4]
    assert column(recorded, "logged_loss") == pytest.approx(losses)
    assert column(recorded, "reward") == [0.5] * 4
    assert column(recorded, "loss") == pytest.approx(losses, rel=1e-6)


def test_a_manual_ppo_loop_records_its_logs_once_per_update(accelerator, recorded):
    """Like TRL's former PPO trainer: several optimizer steps, then one log per update."""
    import torch

    early = accelerator(gradient_accumulation_steps=1)

    @watched
    def train():
        net = model()
        optimizer = early.prepare(torch.optim.SGD(net.parameters(), lr=0.01))
        expected = []
        for update in range(1, 4):
            for at in range(4):
                loss = loss_of(net, batch(4 * update + at))
                early.backward(loss)
                expected.append(loss.item())
                optimizer.step()
                optimizer.zero_grad()
            kl = {"objective/kl": 10.0 * update, "policy/approxkl_avg": update / 100}
            early.log({**kl, "objective/scores": float(update)}, step=update)
        return expected

    expected = train()

    assert column(recorded, "loss") == pytest.approx(expected, rel=1e-6)
    logged = [r for r in steps(recorded) if "objective/kl" in r.values]
    assert [r.step_index for r in logged] == [4, 8, 12]
    assert [r.values["objective/kl"] for r in logged] == [10.0, 20.0, 30.0]
    assert [r.values["policy/approxkl_avg"] for r in logged] == [0.01, 0.02, 0.03]
    assert [r.values["objective/scores"] for r in logged] == [1.0, 2.0, 3.0]


def test_a_checkpoint_is_recorded_with_its_directory(accelerator, recorded, tmp_path):
    early = accelerator()

    @watched
    def train():
        loop(early, count=2)
        early.save_state(str(tmp_path / "saved"))

    train()

    begin, end, save = (r for r in recorded()[0] if r.event in {Event.PHASE, Event.SAVE})
    assert (dict(begin.attributes), end.attributes["edge"]) == (
        {"name": "save", "edge": "begin"},
        "end",
    )
    assert save.step == 2
    assert any(Path(save.attributes["path"]).iterdir())


def test_monitoring_changes_no_result_and_leaves_no_patch(accelerator):
    results = []
    accelerator()
    before = patches(*PATCHED)
    for watch in (False, True):
        seed()
        early = accelerator()
        losses, norms, net = (watched(loop) if watch else loop)(early)
        results.append((losses, norms, weights(net), random_state()))

    assert results[0] == results[1]
    assert patches(*PATCHED) == before


def test_the_tracker_monitors_without_a_decorator(accelerator, recorded, reported_metadata):
    from sentinel.client.session import current_session
    from sentinel.integrations.callbacks.accelerate import AccelerateTracker

    early = accelerator(log_with=AccelerateTracker(run="test", agent=False, strict=True))
    early.init_trackers("project", config={"beta": 0.05, "bf16": True, "hub_token": "s", "x": []})

    losses, _, _ = loop(early, log=lambda step, loss: early.log({"kl": loss / 10}, step=step))
    early.end_training()

    assert current_session() is None
    assert column(recorded, "loss") == pytest.approx(losses, rel=1e-6)
    assert column(recorded, "kl") == pytest.approx([loss / 10 for loss in losses])
    assert [r.event for r in recorded()[0]].count(Event.STEP) == 4
    assert recorded()[0][-1].attributes == {"outcome": "finished"}
    known = reported_metadata()[0]
    assert (known["beta"], known["bf16"]) == (0.05, "true")
    assert not {"hub_token", "x"} & known.keys()


def test_the_tracker_adds_nothing_to_a_monitored_run(accelerator, recorded):
    from sentinel.integrations.callbacks.accelerate import AccelerateTracker

    @watched
    def train():
        early = accelerator(log_with=AccelerateTracker(run="other", agent=False))
        early.init_trackers("project")
        loop(early, log=lambda step, _: early.log({"kl": 0.1}, step=step))
        early.end_training()
        sentinel.log({"afterwards": 1.0})

    train()

    assert column(recorded, "kl") == [0.1] * 4
    assert column(recorded, "afterwards") == [1.0]
    assert [r.event for r in recorded()[0]].count(Event.STOP) == 1


RANKS = """
import gc, json
from pathlib import Path
import torch, torch.distributed as dist
from accelerate import Accelerator
from support.training_loops import batch, loss_of, model
import sentinel

kept = []

@sentinel.monitor(run="test", agent=False, strict=True)
def train():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    rank = accelerator.process_index
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    net, optimizer = accelerator.prepare(net, optimizer)
    kept.append(net)
    truth, norms = [], []
    for step in range(1, 5):
        truth.append(0.0)
        for part in range(2):
            with accelerator.accumulate(net):
                loss = loss_of(net, batch(100 * rank + 2 * step + part))
                accelerator.backward(loss)
                truth[-1] += loss.item() / 2
                if accelerator.sync_gradients:
                    norms.append(float(accelerator.clip_grad_norm_(net.parameters(), 0.1)))
                optimizer.step()
                optimizer.zero_grad()
        accelerator.log({"kl": step + rank}, step=step)
    Path(f"truth-{rank}.json").write_text(json.dumps([truth, norms]))
    dist.barrier()

train()
gc.collect()
dist.destroy_process_group()
"""


def test_every_rank_records_its_loss_and_the_main_process_the_logs(run_ranks, recorded, tmp_path):
    run_ranks(RANKS, frameworks=("accelerate",))

    expected = {rank: json.loads((tmp_path / f"truth-{rank}.json").read_text()) for rank in (0, 1)}
    recorded_values = {
        rank: [r for r in recorded()[rank] if r.event is Event.STEP] for rank in (0, 1)
    }
    for rank, (losses, norms) in expected.items():
        assert [r.values["loss"] for r in recorded_values[rank]] == pytest.approx(losses, rel=1e-6)
        assert [r.values["grad_norm"] for r in recorded_values[rank]] == pytest.approx(
            norms, rel=1e-6
        )
        assert [r.step_index for r in recorded_values[rank]] == [1, 2, 3, 4]
        assert recorded()[rank][-1].attributes["outcome"] == "finished"
    assert expected[0][0] != expected[1][0]
    assert [r.values["kl"] for r in recorded_values[0]] == [1.0, 2.0, 3.0, 4.0]
    assert not any("kl" in r.values for r in recorded_values[1])


@pytest.mark.parametrize("skipped", [0, 3])
def test_the_rows_of_a_step_are_of_the_batches_that_the_loop_receives(accelerator, skipped):
    """Its loader fetches a batch ahead of the loop."""
    import torch
    from accelerate import skip_first_batches

    from sentinel.client.session import current_session
    from sentinel.transport.row_page import read_row_page

    received = []

    @watched
    def train():
        own = accelerator(gradient_accumulation_steps=1)
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        data = [torch.full((4,), float(row)) for row in range(40)]
        loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
        net, optimizer, loader = own.prepare(net, optimizer, loader)
        for first in (skipped, 0):
            for x in skip_first_batches(loader, first) if first else loader:
                optimizer.zero_grad()
                own.backward(loss_of(net, x / 100))
                optimizer.step()
                received.append([int(row) for row in x[:, 0]])
        return current_session().ring.path

    steps_noted, gap = read_row_page(train())

    assert len(received) == 20 - skipped
    assert [[*each.rows] for _, each in sorted(steps_noted.items())] == received
    assert gap == ""


def test_batches_that_a_prepared_loader_skips_itself_are_not_of_a_step(accelerator):
    import torch
    from accelerate.data_loader import DataLoaderShard

    from sentinel.client.session import current_session
    from sentinel.transport.row_page import read_row_page

    received = []

    @watched
    def train():
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        accelerator()
        data = [torch.full((4,), float(row)) for row in range(24)]
        for x in DataLoaderShard(data, batch_size=4, skip_batches=2):
            optimizer.zero_grad()
            loss_of(net, x / 100).backward()
            optimizer.step()
            received.append([int(row) for row in x[:, 0]])
        return current_session().ring.path

    steps_noted, _ = read_row_page(train())

    assert len(received) == 4
    assert [[*each.rows] for _, each in sorted(steps_noted.items())] == received
