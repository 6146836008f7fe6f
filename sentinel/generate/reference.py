"""Reference: every metric there is, with its unit, its meaning, and the keys it is known by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from prometheus_client.metrics_core import Metric

from sentinel.generate.detector_docs import DetectorDoc
from sentinel.generate.sample_exposition import sample_metrics
from sentinel.signals.catalogue import SIGNAL_GROUPS, SIGNALS, CombineRule, Signal
from sentinel.signals.key_map import FRAMEWORK_FACTS, FRAMEWORK_KEYS, UNAMBIGUOUS_KEYS, KeyMapping
from sentinel.signals.kl import KL_USAGES, infer_kl_kind

_NOTE = (
    "<!-- Written by `make generate` from `sentinel/signals` and what the agent shows; edit "
    "those instead. -->"
)

_COMBINE_TEXTS: Mapping[CombineRule, str] = MappingProxyType(
    {
        CombineRule.MEAN: "mean",
        CombineRule.SUM: "sum",
        CombineRule.MAX: "highest",
        CombineRule.MIN: "lowest",
        CombineRule.NORM: "root of the sum of squares",
        CombineRule.SAME: "the same on all",
    }
)
_SERIES_TEXTS = MappingProxyType({"gpu": "one per `gpu`", "disk": "one per disk", "host": "one"})

_KL_PAIR_TEXTS = MappingProxyType(
    {"ref": "the reference", "old": "itself when it sampled", "mismatch": "the sampling engine"}
)

_SIGNALS_TEXT = """\
## Signals

A signal is what a run measures. Its metric has the label `run` and is the value of all ranks
together; where ranks may differ, `<metric>_rank_min`, `<metric>_rank_max`, `<metric>_rank_mean` and
`<metric>_rank_std` (the unit stays last) and `<metric>_worst_rank` (the rank that is not finite,
else the highest) stand beside it, over all ranks, however many there are.

Of single ranks only the lowest `per_rank_limit` have series (64, unless it is set otherwise), and
up to 16 more that stand out: named by an alert that fires, fallen, not finite, late, unlike the
others where all must be alike, or the slowest in a quarter of the last steps. `rank` is their
label; `sentinel_ranks_hidden` counts the others. What makes a rank stand out fades over some 180
steps, so that series do not come and go; those of an attempt that is over go at once.

A key that you or your framework log under one of the other names is the same signal, whatever its
case and with or without a leading `train/`; `eval/<key>` and `eval_<key>` are `eval_<signal>`, and
never the signal itself. What is in no table is kept under its own name, and shown as
`sentinel_logged_value{key="..."}`."""

_KL_TEXT = """\
Trainers call three quantities KL: the distance of the policy to its frozen reference, to itself
when it sampled, and of the engine that samples to the trainer. Each is estimated in one of several
ways, as a mean over tokens or a sum over a sequence, and no threshold for one fits another.
`sentinel_policy_kl_info` says by its labels `pair`, `estimator` and `reduction` which one a run
has, as far as its framework, version, algorithm and keys tell."""

_REWARD_TEXT = """\
The reward of each function is kept as `rewards/<function>/mean` and `rewards/<function>/std`,
whatever the version of TRL that logs it."""

_KEY_MAP_TEXT = """\
### Keys whose meaning the framework decides

The hook tells the framework and its algorithm; in a log the keys that stand together do."""

_KL_KINDS_TEXT = """\
### Which KL a key is

With d the difference of two log-probabilities of a sampled token, k1 is d, k2 is d^2 / 2 and k3 is
exp(-d) - 1 + d. A user who knows better says so by the facts `kl_estimator` and `kl_reduction`."""

_GROUP_TEXTS = MappingProxyType({"KL divergence": _KL_TEXT, "Reward and preference": _REWARD_TEXT})

_OWN_METRICS_HEADING = """\
## What sentinel says of the run and of itself"""


