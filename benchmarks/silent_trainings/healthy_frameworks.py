"""Healthy trainings with Transformers, PEFT, TRL, Accelerate, Lightning and DeepSpeed."""

from __future__ import annotations

import importlib
import os
import random
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from tempfile import mkdtemp
from typing import Any

import torch
import trl_trainings
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, ReduceLROnPlateau
from torch.utils.data import DataLoader

from silent_trainings.case import healthy
from silent_trainings.loops import checkpoint, endless, evaluate, examples, loader, loss_of, network

STEPS = 40
_vocabulary = {
    word: at for at, word in enumerate(["<unk>", "<pad>", "<s>", "</s>", *trl_trainings.LETTERS])
}


def load() -> None:
    """Import the frameworks once, so that a training in a child process need not."""
    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "DS_ACCELERATOR": "cpu",
    }
    warnings.simplefilter("ignore")
    for name in ("accelerate", "datasets", "lightning.pytorch", "peft", "transformers", "trl"):
        importlib.import_module(name)


def tokenizer() -> Any:
    """Words are letters."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel(_vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        unk_token="<unk>",
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
    )


def llama(**options: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    ids = {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3}
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=len(_vocabulary), **sizes, **heads, **ids, **options)
    )


# TRL.


def preference_optimized(build: trl_trainings.Build, **settings: Any) -> None:
    """Train with a trainer of TRL for a few steps."""
    folder, tokens = mkdtemp(), tokenizer()
    llama().save_pretrained(f"{folder}/model")
    tokens.save_pretrained(f"{folder}/model")
    trainer = build(folder, tokens, f"{folder}/model")
    for name, value in {"max_steps": STEPS, **settings}.items():
        setattr(trainer.args, name, value)
    trainer.train()


for name, build in {
    "trl_sft": trl_trainings.Sft(texts=256),
    "trl_sft_with_adapters": trl_trainings.Sft(lora=True, texts=256),
    "trl_sft_with_evaluations": trl_trainings.Sft(evaluate=10, texts=256),
    "trl_dpo": trl_trainings.dpo(pairs=256),
    "trl_kto": trl_trainings.kto(pairs=128),
    "trl_reward": trl_trainings.reward(count=STEPS),
    "trl_grpo": trl_trainings.Grpo(),
    "trl_grpo_without_a_reference": replace(trl_trainings.Grpo(), beta=0.0),
    "trl_rloo": trl_trainings.Grpo(rloo=True),
    "seq2seq": trl_trainings.seq2seq(),
}.items():
    healthy(lambda build=build: preference_optimized(build), name=name)


@healthy
def trl_sft_that_accumulates() -> None:
    preference_optimized(trl_trainings.Sft(texts=256), gradient_accumulation_steps=4, max_steps=24)


@healthy
def trl_sft_packed_and_recomputed() -> None:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    folder, chance = mkdtemp(), random.Random(0)
    texts = [{"text": trl_trainings.alphabet_text(chance, 24)} for _ in range(512)]
    settings = trl_trainings.common_settings(folder, 2e-3, STEPS)
    config = SFTConfig(
        **settings, packing=True, packing_strategy="wrapped", max_length=32,
        per_device_train_batch_size=4, gradient_checkpointing=True,
    )  # fmt: skip
    SFTTrainer(
        llama(), config, train_dataset=Dataset.from_list(texts), processing_class=tokenizer()
    ).train()


def preferred(model: nn.Module, reference: nn.Module | None = None, **options: Any) -> None:
    """Train with DPO of TRL."""
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    folder, chance = mkdtemp(), random.Random(0)
    pairs = [
        {
            "prompt": f"{trl_trainings.random_text(chance, 2)} ",
            "chosen": trl_trainings.alphabet_text(chance, 8),
            "rejected": trl_trainings.random_text(chance, 8),
        }
        for _ in range(256)
    ]
    settings = trl_trainings.common_settings(folder, 1e-3, STEPS)
    DPOTrainer(
        model, reference, args=DPOConfig(**settings, per_device_train_batch_size=8),
        train_dataset=Dataset.from_list(pairs), processing_class=tokenizer(), **options,
    ).train()  # fmt: skip


@healthy
def trl_dpo_with_adapters() -> None:
    """The reference is the model without its adapters."""
    from peft import LoraConfig

    preferred(llama(), peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))


# Transformers.


def rows_of_letters(count: int = 256, labels: int = 0) -> Any:
    from datasets import Dataset

    chance, tokens = random.Random(1), tokenizer()
    texts = [trl_trainings.alphabet_text(chance, 16) for _ in range(count)]
    rows = [{"input_ids": tokens(text)["input_ids"]} for text in texts]
    for row in rows:
        row["attention_mask"] = [1] * len(row["input_ids"])
        row["labels"] = row["input_ids"][0] % labels if labels else row["input_ids"]
    return Dataset.from_list(rows)


def trainer_of(model: nn.Module, *, labels: int = 0, **settings: Any) -> Any:
    """A `Trainer` of this model on letters."""
    from transformers import Trainer, TrainingArguments

    known = trl_trainings.common_settings(mkdtemp(), 2e-3, STEPS)
    arguments = {**known, "per_device_train_batch_size": 8, **settings}
    names = {"optimizers", "data_collator", "callbacks"} & arguments.keys()
    own = {name: arguments.pop(name) for name in names}
    data = rows_of_letters(labels=labels)
    return Trainer(
        model, TrainingArguments(**arguments), train_dataset=data,
        eval_dataset=data.select(range(64)), **own,
    )  # fmt: skip


@healthy
def trainer() -> None:
    trainer_of(llama()).train()


@healthy
def trainer_with_all_at_once() -> None:
    """Accumulation, evaluations, checkpoints, smoothing, the best model at the end."""
    trainer_of(
        llama(), gradient_accumulation_steps=2, eval_strategy="steps", eval_steps=10,
        save_strategy="steps", save_steps=10, load_best_model_at_end=True, warmup_steps=5,
        lr_scheduler_type="cosine", weight_decay=0.1, label_smoothing_factor=0.1,
    ).train()  # fmt: skip


@healthy
def trainer_in_mixed_precision() -> None:
    trainer_of(llama(), bf16=True).train()


@healthy
def trainer_of_bfloat16_weights() -> None:
    trainer_of(llama().bfloat16()).train()


@healthy
def trainer_that_recomputes() -> None:
    trainer_of(
        llama(), gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": True},
    ).train()  # fmt: skip


@healthy
def trainer_with_own_optimizer() -> None:
    model = llama()
    optimizer = AdamW(model.parameters(), 2e-3)
    trainer_of(model, optimizers=(optimizer, CosineAnnealingLR(optimizer, STEPS))).train()


@healthy
def trainer_with_adafactor() -> None:
    trainer_of(llama(), optim="adafactor").train()


@healthy
def trainer_resumed() -> None:
    folder = mkdtemp()
    settings = {"output_dir": folder, "save_strategy": "steps", "save_steps": 20}
    trainer_of(llama(), **settings, max_steps=20).train()
    trainer_of(llama(), **settings).train(resume_from_checkpoint=True)


@healthy
def trainer_with_noise_in_embeddings() -> None:
    trainer_of(llama(), neftune_noise_alpha=5.0).train()


@healthy
def head_of_a_classifier() -> None:
    """A loaded backbone that is frozen, and a new head."""
    from transformers import AutoModelForSequenceClassification

    folder = mkdtemp()
    llama().save_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=4)
    model.model.requires_grad_(False)
    trainer_of(model, labels=4, learning_rate=1e-2).train()


@healthy
def classifier_of_texts() -> None:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = BertConfig(vocab_size=12, num_attention_heads=2, num_labels=4, **sizes)
    trainer_of(
        BertForSequenceClassification(config), labels=4, eval_strategy="steps", eval_steps=10
    ).train()


@healthy
def masked_words() -> None:
    """BERT from scratch: 15 % of the tokens have labels, the pooler has no gradient."""
    from transformers import BertConfig, BertForMaskedLM, DataCollatorForLanguageModeling

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    model = BertForMaskedLM(BertConfig(vocab_size=13, num_attention_heads=2, **sizes))
    tokens = tokenizer()
    tokens.add_special_tokens({"mask_token": "<mask>"})
    trainer_of(model, data_collator=DataCollatorForLanguageModeling(tokens)).train()


@healthy
def images_of_a_transformer() -> None:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_labels": 4}
    model = ViTForImageClassification(
        ViTConfig(
            image_size=8, patch_size=4, num_attention_heads=2, hidden_dropout_prob=0.1, **sizes
        )
    )
    optimizer = AdamW(model.parameters(), 1e-3)
    for step in range(STEPS):
        labels = torch.randint(4, (8,))
        images = torch.randn(8, 3, 8, 8) + labels[:, None, None, None]
        optimizer.zero_grad()
        model(pixel_values=images, labels=labels).loss.backward()
        optimizer.step()
        if step % 10 == 9:
            model.eval()
            with torch.no_grad():
                model(pixel_values=images)
            model.train()


@healthy
def experts_of_transformers() -> None:
    from transformers import MixtralConfig, MixtralForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 1}
    experts = {"num_local_experts": 8, "num_experts_per_tok": 1, "output_router_logits": True}
    trainer_of(
        MixtralForCausalLM(MixtralConfig(vocab_size=12, **sizes, **heads, **experts))
    ).train()


@healthy
def plain_loop_of_gpt2() -> None:
    """Tied weights, dropout, a schedule of Transformers, an evaluation with generation."""
    from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup

    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=12, n_positions=32, n_embd=32, n_layer=2, n_head=2, eos_token_id=3)
    )
    optimizer = AdamW(model.parameters(), 2e-3)
    schedule = get_linear_schedule_with_warmup(optimizer, 5, STEPS)
    rows = torch.tensor(rows_of_letters()["input_ids"])
    for step in range(STEPS):
        batch = rows[torch.randint(len(rows), (8,))]
        optimizer.zero_grad()
        model(input_ids=batch, labels=batch).loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 15 == 14:
            model.eval()
            model.generate(batch[:2, :4], max_new_tokens=6, do_sample=False, pad_token_id=1)
            model.train()


# PEFT.


def adapted(config: Callable[[Any], Any]) -> None:
    import peft

    model = peft.get_peft_model(llama(), config(peft))
    trainer_of(model, learning_rate=1e-2).train()


for name, config in {
    "peft_lora": lambda peft: peft.LoraConfig(task_type="CAUSAL_LM"),
    "peft_dora": lambda peft: peft.LoraConfig(task_type="CAUSAL_LM", use_dora=True),
    "peft_ia3": lambda peft: peft.IA3Config(task_type="CAUSAL_LM"),
    "peft_prompt": lambda peft: peft.PromptTuningConfig(
        task_type="CAUSAL_LM", num_virtual_tokens=4
    ),
    "peft_prefix": lambda peft: peft.PrefixTuningConfig(
        task_type="CAUSAL_LM", num_virtual_tokens=4
    ),
    "peft_vera": lambda peft: peft.VeraConfig(task_type="CAUSAL_LM", r=8),
    "peft_saved_modules": lambda peft: peft.LoraConfig(
        task_type="CAUSAL_LM", modules_to_save=["lm_head"]
    ),
}.items():
    healthy(lambda config=config: adapted(config), name=name)


@healthy
def peft_two_adapters_in_turn() -> None:
    """Two adapters of one model, trained one after the other."""
    import peft

    model = peft.get_peft_model(llama(), peft.LoraConfig(task_type="CAUSAL_LM"), "first")
    trainer_of(model, learning_rate=1e-2).train()
    model.add_adapter("second", peft.LoraConfig(task_type="CAUSAL_LM"))
    model.set_adapter("second")
    trainer_of(model, learning_rate=1e-2).train()


@healthy
def peft_merged_then_adapted_again() -> None:
    import peft

    model = peft.get_peft_model(llama(), peft.LoraConfig(task_type="CAUSAL_LM"))
    trainer_of(model, learning_rate=1e-2, max_steps=20).train()
    model = peft.get_peft_model(model.merge_and_unload(), peft.LoraConfig(task_type="CAUSAL_LM"))
    trainer_of(model, learning_rate=1e-2).train()


@healthy
def peft_loaded_and_continued() -> None:
    import peft

    folder, base = mkdtemp(), llama()
    base.save_pretrained(f"{folder}/base")
    peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM")).save_pretrained(folder)
    from transformers import AutoModelForCausalLM

    again = AutoModelForCausalLM.from_pretrained(f"{folder}/base")
    model = peft.PeftModel.from_pretrained(again, folder, is_trainable=True)
    trainer_of(model, learning_rate=1e-2).train()


# Accelerate.


def accelerated(
    *, accumulated: int = 1, precision: str = "no", clips: bool = False, evaluates: bool = False
) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=accumulated, mixed_precision=precision
    )
    model = network()
    optimizer = AdamW(model.parameters())
    schedule = CosineAnnealingLR(optimizer, 400)
    model, optimizer, data, held_out, schedule = accelerator.prepare(
        model, optimizer, loader(shuffle=True), loader(), schedule
    )
    for _ in range(6):
        model.train()
        for batch in data:
            with accelerator.accumulate(model):
                inputs, labels = batch
                accelerator.backward(functional.cross_entropy(model(inputs), labels))
                if clips and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        if evaluates:
            model.eval()
            evaluate(model, held_out)


healthy(accelerated, name="accelerate")
healthy(lambda: accelerated(accumulated=4, clips=True), name="accelerate_that_accumulates")
healthy(lambda: accelerated(precision="bf16"), name="accelerate_in_mixed_precision")
healthy(lambda: accelerated(evaluates=True), name="accelerate_with_evaluations")


@healthy
def accelerate_with_two_models() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    parts = [nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2)),
             nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))]  # fmt: skip
    optimizers = [AdamW(each.parameters(), 1e-3) for each in parts]
    generator, critic, *optimizers = accelerator.prepare(*parts, *optimizers)
    for _ in range(STEPS):
        made, real = generator(torch.randn(32, 4)), torch.randn(32, 2) * 0.3 + 1
        loss = (
            functional.softplus(critic(made.detach())).mean()
            + functional.softplus(-critic(real)).mean()
        )
        optimizers[1].zero_grad()
        accelerator.backward(loss)
        optimizers[1].step()
        optimizers[0].zero_grad()
        accelerator.backward(functional.softplus(-critic(made)).mean())
        optimizers[0].step()


@healthy
def accelerate_saved_and_loaded() -> None:
    from accelerate import Accelerator

    accelerator, folder = Accelerator(cpu=True), mkdtemp()
    model = network()
    model, optimizer = accelerator.prepare(model, AdamW(model.parameters()))
    for step in range(STEPS):
        optimizer.zero_grad()
        accelerator.backward(loss_of(model, examples()))
        optimizer.step()
        if step % 8 == 7:
            accelerator.save_state(folder)
        if step == 20:
            accelerator.load_state(folder)


# Lightning.


def module(**hooks: Any) -> Any:
    """A module of the usual network; `hooks` are other methods of it."""
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()
            self.rate = 1e-3

        def training_step(self, batch: Any, _: int) -> Tensor:
            loss = loss_of(self.network, batch)
            self.log("train_loss", loss)
            return loss

        def validation_step(self, batch: Any, _: int) -> None:
            self.log("val_loss", loss_of(self.network, batch))

        def configure_optimizers(self) -> Any:
            return AdamW(self.parameters(), self.rate)

    return type("Module", (Module,), hooks)()


def lightning_trainer(**settings: Any) -> Any:
    import lightning.pytorch as pl

    known = {"max_steps": 60, "enable_checkpointing": False, "logger": False, **settings}
    return pl.Trainer(
        accelerator="cpu", devices=1, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=mkdtemp(), **known,
    )  # fmt: skip


def fitted(own: Any = None, **settings: Any) -> None:
    own = module() if own is None else own
    lightning_trainer(**settings).fit(own, loader(shuffle=True), loader())


healthy(fitted, name="lightning")
healthy(lambda: fitted(accumulate_grad_batches=4, max_steps=30), name="lightning_that_accumulates")
healthy(lambda: fitted(gradient_clip_val=1.0), name="lightning_that_clips")
healthy(lambda: fitted(precision="bf16-mixed"), name="lightning_in_mixed_precision")
healthy(lambda: fitted(precision="bf16-true"), name="lightning_in_bfloat16")
healthy(lambda: fitted(overfit_batches=1), name="lightning_on_one_batch")
healthy(lambda: fitted(val_check_interval=4), name="lightning_validated_often")
healthy(
    lambda: fitted(limit_train_batches=5, enable_checkpointing=True), name="lightning_checkpoints"
)


@healthy
def lightning_with_a_schedule() -> None:
    def configure(self: Any) -> Any:
        optimizer = SGD(self.parameters(), 0.05)
        schedule = OneCycleLR(optimizer, 0.05, total_steps=61)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    fitted(module(configure_optimizers=configure))


@healthy
def lightning_with_a_plateau() -> None:
    def configure(self: Any) -> Any:
        optimizer = AdamW(self.parameters())
        schedule = ReduceLROnPlateau(optimizer, patience=1)
        return {"optimizer": optimizer, "lr_scheduler": schedule, "monitor": "val_loss"}

    fitted(module(configure_optimizers=configure))


@healthy
def lightning_with_averaged_weights() -> None:
    from lightning.pytorch.callbacks import StochasticWeightAveraging

    fitted(max_steps=-1, max_epochs=8, callbacks=[StochasticWeightAveraging(1e-2)])


@healthy
def lightning_with_a_moving_average() -> None:
    from lightning.pytorch.callbacks import EMAWeightAveraging

    fitted(callbacks=[EMAWeightAveraging(decay=0.9)])


@healthy
def lightning_unfrozen_later() -> None:
    from lightning.pytorch.callbacks import BaseFinetuning

    class Unfreeze(BaseFinetuning):
        def freeze_before_training(self, own: Any) -> None:
            self.freeze(own.network[:6])

        def finetune_function(self, own: Any, epoch: int, optimizer: Any) -> None:
            if epoch == 2:
                self.unfreeze_and_add_param_group(own.network[:6], optimizer)

    def configure(self: Any) -> Any:
        return AdamW([each for each in self.parameters() if each.requires_grad])

    fitted(module(configure_optimizers=configure), callbacks=[Unfreeze()])


@healthy
def lightning_search_of_rates() -> None:
    from lightning.pytorch.tuner import Tuner

    own = module()
    trainer = lightning_trainer()
    Tuner(trainer).lr_find(own, loader(shuffle=True), loader(), num_training=40, attr_name="rate")
    trainer.fit(own, loader(shuffle=True), loader())


@healthy
def lightning_search_of_rates_by_a_callback() -> None:
    """The search is a part of the fit, and the same optimizer goes on."""
    from lightning.pytorch.callbacks import LearningRateFinder

    fitted(callbacks=[LearningRateFinder(num_training_steps=60, attr_name="rate")])


@healthy
def lightning_search_of_batch_sizes() -> None:
    from lightning.pytorch.tuner import Tuner

    def data(self: Any) -> Any:
        return DataLoader(loader().dataset, self.batch_size, shuffle=True)

    own = module(batch_size=2, train_dataloader=data, val_dataloader=data)
    trainer = lightning_trainer()
    Tuner(trainer).scale_batch_size(own, max_trials=4, steps_per_trial=8)
    trainer.fit(own)


@healthy
def lightning_by_hand() -> None:
    """Manual optimization: a generator and a critic."""
    import lightning.pytorch as pl

    class Adversarial(pl.LightningModule):
        automatic_optimization = False

        def __init__(self) -> None:
            super().__init__()
            self.generator = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 20))
            self.critic = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 1))

        def training_step(self, batch: Any, _: int) -> None:
            generator, critic = self.optimizers()
            made = self.generator(torch.randn_like(batch[0]))
            self.toggle_optimizer(critic)
            loss = functional.softplus(self.critic(made.detach())).mean()
            loss = loss + functional.softplus(-self.critic(batch[0])).mean()
            critic.zero_grad()
            self.manual_backward(loss)
            critic.step()
            self.untoggle_optimizer(critic)
            self.toggle_optimizer(generator)
            generator.zero_grad()
            made = self.generator(torch.randn_like(batch[0]))
            self.manual_backward(functional.softplus(-self.critic(made)).mean())
            generator.step()
            self.untoggle_optimizer(generator)

        def configure_optimizers(self) -> Any:
            return AdamW(self.generator.parameters()), AdamW(self.critic.parameters())

    lightning_trainer(max_steps=120).fit(Adversarial(), loader(shuffle=True))


@healthy
def fabric() -> None:
    from lightning.fabric import Fabric

    own = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    model = network()
    model, optimizer = own.setup(model, AdamW(model.parameters()))
    data = own.setup_dataloaders(loader(shuffle=True))
    for at, (inputs, labels) in enumerate(endless(data, 80)):
        with own.no_backward_sync(model, enabled=at % 2 == 0) if at % 2 == 0 else nullcontext():
            own.backward(functional.cross_entropy(model(inputs), labels) / 2)
        if at % 2:
            optimizer.step()
            optimizer.zero_grad()


@healthy
def lightning_resumed() -> None:
    folder = mkdtemp()
    first = lightning_trainer(max_steps=20, enable_checkpointing=True)
    first.fit(module(), loader(shuffle=True))
    first.save_checkpoint(f"{folder}/last.ckpt")
    lightning_trainer().fit(
        module(), loader(shuffle=True), ckpt_path=f"{folder}/last.ckpt", weights_only=False
    )


@healthy
def lightning_fine_tuned() -> None:
    own = module()
    own.network.load_state_dict(checkpoint())
    own.network[:4].requires_grad_(False)
    fitted(own)


# DeepSpeed, on one rank.


def deepspeed() -> Any:
    """DeepSpeed on CPUs, without an extension that would be compiled for minutes."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    found = importlib.import_module("deepspeed")
    importlib.import_module("deepspeed.ops").__compatible_ops__["deepspeed_shm_comm"] = False
    return found
