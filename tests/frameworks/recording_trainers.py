"""Trainers of Transformers and TRL that store reference values of what they computed."""

import math

import tiny_models
from support.training_loops import norm

COMMON = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "logging_steps": 1,
    "save_strategy": "no",
    "use_cpu": True,
    "report_to": [],
    "disable_tqdm": True,
    "seed": 1,
}


def plain(tokens, folder, *, bad=(), cls=None, callbacks=None, **settings):
    """A `Trainer` with `truth`, the sum of its losses, and `norms`, before clipping, by step.

    Passes numbered in `bad` have a NaN loss.
    """
    from datasets import Dataset
    from transformers import Trainer, TrainingArguments

    class Truthful(Trainer):
        def compute_loss(self, model, *args, **kwargs):
            loss = super().compute_loss(model, *args, **kwargs)
            if not model.training:
                return loss
            self.losses = getattr(self, "losses", [])
            self.losses.append(loss * math.nan if len(self.losses) in bad else loss)
            return self.losses[-1]

        def training_step(self, model, *args, **kwargs):
            result = super().training_step(model, *args, **kwargs)
            found = norm(p for p in model.parameters() if p.grad is not None)
            self.norms = {**getattr(self, "norms", {}), self.state.global_step: found}
            return result

        @property
        def loss_sums(self):
            each = [float(loss.detach()) for loss in self.losses]
            return [sum(each[at : at + 2]) for at in range(0, len(each), 2)]

    data = Dataset.from_list(tiny_models.rows(tokens))
    known = {**COMMON, "output_dir": str(folder), "max_steps": 4, "max_grad_norm": 0.5}
    return (cls or Truthful)(
        tiny_models.llama(tokens),
        TrainingArguments(**known | settings),
        train_dataset=data,
        eval_dataset=data.select(range(4)),
        callbacks=callbacks,
    )


BETA = 0.07
_PHRASES = [*tiny_models.PHRASES] * 8
_ROWS = {
    "sft": [{"text": f"{p} jumps"} for p in _PHRASES],
    "dpo": [{"prompt": p, "chosen": " fox jumps", "rejected": " dog"} for p in _PHRASES],
    "kto": [
        {"prompt": p, "completion": " fox" if at % 2 else " dog", "label": bool(at % 2)}
        for at, p in enumerate(_PHRASES)
    ],
    "reward": [{"chosen": f"{p} fox jumps", "rejected": f"{p} dog"} for p in _PHRASES],
    "grpo": [{"prompt": p} for p in _PHRASES],
    "rloo": [{"prompt": p} for p in _PHRASES],
}
_SAMPLED = {"num_generations": 4, "max_completion_length": 8, "beta": BETA}
_OWN = {"dpo": {"beta": BETA}, "kto": {"beta": BETA}, "grpo": _SAMPLED, "rloo": _SAMPLED}


def short(completions, **_):
    """A reward that depends only on the text."""
    return [float(len(completion) % 7) / 7 for completion in completions]


def absent(completions, **_):
    """A reward function that applies to none of these prompts."""
    return [None] * len(completions)


def of_trl(name, tokens, path, folder, *, rewards=(short,), data=None, **settings):
    """A TRL trainer by algorithm, with the `losses` of its training steps."""
    import trl
    from datasets import Dataset

    spelt = {"reward": "Reward"}.get(name, name.upper())
    cls, config = getattr(trl, f"{spelt}Trainer"), getattr(trl, f"{spelt}Config")

    class Truthful(cls):
        def training_step(self, *args, **kwargs):
            loss = super().training_step(*args, **kwargs)
            self.losses = [*getattr(self, "losses", []), float(loss)]
            return loss

    known = {
        **COMMON,
        **_OWN.get(name, {}),
        "output_dir": str(folder),
        "max_steps": 3,
        "learning_rate": 1e-3,
        "bf16": False,
        "gradient_checkpointing": False,
    }
    more = {"reward_funcs": list(rewards)} if name in {"grpo", "rloo"} else {}
    return Truthful(
        tiny_models.llama(tokens, scores=True) if name == "reward" else path,
        args=config(**known | settings),
        train_dataset=Dataset.from_list(data or _ROWS[name]),
        processing_class=tokens,
        **more,
    )


def logs(trainer):
    """The logs of its steps."""
    return [each for each in trainer.state.log_history if "loss" in each]


def logged(trainer, name):
    """The logged values under that name."""
    return [each[name] for each in trainer.state.log_history if name in each]
