"""The signal that a key names by its words, for keys that are not in the catalogue.

A key is split into words at separators and capitals. A word such as `loss` or `reward` names the
quantity; the others must be neutral (train, mean, episode), or be of a kind that the quantity
permits. A word such as `std`, `max` or `coef` makes it another quantity. Several keys of a
run may name one signal: `rank` is lower for the key that names it better.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

_WORD_PATTERN = re.compile(
    r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+(?=\d\d)|[A-Z]?[a-z]+\d?(?!\d)|[A-Z]+\d?(?!\d)"
    r"|[A-Za-z]+|\d+"
)
_UNIT_PATTERN = re.compile(r"\(1e-(\d{1,2})\)$")

_EVALUATION = frozenset(
    {"val", "valid", "validation", "eval", "evaluation", "test", "testing", "dev", "heldout"}
)
_NEUTRAL = frozenset({
    "train", "training", "trn", "mean", "avg", "average", "averaged", "ave", "step", "iter",
    "iteration", "batch", "minibatch", "epoch", "update", "running", "smoothed", "smooth", "moving",
    "rolling", "recent", "current", "cur", "last", "latest", "log", "logs", "logged", "metric",
    "metrics", "scalar", "scalars", "stat", "stats", "info", "per", "global", "local", "monitor",
    "result", "results", "summary", "perf", "performance", "raw", "of", "the", "over", "on",
    "charts", "chart", "interval", "window", "learner", "learners", "default", "module", "history",
    "diagnostics", "diag", "progress", "report", "inner", "is", "during", "in", "for",
})  # fmt: skip
"""Words that do not change which quantity it is."""

_OTHER_QUANTITY = frozenset({
    "std", "stdev", "stddev", "sd", "sem", "var", "variance", "min", "max", "minimum", "maximum",
    "target", "tgt", "coef", "coeff", "coefs", "coeffs", "coefficient", "weight", "weights",
    "scale", "scaler", "scaling", "clip", "clipped", "clipping", "clipfrac", "ratio", "frac",
    "fraction", "threshold", "thresh", "limit", "cap", "lambda", "beta", "penalty", "cost", "count",
    "counts", "num", "number", "time", "times", "sec", "secs", "second", "seconds", "ms",
    "duration", "delta", "diff", "difference", "change", "improvement", "best", "worst", "highest",
    "lowest", "median", "quantile", "percentile", "percent", "pct", "hist", "histogram", "baseline",
    "bonus", "rate", "speed", "memory", "size", "id", "index", "seed", "patience", "bound",
    "factor", "gap", "margin", "margins", "chosen", "rejected", "square", "squared", "first",
    "initial", "final", "previous", "prev", "steps", "abs",
})  # fmt: skip
"""Words that make a key another quantity than its noun."""

_EPISODE = frozenset({
    "rollout", "rollouts", "env", "envs", "environment", "sim", "runner", "runners", "sampler",
    "episode", "episodes", "episodic", "ep", "eps", "game", "games", "agent", "policy", "collect",
    "collector", "worker", "workers", "total", "sum", "cum", "cumulative", "accumulated",
    "undiscounted", "discounted",
    "extrinsic", "task", "true", "trajectory", "traj", "normalized", "normalised", "d4", "rl",
    "sample", "samples", "sampled", "overall", "objective", "generation", "actor",
})  # fmt: skip
_REWARD_NOUNS = {"reward": 0, "rewards": 0, "rew": 0, "return": 1, "returns": 1, "ret": 1,
                 "score": 2, "scores": 2}  # fmt: skip
_SUCCESS, _SUCCESS_RANK = frozenset({"success", "rate"}), 6
"""Words of the share of episodes that reach their goal: the mean of a reward of 0 or 1."""
_TOTAL = frozenset({"total", "overall", "sum", "combined", "all", "full", "joint"})
_POLICY = frozenset({
    "policy", "pg", "pi", "actor", "act", "surrogate", "surr", "gradient", "action", "ppo", "a2c",
    "a",
    "clipped",
})  # fmt: skip
_VALUE = frozenset({
    "value", "vf", "v", "critic", "function", "fn", "qf", "q", "qf1", "qf2", "q1", "q2", "td",
    "c", "critic1", "critic2", "bellman",
})  # fmt: skip
_NETWORK_NUMBERS = frozenset({"1", "2"})
_ACTOR_CRITIC_PARTS = frozenset({"pg", "actor", "surrogate", "critic", "vf", "qf", "q"})
_OBJECTIVES = frozenset({
    "lm", "gpt", "ce", "cross", "xent", "crossentropy", "mlm", "clm", "ntp", "token", "nll",
    "language", "modeling", "modelling", "causal", "softmax", "reduced", "main", "task", "model",
    "sft", "dpo", "rm", "preference", "base", "ctc", "seq2seq", "diffusion", "logits", "bce", "mse",
    "mae", "pretrain", "finetune", "student", "distillation", "distill", "optimized", "negative",
    "likelihood", "ema",
})  # fmt: skip
"""Words of a loss that is the main one of its run."""

_MINOR_LOSSES = frozenset({
    "aux", "auxiliary", "reg", "regularization", "regularisation", "regularizer", "regulariser",
    "wd", "decay", "balance", "balancing", "router", "routing", "moe", "z", "alpha", "temperature",
    "temp", "commit", "commitment", "vq", "sparsity", "entropy", "ent", "kl", "kld", "kullback",
    "leibler", "lr", "norm", "grad", "intrinsic", "icm", "rnd", "curiosity", "bounds",
    "symmetry", "stop",
})  # fmt: skip
"""Words of a loss that need not fall while training goes well: penalties, adversaries, bonuses."""

_DETECTION_WORDS = frozenset({"box", "bbox", "rpn", "roi", "coord", "rcnn", "cls", "obj", "dfl"})
"""Words of a detector's losses, where "reg" is a regression and not a regularisation."""

