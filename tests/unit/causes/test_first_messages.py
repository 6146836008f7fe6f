"""The first message of a fault has its cause, or its culprit, and no other cause is ever named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from math import isnan, nan
from random import Random

import numpy as np
import pytest
from support.aligned_steps import combine_step
from support.diagnoses import decaying_loss, diagnose_run
from support.grpo_runs import COUNT, ONSET, TRL, doubling, grpo_run, records, since
from support.tiny_trainings import GOOD_LEARNING_RATE, Training

from sentinel.model.message import build_message
from sentinel.model.rank_stack import Frame, RankStack, serialize_stacks
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.testing import event, steps

SFT = {"framework": "trl", "algorithm": "sft", "learning_rate": GOOD_LEARNING_RATE}
LIMIT = 512.0


def policy(**changes):
    """The records of a policy run whose signals are changed."""
    return records(grpo_run(1) | changes)


def broken_reward():
    is_broken = since() > 0
    run = grpo_run(1)
    run |= {name: np.where(is_broken, 0.0, run[name]) for name in ("reward", "reward_std")}
    run |= {"frac_zero_std": np.where(is_broken, 1.0, run["frac_zero_std"])}
    return records(run | {"grad_norm": np.where(is_broken, 1e-5, run["grad_norm"])})


def cut_off():
    run = grpo_run(1)
    untruncated = run["completion_length"] * doubling(40, 5)
    cut = np.clip(untruncated / LIMIT - 0.6, 0, 0.95)
    return policy(
        completion_length=np.minimum(untruncated, 0.95 * LIMIT),
        truncated_fraction=np.clip(cut + run["truncated_fraction"], 0, 1),
        sample_repetition=np.full(COUNT, 0.1),
        reward=run["reward"] * (1 - 0.8 * cut),
    )


def exclaiming():
    """The norm is NaN from the onset on, and the next texts are `!!!!`."""
    is_broken, run = np.arange(COUNT) > ONSET, grpo_run(1)
    last = {"completion_length": LIMIT, "truncated_fraction": 1.0, "reward": 0.0, "reward_std": 0.0}
    run |= {name: np.where(is_broken, value, run[name]) for name, value in last.items()}
    norm = np.where(np.arange(COUNT) >= ONSET, nan, run["grad_norm"])
    return records(run | {"grad_norm": norm})


def counted_twice():
    """A counter of RLOO that advances by 2 per update, with a save at each multiple of 4."""
    count = 60
    losses = decaying_loss(0, count).tolist()
    counter = [2.0 * n for n in range(1, count + 1)]
    updates = [float(n) for n in range(1, count + 1)]
    for record in steps(global_step=counter, optimizer_steps=updates, loss=losses):
        yield record
        now = int(record.values["global_step"])
        if now % 30 == 0:
            yield event(Event.SAVE, now, time=record.time, global_step=float(now))


def resumed():
    """A loss that is twice as high after a restart."""
    losses = decaying_loss(1, 400)
    before, after = losses[:200].tolist(), (2.0 * losses[200:]).tolist()
    return chain(steps(loss=before), [event(Event.START, 0)], steps(first=201, loss=after))


def ranks_of(count: int = 260, onset: int = 130, ranks: int = 2, **late: float) -> Iterable[Record]:
    """Ranks in step; from the onset on, a signal of the last one (`all_`: of all) is longer."""
    rng = Random(1)
    for step in range(1, count + 1):
        row = {name: [0.02 * rng.uniform(0.9, 1.1) for _ in range(ranks)] for name in TIMES}
        for name, seconds in late.items() if step >= onset else ():
            every = name.startswith("all_")
            times = row[name.removeprefix("all_")]
            for rank in range(ranks) if every else (ranks - 1,):
                times[rank] += seconds * rng.uniform(0.9, 1.1)
        longest = max(map(sum, zip(*row.values(), strict=True)))
        yield combine_step(step, step_time=[0.05 + longest] * ranks, **row)


TIMES = ("data_wait", "compute_time")


def differing(onset: int = 60, **factors: float) -> Iterable[Record]:
    """Two ranks; from the onset on, a value of the second one is multiplied."""
    for step in range(1, 121):
        values = {"loss": [2.0, 2.0], "grad_norm": [0.5, 0.5], "learning_rate": [1e-3, 1e-3]}
        for name, factor in factors.items() if step >= onset else ():
            # A NaN of one rank is averaged into all parameters.
            is_everywhere = isnan(factor) and step > onset
            values[name] = [nan, nan] if is_everywhere else [values[name][0], factor]
        yield combine_step(step, **values)


def heartbeats(
    *, running: int = 0, idle: float = 0.0, count: int = 40, **attributes: str
) -> Iterable[Record]:
    """Steps a second apart, and then heartbeats of that state; the idle time grows."""
    yield from (Record("run", WHOLE_RUN, i, float(i)) for i in range(20))
    lists = {name: attributes.get(name, "") for name in ("died_ranks", "failed_ranks")}
    gone, failed = (float(len(text.split(","))) if text else 0.0 for text in lists.values())
    lost = {"nodes_lost": 1.0, "lost_seconds": 12.0} if "lost_nodes" in attributes else {}
    for second in range(count):
        values = {
            "ranks_running": float(running),
            "ranks_gone": gone,
            "ranks_failed": failed,
            "idle_seconds": idle + second,
            **lost,
        }
        yield Record(
            *("run", WHOLE_RUN, 19, 20.0 + second, Event.HEARTBEAT), values, lists | attributes
        )


DEAD = {"cause": "died", "died_ranks": "1", "culprit_ranks": "1", "following_ranks": "0"}
HANGING = serialize_stacks(
    [
        RankStack((1,), (Frame("load", "data.py", 12),)),
    ]
)


@dataclass(frozen=True)
class Fault:
    """`cause` is that of the case, "" for a detector that names what happened itself.

    Without `is_at_once` the first message is that of the detector too, and the cause follows.
    """

    records: Callable[[], Iterable[Record]]
    cause: str
    text: str
    metadata: Mapping[str, float | str] = field(default_factory=dict)
    is_at_once: bool = True


FAULTS = {
    "RLOO counts steps twice": Fault(
        counted_twice, "step_counted_twice", "2 per",
        {"framework": "trl", "algorithm": "rloo", "max_steps": 40.0, "save_steps": 30.0},
    ),
    "weak KL term": Fault(
        lambda: policy(kl_ref=grpo_run(1)["kl_ref"] * doubling(15, 60)), "weak_kl_term", "0.001",
        TRL | {"beta": 0.001},
    ),
    "learning rate too high": Fault(
        lambda: Training(rate=lambda _: 100 * GOOD_LEARNING_RATE, count=250).records(),
        "learning_rate_too_high", "learning rate", SFT,
    ),
    "learning rate 0": Fault(
        lambda: Training(rate=lambda _: 0.0, count=200).records(), "frozen_parameters",
        "The learning rate has been 0", SFT,
    ),
    "no gradient": Fault(
        lambda: Training(frozen=True, count=200).records(), "frozen_parameters",
        "Gradient norm is 0", SFT,
    ),
    "reward function broken": Fault(broken_reward, "reward_function_broken", "Reward", TRL),
    "completions cut off": Fault(
        cut_off, "answers_cut_off", "Completions grew", TRL | {"max_completion_length": LIMIT},
        is_at_once=False,
    ),
    "NaN, then one token": Fault(
        exclaiming, "numerical_breakdown", "NaN or infinite: gradient norm", TRL
    ),
    "resume without state": Fault(
        resumed, "resume_lost_state", "Loss jumped", {"framework": "transformers"},
        is_at_once=False,
    ),
    "slow data on one rank": Fault(
        lambda: ranks_of(data_wait=0.5), "slow_rank", "Rank 1 waits longer for data"
    ),
    "slow data on one of 8 ranks": Fault(
        lambda: ranks_of(ranks=8, data_wait=0.5), "slow_rank", "Rank 7 waits longer for data"
    ),
    "slow data on all ranks": Fault(
        lambda: ranks_of(all_data_wait=0.5), "slow_data", "Training waits for data"
    ),
    "slow computing on one rank": Fault(
        lambda: ranks_of(compute_time=0.5), "slow_rank", "Rank 1 is slower in computing"
    ),
    "NaN on one rank": Fault(lambda: differing(loss=nan), "", "on rank 1"),
    "learning rate of one rank": Fault(
        lambda: differing(learning_rate=9e-3), "ranks_out_of_step", "rank 1"
    ),
    "rank killed": Fault(
        lambda: heartbeats(**DEAD, signal="SIGKILL"), "", "Rank 1 was killed by SIGKILL"
    ),
    "both ranks killed": Fault(
        lambda: heartbeats(
            cause="died", died_ranks="0,1", culprit_ranks="0,1", signal="SIGKILL"
        ), "", "Ranks 0-1 were killed by SIGKILL",
    ),
    "out of memory": Fault(
        lambda: heartbeats(**DEAD, signal="SIGKILL", oom_kill="yes"), "",
        "Rank 1 was killed by the out-of-memory killer",
    ),
    "exit code": Fault(
        lambda: heartbeats(**DEAD, code="3"), "", "Rank 1 ended with exit code 3"
    ),
    "SIGTERM": Fault(
        lambda: heartbeats(
            cause="stopped", died_ranks="0,1", culprit_ranks="0,1", signal="SIGTERM"
        ), "", "Ranks 0-1 were ended by SIGTERM",
    ),
    "exception": Fault(
        lambda: heartbeats(
            cause="exception", failed_ranks="0,1", culprit_ranks="1", following_ranks="0",
            exception="ValueError", message="bad shape",
        ), "", "Rank 1 raised ValueError at step 19: bad shape",
    ),
    "SIGSTOP": Fault(
        lambda: heartbeats(running=2, idle=25.0, straggler_ranks="1", blocked_by="signal"), "",
        "rank 1 is suspended by SIGSTOP",
    ),
    "hang": Fault(
        lambda: heartbeats(running=2, idle=25.0, straggler_ranks="1", stacks=HANGING), "",
        "rank 1 is in load (data.py:12)",
    ),
    "node lost": Fault(
        lambda: heartbeats(
            running=1, idle=12.0, straggler_ranks="1", lost_nodes="gpu-1", lost_ranks="1",
            blocked_by="node_lost",
        ), "node_down", "Node gpu-1 (rank 1) has not reported",
    ),
    "rank killed while the head is lost": Fault(
        lambda: heartbeats(
            running=1, lost_nodes="gpu-0", head_lost="gpu-0", failure_origin="node_lost",
            failed_seconds_ago="1.0", signal="SIGKILL", **DEAD,
        ), "", "Rank 1 was killed by SIGKILL",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_the_first_message_has_the_cause_or_the_culprit(fault):
    replay = diagnose_run(fault.records(), fault.metadata)
    first = replay.notifications[0]
    message = build_message(first, None)

    assert list(replay.named_causes) == ([fault.cause] if fault.cause else [])
    assert (first.diagnosis is not None) == bool(fault.cause and fault.is_at_once)
    assert fault.text in "\n".join([message.headline, *message.facts])


@pytest.mark.fault("A18")
def test_a_rank_that_turns_out_to_be_killed_replaces_the_lost_head_in_the_headline():
    """The signal that ended it is known a moment after its end."""
    lost = {"lost_nodes": "gpu-0", "head_lost": "gpu-0", "failure_origin": "node_lost"}
    ended = {**lost, **DEAD, "failed_seconds_ago": "1.0"}
    records = [
        *heartbeats(running=2, count=5, **lost),
        *[*heartbeats(count=6, **ended)][-1:],
        *[*heartbeats(count=9, **ended, signal="SIGKILL")][-3:],
    ]
    replay = diagnose_run(records, {})
    (last,) = replay.cases.values()

    assert "node_down" in replay.named_causes
    message = build_message(last, None)
    assert "Rank 1 was killed by SIGKILL" in message.headline
    assert message.remedy.startswith("Look for what killed the rank")
