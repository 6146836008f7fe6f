"""Two hours of five training runs in two clusters, as Prometheus would have scraped them.

`grpo-32b` has 64 ranks on 8 nodes: a rank is killed, the run is restarted, a GPU gets hot and its
rank slow, and the KL blows up. `moe-sft` recovers from a loss spike, `dpo-8b` ends with an error,
`ppo-7b` is healthy, and `gan` is a run of one rank without a cluster whose agent has errors. Their
records pass the real pipeline, so that incidents, cases and thresholds are those of the detectors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sentinel.config.settings import Settings
from sentinel.metrics.encoder import MetricsEncoder
from sentinel.metrics.exposition import Exposition
from sentinel.model.counters import COUNTER_FAMILIES, Counters
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.model.record_batch import RecordBatch, RecordOrBatch
from sentinel.pipeline.onset import estimate_onset
from sentinel.pipeline.pipeline import build
from sentinel.signals.catalogue import SIGNALS, CombineRule
from sentinel.signals.hardware import NODE_SIGNALS, Gpu, NodeMeasurements

Series = NDArray[np.float64]

START = 1_772_524_800.0
"""2026-03-03 08:00:00 UTC."""
SCRAPE_SECONDS, SCRAPES = 60.0, 120
END = START + SCRAPE_SECONDS * (SCRAPES - 1)
GPUS_PER_NODE = 8
SLOW_RANK, KILLED_RANK = 37, 19
MINUTES = np.arange(SCRAPES)
STARTUP_MINUTES = 2
CLIENT_OVERHEAD = "sentinel_client_overhead_seconds_total"

DCGM_FIELDS = {
    "PROF_PIPE_TENSOR_ACTIVE": 0.41,
    "PROF_SM_ACTIVE": 0.83,
    "PROF_DRAM_ACTIVE": 0.57,
    "PROF_NVLINK_TX_BYTES": 8.1e10,
    "PROF_NVLINK_RX_BYTES": 7.9e10,
    "DEV_POWER_USAGE": 640.0,
    "DEV_MEMORY_TEMP": 71.0,
}
NODE_COUNTERS = {
    "pressure_memory_waiting_seconds": 0.004,
    "pressure_io_waiting_seconds": 0.02,
    "network_receive_errs": 0.0,
    "network_transmit_errs": 0.05,
}
"""Values, and rates per second, of the exporters of DCGM and of the node."""


@dataclass(frozen=True)
class Attempt:
    """From a minute until before another, when it ends with an outcome; steps count from one."""

    first: int
    last: int = SCRAPES
    first_step: int = 1
    outcome: str = ""
    culprit: int = 0


@dataclass(frozen=True)
class Run:
    """A run; `series` are its signals by minute, `deviation` how ranks differ from them."""

    name: str
    cluster: str
    nodes: tuple[str, ...]
    texts: Mapping[str, str]
    settings: Mapping[str, float]
    series: Mapping[str, Series]
    ranks: int = GPUS_PER_NODE
    attempts: tuple[Attempt, ...] = (Attempt(0),)
    deviation: float = 0.02
    slow_rank: int = -1
    save_steps: int = 10


def noisy(seed: int, level: Series | float, relative: float) -> Series:
    """A level with log-normal noise."""
    noise = np.random.default_rng(seed).normal(0, relative, SCRAPES)
    return np.asarray(level * np.exp(noise))


def share(seed: int, level: Series | float, deviation: float) -> Series:
    """A noisy level between 0 and 1."""
    noise = np.random.default_rng(seed).normal(0, deviation, SCRAPES)
    return np.clip(level + noise, 0.0, 1.0)


def since(minute: int) -> Series:
    """Minutes since that one; 0 before."""
    return np.maximum(MINUTES - float(minute), 0.0)


def timing(seed: int, seconds: float) -> dict[str, Series]:
    """Step time and what it consists of, and the throughput."""
    step_time = noisy(seed, seconds, 0.03)
    return {
        "step_time": step_time,
        "data_wait": noisy(seed + 1, 0.01 * seconds, 0.3),
        "compute_time": 0.3 * step_time,
        "tokens_per_second": 4e6 / step_time,
        "tokens_per_second_per_gpu": 6.3e4 / step_time,
        "mfu": 0.38 * seconds / step_time,
    }


def policy(seed: int) -> dict[str, Series]:
    """What every algorithm logs that samples from its policy."""
    progress = MINUTES / SCRAPES
    return {
        "kl_ref": noisy(seed, 0.02 + 0.06 * progress, 0.12),
        "kl_old": noisy(seed + 1, 6e-4, 0.25),
        "reward": 0.22 + 0.4 * progress + noisy(seed + 2, 0.04, 0.3) - 0.04,
        "entropy": noisy(seed + 3, 0.35 + 0.4 * np.exp(-2 * progress), 0.04),
        "clip_fraction": noisy(seed + 4, 0.02, 0.2),
        "policy_loss": noisy(seed + 5, 0.03, 0.4),
        "loss": noisy(seed + 6, 0.03, 0.3),
        "grad_norm": noisy(seed + 7, 0.31, 0.2),
        "learning_rate": np.full(SCRAPES, 1e-6),
        "advantage_mean": noisy(seed + 8, 0.01, 0.5) - 0.01,
        "advantage_std": noisy(seed + 9, 0.9, 0.05),
        "completion_length": noisy(seed + 10, 900 + 250 * progress, 0.04),
        "completion_length_max": noisy(seed + 11, 3600.0, 0.05),
        "truncated_fraction": share(seed + 12, 0.02, 0.008),
    }


def grpo() -> dict[str, Series]:
    """The KL blows up at minute 78: the entropy falls, and the reward after some steps."""
    seed, blow_up = 10, 78
    growth = np.minimum(2 ** (since(blow_up) / 5), 150)
    series = policy(seed) | timing(seed + 50, 46.0)
    # By its key, TRL measures it with the estimator k3.
    series["kl"] = series.pop("kl_ref") * growth
    series["kl_old"] *= np.minimum(growth, 12)
    series["reward"] -= 0.6 * (1 - np.exp(-since(blow_up + 10) / 8))
    series["entropy"] *= np.exp(-since(blow_up) / 16)
    series["clip_fraction"] = np.minimum(series["clip_fraction"] * np.minimum(growth, 14), 0.6)
    series["grad_norm"] *= np.minimum(growth, 9)
    return series | {
        "generation_time": 0.55 * series["step_time"],
        "weight_sync_time": noisy(seed + 20, 1.4, 0.1),
        "reward_std": noisy(seed + 21, 0.32, 0.06),
        "frac_zero_std": share(seed + 22, 0.18 + 0.3 * (growth > 20), 0.03),
        "kl_mismatch": noisy(seed + 23, 2.5e-3, 0.15),
        "importance_ratio_min": noisy(seed + 24, 0.62, 0.05),
        "importance_ratio_mean": noisy(seed + 25, 1.0, 0.002),
        "importance_ratio_max": noisy(seed + 26, 1.7, 0.1),
        "rollout_staleness": noisy(seed + 36, 0.9, 0.05),
        "rollout_staleness_max": noisy(seed + 37, 2.0, 0.02),
        "stale_fraction": share(seed + 38, 0.45, 0.02),
        "effective_sample_fraction": share(seed + 39, 0.93, 0.01),
        "kl_coef": np.full(SCRAPES, 1e-3),
        "entropy_coef": np.full(SCRAPES, 0.0),
        "grad_norm_local": series["grad_norm"] / 8,
        "rewards/accuracy/mean": series["reward"] * 0.8,
        "rewards/format/mean": share(seed + 27, 0.2 + 0.1 * (MINUTES / SCRAPES), 0.01),
        "sample_repetition": share(seed + 28, 0.05 + 0.5 * (since(blow_up + 8) > 0), 0.01),
        "sample_longest_run": noisy(seed + 29, 3.0, 0.1),
        "sample_empty": share(seed + 30, 0.0, 0.0),
        "sample_truncated": share(seed + 31, 0.02, 0.01),
        "sample_distinct_1": share(seed + 32, 0.42, 0.02),
        "sample_distinct_2": share(seed + 33, 0.78, 0.02),
        "sample_length": noisy(seed + 34, 3400.0, 0.05),
        "tokens": noisy(seed + 35, 4.1e6, 0.03),
        "tokens_seen": np.cumsum(np.full(SCRAPES, 4.1e6)),
        "epoch": MINUTES / 400,
    }


def ppo() -> dict[str, Series]:
    """With a value model and tools."""
    seed = 200
    signals = policy(seed) | timing(seed + 50, 48.0)
    levels = {
        "value_loss": 0.12, "critic_grad_norm": 0.8, "reward_total": 0.3, "turns_per_episode": 4.2,
        "tool_calls_per_episode": 2.6, "samples_per_second": 21.0,
    }  # fmt: skip
    shares = {
        "explained_variance": 0.62, "value_clip_fraction": 0.04, "tool_error_fraction": 0.06,
        "tool_timeout_fraction": 0.015, "rollout_error_fraction": 0.01, "empty_turn_fraction": 0.02,
    }  # fmt: skip
    signals |= {name: noisy(seed + 100 + n, x, 0.05) for n, (name, x) in enumerate(levels.items())}
    return signals | {
        name: share(seed + 120 + n, level, 0.01) for n, (name, level) in enumerate(shares.items())
    }


def dpo() -> dict[str, Series]:
    """Pairs of answers."""
    seed, progress = 400, MINUTES / SCRAPES
    margin = noisy(seed, 0.2 + 2 * progress, 0.08)
    chosen = noisy(seed + 1, 0.1 + 0.5 * progress, 0.1)
    return timing(seed + 50, 30.0) | {
        "loss": noisy(seed + 2, 0.69 - 0.3 * progress, 0.02),
        "grad_norm": noisy(seed + 3, 4.0, 0.1),
        "learning_rate": np.full(SCRAPES, 5e-7),
        "preference_accuracy": share(seed + 4, 0.55 + 0.25 * progress, 0.02),
        "reward_margin": margin,
        "reward_chosen": chosen,
        "reward_rejected": chosen - margin,
    }


def moe() -> dict[str, Series]:
    """The loss has a spike at minute 62 and recovers; experts are balanced."""
    seed, progress = 600, MINUTES / SCRAPES
    loss = noisy(seed, 1.35 + 0.9 * np.exp(-4 * progress), 0.012)
    loss *= 1 + 1.6 * (MINUTES >= 62) * np.exp(-since(62) / 3)
    grad_norm = noisy(seed + 1, 0.8, 0.1) * (1 + 11 * (MINUTES >= 62) * np.exp(-since(62) / 2))
    rate = 2e-5 * np.minimum((MINUTES + 1) / 10, 1) * (1 - 0.6 * progress)
    return timing(seed + 50, 40.0) | {
        "loss": loss,
        "logged_loss": loss,
        "eval_loss": 1.03 * (1.35 + 0.9 * np.exp(-4 * progress)),
        "token_accuracy": share(seed + 2, 0.62 + 0.08 * progress, 0.005),
        "grad_norm": grad_norm,
        "grad_norm_local": grad_norm / 4,
        "logged_grad_norm": grad_norm,
        "learning_rate": rate,
        "expert_load_imbalance": noisy(seed + 3, 1.4, 0.05),
        "expert_load_violation": noisy(seed + 4, 0.4, 0.05),
        "dropped_token_fraction": share(seed + 5, 0.02, 0.004),
        "dead_expert_fraction": share(seed + 6, 0.0, 0.0),
        "router_entropy": noisy(seed + 7, 1.9, 0.02),
        "router_z_loss": noisy(seed + 8, 0.01, 0.1),
        "load_balancing_loss": noisy(seed + 9, 1.02, 0.01),
        "sharpness": noisy(seed + 10, 9e4, 0.1),
        "sharpness_ratio": noisy(seed + 11, 0.9, 0.08),
        "distance_to_initial": 0.02 * np.sqrt(progress),
        "distance_to_reference": 0.02 * np.sqrt(progress),
        "distance_travelled": 0.09 * progress,
        "tokens": noisy(seed + 12, 2.1e6, 0.02),
        "tokens_seen": np.cumsum(np.full(SCRAPES, 2.1e6)),
        "optimizer_steps": MINUTES.astype(float),
        "epoch": MINUTES / 90,
        "samples_per_second": noisy(seed + 13, 55.0, 0.03),
        "mine": noisy(seed + 14, 3.0, 0.1),
    }


def rest_of_the_catalogue(others: list[Mapping[str, Series]]) -> dict[str, Series]:
    """The signals that no other run logs."""
    known = set().union(*others) | NODE_SIGNALS | {"global_step", "kl_ref"}
    names = [name for name in SIGNALS if name not in known]
    return {name: noisy(800 + n, 0.7, 0.05) for n, name in enumerate(names)}


_LOGGED = {"grpo-32b": grpo(), "moe-sft": moe(), "dpo-8b": dpo(), "ppo-7b": ppo()}
_TRL = {"framework": "trl", "framework_version": "1.16.0"}
RUNS = (
    Run(
        "grpo-32b",
        "h100-west",
        tuple(f"west-{n:02}" for n in range(1, 9)),
        {**_TRL, "algorithm": "grpo", "model": "qwen-32b", "patch/trl": "on"},
        {"beta": 0.001, "epsilon": 0.2, "temperature": 1.0, "num_generations": 16.0},
        _LOGGED["grpo-32b"],
        ranks=64,
        attempts=(
            Attempt(0, 25, outcome="died", culprit=KILLED_RANK),
            Attempt(30, first_step=21),
        ),
        slow_rank=SLOW_RANK,
    ),
    Run(
        "moe-sft",
        "h100-west",
        ("west-11", "west-12"),
        {"framework": "transformers", "algorithm": "sft", "model": "moe-8x7b"},
        {},
        _LOGGED["moe-sft"],
        ranks=16,
        save_steps=20,
    ),
    Run(
        "dpo-8b",
        "a100-east",
        ("east-01",),
        {**_TRL, "algorithm": "dpo", "model": "llama-8b"},
        {"beta": 0.1},
        _LOGGED["dpo-8b"],
        attempts=(Attempt(5, 72, outcome="exception", culprit=3),),
    ),
    Run(
        "ppo-7b",
        "a100-east",
        ("east-02",),
        {"framework": "verl", "algorithm": "ppo", "model": "qwen-7b"},
        {"kl_coef": 0.05, "clip_ratio": 0.2},
        _LOGGED["ppo-7b"],
    ),
    Run(
        "gan",
        "",
        ("desk",),
        {"framework": "torch"},
        {},
        rest_of_the_catalogue([*_LOGGED.values()]),
        ranks=1,
    ),
)
MAIN_RUN = RUNS[0]
RUN_BY_BOARD = {"training": "moe-sft"}
"""The run whose signals a board shows, if that is not the main one."""


@dataclass
class Agents:
    """The agents of a run, one a node: the first processes the records of all ranks."""

    run: Run
    now: float = START
    minute: int = 0
    counters: Counters = field(default_factory=Counters)
    targets: dict[str, tuple[Exposition, MetricsEncoder]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pipeline = build(Settings.model_validate({}), self.counters)
        self.pipeline.engine.estimate_onset = estimate_onset
        factories = self.pipeline.engine.detector_factories
        severities = {name: make().severity for name, make in factories.items()}
        for number, node in enumerate(self.run.nodes):
            exposition = Exposition(
                self.counters if number == 0 else Counters(),
                severities,
                run=self.run.name,
                machine=lambda number=number: self._machine(number),
                cluster_status=lambda number=number: self._cluster_status(number),
                readable_signals=self.pipeline.readable_signals,
                sinks=("slack",),
                loop_seconds=lambda: self._random.uniform(0.05, 0.15),
                clock=lambda: self.now,
            )
            self.targets[node] = exposition, MetricsEncoder()
        self.head, _ = self.targets[self.run.nodes[0]]
        self._random = np.random.default_rng(self.run.ranks)

    def advance(self, minute: int) -> None:
        """Process the records of a minute."""
        self.minute, self.now = minute, START + SCRAPE_SECONDS * minute
        self.counters.add("sentinel_sink_deliveries_total", "slack:delivered", 0.0)
        if self.run.name == "gan":
            for count in COUNTER_FAMILIES:
                if count.family == CLIENT_OVERHEAD:
                    continue
                self.counters.add(count.family, f"a {count.label}", float(minute % 30 == 7))
        for entry in self._entries():
            if isinstance(entry, RecordBatch):
                self.head.update_batch(entry)
            for result in self.pipeline.process(entry):
                self.head.update(result)
                sent = len(result.case_notifications)
                self.counters.add("sentinel_sink_deliveries_total", "slack:delivered", sent)

    def _entries(self) -> Iterator[RecordOrBatch]:
        for number, attempt in enumerate(self.run.attempts):
            since_start = self.minute - attempt.first
            if since_start == 0:
                yield from self._starts(number)
            if since_start >= STARTUP_MINUTES and self.minute < attempt.last:
                yield from self._step(number, attempt, since_start - STARTUP_MINUTES)
            if self.minute == attempt.last:
                yield from self._stops(number, attempt)
        if self.minute >= self.run.attempts[0].first:
            yield self._heartbeat()

    def _starts(self, attempt: int) -> Iterator[Record]:
        run = self.run
        sizes = ("world_size", "local_world_size", "expected_ranks")
        values = dict.fromkeys(sizes, float(run.ranks)) | run.settings
        for rank in range(run.ranks):
            texts = {**run.texts, "host": run.nodes[rank // GPUS_PER_NODE]}
            yield Record(run.name, rank, 0, self.now, Event.START, values, texts, attempt=attempt)

    def _step(self, number: int, attempt: Attempt, index: int) -> Iterator[RecordOrBatch]:
        run, ranks, step = self.run, self.run.ranks, attempt.first_step + index
        columns = [self._of_ranks(name) for name in run.series] + [np.full(ranks, float(step))]
        for rank in range(min(ranks, 64)):
            self.counters.add(CLIENT_OVERHEAD, str(rank), self._random.uniform(0.8e-3, 1.2e-3))
        # In a batch are at least two ranks.
        names, matrix = (*run.series, "global_step"), np.array(columns).T
        if ranks == 1:
            values = dict(zip(names, matrix[0].tolist(), strict=True))
            fields = {"attempt": number, "step_index": index + 1}
            yield Record(run.name, 0, step, self.now - 8, Event.STEP, values, **fields)
        else:
            yield RecordBatch(
                run.name, number, step, index + 1, names, tuple(range(ranks)),
                tuple(self.now - self._random.uniform(7, 8, ranks)), (0,) * ranks,
                matrix.astype("<f8").tobytes(),
            )  # fmt: skip
        if step % run.save_steps == 0:
            path = {"path": f"/checkpoints/{run.name}/{step}"}
            yield Record(
                run.name, 0, step, self.now - 1, Event.SAVE, {}, path, {}, number, index + 1
            )

    def _of_ranks(self, name: str) -> Series:
        value, run = self.run.series[name][self.minute], self.run
        values = np.full(run.ranks, value)
        signal = SIGNALS.get(name)
        if signal is None or signal.combine_rule is not CombineRule.SAME:
            values *= 1 + run.deviation * self._random.standard_normal(run.ranks)
        if signal is not None and signal.unit == "ratio":
            values = np.clip(values, 0.0, 1.0)
        if run.slow_rank >= 0 and name in {"step_time", "compute_time"}:
            values[run.slow_rank] *= 1 + 0.6 * self._heat()
        return values

    def _heat(self) -> float:
        """From 0 to 1: how far the GPU of the slow rank is above its usual temperature."""
        return float(np.clip((self.minute - 48) / 10, 0, 1))

    def _stops(self, number: int, attempt: Attempt) -> Iterator[Record]:
        ranks = [attempt.culprit, *(r for r in range(self.run.ranks) if r != attempt.culprit)]
        texts = {"outcome": attempt.outcome}
        if attempt.outcome == "exception":
            texts |= {"exception": "OutOfMemoryError", "message": "CUDA out of memory."}
        else:
            texts |= {"signal": "SIGKILL", "oom_kill": "1"}
        step = attempt.first_step + attempt.last - attempt.first
        for rank in ranks:
            yield Record(self.run.name, rank, step, self.now - 5, Event.STOP, {}, texts, {}, number)
            texts = {"outcome": "exception", "exception": "DistBackendError"}

    def _heartbeat(self) -> Record:
        number, attempt = max(
            pair for pair in enumerate(self.run.attempts) if pair[1].first <= self.minute
        )
        has_ended, ranks = self.minute >= attempt.last, float(self.run.ranks)
        gone = float(attempt.outcome == "died")
        ended = {"ranks_running": 0.0, "ranks_gone": gone, "ranks_failed": ranks - gone}
        running = {"ranks_running": ranks, "ranks_gone": 0.0, "ranks_failed": 0.0}
        texts = {"state": "running"}
        if has_ended:
            culprit = str(attempt.culprit)
            others = ",".join(str(r) for r in range(self.run.ranks) if r != attempt.culprit)
            texts = {"state": "died" if gone else "failed", "cause": attempt.outcome}
            texts |= {"culprit_ranks": culprit, "following_ranks": others, "end_kind": "own"}
            texts |= {"died_ranks": culprit if gone else "", "failed_ranks": others}
        return Record(
            self.run.name,
            WHOLE_RUN,
            0,
            self.now,
            Event.HEARTBEAT,
            ended if has_ended else {**running, "idle_seconds": 8.0, "inactive_seconds": 1.0},
            texts,
            attempt=number,
        )

    def _cluster_status(self, number: int) -> dict[str, object]:
        head, count = f"{self.run.nodes[0]}:14000", len(self.run.nodes)
        if count == 1:
            return {"role": "single"}
        if number > 0:
            return {"role": "follower", "head": head, "connected": True, "spooled_bytes": 0}
        return {"role": "head", "port": 14000, "head": head, "nodes": [{"state": "up"}] * count}

    def _machine(self, number: int) -> NodeMeasurements:
        """The GPUs of a node; that of the slow rank gets hot, and its clock is reduced."""
        busy = 0.94 if self.head.copy_run_state().is_active else 0.0
        gpus = []
        for index in range(min(GPUS_PER_NODE, self.run.ranks)):
            rank = GPUS_PER_NODE * number + index
            heat = self._heat() if rank == self.run.slow_rank else 0.0
            values = {
                "gpu_utilisation": busy * self._random.uniform(0.98, 1.02),
                "gpu_memory_used": 2.0**30 * (71 + index / 4),
                "gpu_memory_total": 2.0**30 * 80,
                "gpu_power": 120 + busy * self._random.uniform(540, 560) * (1 - 0.35 * heat),
                "gpu_temperature": 38 + 27 * busy + self._random.uniform(0, 3) + 24 * heat,
                "gpu_ecc_errors": 0.0,
                "gpu_xid": 0.0,
                "gpu_throttled": float(heat > 0.5),
            }
            reasons = ("heat",) if heat > 0.5 else ()
            uuid, name = f"GPU-{self.run.nodes[number]}-{index}", "NVIDIA H100 80GB HBM3"
            gpus.append(Gpu(index, uuid, name, values, reasons))
        steady = self._random.uniform(0.95, 1.05)
        host = {
            "host_cpu": 0.1 + (0.2 + 0.01 * number) * busy * steady,
            "host_memory_used": 2.0**40 * (0.5 + 0.01 * number + 0.001 * self.minute),
            "host_memory_total": 2.0**40 * 2,
            "host_network_received": busy * 3.5e10 * steady,
            "host_network_sent": busy * 3.5e10 * steady,
            "host_disk_read": busy * 3e8 * steady,
            "host_disk_written": 4e6 * steady,
        }
        ranks = {index: (GPUS_PER_NODE * number + index,) for index in range(len(gpus))}
        free = {"checkpoints": 2.0**40 * (9 - 0.03 * self.minute), "state": 2.0**38}
        return NodeMeasurements(
            host,
            free,
            gpus,
            ranks,
            dict.fromkeys(("host", "gpu"), self.now - self._random.uniform(1, 5)),
        )


def openmetrics(rename: Callable[[str], str] = lambda line: line) -> str:
    """The scenario as one OpenMetrics text with timestamps; `rename` changes each line."""
    all_agents, lines = [Agents(run) for run in RUNS], []
    for minute in range(SCRAPES):
        time = START + SCRAPE_SECONDS * minute
        for agents in all_agents:
            agents.advance(minute)
            for node, (exposition, encoder) in agents.targets.items():
                labels = _target_labels(agents.run.cluster, f"{node}:13121")
                page, _ = encoder.encode("", exposition.registry)
                found = [line for line in page.decode().splitlines() if line[0] != "#"]
                # Prometheus adds the labels of the target.
                own_node = f'node="{node}"'
                for line in found:
                    name, _, rest = line.partition("{")
                    if name == "sentinel_gpu_info":
                        rest = re.sub('node="[^"]*"', own_node, rest)
                    lines.append(rename(f"{name}{{{labels},{rest} {time}"))
                lines += [rename(f"{line} {time}") for line in _scrape_lines(labels, len(found))]
        lines += [f"{line} {time}" for line in _other_exporters(minute)]
    return "\n".join([*lines, "# EOF\n"])


def _target_labels(cluster: str, instance: str) -> str:
    of_cluster = f'cluster="{cluster}",' if cluster else ""
    return f'{of_cluster}instance="{instance}",job="sentinel"'


def _scrape_lines(labels: str, samples: int) -> Iterator[str]:
    """What Prometheus itself adds to a scrape."""
    yield f"up{{{labels}}} 1"
    yield f"scrape_samples_scraped{{{labels}}} {samples}"
    yield f"scrape_duration_seconds{{{labels}}} {2e-3 + 6e-6 * samples}"


def _other_exporters(minute: int) -> Iterator[str]:
    """The exporters of DCGM and of the node, also of a node without a run; an agent is down."""
    yield f"up{{{_target_labels('a100-east', 'east-09:13121')}}} 0"
    random = np.random.default_rng(minute)
    for number, node in enumerate((*MAIN_RUN.nodes, "west-99")):
        cluster = f'cluster="{MAIN_RUN.cluster}"'
        host = f'{cluster},instance="{node}:9100",job="node"'
        yield f'node_uname_info{{{host},nodename="{node}"}} 1'
        for name, rate in NODE_COUNTERS.items():
            yield f"node_{name}_total{{{host}}} {60 * rate * minute * (1 + 0.02 * number)}"
        for index in range(GPUS_PER_NODE):
            gpu = f'UUID="GPU-{node}-{index}",gpu="{index}",Hostname="{node}"'
            labels = f'{cluster},instance="{node}:9400",job="dcgm",{gpu}'
            for name, value in DCGM_FIELDS.items():
                level = value * (0.97 + 0.01 * index) * random.uniform(0.997, 1.003)
                yield f"DCGM_FI_{name}{{{labels}}} {level:.6g}"