_HEADED_QUANTITIES = frozenset({
    "value", "values", "advantage", "advantages", "reward", "rewards", "return", "returns",
    "accuracy", "acc", "logprob", "logprobs", "logits",
})  # fmt: skip
"""Words of other quantities that are logged under a heading "loss"."""

_ADVERSARY_SIGNALS = {
    "discriminator_loss": frozenset({"d", "disc", "dis", "discriminator"}),
    "generator_loss": frozenset({"g", "gen", "generator"}),
}
_ADVERSARIAL = frozenset({"adv", "adversarial", "gan", "real", "fake"})
_ADVERSARIES = _ADVERSARIAL.union(*_ADVERSARY_SIGNALS.values())
"""Words of losses that rise and fall against each other."""

_LOSS_NOUNS = frozenset({"loss", "losses"})
_NLL_NOUNS = frozenset({"nll", "xent", "bpb", "bpc", "bpd", "ce", "bce", "crossentropy"})
_PERPLEXITY_NOUNS = frozenset({"ppl", "perplexity"})
_REGRESSION_NOUNS = frozenset({"mse", "mae", "rmse"})
_KL_NOUNS = frozenset({"kl", "kld", "kldiv", "kullback"})
_KL_WORDS = frozenset({
    "divergence", "div", "leibler", "ref", "reference", "policy", "loss", "losses", "actor",
})  # fmt: skip
_STEP_KL_WORDS = frozenset({"approx", "approximate", "approximated", "old", "ppo", "behavior"})
_ENTROPY_WORDS = frozenset({
    "policy", "actor", "action", "loss", "losses", "agent", "pi", "token", "tokens", "rollout",
    "dist", "distribution",
})  # fmt: skip
_NORM_WORDS = frozenset({
    "total", "l2", "model", "unclipped", "preclip", "overall", "all", "actor", "policy", "2", "0",
    "param", "params", "optim", "optimizer", "pre", "before", "clip", "clipping", "network", "net",
})  # fmt: skip
_GRADIENT_WORDS = frozenset({"grad", "grads", "gradient", "gradients"})
_NORM_NOUNS = frozenset({"norm", "norms", "gnorm"})
_RATE_WORDS = frozenset({
    "group", "pg", "pg0", "0", "actor", "policy", "adam", "adamw", "sgd", "optimizer", "optim",
    "schedule", "scheduler", "base", "x", "param", "loss", "losses", "muon", "opt", "groups",
})  # fmt: skip
_ACCURACY_NOUNS = frozenset({
    "accuracy", "acc", "accuracies", "acc1", "top1", "accu", "prec1",
})  # fmt: skip
_ACCURACY_WORDS = frozenset({
    "masked", "lm", "mlm",
    "top", "1", "top1", "overall", "categorical", "binary", "sparse", "multiclass", "balanced",
    "classification", "class", "image", "label", "total", "model", "task",
})  # fmt: skip
_COMPLETIONS = frozenset({
    "completion", "completions", "response", "responses", "resp", "generation", "generations",
    "generated", "answer", "answers", "output", "outputs",
})  # fmt: skip
_LENGTHS = frozenset({"length", "lengths", "len", "lens"})
_SHARE_NOUNS = frozenset({"rate", "ratio", "frac", "fraction", "frequency", "share"})
_SHARES = (
    ("tool_error_fraction", {"tool", "tools"},
     {"error", "errors", "failure", "failures", "failed"},
     {"call", "calls", "use", "env", "environment"}),
    ("dropped_token_fraction", {"token", "tokens"}, {"drop", "dropped"},
     {"moe", "expert", "experts", "router"}),
)  # fmt: skip
"""Signals that are a share: two words of the quantity, of which each has synonyms; other words."""
_STALENESS_WORDS = frozenset({
    "rollout", "rollouts", "async", "policy", "version", "versions", "weight", "weights", "sample",
    "samples", "trajectory", "off",
})  # fmt: skip

