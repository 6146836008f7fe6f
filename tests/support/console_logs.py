"""Console output of well-known trainers, with made values: the line formats are theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

STEPS = range(10, 60, 10)


class ConsoleLog(NamedTuple):
    """A log, and the series that is in it: the key of the row, its steps, first and last value."""

    text: str
    key: str
    steps: list[int]
    first: float
    last: float


def _loss(step: int) -> float:
    return round(2.5 - step / 100, 4)


def _lines(write: Callable[[int], str], steps: range = STEPS) -> str:
    return "".join(write(step) + "\n" for step in steps)


def _log(text: str, key: str = "loss", steps: range | list[int] = STEPS) -> ConsoleLog:
    return ConsoleLog(text, key, [*steps], _loss(10), _loss(50))


def _bar(step: int, total: int, description: str = "", postfix: str = "") -> str:
    percent = 100 * step // total
    graphic = "█" * (percent // 10) + " " * (10 - percent // 10)
    return (
        f"{description}{percent:3d}%|{graphic}| {step}/{total} [00:0{step % 10}<01:00,  "
        f"2.01it/s{postfix}]"
    )


def _transformers() -> ConsoleLog:
    text = "\x1b[33mUserWarning: torch 2.1.0 has 3 deprecations in line 12\x1b[0m\n"
    for step in STEPS:
        text += "".join(f"\r{_bar(n, 50)}" for n in range(step - 9, step + 1))
        text += "\r" + " " * 60 + "\r"
        text += (
            f"{{'loss': {_loss(step)}, 'grad_norm': nan, 'learning_rate': 5e-05, "
            f"'epoch': {step / 50}}}\n"
        )
        if step == 30:
            text += "".join(f"\r{_bar(n, 3)}" for n in range(1, 4)) + "\r" + " " * 60 + "\r"
            text += "{'eval_loss': 2.2, 'eval_runtime': 1.5, 'epoch': 0.6}\n"
    return _log(text + "{'train_runtime': 12.0, 'train_loss': 2.2, 'epoch': 1.0}\n")


def _buffered_transformers() -> ConsoleLog:
    bars = "".join(f"\r{_bar(n, 50)}" for n in range(1, 51)) + "\n"
    dicts = _lines(lambda step: f"{{'loss': '{_loss(step)}', 'epoch': '{step / 50}'}}")
    return _log(bars + dicts, steps=range(1, 6))


def _verl() -> ConsoleLog:
    return ConsoleLog(
        "(TaskRunner pid=4242) Training from scratch with 8 GPUs\n"
        + _lines(
            lambda step: (
                f"(TaskRunner pid=4242) step:{step} - global_seqlen/min:100 - "
                f"actor/kl_loss:np.float64({step / 1000}) - actor/lr:1e-06 - "
                f"critic/score/mean:{step / 100} - response_length/mean:120.5"
            )
        ),
        "critic/score/mean",
        [*STEPS],
        0.1,
        0.5,
    )


def _openrlhf() -> ConsoleLog:
    states = [
        "\r"
        + _bar(n, 5, "Train epoch [1/1]: ", f", gpt_loss={_loss(10 * n)}, loss_mean=2.4, lr=1e-6")
        for n in range(1, 6)
    ]
    return _log("".join(states) + "\n", "gpt_loss", range(1, 6))


def _keras() -> ConsoleLog:
    text = ""
    for epoch in range(1, 6):
        text += f"Epoch {epoch}/5\n"
        text += "\r 12/120 [==>...........................] - ETA: 1s - loss: 9.5 - accuracy: 0.1"
        text += (
            f"\r120/120 [==============================] - 2s 15ms/step - loss: {_loss(10 * epoch)}"
            f" - accuracy: 0.9 - val_loss: 1.5 - val_accuracy: 0.8\n"
        )
    return _log(text, steps=range(120, 601, 120))


def _keras_3() -> ConsoleLog:
    text = ""
    for epoch in range(1, 6):
        text += (
            f"\x1b[1mEpoch {epoch}/5\x1b[0m\n\x1b[1m120/120\x1b[0m \x1b[32m━━━━━━━━━━━━━━━━━━━━"
            f"\x1b[0m\x1b[37m\x1b[0m \x1b[1m2s\x1b[0m 15ms/step - accuracy: 0.9 - loss: "
            f"{_loss(10 * epoch)} - val_loss: 1.5\n"
        )
    return _log(text, steps=range(120, 601, 120))


def _lightning() -> ConsoleLog:
    text = ""
    for epoch in range(5):
        for batch in (9, 10):
            loss = _loss(10 * epoch + 10) if batch == 10 else 3.0
            text += "\r" + _bar(batch, 10, f"Epoch {epoch}: ", f", v_num=0, train_loss={loss}")
        text += "\n"
    steps = [10 * epoch + batch for epoch in range(5) for batch in (9, 10)]
    return ConsoleLog(text, "train_loss", steps, 3.0, _loss(50))


def _nanogpt() -> ConsoleLog:
    return _log(
        "number of parameters: 123.59M\nstep 0: train loss 3.0, val loss 3.1\n"
        + _lines(lambda n: f"iter {n}: loss {_loss(n)}, time 20.11ms, mfu 3.10%")
        + "step 50: train loss 1.9, val loss 2.0\n"
    )


def _cycle_gan() -> ConsoleLog:
    text = "================ Training Loss (Mon Jan  1 12:00:00 2024) ================\n"
    for epoch in (1, 2):
        text += _lines(
            lambda n, epoch=epoch: (
                f"(epoch: {epoch}, iters: {n}, time: 0.100, data: 0.200) "
                f"G_GAN: {_loss(n)} D_real: 0.400 D_fake: 0.300 "
            )
        )
    steps = [*STEPS, *range(60, 110, 10)]
    return ConsoleLog(text, "G_GAN", steps, _loss(10), _loss(50))


def _detectron2() -> ConsoleLog:
    return _log(
        _lines(
            lambda n: (
                f"[01/01 12:00:{n} d2.utils.events]:  eta: 0:05:12  iter: {n}  total_loss: "
                f"{_loss(n)}  loss_cls: 0.5  time: 0.2012  lr: 0.001  max_mem: 2048M"
            )
        ),
        "total_loss",
    )


def _mmdetection() -> ConsoleLog:
    return _log(
        _lines(
            lambda n: (
                f"2024-01-01 12:00:{n},123 - mmdet - INFO - Epoch [1][{n}/7330]\tlr: 1.978e-03, "
                f"eta: 15:02:12, time: 0.615, data_time: 0.050, memory: 5000, loss_cls: 0.2, "
                f"loss: {_loss(n)}"
            )
        )
    )


def _mmengine() -> ConsoleLog:
    return _log(
        _lines(
            lambda n: (
                f"01/01 12:00:{n} - mmengine - INFO - Epoch(train)  [1][{n:4d}/7330]  "
                f"base_lr: 2.0e-03 lr: 2.0e-03  eta: 0:50:00  time: 0.3  loss: {_loss(n)}"
            )
        )
        + "01/01 12:01:00 - mmengine - INFO - Epoch(val) [1][36/36]  coco/bbox_mAP: 0.2\n"
    )


def _mnist() -> ConsoleLog:
    return _log(
        _lines(lambda n: f"Train Epoch: 1 [{64 * n}/60000 ({n // 10}%)]\tLoss: {_loss(n):.6f}")
        + "\nTest set: Average loss: 0.0532, Accuracy: 9823/10000 (98%)\n",
        "Loss",
        range(640, 3201, 640),
    )


def _imagenet() -> ConsoleLog:
    return _log(
        "=> creating model 'resnet18'\n"
        + _lines(
            lambda n: (
                f"Epoch: [0][{n:4d}/5005]\tTime  0.1 (  0.2)\tData  0.0 (  0.1)\t"
                f"Loss {_loss(n):.4e} (2.4000e+00)\tAcc@1  12.50 ( 11.00)"
            )
        )
        + "Test: [ 10/100]\tTime  0.1 (  0.2)\tLoss 2.0e+00 (2.1e+00)\tAcc@1  40.00 ( 41.00)\n",
        "Loss",
    )


def _stable_baselines3() -> ConsoleLog:
    border = "-" * 41 + "\n"
    text = "Using cpu device\n"
    for n in STEPS:
        rows = (
            ("rollout/", ""),
            ("   ep_len_mean", "22.5"),
            ("   ep_rew_mean", f"{n / 10}"),
            ("time/", ""),
            ("   fps", "1200"),
            ("   total_timesteps", f"{100 * n}"),
        )
        text += border + "".join(f"| {key:<23} | {value:<11} |\n" for key, value in rows) + border
    steps = [100 * n for n in STEPS]
    return ConsoleLog(text, "rollout/ep_rew_mean", steps, 1.0, 5.0)


def _fairseq_old() -> ConsoleLog:
    return _log(
        _lines(
            lambda n: (
                f"| epoch 001:     {n} / 100 loss={_loss(n)}, nll_loss=8.7, ppl=550.3, wps=1200, "
                f"num_updates={n}, lr=1e-05, gnorm=3.2"
            )
        )
    )


def _fairseq() -> ConsoleLog:
    return _log(
        _lines(
            lambda n: (
                f"2024-01-01 12:00:{n} | INFO | train_inner | epoch 001:     {n} / 100 "
                f"loss={_loss(n)}, nll_loss=8.7, ppl=550.3, wps=1200, num_updates={n}, lr=1e-05"
            )
        )
        + "2024-01-01 12:01:00 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 2.2 | "
        "ppl 300 | num_updates 50\n"
    )


def _megatron() -> ConsoleLog:
    return _log(
        _lines(
            lambda n: (
                f" [2024-01-01 12:00:{n}] iteration {n:8d}/     100 | "
                f"consumed samples: {8 * n:12d} | "
                f"elapsed time per iteration (ms): 500.1 | learning rate: 1.000000E-05 | "
                f"global batch size:     8 | lm loss: {_loss(n):.6E} | loss scale: 1.0 | "
                f"grad norm: 1.200 | number of skipped iterations:   0 |"
            )
        ),
        "lm loss",
    )


def _torchtune() -> ConsoleLog:
    return _log(
        _lines(lambda n: f"Step {n} | loss:{_loss(n)} lr:2e-05 tokens_per_second_per_gpu:1,234.5")
    )


def _llama_factory() -> ConsoleLog:
    return _log(
        _lines(
            lambda n: (
                f"[INFO|2024-01-01 12:00:{n}] llamafactory.train.callbacks:143 >> "
                f"{{'loss': {_loss(n)}, 'learning_rate': 5.0e-05, 'epoch': {n / 50:.2f}}}"
            )
        ),
        steps=range(1, 6),
    )


def _slurm() -> ConsoleLog:
    return _log(
        _lines(
            lambda n: "\n".join(
                f"{rank}: [rank{rank}]: 2024-01-01 12:00:{n},000 - INFO - step {n} loss "
                f"{_loss(n) + rank} lr 1e-4"
                for rank in (0, 1)
            )
        )
    )


def _glog() -> ConsoleLog:
    return _log(
        _lines(lambda n: f"I0101 12:00:{n}.123456 12345 train.py:10] Step {n}, loss = {_loss(n)}")
    )


def _hydra() -> ConsoleLog:
    return _log(
        _lines(
            lambda n: f"[2024-01-01 12:00:{n},123][trainer.loop][INFO] - step={n} loss={_loss(n)}"
        )
    )


def _gan_batches() -> ConsoleLog:
    return _log(
        _lines(lambda n: f"[Epoch 0/200] [Batch {n}/938] [D loss: {_loss(n)}] [G loss: 0.7]"),
        "D loss",
    )


def _dcgan() -> ConsoleLog:
    return _log(
        _lines(lambda n: f"[0/5][{n}/100]\tLoss_D: {_loss(n)}\tLoss_G: 2.5\tD(x): 0.9"), "Loss_D"
    )


def _cifar() -> ConsoleLog:
    text = ""
    for epoch in range(5):
        text += f"\nEpoch: {epoch}\n"
        text += (
            f" [=========>] Step: 10ms | Tot: 1s | Loss: {_loss(10 * epoch + 10)} | "
            f"Acc: 50.000% (64/128) 391/391\n"
        )
    return _log(text, "Loss", range(391, 1956, 391))


def _episodes() -> ConsoleLog:
    text = _lines(lambda n: f"Episode {n}/500, score: {_loss(n)}, epsilon: 0.9")
    return _log(text, "score")


CONSOLE_LOGS: Mapping[str, ConsoleLog] = {
    name.removeprefix("_"): make()
    for name, make in {
        each.__name__: each
        for each in (
            _transformers, _buffered_transformers, _verl, _openrlhf, _keras, _keras_3, _lightning,
            _nanogpt, _cycle_gan, _detectron2, _mmdetection, _mmengine, _mnist, _imagenet,
            _stable_baselines3, _fairseq_old, _fairseq, _megatron, _torchtune, _llama_factory,
            _slurm, _glog, _hydra, _gan_batches, _dcgan, _cifar, _episodes,
        )
    }.items()
}  # fmt: skip
