"""Errors in forms that no public thread gave us: of frameworks, of loops, and of two ranks."""

from __future__ import annotations

import copy
from tempfile import mkdtemp
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, StepLR
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from silent_trainings.case import case
from silent_trainings.healthy_frameworks import (
    lightning_trainer,
    llama,
    module,
    preferred,
    rows_of_letters,
    trainer_of,
)
from silent_trainings.loops import (
    RANK_STEPS,
    checkpoint,
    evaluate,
    examples,
    loader,
    loss_of,
    network,
    replicated,
    train,
    update,
)

STEPS = 60
OWN = ""
"""These have no source elsewhere."""


def accelerated() -> tuple[Any, nn.Module, Any]:
    """An accelerator with a model and its optimizer."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = network()
    return accelerator, *accelerator.prepare(model, AdamW(model.parameters()))


@case(OWN, "weights_not_updated/other_tensors")
def trainer_of_a_copy(*, sick: bool) -> None:
    """The Trainer of Transformers gets a copy of the model whose optimizer it gets."""
    model = llama()
    optimizer = AdamW(model.parameters(), 2e-3)
    trained = copy.deepcopy(model) if sick else model
    trainer_of(trained, optimizers=(optimizer, None)).train()


@case(OWN, "weights_not_updated/no_rate")
def warm_up_that_never_ends(*, sick: bool) -> None:
    """A warm-up in Lightning divides whole numbers, so that the rate stays 0."""

    def configure(self: Any) -> Any:
        optimizer = AdamW(self.parameters())
        factor = (lambda step: step // 1000) if sick else (lambda step: min(1.0, (step + 1) / 10))
        schedule = {"scheduler": LambdaLR(optimizer, factor), "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    lightning_trainer().fit(module(configure_optimizers=configure), loader(shuffle=True))


@case(OWN, "weights_not_updated/not_in_optimizer", "weights_not_updated/other_tensors")
def optimizer_before_adapters(*, sick: bool) -> None:
    """The optimizer is made before the adapters, and holds the frozen weights alone."""
    import peft

    model = llama()
    optimizer = AdamW(model.parameters(), 1e-2)
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM"))
    if not sick:
        optimizer = AdamW([each for each in adapted.parameters() if each.requires_grad], 1e-2)
    trainer_of(adapted, optimizers=(optimizer, None)).train()


@case(OWN, "weights_not_loaded/replaced")
def loaded_adapter_wrapped_again(*, sick: bool) -> None:
    """`get_peft_model` adds the adapter again that was loaded; in the twin it was unloaded."""
    import peft
    from transformers import AutoModelForCausalLM

    folder, base = mkdtemp(), llama()
    base.save_pretrained(f"{folder}/base")
    config = peft.LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False)
    peft.get_peft_model(base, config).save_pretrained(folder)
    again = AutoModelForCausalLM.from_pretrained(f"{folder}/base")
    model = peft.PeftModel.from_pretrained(again, folder, is_trainable=True)
    model = peft.get_peft_model(
        model if sick else model.unload(), peft.LoraConfig(task_type="CAUSAL_LM")
    )
    trainer_of(model, learning_rate=1e-2).train()


@case(OWN, "weights_not_updated/adapter_not_used", "weights_not_updated/not_in_optimizer")
def another_adapter_active(*, sick: bool) -> None:
    """The optimizer holds one adapter beside the head, and another one is active."""
    import peft

    config = peft.LoraConfig(task_type="CAUSAL_LM")
    model = peft.get_peft_model(llama(), config, "first")
    model.add_adapter("second", config)
    own = [each for name, each in model.named_parameters() if "first" in name]
    head = [each for name, each in model.named_parameters() if "lm_head" in name]
    optimizer = AdamW([*own, *head], 1e-2)
    model.set_adapter("second" if sick else "first")
    for each in (*own, *head):
        each.requires_grad_(True)
    rows = torch.tensor(rows_of_letters()["input_ids"])
    for _ in range(STEPS):
        batch = rows[torch.randint(len(rows), (8,))]
        update(optimizer, model(input_ids=batch, labels=batch).loss)


@case(OWN, "weights_not_updated/not_in_optimizer", "replicas_differ", ranks=2)
def head_replaced_after_wrapping(*, sick: bool) -> None:
    """The head is replaced after the model was wrapped and the optimizer made."""
    model = network()
    if not sick:
        model[6] = nn.Linear(64, 5)
    model = replicated(model, find_unused_parameters=True)
    optimizer = AdamW(model.parameters())
    if sick:
        model.module[6] = nn.Linear(64, 5)
    for _ in range(RANK_STEPS):
        update(optimizer, loss_of(model, examples()))


@case(OWN, "gradients_not_cleared")
def never_cleared_by_hand(*, sick: bool) -> None:
    """Manual optimization in Lightning without `zero_grad`."""

    def training_step(self: Any, batch: Any, _: int) -> None:
        optimizer = self.optimizers()
        if not sick:
            optimizer.zero_grad()
        self.manual_backward(loss_of(self.network, batch))
        optimizer.step()

    own = module(training_step=training_step)
    own.automatic_optimization = False
    lightning_trainer().fit(own, loader(shuffle=True))


@case(OWN, "gradients_not_cleared")
def not_cleared_with_accelerate(*, sick: bool) -> None:
    """The parentheses of `optimizer.zero_grad()` are missing."""
    accelerator, model, optimizer = accelerated()
    for _ in range(STEPS):
        accelerator.backward(loss_of(model, examples()))
        optimizer.step()
        optimizer.zero_grad if sick else optimizer.zero_grad()


@case(OWN, "replicas_differ", ranks=2)
def initialized_on_each_rank(*, sick: bool) -> None:
    """Each rank initializes the weights by its own seed, after the model was wrapped."""
    model = network()
    wrapped = replicated(model)
    for each in model:
        if sick and isinstance(each, nn.Linear):
            each.reset_parameters()
    optimizer = AdamW(wrapped.parameters())
    for _ in range(RANK_STEPS):
        update(optimizer, loss_of(wrapped, examples()))


@case(OWN, "replicas_differ", ranks=2)
def clipped_on_the_first_rank(*, sick: bool) -> None:
    """Gradients are clipped on the first rank alone, beside its log."""
    model = replicated(network())
    optimizer = SGD(model.parameters(), 0.1)
    for _ in range(RANK_STEPS):
        optimizer.zero_grad()
        loss_of(model, examples()).backward()
        if not sick or not dist.get_rank():
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()


@case(OWN, "repeated_batches", ranks=2)
def same_seed_on_each_rank(*, sick: bool) -> None:
    """Each rank draws its random batches by the same seed."""
    torch.manual_seed(0)
    data = TensorDataset(*examples(640))
    torch.manual_seed(0 if sick else dist.get_rank())
    model = replicated(network())
    optimizer = AdamW(model.parameters())
    for _, batch in zip(range(RANK_STEPS), DataLoader(data, 8, shuffle=True), strict=False):
        inputs, labels = batch
        update(optimizer, loss_of(model, (inputs, labels)))


@case(OWN, "repeated_batches/same_batch")
def loader_made_at_each_step(*, sick: bool) -> None:
    """Accelerate: `next(iter(loader))` without shuffling gives the first batch at each step."""
    accelerator, model, optimizer = accelerated()
    data = accelerator.prepare(loader(shuffle=not sick))
    for _ in range(STEPS):
        optimizer.zero_grad()
        accelerator.backward(loss_of(model, next(iter(data))))
        optimizer.step()


@case(OWN, "evaluation_mode/evaluation_mode", begins=10)
def evaluation_mode_with_accelerate(*, sick: bool) -> None:
    """`model.train()` stands before the loop over epochs instead of in it."""
    accelerator, model, optimizer = accelerated()
    data, held_out = accelerator.prepare(loader(shuffle=True), loader())
    for _ in range(6):
        if not sick:
            model.train()
        for batch in data:
            optimizer.zero_grad()
            accelerator.backward(loss_of(model, batch))
            optimizer.step()
        model.eval()
        evaluate(model, held_out)


@case(OWN, "evaluation_in_training_mode", begins=10)
def validated_in_training_mode_by_lightning(*, sick: bool) -> None:
    """A hook of Lightning that is to set the evaluation mode does nothing."""
    hooks = {"on_validation_model_eval": lambda _: None} if sick else {}
    settings = {"max_steps": 60, "num_sanity_val_steps": 0}
    lightning_trainer(**settings).fit(module(**hooks), loader(shuffle=True), loader())


@case(OWN, "weights_not_updated/too_small")
def trainer_of_coarse_weights(*, sick: bool) -> None:
    """All weights are in bfloat16, and Transformers' Trainer has a rate of 1e-7."""
    model = llama()
    trainer_of(model.bfloat16() if sick else model, learning_rate=1e-7).train()


