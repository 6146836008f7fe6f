"""Tool errors: tools or environments of the rollouts fail, or episodes change their course.

Formula
    Finding  = the level of a signal is past its bound, or has left its usual one, as in
               `sentinel.stats.level_guard`:
               share of failed tool calls, of timeouts, of rollouts with an error, of empty turns:
               by `rise`, or over `most`; a step without tool calls is not evaluated;
               turns and tool calls of an episode: to 1 / `change` of their number
    info     = turns and tool calls, which change as a policy learns

Units
    `rise`, `most`: fraction of the calls, rollouts or turns. `change`: plain factor.

Source
    A sandbox, a search engine or a reward service that fails gives the policy errors to learn from,
    and the reward may even rise: a policy learns to avoid the tools.

Defaults
    `rise` 0.1 is far outside the noise of 64 calls a step that seldom fail. `most` 0.5 holds from
    the start: a policy that learns to call tools fails more often than later, but not mostly.
    `change` 2 is far outside the noise of both numbers. In synthetic logs with the keys of TRL and
    prime-rl, 24 a size, errors that rise from 2 to 25, 50 and 90 % are found in at least 70, 95 and
    100 %; no healthy log has a finding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sentinel.detectors._guarded_signals import GuardedSignals
from sentinel.model.finding import Severity
from sentinel.model.record import Record
from sentinel.stats.level_guard import LevelGuard

SHARES = (
    "tool_error_fraction", "tool_timeout_fraction", "rollout_error_fraction", "empty_turn_fraction",
)  # fmt: skip
COUNTS = ("turns_per_episode", "tool_calls_per_episode")


@dataclass
class ToolErrors(GuardedSignals):
    """Evaluates errors of tools and environments, and turns and tool calls of an episode."""

    rise: float = 0.1
    most: float = 0.5
    change: float = 2.0

    steps_with = frozenset({*SHARES, *COUNTS})
    reads = steps_with
    severities: ClassVar[dict[str, Severity]] = dict.fromkeys(COUNTS, Severity.INFO)
    signal = "tool_error_fraction"
    remedy = (
        "Read the errors of the tools in samples since the onset, and check that sandbox, search "
        "engine and environment answer. Exclude rollouts with an error that the policy did not "
        "cause from the loss. Resume from the checkpoint before the onset if the policy has "
        "learned from them."
    )
    remedies: ClassVar[dict[str, str]] = dict.fromkeys(
        COUNTS,
        "Read samples from before and after the onset. Check whether the policy avoids its tools, "
        "or ends episodes too early, and whether the reward pays for that.",
    )

    def __post_init__(self) -> None:
        self._guards = [(name, LevelGuard(1, self.rise, self.rise, self.most)) for name in SHARES]
        self._guards += [(name, LevelGuard(-1, self.change, least=0.1)) for name in COUNTS]

    def guarded_values(self, record: Record) -> dict[str, float]:
        """The values of the record; without a tool call there is no share of failed ones."""
        values = dict(record.values)
        if values.get("tool_calls_per_episode") == 0.0:
            values.pop("tool_error_fraction", None)
        return values
