"""Lightning executes commands at the end of the batch, as a callback would."""

import json

import pytest
from command_sender import send_command
from requirements import need

need("lightning", "torch")

import lightning.pytorch as L
from lightning_modules import data, net, trainer

import sentinel

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]


class CommandSender(L.Callback):
    """Sends a command at the end of step 2, due at step 5."""

    def __init__(self, *actions):
        self.actions = actions

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == 2:
            send_command(*self.actions, ready_from_index=2, due_step_index=5)


@pytest.mark.parametrize(
    ("actions", "saved", "ended"),
    [
        (("checkpoint",), ["sentinel-step=5.ckpt"], 8),
        (("stop",), [], 5),
        (("checkpoint", "stop", "call"), ["sentinel-step=5.ckpt"], 5),
    ],
    ids=["checkpoint", "stop", "everything"],
)
def test_a_trainer_saves_and_stops_at_the_due_step(tmp_path, actions, saved, ended):
    calls = []
    fit = trainer(tmp_path, max_steps=8, callbacks=[CommandSender(*actions)])
    with sentinel.monitor(run="test", agent=False, strict=True, on_critical=calls.append):
        fit.fit(net(), data())

    found = sorted((tmp_path / "checkpoints").glob("*")) if saved else []
    assert [path.name for path in found] == saved
    assert fit.global_step == ended
    assert [context.step for context in calls] == ([5] if "call" in actions else [])
    if saved:
        again = trainer(tmp_path, max_steps=7)
        again.fit(net(), data(), ckpt_path=str(found[0]))
        assert again.global_step == 7


RANKS = """
import json, os, warnings
from pathlib import Path
warnings.filterwarnings("ignore")
import lightning.pytorch as L
from lightning.pytorch.plugins.io import TorchCheckpointIO
import sentinel
from command_sender import send_command
from lightning_modules import data, net

rank = int(os.environ["RANK"])
calls = []

class CommandSender(L.Callback):
    def on_train_batch_end(self, trainer, *_):
        if rank == 1 and trainer.global_step == 2:
            send_command(*os.environ["ACTIONS"].split(), ready_from_index=2, due_step_index=5)

class Full(TorchCheckpointIO):
    def save_checkpoint(self, *args, **kwargs):
        raise OSError(28, "No space left on device")

with sentinel.monitor(
    run="run", agent=False, strict="FULL" not in os.environ,
    on_critical=lambda asked: calls.append(asked.step),
):
    fit = L.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", default_root_dir="out", max_steps=8,
        max_epochs=-1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[CommandSender()],
        plugins=[Full()] if "FULL" in os.environ else None,
    )
    fit.fit(net(), data())
Path(f"result-{rank}.json").write_text(json.dumps([fit.global_step, calls]))
"""


def test_two_ranks_act_at_the_same_step(run_ranks, tmp_path):
    run_ranks(RANKS, frameworks=("lightning.pytorch",), ACTIONS="checkpoint stop call")
    results = [json.loads((tmp_path / f"result-{rank}.json").read_text()) for rank in (0, 1)]

    assert results == [[5, [5]]] * 2
    found = [path.name for path in (tmp_path / "out" / "checkpoints").iterdir()]
    assert found == ["sentinel-step=5.ckpt"]


def test_a_failed_save_on_one_rank_does_not_block_the_others(run_ranks, tmp_path):
    run_ranks(RANKS, frameworks=("lightning.pytorch",), ACTIONS="checkpoint", FULL="1")
    results = [json.loads((tmp_path / f"result-{rank}.json").read_text()) for rank in (0, 1)]

    assert results == [[8, []]] * 2
