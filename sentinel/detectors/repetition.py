"""Repetition: the policy says the same again and again.

Formula
    now      = the median sample_repetition of the last 4 steps with samples, first = of the first 4
    Finding  = now is at least `some`
    warning  = now is at least `rise` above first as well; otherwise info: lists, tables and code
               repeat themselves from the start
    critical = now is at least `most`, and `rise` above first

Units
    `some`, `most`, `rise`: share of the four-word phrases of a text that came before in it.

Source
    Repeated n-grams as the mark of degenerate text: Welleck et al. 2020 (arXiv:1908.04319),
    Holtzman et al. 2020 (arXiv:1904.09751).

Defaults
    Chosen from the ranges of public samples, not from labelled runs: 662 answers of reasoning
    models repeat under 0.26 of their last 128 words in 99 of 100 cases, and a loop of 2 to 50 words
    repeats 0.6 to 0.98. `some` 0.4 is between, `most` 0.8 is well inside the loops, and `rise` 0.25
    lets texts be whose nature it is.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Record

MEDIAN_WINDOW = 4
"""Steps with samples whose median counts: one prompt that asks for a list is none of it."""

RELATED_SIGNALS = ("sample_longest_run", "sample_distinct_2", "sample_truncated", "sample_length")
"""What is told with it."""


@dataclass
class Repetition:
    """Judges `sample_repetition` of the texts that the model made."""

    some: float = 0.4
    most: float = 0.8
    rise: float = 0.25

    needs: ClassVar[frozenset[str]] = frozenset({"sample_repetition"})
    signal: ClassVar[str] = "sample_repetition"
    severity: ClassVar[Severity] = Severity.INFO
    remedy: ClassVar[str] = (
        "Read the samples beside those of before the onset. If the policy loops, stop, go back to "
        "the checkpoint before, and raise the KL coefficient (TRL beta, verl "
        "actor.kl_loss_coef) or halve the learning rate; check that the reward is not one that "
        "length or repeated keywords earn. A sampling penalty hides the loop and cures nothing."
    )

    def __post_init__(self) -> None:
        self._first_shares: list[float] = []
        self._recent: deque[float] = deque()
        self._onset_step: int | None = None

    def update(self, record: Record) -> DetectorOutput:
        """Judge the texts of one step."""
        share = record.values["sample_repetition"]
        if not 0.0 <= share <= 1.0:
            return None
        if len(self._first_shares) < MEDIAN_WINDOW:
            self._first_shares.append(share)
        self._recent.append(share)
        if len(self._recent) > MEDIAN_WINDOW:
            self._recent.popleft()
        if share < self.some:
            self._onset_step = None
        elif self._onset_step is None:
            self._onset_step = record.step
        if len(self._recent) < MEDIAN_WINDOW:
            return None
        now = median(self._recent)
        return Clear() if now < self.some else self._finding(now, record)

    def _finding(self, median_share: float, record: Record) -> Finding:
        first = median(self._first_shares)
        loud = Severity.CRITICAL if median_share >= self.most else Severity.WARNING
        told = {name: record.values[name] for name in RELATED_SIGNALS if name in record.values}
        return Finding(
            summary=f"{median_share:.0%} of the phrases in the samples are repetitions; it began with "
            f"{first:.0%}.",
            evidence={"repetition": median_share, "first": first, **told},
            severity=loud if median_share - first >= self.rise else None,
            onset_step=self._onset_step,
        )
