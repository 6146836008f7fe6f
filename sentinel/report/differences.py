"""What differs between a run and some good ones, ranked by what one's own runs show of it.

Formula: of a difference, with k of n runs that have it and j of m runs that do not departed
    score   = log((k + 1/2) / (n - k + 1/2)) - log((j + 1/2) / (m - j + 1/2)), 0 without such a run
    p       = probability of k or more departed runs among the n, if chance alone chose them

Sources: the log odds ratio with 1/2 added, Haldane, Ann. Hum. Genet. 20, 1956; Fisher's exact test
for p.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import comb, log
from typing import Any

from sentinel.model.json_safe import JsonObject
from sentinel.store.run_settings import Value, flat_settings, is_seed, to_value, value_text

SURE_CHANCE = 0.05
"""Largest p at which one's own runs are said to show a cause."""
MIN_UNCHANGED = 3
"""Runs with a difference of which none departed, from which on it is an unlikely cause."""

_KINDS = ("setting", "data", "version", "code", "hardware")
"""Without evidence, what is likelier to change a training is first."""
_VERSIONS = frozenset(
    {
        "accelerate", "bitsandbytes", "cuda", "container_image", "datasets", "deepspeed",
        "flash-attn", "framework_version", "lightning", "liger-kernel", "megatron-core", "nccl",
        "numpy", "peft", "python", "pytorch-lightning", "tokenizers", "torch", "transformers",
        "triton", "trl", "verl", "vllm",
    }
)  # fmt: skip
_CODE = frozenset({"git_commit", "git_changes", "script"})
_IDENTIFIERS = frozenset({"git_commit", "git_changes", "dataset_fingerprint"})
_HARDWARE = frozenset({"gpu", "nvidia_driver", "world_size", "nnodes"})
_NO_CAUSES = re.compile(
    r"command|local_world_size|master_port|output_dir|default_(local|root)_dir|run_name|experiment(_name)?|project"
    r"|resumed_from|log(ging)?_.*|save_.*|eval_.*|test_freq|save_freq|report_to|load_best_model.*"
    r"|train_(runtime|loss|samples_per_second|steps_per_second)|total_flos|epoch"
    r"|--?(output.dir|run.name|name|project|report.to|log.*|save.*|eval.*)",
    re.IGNORECASE,
)
"""Metadata that name, store or log a run, or are results of it: they do not change a training."""
_ASSIGNMENT = re.compile(r"[+-]{0,2}[\w./-]+=.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting in which a run differs from each good one, with what other runs show of it.

    `departed` of `count` other runs with such a difference departed in the same signal, and
    `departed_without` of `count_without` runs that have the value of a good one. `also` names
    settings with the same values.
    """

    name: str
    kind: str
    good: Value
    bad: Value
    departed: int = 0
    count: int = 0
    departed_without: int = 0
    count_without: int = 0
    also: Sequence[str] = field(default=())

    @property
    def score(self) -> float:
        """The log odds ratio of a departure; 0 if no run has the difference."""
        if not self.count:
            return 0.0
        return _log_odds(self.departed, self.count) - _log_odds(
            self.departed_without, self.count_without
        )

    @property
    def chance(self) -> float:
        """The probability of so many departures by chance, as of Fisher's exact test."""
        total = self.count + self.count_without
        departed = self.departed + self.departed_without
        most = min(self.count, departed)
        ways = sum(
            comb(departed, k) * comb(total - departed, self.count - k)
            for k in range(self.departed, most + 1)
        )
        return ways / comb(total, self.count)

    @property
    def is_unlikely(self) -> bool:
        """Whether enough runs have the difference, and none departed."""
        return self.count >= MIN_UNCHANGED and not self.departed

    def to_dict(self) -> JsonObject:
        """As plain data, with the values as texts."""
        return {
            "name": self.name,
            "kind": self.kind,
            "good": value_text(self.good),
            "bad": value_text(self.bad),
            "departed": self.departed,
            "count": self.count,
            "departed_without": self.departed_without,
            "count_without": self.count_without,
            "chance": self.chance,
            "also": list(self.also),
        }


@dataclass(frozen=True, slots=True)
class OtherRun:
    """Another run of one's own: its settings, and whether it departs as the run in question."""

    settings: Mapping[str, Value]
    has_departed: bool


def comparable_settings(metadata: Mapping[str, Any]) -> dict[str, Value]:
    """What can change a training, by name; the options of the command line are under their own."""
    settings = flat_settings(metadata)
    command = str(metadata.get("command", ""))
    settings |= {name: to_value(value) for name, value in _options(command)}
    # Digits of an identifier may read as a number.
    settings |= {name: str(metadata[name]) for name in _IDENTIFIERS & metadata.keys()}
    return {
        name: value
        for name, value in settings.items()
        if value != "unknown" and not _NO_CAUSES.fullmatch(name) and not is_seed(name)
    }


def rank_differences(
    good: Sequence[Mapping[str, Value]], bad: Mapping[str, Value], others: Sequence[OtherRun]
) -> list[Difference]:
    """The differences of settings as of `comparable_settings`, the likeliest cause first.

    Only what is recorded of every run can differ.
    """
    found: dict[tuple[str, str], Difference] = {}
    for name in sorted(bad, key=lambda name: (name.startswith("-"), name)):
        values = [each.get(name) for each in good]
        if None in values or bad[name] is None or bad[name] in values:
            continue
        difference = _with_evidence(name, values[0], bad[name], others)
        key = (value_text(difference.good), value_text(difference.bad))
        known = found.get(key)
        # An option of the command line sets what a setting records.
        if known is not None and name.startswith("-"):
            found[key] = replace(known, also=(*known.also, name))
        else:
            found[key if known is None else (name, "")] = difference
    return sorted(found.values(), key=lambda each: (-each.score, _KINDS.index(each.kind)))


def _with_evidence(name: str, good: Value, bad: Value, others: Sequence[OtherRun]) -> Difference:
    """The difference, with how many of the other runs have it and departed."""
    alike, without = [], []
    for other in others:
        value = other.settings.get(name)
        if value == good:
            without.append(other.has_departed)
        elif is_such(value, good, bad):
            alike.append(other.has_departed)
    return Difference(
        name, _kind(name), good, bad, sum(alike), len(alike), sum(without), len(without)
    )


def is_such(value: Value, good: Value, bad: Value) -> bool:
    """Whether a run with `value` differs from the good one as the bad one does.

    A number does if it is on the same side and at least half as far, by its factor if all three are
    above 0; anything else has to be equal.

    >>> is_such(3e-4, 1e-5, 1e-3), is_such(1e-6, 1e-5, 1e-3), is_such("a", "b", "c")
    (True, False, False)
    """
    if value == bad:
        return True
    if not all(type(each) is float for each in (value, good, bad)):
        return False
    numbers = [float(each) for each in (value, good, bad) if isinstance(each, float)]
    if min(numbers) > 0:
        numbers = [*map(log, numbers)]
    here, start, end = numbers
    return (here - start) * (1 if end > start else -1) >= abs(end - start) / 2


def _kind(name: str) -> str:
    if name in _VERSIONS:
        return "version"
    if name in _CODE:
        return "code"
    if name in _HARDWARE:
        return "hardware"
    return "data" if "data" in name.lower() else "setting"


def _options(command: str) -> Iterator[tuple[str, str]]:
    """The options of a command line, `--name value` and `name=value`.

    >>> dict(_options("python train.py --lr 1e-4 --bf16 optim.name=adamw"))
    {'--lr': '1e-4', '--bf16': 'true', 'optim.name': 'adamw'}
    """
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    for word, following in pairwise([*words, "--"]):
        if _ASSIGNMENT.fullmatch(word):
            name, _, value = word.partition("=")
            yield name, value
        elif word.startswith("--"):
            is_flag = following.startswith("--") or _ASSIGNMENT.fullmatch(following)
            yield word, "true" if is_flag else following


def _log_odds(count: int, total: int) -> float:
    return log((count + 0.5) / (total - count + 0.5))
