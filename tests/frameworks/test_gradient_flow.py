"""The norms of layers under frameworks that accumulate, clip and adapt, as autograd has them."""

import json
import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest
from requirements import need
from support.gradient_flows import GradientLog, every_step, monitored, statistics
from support.rank_processes import until
from support.training_loops import batch, loss_of, model

need("torch", "transformers", "accelerate", "lightning", "peft", "datasets")
import torch

from sentinel.client.capture.layer_names import clean_name, module_path
from sentinel.store.run_reader import RunReader

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

CLOSE = 1e-5


@pytest.fixture(autouse=True)
def at_every_step():
    torch.set_num_threads(1)
    with every_step():
        yield


def layer_of(name):
    return module_path(clean_name(name))


def check(recorded, expected, steps):
    found = statistics(recorded()[0], "layer_grad_norm")
    assert [*found] == steps
    for step, norms in found.items():
        assert norms == pytest.approx(expected[step], rel=CLOSE, abs=1e-12), step


def test_a_trainer_with_lora_accumulation_and_clipping(tmp_path, recorded):
    import tiny_models
    from datasets import Dataset
    from peft import LoraConfig, get_peft_model
    from transformers import Trainer, TrainerCallback, TrainingArguments

    tokens = tiny_models.tokenizer()
    adapted = get_peft_model(
        tiny_models.llama(tokens), LoraConfig(r=2, target_modules=["q_proj", "v_proj"])
    )
    log, expected = GradientLog(adapted, layer_of), {}

    class Collect(TrainerCallback):
        def on_optimizer_step(self, args, state, control, **_):
            expected[state.global_step + 1] = log.norms()

    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_grad_norm=1e-3,
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    data = Dataset.from_list(tiny_models.rows(tokens))
    with monitored:
        Trainer(adapted, arguments, train_dataset=data, callbacks=[Collect()]).train()

    check(recorded, expected, [2, 3, 4])
    assert [*statistics(recorded()[0], "layer_grad_norm")[4]] == [
        f"model.layers.{layer}.self_attn.{name}_proj" for layer in (0, 1) for name in "qv"
    ]


def test_accelerate_with_accumulation_and_clipping(recorded):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    net, expected = model(), {}
    log = GradientLog(net)
    with monitored:
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        prepared, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=0.01))
        for micro in range(8):
            with accelerator.accumulate(prepared):
                accelerator.backward(loss_of(prepared, batch(micro)))
                if accelerator.sync_gradients:
                    expected[len(expected) + 1] = log.norms()
                    accelerator.clip_grad_norm_(prepared.parameters(), 1e-3)
                optimizer.step()
                optimizer.zero_grad()
    AcceleratorState._reset_state(reset_partial_state=True)

    check(recorded, expected, [2, 3, 4])


@pytest.mark.parametrize("algorithm", ["norm", "value"])
def test_lightning_with_accumulation_and_clipping(algorithm, tmp_path, recorded):
    import lightning.pytorch as L

    expected = {}

    class Net(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = model()
            self.log_of = [GradientLog(self.net, lambda name: f"net.{name.rpartition('.')[0]}")]

        def training_step(self, x, at):
            return loss_of(self.net, x)

        def on_train_batch_end(self, outputs, x, at):
            if at % 2:
                expected[self.trainer.global_step] = self.log_of[0].norms()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    data = torch.utils.data.DataLoader([batch(at) for at in range(8)], batch_size=None)
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        accumulate_grad_batches=2,
        gradient_clip_val=1e-4,
        gradient_clip_algorithm=algorithm,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    with monitored:
        trainer.fit(Net(), data)

    check(recorded, expected, [2, 3, 4])


def test_the_parts_of_two_ranks_are_stored_by_their_agent_as_one_gradient(run_ranks, tmp_path):
    run_ranks((Path(__file__).parent / "flow_ranks.py").read_text(), OUT=str(tmp_path))

    expected = json.loads((tmp_path / "norms.json").read_text())

    def stored():
        """The layers of the run, whose agent may start, and read, after the end of the ranks."""
        with suppress(StopIteration, OSError, sqlite3.Error):
            reader = RunReader(next((tmp_path / "home" / "runs").glob("*/sentinel.db")))
            found = reader.layers("layer_grad_norm")
            return found if len(found["x"]) == 5 else None

    found = until(stored, 240.0, "layers are stored")
    assert found["layers"] == ["0", "2"]
    for column, step in enumerate(found["x"]):
        norms = [row[column] for row in found["values"]]
        assert norms == pytest.approx(expected[str(step)], rel=CLOSE)
    assert found["x"] == [2, 3, 4, 5, 6]
    assert {*found["histograms"]["layer"]} == {"0", "2"}
