"""Repetitive completions: completions repeat the same phrases.

Formula
    now      = median sample_repetition of the last 4 steps with samples; first = of the first 4
    Finding  = now is at least `some`
    warning  = now is also at least `rise` above first; otherwise info: lists, tables and code
               repeat phrases from the start
    critical = now is at least `most`, and `rise` above first

Units
    `some`, `most`, `rise`: fraction of the four-word phrases of a text that occurred in it before.

Source
    Repeated n-grams as a measure of degenerate text: Welleck et al. 2020 (arXiv:1908.04319),
    Holtzman et al. 2020 (arXiv:1904.09751).

Defaults
    Chosen from the ranges of public samples, not from labelled runs: 99 % of 662 completions of
    reasoning models repeat less than 0.26 of their last 128 words, and a loop of 2 to 50 words
    repeats 0.6 to 0.98. At `some` 0.35 about a third of the texts loop, at `most` 0.8 nearly all;
    `rise` 0.2 allows texts that are repetitive by nature. On 800 healthy synthetic runs (529,622
    points) there was no finding. Of runs in which 0.4, 0.65 or 0.9 of the phrases become loops
    within 100, 30 or 5 points, all of 100 are found, after a median of 80, 23 and 10 points.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from sentinel.model.finding import CLEAR, DetectorOutput, Finding, Severity
from sentinel.model.quantity_text import distinct_texts
from sentinel.model.record import Record
from sentinel.stats.k_of_n import KOfN

MEDIAN_WINDOW = 4
"""Steps with samples in the evaluated median; one prompt that asks for a list is no fault."""

RELATED_SIGNALS = {
    "sample_longest_run": "longest_run_of_one_word",
    "sample_distinct_2": "distinct_word_pair_share",
    "sample_truncated": "truncated_sample_share",
    "sample_length": "mean_length_characters",
}
"""Signals that are added to the evidence, with their keys there."""


@dataclass
class Repetition:
    """Evaluates `sample_repetition` of the completions."""

    some: float = 0.35
    most: float = 0.8
    rise: float = 0.2

    needs = frozenset({"sample_repetition"})
    signal = "sample_repetition"
    severity = Severity.INFO
    remedy = (
        "Compare samples with those from before the onset, and check that the reward does not "
        "pay for length or keywords. If the policy loops, resume from the checkpoint before the "
        "onset. Raise {KL coefficient}, or halve {learning rate}."
    )

    def __post_init__(self) -> None:
        self._first_shares: list[float] = []
        self._recent = KOfN(MEDIAN_WINDOW)

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate the samples of one step."""
        share = record.values["sample_repetition"]
        if not 0.0 <= share <= 1.0:
            return None
        if len(self._first_shares) < MEDIAN_WINDOW:
            self._first_shares.append(share)
        is_high = self._recent.add(share, self.some, record.step)
        if is_high:
            return self._finding(self._recent.median, record)
        return None if is_high is None else CLEAR

    def _finding(self, level: float, record: Record) -> Finding:
        first = median(self._first_shares)
        severity = Severity.CRITICAL if level >= self.most else Severity.WARNING
        related = {
            key: record.values[name]
            for name, key in RELATED_SIGNALS.items()
            if name in record.values
        }
        now, before = distinct_texts(level, first, digits=2, percent=True)
        return Finding(
            summary=f"{now} of the phrases in the samples are repetitions"
            + (", as at the start." if now == before else f"; at the start it was {before}."),
            evidence={
                "repeated_phrase_share_median_of_4": level,
                "repeated_phrase_share_at_start": first,
                **related,
            },
            severity=severity if level - first >= self.rise else None,
            onset_step=self._recent.onset,
        )