_VOCABULARY = frozenset().union(
    _EVALUATION, _NEUTRAL, _EPISODE, _REWARD_NOUNS, _TOTAL, _LOSS_NOUNS, _NLL_NOUNS,
    _PERPLEXITY_NOUNS, _ACCURACY_NOUNS, _OTHER_QUANTITY, {"grad", "gradient", "norm", "policy",
    "value", "entropy", "kl", "critic", "actor"},
)  # fmt: skip
_MIN_PART = 2
"""Shortest word that is found inside a word without separators."""

_BARE_NORM = 5
"""Rank of a norm of unknown kind: in a training log it is the gradient's."""

_PLAIN, _MAIN, _BARE_NOUN, _REGRESSION, _PERPLEXITY, COMPONENT = 1, 2, 3, 5, 6, 8
"""Ranks of a loss; 0 is the total."""

_NEAREST = (
    (r"kl(?![a-z])|kld|kullback", "kl_ref"),
    (r"entropy", "entropy"),
    (r"grad.*norm|gnorm|norm.*grad", "grad_norm"),
    (r"loss|nll|perplexity|(?<![a-z])ppl", "loss"),
    (r"rew(?![a-z])|reward|(?<![a-z])return|score", "reward"),
    (r"(completion|response|generat|answer|output).*len", "completion_length"),
    (r"(?<![a-z])acc(?![a-z])|accura|top_?1", "accuracy"),
)
"""Patterns, which are compiled where they are used, and the signal that each is near to."""


@dataclass(frozen=True, slots=True)
class InferredSignal:
    """A signal that a key names by its words; lower `rank` is a better name.

    `factor` converts the values to the signal's unit.
    """

    name: str
    rank: int
    factor: float = 1.0


@lru_cache(maxsize=4096)
def infer_signal(key: str) -> InferredSignal | None:
    """The signal that the words of a key name; None if they name none for sure.

    >>> [infer_signal(key).name for key in ("AverageEpRet", "lm loss", "lossVal", "gnorm")]
    ['reward', 'loss', 'eval_loss', 'grad_norm']
    >>> [infer_signal(key) for key in ("EpRewStd", "format_reward", "target_kl", "best_val_loss")]
    [None, None, None, None]
    """
    segments = _split_key(key)
    words = [word for part in segments for word in part]
    held_out = not _EVALUATION.isdisjoint(words)
    content = {word for word in words if word not in _EVALUATION and word not in _NEUTRAL}
    unit = _UNIT_PATTERN.search(key)
    factor = 1.0
    if unit:
        factor = 10.0 ** -int(unit[1])
        content -= {"1", "e", "e1", unit[1]}
    found = (
        _rate(content)
        or _gradient_norm(content, words)
        or _divergence(content, words)
        or _entropy(content)
        or _completion_length(content)
        or _accuracy(content)
        or _reward(content, words)
        or _adversary(content)
        or _loss(content, segments)
        or _share(content)
        or _staleness(content)
    )
    if found is None or (held_out and found[0] not in _HELD_OUT_NAMES):
        return None
    name, rank = found
    # Terms of a loss compete, so one of them may rise while the held-out loss falls.
    if held_out and rank == COMPONENT:
        return None
    return InferredSignal(_HELD_OUT_NAMES[name] if held_out else name, rank, factor)


