"""Reference: every metric there is, with its unit, its meaning, and the keys it is known by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from prometheus_client.metrics_core import Metric

from sentinel.generate.detector_docs import DataSheet
from sentinel.generate.sample_exposition import everything
from sentinel.signals.catalogue import GROUPS, SIGNALS, Combine, Signal
from sentinel.signals.key_map import EVERYWHERE, FACTS, WORDS, Word
from sentinel.signals.kl import USES, kl_kind

_NOTE = (
    "<!-- Written by `make generate` from `sentinel/signals` and what the agent shows; edit "
    "those instead. -->"
)

_HOW: Mapping[Combine, str] = MappingProxyType(
    {
        Combine.MEAN: "mean",
        Combine.SUM: "sum",
        Combine.MAX: "highest",
        Combine.MIN: "lowest",
        Combine.NORM: "root of the sum of squares",
        Combine.SAME: "the same on all",
    }
)
_MACHINE = MappingProxyType({"gpu": "one per `gpu`", "disk": "one per disk", "host": "one"})

_PAIRS = MappingProxyType(
    {"ref": "the reference", "old": "itself when it sampled", "mismatch": "the sampling engine"}
)

_SIGNALS = """\
## Signals

A signal is what a run measures. Its metric has the label `run` and is the value of all ranks
together; where ranks may differ, `<metric>_rank_min`, `<metric>_rank_max`, `<metric>_rank_mean` and
`<metric>_rank_std` (the unit stays last) and `<metric>_worst_rank` (the rank that is not finite,
else the highest) stand beside it, over all ranks, however many there are.

Of single ranks only the lowest `per_rank_limit` have series (64, unless it is set otherwise), and
up to 16 more that stand out: named by an alert that fires, fallen, not finite, late, unlike the
others where all must be alike, or the slowest in a quarter of the last steps. `rank` is their
label; `sentinel_ranks_unshown` counts the others. What makes a rank stand out fades over some 180
steps, so that series do not come and go; those of an attempt that is over go at once.

A key that you or your framework log under one of the other names is the same signal, whatever its
case and with or without a leading `train/`; `eval/<key>` and `eval_<key>` are `eval_<signal>`, and
never the signal itself. What is in no table is kept under its own name, and shown as
`sentinel_logged_value{key="..."}`."""

_KL = """\
Trainers call three quantities KL: the distance of the policy to its frozen reference, to itself
when it sampled, and of the engine that samples to the trainer. Each is estimated in one of several
ways, as a mean over tokens or a sum over a sequence, and no threshold for one fits another.
`sentinel_policy_kl_info` says by its labels `pair`, `estimator` and `reduction` which one a run
has, as far as its framework, version, algorithm and keys tell."""

_REWARD = """\
The reward of each function is kept as `rewards/<function>/mean` and `rewards/<function>/std`,
whatever the version of TRL that logs it."""

_DIALECTS = """\
### Keys whose meaning the framework decides

The hook tells the framework and its algorithm; in a log the keys that stand together do."""

_KINDS = """\
### Which KL a key is

With d the difference of two log-probabilities of a sampled token, k1 is d, k2 is d^2 / 2 and k3 is
exp(-d) - 1 + d. A user who knows better says so by the facts `kl_estimator` and `kl_reduction`."""

_REMARKS = MappingProxyType({"KL divergence": _KL, "Reward and preference": _REWARD})

_OWN = """\
## What sentinel says of the run and of itself"""


def reference(sheets: Iterable[DataSheet]) -> str:
    """The page docs/metrics.md."""
    return "\n".join(_page(list(sheets)))


def _page(sheets: list[DataSheet]) -> Iterator[str]:
    yield from ("# Metrics", "", _NOTE, "", _SIGNALS, "")
    for title, signals in GROUPS.items():
        yield from (f"### {title}", "")
        if title in _REMARKS:
            yield from (_REMARKS[title], "")
        yield from _table(signals, sheets)
    yield from (_DIALECTS, "", *_words(), "", _KINDS, "", *_kinds(), "")
    yield from (_OWN, "", "| metric | type | labels | meaning |", "|---|---|---|---|")
    known = {family for signal in SIGNALS.values() for family in _families(signal)}
    yield from sorted(_row_of(family) for family in everything() if family.name not in known)
    yield ""


def _words() -> Iterator[str]:
    yield "| framework | algorithm | key | signal | remark |"
    yield "|---|---|---|---|---|"
    for (framework, algorithm), words in {("", ""): EVERYWHERE, **WORDS}.items():
        for key, word in words.items():
            yield _row((framework, algorithm, f"`{key}`", f"`{word.name}`", _remark(word)))


def _remark(word: Word) -> str:
    if word.zero_is_none:
        return "0 stands for none, and is left out"
    return f"times {word.factor:g}" if word.factor != 1.0 else ""


def _kinds() -> Iterator[str]:
    yield "| key | framework | algorithm | since | compares with | what | may be negative |"
    yield "|---|---|---|---|---|---|---|"
    for use in USES:
        if not use.kind.known:
            continue
        keys = " ".join(f"`{key}`" for key in use.keys.split())
        since = ".".join(map(str, use.since))
        said = (use.framework, since, use.algorithms.partition(" ")[0])
        kind = kl_kind(use.keys.partition(" ")[0], dict(zip(FACTS, said, strict=True))) or use.kind
        sign = "yes" if kind.signed else ""
        pair, what = _PAIRS[kind.pair], kind.in_words()
        yield _row((keys, use.framework, use.algorithms, since, pair, what, sign))


def _table(signals: Iterable[Signal], sheets: list[DataSheet]) -> Iterator[str]:
    yield "| signal | metric | unit | over ranks | meaning | other names | judged by |"
    yield "|---|---|---|---|---|---|---|"
    for signal in signals:
        judges = (f"[{s.name}](runbooks/{s.name}.md)" for s in sheets if s.signal is signal)
        cells = (
            f"`{signal.name}`",
            f"`{signal.metric}`",
            signal.unit,
            _MACHINE.get(signal.each) or _HOW[signal.combine],
            signal.help,
            " ".join(f"`{alias}`" for alias in signal.aliases),
            " ".join(judges),
        )
        yield _row(cells)
    yield ""


def _row_of(family: Metric) -> str:
    labels = sorted({name for sample in family.samples for name in sample.labels} - {"run"})
    total = "_total" if family.type == "counter" else ""
    info = "_info" if family.type == "info" else ""
    names = " ".join(f"`{label}`" for label in labels)
    return _row((f"`{family.name}{total}{info}`", family.type, names, family.documentation))


def _row(cells: Iterable[str]) -> str:
    return f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in cells)}|"


def _families(signal: Signal) -> tuple[str, ...]:
    # The step number is a signal, and yet not shown by way of its record.
    return (signal.metric, *signal.rank_metrics, *signal.deviation_metrics)
