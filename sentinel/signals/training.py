"""Signals of every kind of training: loss, optimizer, progress and speed."""

from __future__ import annotations

from sentinel.signals.signal import CombineRule, Signal

_MEAN, _SUM, _MAX, _SAME = CombineRule.MEAN, CombineRule.SUM, CombineRule.MAX, CombineRule.SAME

LOSSES = (
    Signal(
        "loss",
        "",
        _MEAN,
        "Training loss as it is optimised, before any filter.",
        (
            "train_loss",
            "training_loss",
            "loss/train",
            "actor/loss",
            "gpt_loss",
            "total_loss",
            "train_loss_local",
            "samples/train_loss",
            "trl",
        ),
    ),
    Signal(
        "logged_loss",
        "",
        _MEAN,
        "Loss as the framework logs it: after its filter, averaged over its logging window.",
    ),
    Signal(
        "eval_loss",
        "",
        _MEAN,
        "Loss on held-out data.",
        (
            "val_loss",
            "val/loss",
            "valid_loss",
            "valid/loss",
            "validation_loss",
            "validation/loss",
            "tel",
        ),
    ),
    Signal(
        "token_accuracy",
        "ratio",
        _MEAN,
        "Share of tokens that the model ranks first.",
        ("mean_token_accuracy", "token_acc"),
    ),
    Signal(
        "accuracy",
        "",
        _MEAN,
        "Share or percentage of samples that the model classifies correctly, as it is logged.",
        ("acc", "train_acc", "train_accuracy"),
    ),
)

OPTIMISATION = (
    Signal(
        "grad_norm",
        "",
        _MAX,
        "L2 norm of the gradient before clipping.",
        (
            "gradient_norm",
            "actor/grad_norm",
            "actor_grad_norm",
            "global_grad_norm",
            "grad_norm/total",
            "total_grad_norm",
        ),
    ),
    Signal(
        "grad_norm_local",
        "",
        CombineRule.NORM,
        "L2 norm of the part of the gradient that a rank holds; replicas hold a share each.",
    ),
    Signal(
        "logged_grad_norm",
        "",
        _MAX,
        "Gradient norm as the framework logs it: of the last step of its logging window.",
    ),
    Signal(
        "critic_grad_norm",
        "",
        _MAX,
        "L2 norm of the value model's gradient before clipping.",
        ("critic/grad_norm",),
    ),
    Signal(
        "learning_rate",
        "",
        _SAME,
        "Learning rate of the first parameter group.",
        (
            "lr",
            "actor/lr",
            "actor_lr",
            "samples/lr",
            "charts/learning_rate",
            "lr(1e-3)",
            "lr-adamw",
            "lr-adamw/pg1",
            "lr-adam",
            "lr-adam/pg1",
            "lr-sgd",
            "lr-sgd/pg1",
        ),
    ),
    Signal(
        "loss_scale",
        "",
        _SAME,
        "Factor that keeps half-precision gradients from vanishing.",
        ("samples/loss_scale", "grad_scale", "amp_scale"),
    ),
    Signal(
        "skipped_steps",
        "",
        _MAX,
        "Optimiser steps skipped so far because the gradient was not finite.",
        ("skipped_iterations",),
    ),
)

PROGRESS = (
    Signal(
        "global_step",
        "",
        _SAME,
        "Step number as the trainer counts it; must never decrease.",
        ("training/global_step", "trainer/global_step"),
    ),
    Signal(
        "optimizer_steps",
        "",
        _SAME,
        "Optimiser steps counted by the client in this attempt.",
    ),
    Signal("epoch", "", _SAME, "Passes over the training data.", ("training/epoch",)),
    Signal(
        "tokens",
        "",
        _SUM,
        "Tokens of this step.",
        ("perf/total_num_tokens", "global_tokens", "tokens_per_step"),
        family="step_tokens",
    ),
    Signal(
        "tokens_seen",
        "",
        _MAX,
        "Tokens trained on so far in the whole run.",
        ("num_tokens", "num_input_tokens_seen", "total_tokens", "total_tokens(b)"),
    ),
)

SPEED = (
    Signal(
        "step_time",
        "seconds",
        _MAX,
        "Wall time from one optimiser step to the next.",
        (
            "step_seconds",
            "perf/time_per_step",
            "timing_s/step",
            "timing/step_total",
            "iteration_time",
            "samples/elapsed_time_ms_step",
        ),
        family="step_duration",
    ),
    Signal(
        "data_wait",
        "seconds",
        _MAX,
        "Time of a step spent waiting for the next batch.",
        ("data_time", "data_wait_seconds", "time/data"),
        family="data_wait",
    ),
    Signal(
        "compute_time",
        "seconds",
        _MAX,
        "Time of a step before its backward passes, without waits: no gradient is exchanged in it.",
        family="compute_duration",
    ),
    Signal(
        "generation_time",
        "seconds",
        _MAX,
        "Time of a step spent sampling completions.",
        ("timing_s/gen", "timing/generation", "time/generate", "time/generation"),
        family="generation_duration",
    ),
    Signal(
        "weight_sync_time",
        "seconds",
        _MAX,
        "Time of a step spent sending the weights to the sampling engine.",
        ("timing_s/update_weights", "timing/broadcast"),
        family="weight_sync_duration",
    ),
    Signal(
        "tokens_per_second",
        "",
        _SUM,
        "Tokens trained on per second by all ranks together.",
        (
            "train_tokens_per_second",
            "perf/tokens_per_second",
            "throughput/tokens_per_sec",
            "tokens_per_sec",
        ),
    ),
    Signal(
        "tokens_per_second_per_gpu",
        "",
        _MEAN,
        "Tokens trained on per second and GPU.",
        ("perf/throughput", "throughput/device/tokens_per_sec"),
    ),
    Signal(
        "samples_per_second",
        "",
        _SUM,
        "Samples trained on per second by all ranks together; in games, environment steps.",
        (
            "train_samples_per_second",
            "throughput/samples_per_sec",
            "throughput/samples_per_second",
            "samples_per_sec",
            "time/fps",
            "charts/sps",
        ),
    ),
    Signal(
        "mfu",
        "ratio",
        _MEAN,
        "Share of the hardware's arithmetic that the model's own operations use.",
        ("perf/mfu", "perf/mfu/actor", "actor/mfu", "perf/mfu_wall_clock"),
    ),
)