@lru_cache(maxsize=4096)
def is_training_loss(key: str) -> bool:
    """Whether the words of a key mean that it is a loss in training, or a part of one.

    >>> [is_training_loss(key) for key in ("loss_data", "box_loss", "best_loss", "val/box_loss")]
    [True, True, False, False]
    """
    words = {word for part in _split_key(key) for word in part}
    return not words.isdisjoint(_LOSS_NOUNS) and words.isdisjoint(_OTHER_QUANTITY | _EVALUATION)


def nearest_signal(key: str) -> str:
    """The signal that a key may stand for; empty if its text names none, or a spread or a limit.

    >>> [nearest_signal(key) for key in ("ploss_0", "kl_to_prior", "Positive Score", "EpRewStd")]
    ['loss', 'kl_ref', 'reward', '']
    """
    words = {word for part in _split_key(key) for word in part}
    if not words.isdisjoint(_OTHER_QUANTITY | _ADVERSARIES):
        return ""
    name = next((name for pattern, name in _NEAREST if re.search(pattern, key, re.IGNORECASE)), "")
    return name if words.isdisjoint(_EVALUATION) else _HELD_OUT_NAMES.get(name, "")


_HELD_OUT_NAMES = {"loss": "eval_loss", "accuracy": "eval_accuracy", "reward": "eval_reward"}


def split_words(key: str) -> list[str]:
    """The words of a key, in lower case.

    >>> split_words("rollout/ep_rew_mean")
    ['rollout', 'ep', 'rew', 'mean']
    """
    return [word for part in _split_key(key) for word in part]


def _split_key(key: str) -> list[list[str]]:
    """The words of each part of the key; RLlib's part "default_policy" is ignored."""
    parts = [_split_words(part) for part in re.split(r"[/:]", key)]
    return [part for part in parts if part and part != ["default", "policy"]] or [[]]


def _split_words(text: str) -> list[str]:
    words: list[str] = []
    for match in _WORD_PATTERN.finditer(text):
        word = match[0].lower()
        words += [word] if word in _VOCABULARY else _split_compound(word) or [word]
    return words


def _split_compound(word: str) -> list[str] | None:
    """The known words that a word without separators consists of, such as "eprewmean"."""
    for end in range(len(word), _MIN_PART - 1, -1):
        if word[:end] not in _VOCABULARY:
            continue
        if end == len(word):
            return [word]
        rest = _split_compound(word[end:])
        if rest:
            return [word[:end], *rest]
    return None


_Found = tuple[str, int] | None


def _rate(content: set[str]) -> _Found:
    phrase = {"learning", "rate"}
    noun = content & {"lr", "lr0", "lrs"} or (phrase if phrase <= content else set())
    if not noun or not content - noun <= _RATE_WORDS:
        return None
    return "learning_rate", len(content - noun)


def _gradient_norm(content: set[str], words: list[str]) -> _Found:
    if content <= {"norm", "total"} and "norm" in content and "update" not in words:
        return "grad_norm", _BARE_NORM
    is_norm = not content.isdisjoint(_NORM_NOUNS)
    is_gradient = not content.isdisjoint(_GRADIENT_WORDS)
    noun = content & (_NORM_NOUNS | _GRADIENT_WORDS) if is_norm and is_gradient else set()
    noun = noun or content & {"gnorm", "gradnorm"}
    rest = content - noun
    if not noun or not rest <= _NORM_WORDS:
        return None
    # A norm after clipping is not the norm of the gradient.
    if rest & {"clip", "clipping"} and not rest & {"pre", "before"}:
        return None
    return "grad_norm", len(rest)


def _divergence(content: set[str], words: list[str]) -> _Found:
    rest = content - _KL_NOUNS
    if rest == content or not rest <= _KL_WORDS | _STEP_KL_WORDS:
        return None
    # RLlib's learner compares the policy with the one that sampled.
    is_step = rest & _STEP_KL_WORDS or "learner" in words
    return ("kl_old" if is_step else "kl_ref"), len(rest)


def _entropy(content: set[str]) -> _Found:
    rest = content - {"entropy"}
    if rest == content or not rest <= _ENTROPY_WORDS:
        return None
    return "entropy", len(rest)


