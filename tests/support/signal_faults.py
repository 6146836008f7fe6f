"""Training logs in the key names of frameworks, healthy or with a fault of three sizes.

A log is a list of rows. `SIZES` are mild, moderate and severe; size 0 is the healthy twin, with
the same noise. The fault begins at ONSET, at once or within RAMP rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import exp
from random import Random

from sentinel.model.record import Record
from sentinel.readers.rows import RowConverter

ROWS, ONSET = 320, 160
SIZES = (1, 2, 3)
Row = dict[str, float]


@dataclass
class Log:
    """Noise of one seed, and how far the fault of this size has come."""

    rng: Random
    size: int
    ramp: int
    step: int = 0
    carry: float = 0.0

    def noise(self, sigma: float) -> float:
        """Autocorrelated noise with heavy tails."""
        own = self.rng.gauss(0, 1) * (3.0 if self.rng.random() < 0.01 else 1.0)
        self.carry = 0.3 * self.carry + own
        return sigma * 0.95 * self.carry

    @property
    def progress(self) -> float:
        """Share of the fault that has come: 0 before, 1 when it is complete."""
        return min(1.0, max(0.0, (self.step - ONSET) / self.ramp)) if self.size else 0.0

    @property
    def learned(self) -> float:
        """Share of the training that is done."""
        return self.step / ROWS

    def level(self, usual: float, sick: tuple[float, float, float], sigma: float = 0.0) -> float:
        """A positive quantity, which changes to that of the size as a power."""
        end = sick[self.size - 1] if self.size else usual
        return usual * (end / usual) ** self.progress * exp(self.noise(sigma))

    def share(self, usual: float, sick: tuple[float, float, float], trials: int = 64) -> float:
        """Share of so many events, with the noise of their number."""
        end = sick[self.size - 1] if self.size else usual
        p = usual + (end - usual) * self.progress
        return sum(self.rng.random() < p for _ in range(trials)) / trials


def grpo(log: Log) -> Row:
    """A healthy row of TRL's GRPO trainer."""
    return {
        "loss": 0.001 * log.noise(1.0),
        "reward": 0.6 + 0.2 * log.learned + log.noise(0.05),
        "reward_std": 0.3 * exp(log.noise(0.1)),
        "kl": 0.002 + 0.02 * log.learned * exp(log.noise(0.1)),
        "entropy": 0.6 * exp(-0.5 * log.learned + log.noise(0.05)),
        "grad_norm": 0.4 * exp(log.noise(0.2)),
        "learning_rate": 1e-6,
        "completions/mean_length": 200 * exp(log.noise(0.05)),
        "completions/clipped_ratio": log.share(0.05, (0.05, 0.05, 0.05)),
    }


def verl(log: Log) -> Row:
    """A healthy row of verl's PPO trainer."""
    return {
        "actor/pg_loss": 0.01 * log.noise(1.0),
        "critic/score/mean": 0.4 + 0.3 * log.learned + log.noise(0.04),
        "actor/ppo_kl": 0.0005 * exp(log.noise(0.3)),
        "actor/entropy": 0.5 * exp(-0.4 * log.learned + log.noise(0.05)),
        "actor/grad_norm": 0.3 * exp(log.noise(0.2)),
        "critic/vf_loss": 0.08 * exp(-log.learned + log.noise(0.3)),
        "critic/vf_explained_var": 0.7 - 0.5 * exp(-8 * log.learned) + log.noise(0.04),
        "response_length/mean": 600 * exp(log.noise(0.05)),
        "perf/time_per_step": 40 * exp(log.noise(0.05)),
    }


def pretraining(log: Log) -> Row:
    """A healthy row of a pre-training."""
    return {
        "loss": 2.0 + 4.0 * exp(-8 * log.learned) + log.noise(0.02),
        "grad_norm": 0.8 * exp(log.noise(0.15)),
        "learning_rate": 3e-4,
    }


def make_rows(make_row: Callable[[Log], Row], size: int, seed: int) -> list[Row]:
    """The rows of one log."""
    rng = Random(1000 * seed + 7)
    log = Log(rng, size, ramp=rng.choice([1, 20, 60]))
    rows = []
    for step in range(1, ROWS + 1):
        log.step = step
        rows.append({"step": step, **make_row(log)})
    return rows


