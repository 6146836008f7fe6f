"""Falling reward component: one component of the reward falls while another one rises.

Formula
    fallen   = over the last 16, 32 or 64 values, the mean of the component is below its best such
               mean by more than `errors` standard errors, and `share` of the range of its values
    Finding  = fallen, the reward has not, by half of `errors`, and another component has gained
    warning  = the name of the component is that of a correct answer

Units
    `errors`: standard errors of a mean. `share`: fraction of the range of the newest 128 values.

Source
    Skalse et al. 2022 (arXiv:2209.13085) on rewards that are hacked: the sum rises while what was
    meant falls. A penalty that grows with the quality of the answers looks the same, so only a
    measure of correctness is a warning. Statistic: `sentinel.stats.mean_drawdown`, as for the
    reward itself.

Defaults
    `errors` 4.5 is that of the detector `reward_collapse`. `share` 0.1: less is of no importance.
    In synthetic logs with the keys of TRL, 24 a size, correct answers that fall from 50 to 35, 22
    and 5 % while the reward for the format rises are always found; no healthy log is a warning,
    nor one whose task gets harder.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass

from sentinel.model.finding import CLEAR, DetectorOutput, Finding, Severity
from sentinel.model.quantity_text import distinct_texts
from sentinel.model.record import STEP, Record
from sentinel.stats.mean_drawdown import RECENT_VALUES, Fall, MeanDrawdown
from sentinel.stats.reward_gain import RewardGain

LEAST_SCALE = 16
"""Values of a mean that is compared: a component may differ from batch to batch."""

EVALUATED_EVERY = 4
"""Values after which the falls are evaluated."""

MAX_VALUE = 1e100
"""Larger values, whose squares overflow, are ignored as NaN is."""

MAX_COMPONENTS = 16
"""Components of a reward that are evaluated."""

_PREFIX, _SUFFIX = "rewards/", "/mean"
_CORRECT = re.compile(r"accura|correct|answer|solve|exact|verif|pass", re.IGNORECASE)


@dataclass
class RewardComponentDrop:
    """Evaluates the components of the reward beside each other."""

    errors: float = 4.5
    share: float = 0.1

    needs = frozenset({"reward"})
    events = frozenset({STEP})
    steps_with = frozenset({_PREFIX})
    signal = "reward"
    severity = Severity.INFO
    remedy = (
        "Read samples from before and after the onset. Lower the weight of the component that "
        "rises, or pay it only for correct answers. Resume from the checkpoint before the onset."
    )

    def __post_init__(self) -> None:
        self._reward = MeanDrawdown()
        self._gains: dict[str, RewardGain] = {}
        self._drawdowns: dict[str, MeanDrawdown] = {}
        self._steps: deque[int] = deque(maxlen=RECENT_VALUES)
        self._output: DetectorOutput = None

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one record with components."""
        reward = record.values["reward"]
        components = {
            key: value
            for key, value in record.values.items()
            if key.startswith(_PREFIX) and key.endswith(_SUFFIX) and abs(value) < MAX_VALUE
        }
        if record.event is not STEP or not abs(reward) < MAX_VALUE or not components:
            return None
        self._reward.add(reward)
        self._steps.append(record.step)
        for key, value in components.items():
            if key not in self._gains:
                if len(self._gains) == MAX_COMPONENTS:
                    continue
                self._gains[key], self._drawdowns[key] = RewardGain(), MeanDrawdown()
            self._gains[key].add(value)
            self._drawdowns[key].add(value)
        if self._reward.count % EVALUATED_EVERY == 0:
            self._output = self._evaluate()
        return self._output

    def _evaluate(self) -> DetectorOutput:
        if len(self._gains) < 2:
            return None
        if self._falls(self._reward, self.errors / 2):
            return CLEAR
        risen = {key for key, gain in self._gains.items() if gain.is_ready and gain.has_gained}
        for key, drawdown in self._drawdowns.items():
            others = risen - {key}
            fall = max(
                self._falls(drawdown, self.errors), key=lambda fall: fall.errors, default=None
            )
            if others and fall is not None:
                return self._finding(key, min(others), fall)
        return CLEAR

    def _falls(self, drawdown: MeanDrawdown, errors: float) -> list[Fall]:
        recent = drawdown.recent
        least = self.share * (max(recent) - min(recent))
        return [
            fall
            for fall in drawdown.falls()
            if fall.scale >= LEAST_SCALE and fall.errors > errors and fall.size > least
        ]

    def _finding(self, key: str, other: str, fall: Fall) -> Finding:
        name = key.removeprefix(_PREFIX).removesuffix(_SUFFIX)
        risen = other.removeprefix(_PREFIX).removesuffix(_SUFFIX)
        before, now = distinct_texts(fall.best, fall.current)
        return Finding(
            summary=f"Component `{name}` of the reward fell from {before} to {now} while "
            f"`{risen}` rose to {self._gains[other].current_level:.3g}.",
            evidence={
                "component": name,
                "component_before": fall.best,
                "component_now": fall.current,
                "component_that_rose": risen,
            },
            severity=Severity.WARNING if _CORRECT.search(name) else None,
            onset_step=self._steps[-min(fall.scale, len(self._steps))],
            signal=key,
        )