def _completion_length(content: set[str]) -> _Found:
    is_length = content & _COMPLETIONS and content & _LENGTHS
    return ("completion_length", 1) if is_length and content <= _COMPLETIONS | _LENGTHS else None


def _share(content: set[str]) -> _Found:
    rest = content - _SHARE_NOUNS
    for name, subject, event, others in _SHARES:
        if rest != content and rest & subject and rest & event and rest <= subject | event | others:
            return name, 1
    return None


def _staleness(content: set[str]) -> _Found:
    rest = content - {"staleness"}
    return ("rollout_staleness", 1) if rest != content and rest <= _STALENESS_WORDS else None


def _accuracy(content: set[str]) -> _Found:
    is_first = "1" in content and not content.isdisjoint({"top", "prec"})
    noun = content & _ACCURACY_NOUNS or (content & {"top", "prec", "1"} if is_first else set())
    rest = content - noun
    return ("accuracy", len(rest)) if noun and rest <= _ACCURACY_WORDS else None


def _reward(content: set[str], words: list[str]) -> _Found:
    if content >= _SUCCESS and content - _SUCCESS <= _EPISODE:
        return "reward", _SUCCESS_RANK
    nouns = content & _REWARD_NOUNS.keys()
    # An average over the last episodes, such as "reward_100"; a digit numbers an agent.
    rest = {word for word in content - nouns if not (word.isdigit() and len(word) > 1)}
    if not nouns or not rest <= _EPISODE:
        return None
    is_mean = not {"mean", "avg", "average", "averaged", "ave"}.isdisjoint(words)
    return "reward", 2 * min(_REWARD_NOUNS[noun] for noun in nouns) + (not is_mean)


def _adversary(content: set[str]) -> _Found:
    """The loss of a GAN's network, such as "errD", its total if that is logged; of the second one
    of a pair, such as "loss_D_B", a signal of its own.
    """
    rest = content - _LOSS_NOUNS - {"err", "error"}
    if rest == content:
        return None
    prefix = "second_" if rest & {"b", "2"} else ""
    rest -= {"a", "b", "1", "2"}
    for name, network in _ADVERSARY_SIGNALS.items():
        if rest & network and rest <= network | _ADVERSARIAL | _TOTAL:
            return f"{prefix}{name}", 0 if rest & _TOTAL else len(rest)
    return None


def _loss(content: set[str], segments: list[list[str]]) -> _Found:
    """A loss by its noun, which may be the heading of the key: "Loss/value_function"."""
    rest = content - _LOSS_NOUNS
    if rest == content:
        return _loss_without_noun(content)
    if rest and rest <= _POLICY:
        return "policy_loss", len(rest)
    if rest & _VALUE and rest <= _VALUE | _NETWORK_NUMBERS | _OBJECTIVES | _TOTAL:
        return "value_loss", len(rest)
    if rest & (_OTHER_QUANTITY | _ACTOR_CRITIC_PARTS) or _minor_words(rest):
        return None
    if rest <= _OBJECTIVES | _TOTAL | {"entropy", "rl", "ppo"}:
        return "loss", _objective_rank(rest)
    # Under a heading "losses" may be anything, such as "losses/qf1_values".
    is_other = not _HEADED_QUANTITIES.isdisjoint(segments[-1])
    is_named = not _LOSS_NOUNS.isdisjoint(segments[-1]) or (len(segments) <= 2 and not is_other)
    return ("loss", COMPONENT) if is_named else None


def _objective_rank(words: set[str]) -> int:
    if words & _TOTAL:
        return 0
    return _MAIN if words else _PLAIN


def _loss_without_noun(content: set[str]) -> _Found:
    names = content - _TOTAL
    if names == {"cross", "entropy"} or (names and names <= _NLL_NOUNS):
        return "loss", _BARE_NOUN
    if names and names <= _REGRESSION_NOUNS:
        return "loss", _REGRESSION
    if names and names <= _PERPLEXITY_NOUNS:
        return "loss", _PERPLEXITY
    return None


def _minor_words(rest: set[str]) -> set[str]:
    """The words that make it a loss which need not fall."""
    harmless = {"entropy"} if {"cross", "entropy"} <= rest else set()
    if rest & _DETECTION_WORDS:
        harmless |= {"reg"}
    return rest & (_MINOR_LOSSES | _ADVERSARIES) - harmless
