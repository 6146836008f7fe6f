"""Console output of well-known trainers, with made values: the line formats are theirs."""

from __future__ import annotations

import json
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


def _yolox() -> ConsoleLog:
    text = ""
    for epoch in range(1, 6):
        text += f"2024-01-01 12:00:00.1 | INFO     | core.trainer:before:18 - start epoch{epoch}\n"
        for batch in (5, 10):
            text += (
                f"2024-01-01 12:00:00.1 | INFO     | core.trainer:iter:46 - epoch: {epoch}/5, "
                f"iter: {batch}/10, mem: 14Mb, total_loss: {_loss(10 * epoch)}, ETA: 0:01:00\n"
            )
    return _log(text, "total_loss", range(5, 55, 5))


def _bracketed_batches() -> ConsoleLog:
    """An epoch and a batch in a bracket each, as SwAV and MoCo; a configuration before them."""
    text = "epochs: 400\nwarmup_epochs: 0\nlr: 0.6\nlr: 0.6\n"
    for epoch in range(2):
        text += f"===== Starting epoch {epoch} =====\n"
        for batch in (0, 1, 2):
            loss = _loss(10 + 8 * (3 * epoch + batch))
            text += f"INFO - 01/02/24 12:00:00 - Epoch: [{epoch}][{batch}]\tLoss {loss} (3.9)\n"
    return _log(text, "Loss", range(6))


def _values_below_their_step() -> ConsoleLog:
    return _log(
        _lines(lambda step: f"current step: {step}th step\nbatch loss:{_loss(step)}"), "batch loss"
    )


def _losses_of_an_epoch() -> ConsoleLog:
    text = "2024-01-01 12:00:00,1 - INFO - Epoch 0 - Batch loss: 9.5\n"
    for number, step in enumerate(STEPS):
        text += f"2024-01-01 12:00:00,1 - INFO - Epoch {number // 3} - Batch loss: {_loss(step)}\n"
    text += "2024-01-01 12:00:00,1 - INFO - Epoch 1 - Average Train Loss: 1.0\n"
    return _log(text, "Batch loss", [0, 3, 4, 5, 6])


def _leading_counts() -> ConsoleLog:
    """The number that the line begins with is the step, and its word may name an evaluation."""
    return _log(
        _lines(lambda n: f"Train {n}, loss: {_loss(n)}, acc: 0.5\nTest {n}, loss: 9.5, acc: 0.4")
    )


def _summaries_of_epochs() -> ConsoleLog:
    """A line that names only its epoch is one at the step before it."""
    text = ""
    for epoch in range(1, 6):
        text += f"Epoch: [{epoch}][10/10]\tloss {_loss(10 * epoch)}\n"
        text += f"Prec@1 50.0 (49.5)\nEnd of epoch {epoch} / 5, Time Taken: 21 sec, mean: 0.5\n"
    return _log(text, "loss")


def _headers_of_evaluations() -> ConsoleLog:
    return _log(
        _lines(
            lambda n: (
                f"[01.02.24|12:00:00] Training epoch: {n}\n\tmean_loss: {_loss(n)}\n"
                f"[01.02.24|12:00:00] Eval epoch: {n}\n\tmean_loss: 9.5\n\tTop1: 1.5%"
            )
        ),
        "mean_loss",
    )


def _other_counters() -> ConsoleLog:
    text = ""
    for epoch in range(1, 6):
        text += "".join(f"Extract Features: [{n}/99]\tTime 1.7 (1.9)\n" for n in (50, 99))
        text += f"Epoch: [{epoch}][10/10]\tloss {_loss(10 * epoch)}\n"
    return _log(text, "loss")


def _narrow_bars() -> ConsoleLog:
    """Bars without a graphic, and the dict of an evaluation behind one."""
    text = ""
    for step in STEPS:
        text += f"{2 * step}% {step}/50 [00:01<00:10,  1.84it/s]\n"
        text += f"{{'loss': {_loss(step)}, 'epoch': {step / 50}}}\n"
        text += "100% 3/3 [00:01<00:00,  3.76it/s]{'mrr': np.float64(0.25), 'epoch': 0.5}\n"
    return _log(text)


def _structured() -> ConsoleLog:
    return _log(
        _lines(
            lambda step: json.dumps(
                {
                    "timestamp": "2024-01-01 12:00:00",
                    "message": f"step {step}\tloss : {_loss(step)}",
                }
            )
        )
    )


def _ultralytics() -> ConsoleLog:
    text = ""
    for epoch in range(1, 6):
        text += "\n      Epoch    GPU_mem   box_loss   cls_loss  Instances       Size\n"
        for batch in (5, 10):
            text += (
                f"\r        {epoch}/5      2.51G      {_loss(10 * epoch)}     1.4        23       "
                f"640: {_bar(batch, 10)}"
            )
        text += "\n                 Class     Images  Instances      Box(P          R      mAP50: "
        text += f"{_bar(4, 4)}\n"
        text += "                   all        128        929       0.64       0.55       0.6\n"
    return _log(text, "box_loss", range(5, 55, 5))


def _columns() -> ConsoleLog:
    text = "Iteration       Wall_Time       Train_Return    Critic_Loss\n"
    text += _lines(lambda step: f"{step:<16}0.001           851.6           {_loss(step)}")
    return _log(text, "Critic_Loss")


def _columns_without_steps() -> ConsoleLog:
    text = "total loss\tscore loss\tctc loss\t\n0\t0\t0\n"
    text += _lines(lambda step: f"{_loss(step)}\t0.25\t0.5\t")
    return _log(text, "total loss", range(1, 6))


def _rich_table() -> ConsoleLog:
    text = "┏━━━━━━━┳━━━━━━━━━━━━┳━━━━━━━━━━┓\n┃ Epoch ┃ Train Loss ┃ Val Loss ┃\n"
    text += "┡━━━━━━━╇━━━━━━━━━━━━╇━━━━━━━━━━┩\n"
    return _log(text + _lines(lambda n: f"│ {n}    │ {_loss(n)}     │ 2.5      │"), "Train Loss")


CONSOLE_LOGS: Mapping[str, ConsoleLog] = {
    name.removeprefix("_"): make()
    for name, make in {
        each.__name__: each
        for each in (
            _transformers, _buffered_transformers, _verl, _openrlhf, _keras, _keras_3, _lightning,
            _nanogpt, _cycle_gan, _detectron2, _mmdetection, _mmengine, _mnist, _imagenet,
            _stable_baselines3, _fairseq_old, _fairseq, _megatron, _torchtune, _llama_factory,
            _slurm, _glog, _hydra, _gan_batches, _dcgan, _cifar, _episodes,
            _yolox, _bracketed_batches, _values_below_their_step, _losses_of_an_epoch,
            _leading_counts, _summaries_of_epochs, _headers_of_evaluations, _other_counters,
            _narrow_bars, _structured,
            _ultralytics, _columns, _columns_without_steps, _rich_table,
        )
    }.items()
}  # fmt: skip