def make_records(rows: Iterable[Row]) -> list[Record]:
    """The records of a log, as a reader of rows makes them."""
    converter = RowConverter(run="trial")
    records = (converter.to_record(row) for row in rows)
    return [replace(record, time=10.0 * record.step) for record in records if record is not None]


def reward_jump(log: Log) -> Row:
    log.ramp = 1
    return {"reward": log.level(0.6, (12.0, 50.0, 300.0), 0.05)}


def reward_growth(log: Log) -> Row:
    return {**grpo(log), "reward": log.level(0.6, (15.0, 50.0, 300.0), 0.08)}


def reward_components(log: Log) -> Row:
    format_reward = log.share(0.3 + 0.5 * min(1.0, log.learned), (0.95, 0.95, 1.0))
    correct = log.share(0.5, (0.35, 0.22, 0.05))
    return {
        **grpo(log),
        "rewards/format_reward/mean": 2 * format_reward,
        "rewards/accuracy_reward/mean": correct,
        "reward": 2 * format_reward + correct,
    }


def value_loss(log: Log) -> Row:
    row = verl(log)
    return {**row, "critic/vf_loss": row["critic/vf_loss"] * log.level(1.0, (10.0, 100.0, 1000.0)),
            "critic/vf_explained_var": 0.0}  # fmt: skip


def value_loss_alone(log: Log) -> Row:
    row = value_loss(log)
    del row["critic/vf_explained_var"]
    return row


def explained_variance(log: Log) -> Row:
    row = verl(log)
    fall = (0.45, 0.8, 2.0)[log.size - 1] * log.progress if log.size else 0.0
    return {**row, "critic/vf_explained_var": row["critic/vf_explained_var"] - fall}


def advantages(log: Log) -> Row:
    return {**verl(log), "critic/advantages/std": log.level(1.0, (6.0, 20.0, 100.0), 0.1)}


def staleness_areal(log: Log) -> Row:
    key = "ppo_actor/update/version_stats/sample_staleness_theta_avg"
    return {**grpo(log), key: log.level(1.0, (3.5, 7.0, 20.0), 0.15)}


def staleness_verl(log: Log) -> Row:
    key = "training/off_policy/trajectory_staleness/mean"
    return {**verl(log), key: log.level(0.4, (3.0, 6.0, 15.0), 0.3)}


def staleness_prime(log: Log) -> Row:
    mean = log.level(1.2, (4.0, 8.0, 16.0), 0.2)
    return {"reward/all/mean": 0.5 + log.noise(0.05), "off_policy_level/all/mean": mean,
            "off_policy_level/all/max": float(round(2 * mean))}  # fmt: skip


def staleness_slime(log: Log) -> Row:
    return {"rollout/raw_reward": 0.5 + log.noise(0.05), "train/loss": 0.01 * log.noise(1.0),
            "rollout/staleness/mean": log.level(1.0, (3.5, 8.0, 15.0), 0.2)}  # fmt: skip


def tool_errors(log: Log) -> Row:
    return {**grpo(log), "tools/call_frequency": 2 * exp(log.noise(0.1)),
            "tools/failure_frequency": log.share(0.02, (0.25, 0.5, 0.9))}  # fmt: skip


def rollout_errors(log: Log) -> Row:
    return {"reward/all/mean": 0.5 + log.noise(0.05),
            "batch/solve_none": log.share(0.2, (0.2, 0.2, 0.2)),
            "error/mean": log.share(0.01, (0.25, 0.5, 0.9)),
            "num_turns/all/mean": 4 * exp(log.noise(0.1))}  # fmt: skip


def turns(log: Log) -> Row:
    return {**verl(log), "num_turns/mean": log.level(5.0, (2.2, 1.4, 1.0), 0.08)}


def samples_per_second(log: Log) -> Row:
    speed = log.level(100.0, (70.0, 50.0, 20.0), 0.04)
    return {**pretraining(log), "train_samples_per_second": speed}