@case(OWN, "autocast_not_in_force")
def unprepared_model_in_mixed_precision(*, sick: bool) -> None:
    """The loop calls the model that was given to Accelerate instead of the one that it returned."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    raw = network()
    model, optimizer = accelerator.prepare(copy.deepcopy(raw), AdamW(raw.parameters()))
    raw = model.module if hasattr(model, "module") else model
    plain = type(raw).forward
    optimizer = AdamW(raw.parameters())
    for _ in range(STEPS):
        inputs, labels = examples()
        outputs = plain(raw, inputs) if sick else model(inputs)
        optimizer.zero_grad()
        accelerator.backward(functional.cross_entropy(outputs.float(), labels))
        optimizer.step()


@case(OWN, "schedule_too_fast")
def schedule_of_epochs_in_lightning(*, sick: bool) -> None:
    """A schedule for epochs takes a step for each batch, by its `interval`."""

    def configure(self: Any) -> Any:
        optimizer = AdamW(self.parameters())
        interval = "step" if sick else "epoch"
        schedule = {"scheduler": StepLR(optimizer, 2, 0.1), "interval": interval}
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    own = module(configure_optimizers=configure)
    lightning_trainer(max_steps=40).fit(own, loader(shuffle=True))


@case(OWN, "schedule_too_fast")
def schedule_stepped_twice(*, sick: bool) -> None:
    """The loop and the evaluation of each step both advance the schedule."""
    model = network()
    optimizer = AdamW(model.parameters())
    schedule = LambdaLR(optimizer, lambda step: max(0.1, 1 - step / 1000))
    for _ in range(STEPS):
        update(optimizer, loss_of(model, examples()))
        schedule.step()
        if sick:
            schedule.step()


@case(OWN, "unexpected_weight_changes/set_anew")
def initialized_in_each_epoch(*, sick: bool) -> None:
    """A hook of Lightning for the beginning of a training runs in each epoch instead."""

    def initialize(self: Any) -> None:
        for each in self.network:
            if isinstance(each, nn.Linear):
                nn.init.normal_(each.weight, 0.0, 0.1)

    name = "on_train_epoch_start" if sick else "on_fit_start"
    lightning_trainer().fit(module(**{name: initialize}), loader(shuffle=True))


@case(OWN, "weights_not_loaded/not_loaded")
def loaded_with_the_name_of_a_wrapper(*, sick: bool) -> None:
    """The names in the checkpoint of a wrapped model begin with `module.`; `strict` is False."""
    accelerator, model, optimizer = accelerated()
    known = {f"module.{name}" if sick else name: each for name, each in checkpoint().items()}
    model.load_state_dict(known, strict=False)
    for _ in range(STEPS):
        optimizer.zero_grad()
        accelerator.backward(loss_of(model, examples()))
        optimizer.step()


@case(OWN, "weights_not_loaded/not_loaded")
def pretrained_under_other_names(*, sick: bool) -> None:
    """Transformers loads the file of a model within another one: all weights are new."""
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM

    folder = mkdtemp()
    llama().save_pretrained(folder)
    if sick:
        path = f"{folder}/model.safetensors"
        renamed = {f"student.{name}": each for name, each in load_file(path).items()}
        save_file(renamed, path, {"format": "pt"})
    trainer_of(AutoModelForCausalLM.from_pretrained(folder)).train()


@case(OWN, "steps_skipped")
def scale_that_is_never_found(*, sick: bool) -> None:
    """The scale is set to a fixed number at each step, which overflows."""
    model = network()
    optimizer, scaler = AdamW(model.parameters()), torch.amp.GradScaler("cpu", 2.0**30)
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = loss_of(model, examples())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update(2.0**30 if sick else None)


@case(OWN, "gradients_discarded")
def cleared_in_each_micro_batch(*, sick: bool) -> None:
    """Accumulation by hand, with `model.zero_grad()` before each backward pass."""
    model = network()
    optimizer = AdamW(model.parameters())
    for _ in range(STEPS):
        for _ in range(4):
            loss = loss_of(model, examples()) / 4
            if sick:
                model.zero_grad()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@case(OWN, "weights_not_updated/not_in_optimizer")
def layers_in_a_dictionary(*, sick: bool) -> None:
    """Layers in a plain dictionary are no parameters of the model."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = {"inner": nn.Linear(64, 64), "other": nn.Linear(64, 64)}
            self.first, self.last = nn.Linear(20, 64), nn.Linear(64, 5)
            self.layers: Any = layers if sick else nn.ModuleDict(layers)

        def forward(self, inputs: Tensor) -> Tensor:
            hidden = self.first(inputs).relu()
            for each in self.layers.values():
                hidden = each(hidden).relu()
            return self.last(hidden)

    model = Model()
    train(model, AdamW(model.parameters()), steps=STEPS)


