"""Runs on every rank: HF Trainer, then an Accelerate loop, on DeepSpeed ZeRO-2.

Writes the values it measured to `$OUT/<rank>.json`, for `test_deepspeed.py` to compare.
"""

import json
import os
from pathlib import Path

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed.ops
import tiny_models
import torch
import torch.distributed as dist
from accelerate import Accelerator, DeepSpeedPlugin
from accelerate.state import AcceleratorState
from transformers import Trainer, TrainingArguments

import sentinel

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

STEPS, GAS = 3, 2
OUT = Path(os.environ["OUT"])
RANK = int(os.environ["RANK"])
kept_models = []


def config(**more):
    return {
        "gradient_accumulation_steps": GAS,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 2},
        "zero_force_ds_cpu_optimizer": False,
        "train_micro_batch_size_per_gpu": 2,
        **more,
    }


class RecordingTrainer(Trainer):
    """Stores the loss of every micro-batch."""

    losses = ()

    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        self.losses = (*self.losses, float(loss))
        return loss


def trainer_run():
    tokens = tiny_models.tokenizer()
    rows = [
        tokens(f"{phrase} {n}")["input_ids"][:6] for n in range(6) for phrase in tiny_models.PHRASES
    ]
    rows = [{"input_ids": row, "labels": row} for row in rows]
    adam = {"type": "AdamW", "params": {"lr": "auto", "torch_adam": True}}
    arguments = TrainingArguments(
        output_dir=str(OUT / "trainer"),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=GAS,
        max_steps=STEPS,
        logging_steps=1,
        save_steps=STEPS,
        learning_rate=0.01,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        deepspeed=config(optimizer=adam),
        ddp_backend="gloo",
    )

    def collate(batch):
        size = min(len(row["input_ids"]) for row in batch)
        return {name: torch.tensor([r[name][:size] for r in batch]) for name in batch[0]}

    trainer = RecordingTrainer(
        tiny_models.llama(tokens), arguments, train_dataset=rows, data_collator=collate
    )
    kept_models.append(trainer)
    trainer.train()
    losses = [sum(trainer.losses[at : at + GAS]) for at in range(0, STEPS * GAS, GAS)]
    logs = [log for log in trainer.state.log_history if "loss" in log]
    return {"losses": losses, "logs": logs, "steps": trainer.state.global_step}


def accelerate_run():
    AcceleratorState._reset_state(reset_partial_state=True)
    plugin = DeepSpeedPlugin(hf_ds_config=config())
    accelerator = Accelerator(deepspeed_plugin=plugin, gradient_accumulation_steps=GAS)
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(RANK)
    data = torch.utils.data.DataLoader(torch.randn(2 * GAS * STEPS, 8), batch_size=2)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    kept_models.append((accelerator, model, optimizer))
    losses, norms = [], []
    for x in data:
        with accelerator.accumulate(model):
            loss = model(x).pow(2).mean()
            losses.append(loss.item() / GAS)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                norms.append(float(accelerator.clip_grad_norm_(model.parameters(), 1.0)))
            optimizer.step()
            optimizer.zero_grad()
    losses = [sum(losses[at : at + GAS]) for at in range(0, len(losses), GAS)]
    return {"losses": losses, "norms": norms}


def main():
    watch = {
        name: sentinel.monitor(run=name, agent=False, strict=True)
        for name in ("trainer", "accelerate")
    }
    results = {
        "trainer": watch["trainer"](trainer_run)(),
        "accelerate": watch["accelerate"](accelerate_run)(),
    }
    (OUT / f"{RANK}.json").write_text(json.dumps(results))
    dist.barrier()


main()