def tokens_per_second(log: Log) -> Row:
    speed = log.level(1e5, (8e4, 5e4, 2e4), 0.04)
    return {**pretraining(log), "throughput/tokens_per_sec": speed}


def experts_olmo(log: Log) -> Row:
    return {**pretraining(log),
            "train/block 03/load imbalance": 1 + log.level(0.4, (2.0, 5.0, 20.0), 0.15),
            "train/load balancing loss": log.level(1.05, (1.6, 3.0, 8.0), 0.02),
            "train/router Z loss": log.level(3.0, (30.0, 100.0, 1000.0), 0.1)}  # fmt: skip


def experts_dropped(log: Log) -> Row:
    return {**pretraining(log), "dropped_token_fraction": log.share(0.02, (0.2, 0.4, 0.8), 256)}


def experts_dead(log: Log) -> Row:
    return {**pretraining(log), "dead_expert_fraction": log.share(0.02, (0.2, 0.4, 0.8))}


def router_entropy(log: Log) -> Row:
    return {**pretraining(log), "router_entropy": log.level(1.8, (0.7, 0.3, 0.05), 0.05)}


def experts_verl(log: Log) -> Row:
    worst = log.level(0.5, (2.5, 6.0, 20.0), 0.15)
    return {**verl(log), **{f"rollout/moe/max_vio/layer_{n}": worst * (1 - 0.2 * n)
                            for n in range(4)}}  # fmt: skip


def determinism(log: Log) -> Row:
    """The keys of slime: the log-probability of the sampled tokens, and no entropy."""
    return {"rollout/raw_reward": 0.5 + log.noise(0.05), "train/pg_loss": 0.01 * log.noise(1.0),
            "rollout/response_lengths": 300 * exp(log.noise(0.05)),
            "rollout/log_probs": -log.level(0.5, (0.06, 0.01, 0.001), 0.05)}  # fmt: skip


def likelihood(log: Log) -> Row:
    """TRL's DPO: the chosen answers become less likely, the rejected ones even less."""
    fall = (4.0, 12.0, 40.0)[log.size - 1] * log.progress if log.size else 0.0
    chosen = 0.3 * log.learned + log.noise(0.1) - fall
    margin = 1.5 * log.learned + abs(log.noise(0.1)) + 0.5 * fall
    return {"loss": 0.69 * exp(-log.learned) + log.noise(0.01), "rewards/chosen": chosen,
            "rewards/rejected": chosen - margin, "rewards/margins": margin,
            "rewards/accuracies": min(1.0, 0.5 + log.learned), "grad_norm": 3 * exp(log.noise(0.2)),
            "learning_rate": 1e-6}  # fmt: skip


def learned_game(log: Log) -> Row:
    p = min(1.0, max(0.0, (log.learned - 0.1) / 0.3))
    return {"rollout/ep_rew_mean": 20 + 480 * p * p * exp(log.noise(0.1)),
            "train/value_loss": (10 + 3000 * p) * exp(log.noise(0.5)),
            "train/explained_variance": 0.9 * p + log.noise(0.05),
            "train/policy_gradient_loss": log.noise(0.01),
            "time/fps": 5000 / (1 + 5 * log.learned)}  # fmt: skip


def learned_control(log: Log) -> Row:
    return {"charts/episodic_return": -300 + 5000 * log.learned**0.7 + log.noise(300),
            "losses/value_loss": 50 * exp(5 * log.learned + log.noise(0.5)),
            "losses/policy_loss": log.noise(0.01),
            "charts/SPS": 3000 * exp(log.noise(0.05))}  # fmt: skip


def sparse_game(log: Log) -> Row:
    return {"episode_reward": 100 * log.share(log.learned**2, (0.0, 0.0, 0.0), 1),
            "value_loss": exp(log.noise(1.0) + 6.5 * log.learned)}  # fmt: skip


def taking_off(log: Log) -> Row:
    reward = log.share(0.01 + 0.8 / (1 + exp((ONSET - log.step) / 6)), (0.0, 0.0, 0.0))
    return {**verl(log), "critic/score/mean": reward,
            "critic/vf_loss": (0.001 + 0.12 * reward * (1 - reward)) * exp(log.noise(0.4)),
            "critic/vf_explained_var": 0.8 * reward + log.noise(0.1)}  # fmt: skip