@case(OWN, "weights_not_updated/zeroed")
def clipped_to_zero(*, sick: bool) -> None:
    """A limit of 0 is meant to switch clipping off, and sets all gradients to 0."""
    model = network()
    optimizer = AdamW(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, examples()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.0 if sick else 1.0)
        optimizer.step()


@case(OWN, "weights_not_updated/zeroed")
def set_to_zero_before_the_step(*, sick: bool) -> None:
    """`zero_grad(set_to_none=False)` stands between the backward pass and the step."""
    model = network()
    optimizer = AdamW(model.parameters())
    for _ in range(STEPS):
        loss = loss_of(model, examples())
        if not sick:
            optimizer.zero_grad(set_to_none=False)
        loss.backward()
        if sick:
            optimizer.zero_grad(set_to_none=False)
        optimizer.step()


@case(OWN, "schedule_too_fast/repeats")
def trainer_with_a_schedule_of_epochs(*, sick: bool) -> None:
    """A cosine for the Trainer of Transformers has the number of epochs as its period."""
    model = llama()
    optimizer = AdamW(model.parameters(), 2e-3)
    schedule = CosineAnnealingLR(optimizer, 5 if sick else 200)
    trainer_of(model, optimizers=(optimizer, schedule)).train()


@case(OWN, "unequal_start/reference_follows")
def reference_that_shares_weights(*, sick: bool) -> None:
    """The reference of DPO is a shallow copy of the policy, and is trained with it."""
    policy = llama().eval()
    reference = copy.copy(policy) if sick else copy.deepcopy(policy).requires_grad_(False)
    optimizer = AdamW(policy.parameters())

    def score(model: nn.Module, tokens: Tensor) -> Tensor:
        likelihoods = model(input_ids=tokens).logits[:, :-1].log_softmax(-1)
        return likelihoods.gather(-1, tokens[:, 1:, None]).sum((1, 2))

    for _ in range(STEPS):
        chosen, rejected = torch.randint(4, 8, (8, 8)), torch.randint(8, 12, (8, 8))
        with torch.no_grad():
            expected = score(reference, chosen) - score(reference, rejected)
        margin = score(policy, chosen) - score(policy, rejected) - expected
        update(optimizer, -functional.logsigmoid(0.1 * margin).mean())