def metrics_page(docs: Iterable[DetectorDoc]) -> str:
    """The page docs/metrics.md."""
    return "\n".join(_page(list(docs)))


def _page(docs: list[DetectorDoc]) -> Iterator[str]:
    yield from ("# Metrics", "", _NOTE, "", _SIGNALS_TEXT, "")
    for title, signals in SIGNAL_GROUPS.items():
        yield from (f"### {title}", "")
        if title in _GROUP_TEXTS:
            yield from (_GROUP_TEXTS[title], "")
        yield from _signal_rows(signals, docs)
    yield from (_KEY_MAP_TEXT, "", *_key_map_rows(), "", _KL_KINDS_TEXT, "", *_kl_kind_rows(), "")
    yield from (
        _OWN_METRICS_HEADING,
        "",
        "| metric | type | labels | meaning |",
        "|---|---|---|---|",
    )
    known = {family for signal in SIGNALS.values() for family in _metric_names(signal)}
    yield from sorted(
        _family_row(family) for family in sample_metrics() if family.name not in known
    )
    yield ""


def _key_map_rows() -> Iterator[str]:
    yield "| framework | algorithm | key | signal | remark |"
    yield "|---|---|---|---|---|"
    for (framework, algorithm), words in {("", ""): UNAMBIGUOUS_KEYS, **FRAMEWORK_KEYS}.items():
        for key, word in words.items():
            yield _table_row(
                (framework, algorithm, f"`{key}`", f"`{word.name}`", _key_remark(word))
            )


def _key_remark(mapping: KeyMapping) -> str:
    if mapping.zero_is_missing:
        return "0 stands for none, and is left out"
    return f"times {mapping.factor:g}" if mapping.factor != 1.0 else ""


def _kl_kind_rows() -> Iterator[str]:
    yield "| key | framework | algorithm | since | compares with | what | may be negative |"
    yield "|---|---|---|---|---|---|---|"
    for use in KL_USAGES:
        if not use.kind.is_known:
            continue
        keys = " ".join(f"`{key}`" for key in use.keys.split())
        since = ".".join(map(str, use.min_version))
        said = (use.framework, since, use.algorithms.partition(" ")[0])
        kind = (
            infer_kl_kind(use.keys.partition(" ")[0], dict(zip(FRAMEWORK_FACTS, said, strict=True)))
            or use.kind
        )
        sign = "yes" if kind.signed else ""
        pair, what = _KL_PAIR_TEXTS[kind.pair], kind.describe()
        yield _table_row((keys, use.framework, use.algorithms, since, pair, what, sign))


def _signal_rows(signals: Iterable[Signal], docs: list[DetectorDoc]) -> Iterator[str]:
    yield "| signal | metric | unit | over ranks | meaning | other names | judged by |"
    yield "|---|---|---|---|---|---|---|"
    for signal in signals:
        judges = (f"[{s.name}](runbooks/{s.name}.md)" for s in docs if s.signal is signal)
        cells = (
            f"`{signal.name}`",
            f"`{signal.metric}`",
            signal.unit,
            _SERIES_TEXTS.get(signal.entity) or _COMBINE_TEXTS[signal.combine_rule],
            signal.help,
            " ".join(f"`{alias}`" for alias in signal.aliases),
            " ".join(judges),
        )
        yield _table_row(cells)
    yield ""


def _family_row(family: Metric) -> str:
    labels = sorted({name for sample in family.samples for name in sample.labels} - {"run"})
    total = "_total" if family.type == "counter" else ""
    info = "_info" if family.type == "info" else ""
    names = " ".join(f"`{label}`" for label in labels)
    return _table_row((f"`{family.name}{total}{info}`", family.type, names, family.documentation))


def _table_row(cells: Iterable[str]) -> str:
    return f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in cells)}|"


def _metric_names(signal: Signal) -> tuple[str, ...]:
    # The step number is a signal, and yet not shown by way of its record.
    return (signal.metric, *signal.rank_metrics, *signal.deviation_metrics)