def reward_model_scores(log: Log) -> Row:
    return {**grpo(log), "reward": -3 + 9 * (1 - exp(-4 * log.learned)) + log.noise(0.3)}


def harder_task(log: Log) -> Row:
    """The task is harder for 100 steps: correct answers fall, and the reward with them."""
    correct = log.share(0.35 if 100 < log.step < 200 else 0.6, (0.0, 0.0, 0.0))
    well_formed = log.share(0.95, (0.0, 0.0, 0.0))
    return {**grpo(log), "reward": correct + well_formed, "rewards/accuracy/mean": correct,
            "rewards/format/mean": well_formed}  # fmt: skip


def length_penalty(log: Log) -> Row:
    correct = log.share(0.3 + 0.4 * log.learned, (0.0, 0.0, 0.0))
    penalty = -0.1 - 0.4 * log.learned + log.noise(0.02)
    return {**grpo(log), "reward": correct + penalty, "rewards/accuracy/mean": correct,
            "rewards/length_penalty/mean": penalty}  # fmt: skip


def learning_tools(log: Log) -> Row:
    """The policy begins to call tools at step 40, and fails less and less often."""
    late = max(0, log.step - 40)
    errors = log.share(0.02 + 0.35 * exp(-late / 60), (0.0, 0.0, 0.0)) if late else 0.0
    return {**grpo(log), "tools/call_frequency": min(2.5, late / 30),
            "tools/failure_frequency": errors}  # fmt: skip


def filling_queue(log: Log) -> Row:
    return {**grpo(log), "staleness/mean": min(4.0, log.step * 0.3) + abs(log.noise(0.3))}


def learning_router(log: Log) -> Row:
    early = exp(-20 * log.learned)
    return {**pretraining(log), "train/block 01/load imbalance": 1.3 + 4 * early,
            "train/block 02/load imbalance": 1.5 + 0.5 * log.learned + abs(log.noise(0.1)),
            "train/router Z loss": 5 * exp(-3 * log.learned + log.noise(0.1)),
            "train/load balancing loss": 1.02 + 0.5 * early + log.noise(0.005)}  # fmt: skip


def uneven_batches(log: Log) -> Row:
    return {**pretraining(log), "train_samples_per_second": 40 * exp(log.noise(0.25))}


def preferences(log: Log) -> Row:
    """The rewards of both answers fall a little, as is usual."""
    chosen, margin = -1.5 * log.learned + log.noise(0.15), 2.5 * log.learned
    return {**likelihood(log), "rewards/chosen": chosen, "rewards/rejected": chosen - margin,
            "rewards/margins": margin}  # fmt: skip


HEALTHY = (
    learned_game, learned_control, sparse_game, taking_off, reward_model_scores, harder_task,
    length_penalty, learning_tools, filling_queue, learning_router, uneven_batches,
    preferences,
)  # fmt: skip
"""Healthy logs that are most like a fault."""

FAULTS: tuple[tuple[Callable[[Log], Row], str], ...] = (
    (reward_jump, "reward_explosion"), (reward_growth, "reward_explosion"),
    (reward_components, "reward_component_drop"),
    (value_loss, "value_fit"), (value_loss_alone, "value_fit"),
    (explained_variance, "value_fit"), (advantages, "value_fit"),
    (staleness_areal, "rollout_staleness"), (staleness_verl, "rollout_staleness"),
    (staleness_prime, "rollout_staleness"), (staleness_slime, "rollout_staleness"),
    (determinism, "entropy_collapse"),
    (tool_errors, "tool_errors"), (rollout_errors, "tool_errors"), (turns, "tool_errors"),
    (samples_per_second, "throughput_drop"), (tokens_per_second, "throughput_drop"),
    (experts_olmo, "expert_imbalance"), (experts_dropped, "expert_imbalance"),
    (experts_dead, "expert_imbalance"), (router_entropy, "expert_imbalance"),
    (experts_verl, "expert_imbalance"), (likelihood, "likelihood_displacement"),
)  # fmt: skip
"""How a log is made, and the detector that finds its fault."""
