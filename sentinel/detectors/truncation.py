"""Truncation: more and more answers are cut off at the length limit, unfinished and unrewarded.

Formula
    cut      = the median of the last 8 truncated fractions
    Finding  = cut is at least `some`
    warning  = cut is at least `most`, the share of answers that end has fallen to a third of that
               of the first 5, and the reward is known and none the better, 8 times in a row;
               otherwise info

Units
    `some`, `most`: share of 1, of the answers of a step.

Source
    An answer that is cut earns what an unfinished one earns, and teaches that; DAPO
    (arXiv:2503.14476) masks or shapes it.

Defaults
    On public logs there is one warning, in the one run whose answers all ran into the limit.
    Healthy reasoning runs cut up to a third of their answers, which `some` 0.3 shows; over `most`
    0.8 the reward is that of the limit, not of the answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from statistics import median
from typing import ClassVar

from sentinel.model.finding import Calm, Finding, Opinion, Severity
from sentinel.model.record import Record
from sentinel.stats.k_of_n import Majority
from sentinel.stats.reward_gain import Merit

FIRST = 5
"""Values whose median is where the run began."""

NOW = 8
"""Values whose median is where it is."""

THIRD = 1 / 3
"""Of the answers that ended in the beginning: fewer is another policy, more may be chance."""


@dataclass
class Truncation:
    """Judges `truncated_fraction`, with `reward` where it is logged."""

    some: float = 0.3
    most: float = 0.8

    needs: ClassVar[frozenset[str]] = frozenset({"truncated_fraction"})
    signal: ClassVar[str] = "truncated_fraction"
    severity: ClassVar[Severity] = Severity.INFO
    remedy: ClassVar[str] = (
        "Read the end of a few answers. If they were getting somewhere, raise the limit (TRL "
        "max_completion_length, verl data.max_response_length) or leave cut answers out of the "
        "loss (TRL mask_truncated_completions=True); if they ramble, go back to the checkpoint "
        "before the onset and punish overlong answers. Check that the stop token is sampled."
    )

    def __post_init__(self) -> None:
        self._first: list[float] = []
        self._now = Majority(NOW)
        self._merit = Merit()
        self._since: int | None = None
        self._unpaid = 0

    def update(self, record: Record) -> Opinion:
        """Judge the truncated fraction of one step."""
        cut, reward = record.values["truncated_fraction"], record.values.get("reward")
        if not 0.0 <= cut <= 1.0:
            return None
        if reward is not None and isfinite(reward):
            self._merit.add(reward)
        if len(self._first) < FIRST:
            self._first.append(cut)
        many = self._now.add(cut, self.some)
        if not self._now.full:
            return None
        now = median(self._now.values) if many else 0.0
        if now < self.some:
            self._since, self._unpaid = None, 0
            return Calm()
        if self._since is None:
            self._since = record.step
        return self._finding(now)

    def _finding(self, now: float) -> Finding:
        first, merit = median(self._first), self._merit
        unpaid = merit.known and (merit.lost or not merit.gained)
        fewer = now >= self.most and first < now and 1 - now <= THIRD * (1 - first)
        self._unpaid = self._unpaid + 1 if fewer and unpaid else 0
        told = {"truncated": now, "first": first}
        if merit.known:
            told |= {"reward": merit.now, "reward_first": merit.first}
        return Finding(
            summary=f"{now:.0%} of the answers are cut off at the length limit; it began with "
            f"{first:.0%}.",
            evidence=told,
            severity=Severity.WARNING if self._unpaid >= NOW else None,
            onset_step=self._since,
        )
