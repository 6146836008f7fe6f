"""Rules of other tools, applied to the same records, with alarms named after our detectors.

If the peer can be imported, its own code runs; otherwise its formula does, as `origin` states. A
rule that fires continuously is one alarm, and so is one that fires again within 50 points. Choices
favour the peers: signals that fall on failure are watched for falls only, if that can be set, and
the loss of a policy gradient is left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from math import isfinite, sqrt
from typing import Any

from detection_evaluators import Alarm, Evaluation, Evaluator

from sentinel.model.record import Event, Record

SAME_ALARM_POINTS = 50
"""Points within which a rule that fires again raises no further alarm."""

RISE_FAULTS = {
    "loss": "loss_spike", "kl_ref": "kl_blowup", "grad_norm": "grad_explosion",
    "completion_length": "length_explosion", "step_time": "throughput_drop",
}  # fmt: skip
FALL_FAULTS = {
    "reward": "reward_collapse", "entropy": "entropy_collapse", "grad_norm": "grad_vanishing",
    "completion_length": "length_collapse",
}  # fmt: skip
"""The fault of an alarm on a signal, by direction."""

AlarmNames = Iterator[str]
Rule = Callable[[Record], AlarmNames]


@dataclass(frozen=True)
class Peer:
    """A rule: `make_rule` returns one for a new run; `origin` states where the code comes from."""

    title: str
    origin: str
    make_rule: Callable[[], Rule]
    is_available: Callable[[], bool] = lambda: True

    def evaluate(self, records: Iterable[Record]) -> Evaluation:
        """The alarms of the peer."""
        rule, evaluation = self.make_rule(), Evaluation()
        fired: dict[str, int] = {}
        raised: dict[str, int] = {}
        point, step = -1, None
        for record in records:
            if record.event is Event.STEP and record.step != step:
                point, step = point + 1, record.step
            for name in rule(_without_policy_loss(record)):
                is_continuous = point - fired.get(name, -9) <= 1
                if (
                    not is_continuous
                    and point - raised.get(name, -SAME_ALARM_POINTS - 1) > SAME_ALARM_POINTS
                ):
                    evaluation.alarms.append(Alarm(name, record.step, record.step))
                    raised[name] = point
                fired[name] = point
        return evaluation


def _without_policy_loss(record: Record) -> Record:
    """The values without the loss of a policy gradient, which is near 0 and not informative."""
    if "reward" not in record.values or not isfinite(record.values.get("loss", 0.0)):
        return record
    values = {name: value for name, value in record.values.items() if name != "loss"}
    return replace(record, values=values)


def _not_finite(record: Record) -> bool:
    values = (record.values.get(name) for name in ("loss", "grad_norm"))
    return any(value is not None and not isfinite(value) for value in values)


def fixed_thresholds() -> Rule:
    """Common thresholds: NaN, loss 10, KL 0.2, norm 100 or 1e-7, entropy 0.1, half truncated."""
    limits = [
        ("loss", "loss_divergence", lambda x: x > 10),
        ("kl_ref", "kl_blowup", lambda x: x > 0.2),
        ("grad_norm", "grad_explosion", lambda x: x > 100),
        ("grad_norm", "grad_vanishing", lambda x: x < 1e-7),
        ("entropy", "entropy_collapse", lambda x: x < 0.1),
        ("truncated_fraction", "length_explosion", lambda x: x > 0.5),
        ("frac_zero_std", "reward_zero_variance", lambda x: x > 0.9),
        ("sample_repetition", "repetition", lambda x: x > 0.5),
    ]

    def rule(record: Record) -> AlarmNames:
        if _not_finite(record):
            yield "nan_or_inf"
        for signal, name, is_exceeded in limits:
            value = record.values.get(signal)
            if value is not None and isfinite(value) and is_exceeded(value):
                yield name

    return rule


@dataclass
class Rolling:
    """Mean and deviation of the last values of each signal."""

    size: int
    seen: dict[str, deque[float]] = field(default_factory=dict)

    def score(self, signal: str, value: float) -> float:
        """Deviations above the mean of the values before this one; 0 until there are enough."""
        window = self.seen.setdefault(signal, deque(maxlen=self.size))
        score = 0.0
        if len(window) == self.size:
            mean = sum(window) / self.size
            spread = sqrt(sum((x - mean) ** 2 for x in window) / self.size)
            score = (value - mean) / spread if spread > 0 else 0.0
        window.append(value)
        return score


def three_sigma() -> Rule:
    """Three deviations from the mean of the last 50, in the direction of a fault."""
    falling = {name: FALL_FAULTS[name] for name in ("reward", "entropy")}
    return _z_score_rule(Rolling(50), 3.0, RISE_FAULTS, falling)


def wandb_zscore() -> Rule:
    """The default window and threshold of MetricZScoreFilter: 30 and 3."""
    return _z_score_rule(Rolling(30), 3.0, RISE_FAULTS, FALL_FAULTS)


def _z_score_rule(
    rolling: Rolling, limit: float, rise_faults: dict[str, str], fall_faults: dict[str, str]
) -> Rule:
    def rule(record: Record) -> AlarmNames:
        for signal in rise_faults.keys() | fall_faults.keys():
            value = record.values.get(signal)
            if record.event is not Event.STEP or value is None or not isfinite(value):
                continue
            score = rolling.score(signal, value)
            if score > limit and signal in rise_faults:
                yield rise_faults[signal]
            elif score < -limit and signal in fall_faults:
                yield fall_faults[signal]

    return rule


@dataclass
class Best:
    """Number of values since the best of a signal."""

    best: float | None = None
    since: int = 0

    def add(self, value: float) -> int:
        if self.best is None or value > self.best:
            self.best, self.since = value, 0
        else:
            self.since += 1
        return self.since


def patience_rule() -> Rule:
    """No better loss or reward in 100 points; no better evaluation in 3 (Lightning's default)."""
    loss, reward, held_out = Best(), Best(), Best()

    def rule(record: Record) -> AlarmNames:
        values = {name: value for name, value in record.values.items() if isfinite(value)}
        if "eval_loss" in values and held_out.add(-values["eval_loss"]) == 3:
            yield "overfitting"
        if record.event is not Event.STEP:
            return
        if "reward" in values and reward.add(values["reward"]) == 100:
            yield "reward_stalled"
        if "loss" in values and loss.add(-values["loss"]) == 100:
            yield "loss_plateau"

    return rule


def trainpulse() -> Rule:
    """The Monitor of trainpulse with defaults, on the four metrics that it supports."""
    from trainpulse import Monitor

    monitor = Monitor()
    names = {
        "nan_detector": "nan_or_inf", "plateau": "loss_plateau", "step_time": "throughput_drop",
        "learning_rate": "learning_rate_anomaly",
    }  # fmt: skip

    def rule(record: Record) -> AlarmNames:
        for signal in ("loss", "grad_norm", "learning_rate", "step_time"):
            if record.event is not Event.STEP or signal not in record.values:
                continue
            for alert in monitor.log(signal, record.step, record.values[signal]):
                if alert.detector == "gradient":
                    yield "grad_explosion" if alert.metric_value > 1 else "grad_vanishing"
                else:
                    yield names.get(alert.detector, alert.detector)

    return rule


class _OneDevice:
    """What SpikeDetection needs of Fabric, for one process without files."""

    global_rank = 1
    root_device = "cpu"

    @property
    def strategy(self) -> _OneDevice:
        return self

    def barrier(self) -> None:
        pass

    def reduce_boolean_decision(self, decision: bool, **_how: object) -> bool:
        return decision


class _Mean:
    """The result of torchmetrics' `Running(MeanMetric())`, which takes half a millisecond."""

    def __init__(self, size: int) -> None:
        self.last: deque[Any] = deque(maxlen=size)
        self.update = self.last.append
        self.to = id

    def compute(self) -> Any:
        return sum(self.last) / max(1, len(self.last))


def lightning_spikes() -> Rule:
    """Lightning's SpikeDetection with defaults, on the loss; it continues after a spike."""
    import torch
    from lightning.fabric.utilities.spike import SpikeDetection, TrainingSpikeException

    spikes, fabric, counter = SpikeDetection(), _OneDevice(), [0]
    spikes.running_mean = _Mean(10)

    def rule(record: Record) -> AlarmNames:
        if record.event is not Event.STEP or "loss" not in record.values:
            return
        loss = record.values["loss"]
        try:
            spikes.on_train_batch_end(fabric, torch.tensor(loss), None, counter[0])
        except TrainingSpikeException:
            yield "loss_spike" if isfinite(loss) else "nan_or_inf"
        counter[0] += 1

    return rule


def kill_loss_spike() -> Rule:
    """Five consecutive losses that are twice the mean of the last 100, or half of those over 10."""
    window: deque[float] = deque(maxlen=100)
    counts = [0, 0]

    def rule(record: Record) -> AlarmNames:
        if record.event is not Event.STEP or "loss" not in record.values:
            return
        loss, is_full = record.values["loss"], len(window) == window.maxlen
        counts[1] += 1
        if is_full:
            outlier = loss >= 2 * sum(window) / len(window)
            counts[0] = counts[0] + 1 if outlier else 0
            if counts[0] > 4:
                yield "loss_spike"
            elif counts[1] >= 200 and sum(x > 10 for x in window) >= 50:
                yield "loss_divergence"
        window.append(loss)

    return rule


def rlwatch() -> Rule:
    """The detectors of rlwatch with defaults, and its pause of 100 steps between equal alerts."""
    from rlwatch.config import RLWatchConfig
    from rlwatch.detectors import DetectorSuite

    config = RLWatchConfig()
    rules, alerted = DetectorSuite(config), dict[str, int]()
    arguments = {
        "entropy": "entropy", "kl_divergence": "kl_ref", "reward_mean": "reward",
        "reward_std": "reward_std", "advantage_std": "advantage_std", "loss": "loss",
        "grad_norm": "grad_norm",
    }  # fmt: skip
    names = {
        "kl_explosion": "kl_blowup", "loss_nan": "nan_or_inf",
        "gradient_norm_spike": "grad_explosion",
    }  # fmt: skip

    def rule(record: Record) -> AlarmNames:
        if record.event is not Event.STEP:
            return
        values = {name: record.values.get(signal) for name, signal in arguments.items()}
        for alert in rules.check_step(record.step, **values):
            name = names.get(alert.detector, alert.detector)
            if alert.detector == "reward_mean_drift":
                is_fall = alert.metric_values["direction"] == "down"
                name = "reward_collapse" if is_fall else "reward_mean_drift"
            if record.step - alerted.get(name, -1_000_000) >= config.alerts.cooldown_steps:
                alerted[name] = record.step
                yield name

    return rule


def _is_installed(name: str) -> Callable[[], bool]:
    return lambda: find_spec(name) is not None


OWN_CODE = "its own code"
FORMULA = "its formula, reimplemented"
PEERS = {
    "fixed": Peer("fixed thresholds", FORMULA, fixed_thresholds),
    "three_sigma": Peer("rolling 3 sigma, 50 values", FORMULA, three_sigma),
    "patience": Peer("patience, 100 points or 3 evaluations", FORMULA, patience_rule),
    "trainpulse": Peer("trainpulse", OWN_CODE, trainpulse, _is_installed("trainpulse")),
    "wandb": Peer("W&B z-score automation", "evaluated on W&B's servers; " + FORMULA, wandb_zscore),
    "lightning": Peer(
        "Lightning SpikeDetection", OWN_CODE, lightning_spikes, _is_installed("lightning")
    ),
    "rlwatch": Peer("rlwatch", OWN_CODE, rlwatch, _is_installed("rlwatch")),
    "llm_foundry": Peer("llm-foundry KillLossSpike", "needs Composer; " + FORMULA, kill_loss_spike),
}


def evaluators() -> dict[str, Evaluator]:
    """Every available peer."""
    return {name: peer.evaluate for name, peer in PEERS.items() if peer.is_available()}
