"""Logs of a policy in few lines: each is the mean over several steps of some completions.

Single completions are drawn, cut off at the limit and rewarded, so that the signals of a line are
as consistent as in a real log. Logs depend on the seed only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

USUAL = 300.0
"""Mean tokens of a completion before anything happens."""

COMPLETIONS_PER_LINE = 40

SPREAD = 0.35
"""Standard deviation of ln(tokens) of the completions of one prompt."""

PROMPT_SPREAD = 0.1
"""Standard deviation of ln(tokens) from line to line, by their prompts."""


def completion_log(
    seed: int,
    growth: Sequence[float],
    limit: float = 4 * USUAL,
    skill: Sequence[float] | float = 0.8,
) -> dict[str, list[float]]:
    """The series of a log with one line per item of `growth`, a factor of the usual length.

    `skill` is the share of the finished completions that earn 1; others earn 0.
    """
    rng = np.random.default_rng([seed, 83])
    skills = np.broadcast_to(np.asarray(skill), len(growth))
    series: dict[str, list[float]] = {
        name: []
        for name in ("completion_length", "completion_length_max", "truncated_fraction", "reward")
    }
    for factor, share in zip(growth, skills, strict=True):
        level = USUAL * factor * np.exp(PROMPT_SPREAD * rng.standard_normal())
        wanted = level * np.exp(SPREAD * rng.standard_normal(COMPLETIONS_PER_LINE))
        tokens = np.clip(np.round(wanted), 1, limit)
        is_cut = wanted >= limit
        earned = (rng.random(COMPLETIONS_PER_LINE) < share) & ~is_cut
        series["completion_length"].append(float(tokens.mean()))
        series["completion_length_max"].append(float(tokens.max()))
        series["truncated_fraction"].append(float(is_cut.mean()))
        series["reward"].append(float(earned.mean()))
    return series
