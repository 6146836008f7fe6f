"""What a logged key that stands for no signal is of, by its words: why no detector reads it.

Whatever it is, `nan_or_inf` watches its values for NaN and infinity, unless they are a spread.
"""

from __future__ import annotations

import re
from functools import lru_cache

from sentinel.signals.catalogue import POSITION_KEYS, WEIGHT_KEY
from sentinel.signals.key_words import split_words

WATCHED = "watched for NaN and infinity only"
"""The purpose of a measured series that no detector knows."""

COUNTER = "counter"
_MEASURES = frozenset({
    "per", "mean", "avg", "average", "rate", "ratio", "frac", "fraction", "pct", "percent",
    "reward", "rewards", "return", "returns", "loss", "losses",
})  # fmt: skip
"""Words by which a count is a measured quantity, such as the mean of it."""

_POSITION = POSITION_KEYS | {
    WEIGHT_KEY, "epoch", "global_step", "iter", "iteration", "steps", "training_iteration",
    "current_steps", "num_updates", "total_timesteps", "total timesteps", "time/total_timesteps",
    "time/iterations", "progress", "percentage", "t",
}  # fmt: skip

_PURPOSES: tuple[tuple[str, re.Pattern[str], frozenset[str]], ...] = tuple(
    (purpose, re.compile(pattern, re.IGNORECASE), frozenset(words.split()))
    for purpose, pattern, words in (
        (
            "speed",
            r"per[_ ]?s(ec(ond)?)?\b|/s(ec)?\b|[)(]?iter/s|flop|throughput",
            "fps sps tps tgs wps ups wpb speed ips mfu throughput qps",
        ),
        (
            "timing",
            r"(^|[/_ ])timing|\((m?s|sec)\)|_(ms|secs?|s)$|elapsed|runtime|(^|[/_ ])time([/_ (]|$)",
            "duration latency seconds secs ms eta wall runtime elapsed overhead idle",
        ),
        (
            "hardware",
            r"\((gib|mib|gb|mb)\)",
            (
                "memory mem gpu cpu vram ram disk watt watts reserved allocated utilization "
                "celsius "
                "power bandwidth"
            ),
        ),
        (
            "spread or extreme of a quantity",
            r"(best|worst|maj)@",
            (
                "std stdev stddev sd sem var variance min max minimum maximum median quantile "
                "percentile lowest highest best worst hist histogram p50 p90 p95 p99"
            ),
        ),
        (
            "configuration",
            (
                r"(^|[/_ ])lr([/_ (\d]|$)|learning[_ ]rate|clip[_ ]?range|batch[_ ]?size"
                r"|max[_ ]?steps"
                r"|explor|(^|[/_ ])(target|tgt)[/_ ]"
                r"|(^|[/_ ])(coeff?(icient)?s?|beta|alpha|gamma|tau|lambda|lam|weights?|temperature"
                r"|eps|epsilon|seed|thresh(old)?|target|difficulty|decay|momentum|width|height|interval|limit"
                r"|seqlen|param(eter)?s|scale)$"
            ),
            "coef coeff coefs coeffs bsz",
        ),
        (
            COUNTER,
            r"(^|[/_ .])(n|num|nb|no|number|total|cum(ul(ative)?)?)[_ /.]|[_ /](count|num|seen)$",
            (
                "count counts counter episodes updates games steps iterations samples tokens "
                "examples sequences timesteps size consumed trained seen skipped records labels "
                "epochs batches rows pairs attempts frames transitions"
            ),
        ),
    )
)


@lru_cache(maxsize=4096)
def key_purpose(key: str) -> str:
    """What a key without a signal is of: "counter", "timing", "configuration" and the like.

    >>> [key_purpose(key) for key in ("num_episodes", "timing_s/gen", "train/clip_range")]
    ['counter', 'timing', 'configuration']
    >>> key_purpose("loss_perceptual")
    'watched for NaN and infinity only'
    """
    if key.lower() in _POSITION:
        return "position in the run"
    words = frozenset(split_words(key))
    is_mean = not _MEASURES.isdisjoint(words)
    for purpose, pattern, known in _PURPOSES:
        if purpose == COUNTER and is_mean:
            continue
        if not known.isdisjoint(words) or pattern.search(key):
            return purpose
    return WATCHED