@case(OWN, "unequal_start/policy_differs")
def trl_dpo_with_another_reference(*, sick: bool) -> None:
    """The reference that TRL's DPO is given is not the model that it starts from."""
    policy = llama(initializer_range=0.3)
    reference = llama(initializer_range=0.3) if sick else copy.deepcopy(policy)
    # As `from_pretrained` gives it.
    preferred(policy, reference.eval())


@case(OWN, "replicas_differ", ranks=2)
def steps_skipped_by_the_own_loss(*, sick: bool) -> None:
    """Each rank leaves out the steps of high losses by its own loss instead of the mean."""
    model = replicated(network())
    optimizer = AdamW(model.parameters())
    for _ in range(RANK_STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, examples())
        loss.backward()
        shown = loss.detach().clone()
        if not sick:
            dist.all_reduce(shown)
            shown /= 2
        if shown < 1.6:
            optimizer.step()


@case(OWN, "repeated_batches", ranks=2)
def sampler_of_the_first_rank(*, sick: bool) -> None:
    """The DistributedSampler is given the rank 0 on each rank."""
    torch.manual_seed(0)
    data = loader().dataset
    rank = 0 if sick else dist.get_rank()
    sampler = DistributedSampler(data, num_replicas=2, rank=rank)
    model = replicated(network())
    optimizer = AdamW(model.parameters())
    train(model, optimizer, batches=DataLoader(data, 4, sampler=sampler), steps=RANK_STEPS)


@case(OWN, "gradients_not_cleared")
def clears_an_average(*, sick: bool) -> None:
    """`zero_grad` is called on the moving average instead of the model, with Accelerate."""
    accelerator, model, optimizer = accelerated()
    average = copy.deepcopy(model)
    for _ in range(STEPS):
        accelerator.backward(loss_of(model, examples()))
        optimizer.step()
        (average if sick else model).zero_grad()
        with torch.no_grad():
            for mean, each in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(each, 0.01)


@case(OWN, "evaluation_mode/evaluation_mode")
def evaluation_mode_by_a_callback(*, sick: bool) -> None:
    """A callback of Lightning shows predictions, and leaves the model in evaluation mode."""
    import lightning.pytorch as pl

    class Show(pl.Callback):
        def on_train_batch_end(self, _: Any, own: Any, __: Any, batch: Any, ___: int) -> None:
            own.eval()
            with torch.no_grad():
                own.network(batch[0][:2])
            if not sick:
                own.train()

    lightning_trainer(callbacks=[Show()]).fit(module(), loader(shuffle=True))
